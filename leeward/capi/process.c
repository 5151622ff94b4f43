/* Programs in live sandboxes: run to their end, or started, read, written to, signalled and waited for. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "request.h"
#include "sandbox.h"

/* Copy *given*, of whatever version, into this library's version of the struct, and check it. Returns a leeward_error. */
static int read_program(const leeward_program *given, leeward_program *ret_program)
{
	leeward_program program = {0};
	size_t size = given && given->size ? given->size : sizeof program;
	int failed;

	if (!given)
		return lw_invalid("program", "NULL");
	if (size < sizeof program || size > LW_MAX_OPTIONS)
		return lw_invalid("program", "size is neither 0 nor sizeof(leeward_program)");
	if (lw_options_copy("program", given, size, &program, sizeof program))
		return LEEWARD_INVALID;
	if (!program.argc == !program.shell)
		return lw_invalid("program", program.argc ? "argv and shell are both set" : "nothing to run");
	if (!(program.timeout >= 0 && isfinite(program.timeout) && program.deadline >= 0 && isfinite(program.deadline)))
		return lw_invalid("program", "timeout and deadline must be finite numbers, 0 or more");
	if (program.stdin_length && !program.stdin_data)
		return lw_invalid("stdin_data", "NULL, and a length above 0");
	if (program.rows < 0 || program.columns < 0 || !program.rows != !program.columns)
		return lw_invalid("rows, columns", "not the size of a terminal");
	failed = lw_check_texts("argv", program.argv, program.argc);
	if (!failed)
		failed = lw_check_settings("environment", program.environment, program.environment_count);
	if (!failed && program.shell)
		failed = lw_check_text("shell", program.shell);
	if (!failed && program.cwd)
		failed = lw_check_text("cwd", program.cwd);
	if (!failed && program.title)
		failed = lw_check_text("title", program.title);
	*ret_program = program;
	return failed;
}

static void put_some(struct lw_buffer *buffer, const char *name, const char *text)
{
	if (!text)
		return;
	lw_put_word(buffer, name);
	lw_put_word(buffer, text);
}

/* Write a request for a program. */
static void put_program(leeward_sandbox *sandbox, const char *op, const leeward_program *program, bool starts)
{
	bool limits = program->timeout > 0 || program->output || program->overflow, terminal = starts && program->rows;
	bool open = starts && program->keep_stdin && !terminal, bounded = starts && program->bounded;
	struct lw_buffer *buffer = lw_about(sandbox, op, (size_t)1 + (program->cwd != NULL) + (program->environment_count > 0) +
					    (program->stdin_length > 0) + (program->title != NULL) + limits + open + bounded +
					    terminal);

	if (program->shell)
		put_some(buffer, "shell", program->shell);
	else
		lw_put_texts(buffer, "argv", program->argv, program->argc);
	put_some(buffer, "cwd", program->cwd);
	if (program->environment_count)
		lw_put_settings(buffer, "env", program->environment, program->environment_count);
	if (program->stdin_length) {
		lw_put_word(buffer, "stdin");
		lw_put_binary(buffer, program->stdin_data, program->stdin_length);
	}
	put_some(buffer, "title", program->title);
	if (limits)
		lw_put_limits(buffer, program->timeout, 0, program->output, 0, program->overflow);
	lw_put_flag(buffer, "open", open);
	lw_put_flag(buffer, "bounded", bounded);
	if (terminal) {
		lw_put_word(buffer, "terminal");
		lw_put_array(buffer, 2);
		lw_put_integer(buffer, (uint64_t)program->rows);
		lw_put_integer(buffer, (uint64_t)program->columns);
	}
}

leeward_result *leeward_sandbox_run(leeward_sandbox *sandbox, const leeward_program *given)
{
	leeward_program program = {0};

	if (lw_sandbox_check(sandbox) || read_program(given, &program))
		return NULL;
	if (program.keep_stdin || program.bounded || program.rows) {
		lw_invalid("program", "keep_stdin, bounded and a terminal are for leeward_process_start");
		return NULL;
	}
	put_program(sandbox, "process_run", &program, false);
	return lw_ask_result(sandbox->handle, "process_run",
			     program.deadline > 0 ? lw_now() + program.deadline : INFINITY);
}

int64_t leeward_process_start(leeward_sandbox *sandbox, const leeward_program *given)
{
	leeward_program program = {0};

	if (lw_sandbox_check(sandbox) || read_program(given, &program))
		return LEEWARD_INVALID;
	put_program(sandbox, "process_start", &program, true);
	return lw_ask_number(sandbox, "process_start", "process", 1);
}

/* Seconds that the next request of a wait may take: the time until *until*, at most LW_PIECE_S. */
static double next_wait(double until)
{
	double left = until - lw_now();

	return left <= 0 ? 0 : left < LW_PIECE_S ? left : LW_PIECE_S;
}

static double end_of(double timeout)
{
	return timeout < 0 ? INFINITY : lw_now() + timeout;
}

/* Call *take* with each chunk of an answer. Returns how many were passed; *ret_stop: whether *take* has ended the call. */
static uint32_t hand_out(struct lw_value *chunks, int64_t *after, leeward_take take, void *context, bool *ret_stop)
{
	leeward_chunk chunk;
	uint32_t taken = 0;

	*ret_stop = false;
	while (taken < chunks->entries && !*ret_stop) {
		lw_chunk_next(chunks, &chunk);
		taken++;
		*after = chunk.number;
		*ret_stop = take(context, &chunk) != 0;
	}
	return taken;
}

int leeward_process_read(leeward_sandbox *sandbox, int64_t process, int64_t *after, double timeout, leeward_take take,
			 void *context)
{
	double until = end_of(timeout);

	if (!after || *after < 0 || !take || isnan(timeout))
		return lw_invalid("after, timeout, take", "one of them is invalid");
	while (true) {
		double wait = next_wait(until);
		struct lw_answer answer;
		struct lw_value chunks;
		uint32_t taken;
		bool over, stop;
		int failed;

		if (lw_check_one(sandbox, "process", process))
			return LEEWARD_INVALID;
		LW_BEGIN(sandbox->handle, process_read, LW_ABOUT(sandbox), .process = (uint64_t)process,
			 .after = (uint64_t)*after, .wait = wait);
		failed = lw_ask(sandbox->handle, "process_read", &answer);
		if (failed)
			return failed;
		if (!lw_chunks_check(&answer.reply, *after, &chunks) || !lw_answer_flag(&answer.reply, "over", &over))
			return lw_bad_answer(sandbox->handle, &answer, "an answer's chunks are malformed");
		taken = hand_out(&chunks, after, take, context, &stop);
		free(answer.block);
		if (over && taken == chunks.entries)
			return 0;
		if (taken || lw_now() >= until)
			return 1;
	}
}

/* Send one request to write. Returns how many bytes were written, or a leeward_error. */
static int64_t write_piece(leeward_sandbox *sandbox, int64_t process, const void *data, size_t length, bool end)
{
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, process_write, LW_ABOUT(sandbox), .process = (uint64_t)process,
		 .data = {length ? data : NULL, length}, .end = end);
	return lw_ask_number(sandbox, "process_write", "written", 0);
}

int64_t leeward_process_write(leeward_sandbox *sandbox, int64_t process, const void *data, size_t length)
{
	int64_t taken = 0;

	if ((length && !data) || length > INT64_MAX)
		return lw_invalid("data", "NULL, and a length above 0");
	while (length) {
		size_t piece = length < LW_PIECE ? length : LW_PIECE;
		int64_t written = write_piece(sandbox, process, data, piece, false);

		if (written < 0)
			return written;
		if ((uint64_t)written > piece)
			return lw_calls_lose(sandbox->handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: more was"
								      " written than was sent"));
		taken += written;
		if ((uint64_t)written < piece)
			break;
		data = (const char *)data + piece;
		length -= piece;
	}
	return taken;
}

int leeward_process_close_stdin(leeward_sandbox *sandbox, int64_t process)
{
	int64_t written = write_piece(sandbox, process, NULL, 0, true);

	return written < 0 ? (int)written : LEEWARD_OK;
}

int leeward_process_signal(leeward_sandbox *sandbox, int64_t process, int number)
{
	if (number < 1 || number > 64)
		return lw_invalid("number", "not a signal number");
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, process_signal, LW_ABOUT(sandbox), .process = (uint64_t)process, .signal = (uint64_t)number);
	return lw_ask_flag(sandbox, "process_signal", "sent");
}

int leeward_process_resize(leeward_sandbox *sandbox, int64_t process, int rows, int columns)
{
	if (rows < 1 || columns < 1)
		return lw_invalid("rows, columns", "not the size of a terminal");
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, process_resize, LW_ABOUT(sandbox), .process = (uint64_t)process, .rows = (uint64_t)rows,
		 .columns = (uint64_t)columns);
	return lw_ask_flag(sandbox, "process_resize", "resized");
}

int leeward_process_kill(leeward_sandbox *sandbox, int64_t process)
{
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, process_kill, LW_ABOUT(sandbox), .process = (uint64_t)process);
	return lw_ask_nothing(sandbox, "process_kill");
}

leeward_result *leeward_process_wait(leeward_sandbox *sandbox, int64_t process, double timeout)
{
	static const struct lw_mapping none[LW_MAX_ARENAS];
	double until = end_of(timeout);
	leeward_result *result = NULL;
	struct lw_answer answer;
	const char *wrong = "the answer about a process's end is malformed";
	bool over = false;
	int failed;

	if (isnan(timeout)) {
		lw_invalid("timeout", "not a number");
		return NULL;
	}
	do {
		double wait = next_wait(until);

		if (lw_check_one(sandbox, "process", process))
			return NULL;
		LW_BEGIN(sandbox->handle, process_wait, LW_ABOUT(sandbox), .process = (uint64_t)process, .wait = wait);
		if (lw_ask(sandbox->handle, "process_wait", &answer))
			return NULL;
		if (!lw_answer_flag(&answer.reply, "over", &over)) {
			lw_bad_answer(sandbox->handle, &answer, wrong);
			return NULL;
		}
		if (!over)
			free(answer.block);
	} while (!over && lw_now() < until);
	if (!over) {
		lw_fail(LEEWARD_NOT_YET, "process %lld is still running", (long long)process);
		return NULL;
	}
	answer.reply.silent = true;
	answer.reply.arena_count = 0;
	failed = lw_result_make(&answer.reply, answer.block, none, &result, &wrong);
	if (!failed)
		return result;
	if (failed == -ENOMEM) {
		free(answer.block);
		lw_fail_no_memory();
	} else {
		lw_bad_answer(sandbox->handle, &answer, wrong);
	}
	return NULL;
}

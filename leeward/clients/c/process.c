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

	if (!given)
		return lw_invalid("program", "NULL");
	if (LW_OPTIONS_COPY("program", leeward_program, given, sizeof program, &program))
		return LEEWARD_INVALID;
	if (!program.argc == !program.shell)
		return lw_invalid("program", program.argc ? "argv and shell are both set" : "nothing to run");
	if (!lw_is_time(program.timeout) || !lw_is_time(program.deadline))
		return lw_invalid("program", "timeout and deadline must be finite numbers, 0 or more");
	if (program.stdin_length && !program.stdin_data)
		return lw_invalid("stdin_data", "NULL, and a length above 0");
	if (program.rows < 0 || program.columns < 0 || !program.rows != !program.columns)
		return lw_invalid("rows, columns", "not the size of a terminal");
	*ret_program = program;
	return LEEWARD_OK;
}

/* The fields that process_run and process_start have in common. */
#define PROGRAM(program) \
	.argv = {"argv", (program).argv, (program).argc}, .shell = lw_bytes_of((program).shell), \
	.cwd = lw_bytes_of((program).cwd), .title = lw_bytes_of((program).title), \
	.env = {"environment", (program).environment, (program).environment_count}, \
	.stdin_ = {(program).stdin_length ? (program).stdin_data : NULL, (program).stdin_length}, \
	.limits = {.time = (program).timeout, .output = (program).output, .overflow = (program).overflow}

leeward_result *leeward_sandbox_run(leeward_sandbox *sandbox, const leeward_program *given)
{
	leeward_program program = {0};
	leeward_handle *handle;

	if (lw_sandbox_check(sandbox) || read_program(given, &program))
		return NULL;
	if (program.keep_stdin || program.bounded || program.rows) {
		lw_invalid("program", "keep_stdin, bounded and a terminal are for leeward_process_start");
		return NULL;
	}
	handle = sandbox->handle;
	lw_calls_part(handle);
	if (lw_request_write(&handle->out, ++handle->last_id, LW_REQUEST(process_run, LW_ABOUT(sandbox), PROGRAM(program))))
		return NULL;
	return lw_ask_result(handle, program.deadline);
}

int64_t leeward_process_start(leeward_sandbox *sandbox, const leeward_program *given)
{
	leeward_program program = {0};

	if (lw_sandbox_check(sandbox) || read_program(given, &program))
		return LEEWARD_INVALID;
	return LW_NUMBER(sandbox, process_start, 1, PROGRAM(program), .open = program.keep_stdin && !program.rows,
			 .bounded = program.bounded != 0, .terminal = {(uint64_t)program.rows, (uint64_t)program.columns});
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

/* Call *take* with each chunk of an answer, until it returns something else than 0. Returns how many were passed. */
static uint32_t hand_out(struct lw_value chunks, int64_t *after, leeward_take take, void *context)
{
	uint32_t taken = 0;

	while (taken < chunks.entries) {
		leeward_chunk chunk;

		lw_chunk_next(&chunks, &chunk);
		taken++;
		*after = chunk.number;
		if (take(context, &chunk))
			break;
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
		struct lw_process_read_answer output = {0};
		struct lw_answer answer;
		uint32_t taken;
		int failed;

		if (lw_check_one(sandbox, "process", process))
			return LEEWARD_INVALID;
		failed = lw_ask(sandbox, LW_REQUEST(process_read, LW_ABOUT(sandbox), .process = (uint64_t)process,
						    .after = (uint64_t)*after, .reader = sandbox->reader,
						    .wait = next_wait(until)), &answer);
		if (failed)
			return failed;
		if (!LW_READ(&answer.reply.ok, process_read, &output) || !lw_chunks_check(&output.chunks, *after))
			return lw_bad_answer(sandbox->handle, &answer, "an answer's chunks are malformed");
		taken = hand_out(output.chunks, after, take, context);
		free(answer.block);
		if (output.over && taken == output.chunks.entries)
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
	return LW_NUMBER(sandbox, process_write, 0, .process = (uint64_t)process, .data = {length ? data : NULL, length},
			 .end = end);
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
	return (int)LW_NUMBER(sandbox, process_signal, 0, .process = (uint64_t)process, .signal = (uint64_t)number);
}

int leeward_process_resize(leeward_sandbox *sandbox, int64_t process, int rows, int columns)
{
	if (rows < 1 || columns < 1)
		return lw_invalid("rows, columns", "not the size of a terminal");
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	return (int)LW_NUMBER(sandbox, process_resize, 0, .process = (uint64_t)process, .rows = (uint64_t)rows,
			      .columns = (uint64_t)columns);
}

int leeward_process_kill(leeward_sandbox *sandbox, int64_t process)
{
	if (lw_check_one(sandbox, "process", process))
		return LEEWARD_INVALID;
	return lw_ask_nothing(sandbox, LW_REQUEST(process_kill, LW_ABOUT(sandbox), .process = (uint64_t)process));
}

leeward_result *leeward_process_wait(leeward_sandbox *sandbox, int64_t process, double timeout)
{
	static const struct lw_mapping none[LW_MAX_ARENAS];
	double until = end_of(timeout);
	leeward_result *result = NULL;
	struct lw_process_wait_answer end = {0};
	struct lw_answer answer;
	const char *wrong = "the answer about a process's end is malformed";
	int failed;

	if (isnan(timeout)) {
		lw_invalid("timeout", "not a number");
		return NULL;
	}
	do {
		if (lw_check_one(sandbox, "process", process) ||
		    lw_ask(sandbox, LW_REQUEST(process_wait, LW_ABOUT(sandbox), .process = (uint64_t)process,
					       .wait = next_wait(until)), &answer))
			return NULL;
		if (!LW_READ(&answer.reply.ok, process_wait, &end)) {
			lw_bad_answer(sandbox->handle, &answer, wrong);
			return NULL;
		}
		if (!end.over)
			free(answer.block);
	} while (!end.over && lw_now() < until);
	if (!end.over) {
		lw_fail(LEEWARD_NOT_YET, "process %lld is still running", (long long)process);
		return NULL;
	}
	answer.reply.silent = true;
	answer.reply.arena_count = 0;
	failed = lw_result_make(&answer.reply, answer.block, none, &result, &wrong);
	if (failed)
		lw_answered(sandbox->handle, &answer, failed, wrong);
	return result;
}

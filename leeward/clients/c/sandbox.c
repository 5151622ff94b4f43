/* Live sandboxes: open, attach, list and end them, and run Python in them. sandbox.h has the theory of operation. */
#include "sandbox.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fault.h"
#include "request.h"

/* Bytes of the first version, which a size of 0 stands for. */
#define FIRST_OPTIONS offsetof(leeward_sandbox_options, mounts)

/* --- one request and its answer ------------------------------------------------ */

/* Send *request* as a call *op*, and wait for its answer. Returns a leeward_error.
 *
 * Args:
 *	ret_answer: what was answered; the caller frees its block.
 *	ret_socket: the descriptor that came with it, for LW_DOCK; the caller closes it. */
static int ask(leeward_handle *handle, enum lw_op op, const struct lw_request *request, struct lw_answer *ret_answer,
	       int *ret_socket)
{
	struct lw_call *call;
	int failed;

	lw_calls_part(handle);
	failed = lw_send(handle, op, request, INFINITY);
	if (failed)
		return failed;
	call = lw_await_last(handle, INFINITY);
	if (!call)
		return LEEWARD_NO_ANSWER;
	failed = call->code;
	*ret_answer = (struct lw_answer){.block = call->block, .reply = call->reply};
	*ret_socket = call->socket;
	call->block = NULL;
	call->socket = -1;
	lw_calls_take(handle, call);
	return failed;
}

int lw_sandbox_check(const leeward_sandbox *sandbox)
{
	return sandbox ? LEEWARD_OK : lw_fail(LEEWARD_INVALID, "sandbox: NULL");
}

/* Ask about a sandbox. Returns a leeward_error.
 *
 * Args:
 *	ret_answer: what was answered; the caller frees its block. */
int lw_ask(const leeward_sandbox *sandbox, const struct lw_request *request, struct lw_answer *ret_answer)
{
	int none, failed = lw_sandbox_check(sandbox);

	return failed ? failed : ask(sandbox->handle, LW_ASK, request, ret_answer, &none);
}

/* Ask without a sandbox; else as lw_ask. */
int lw_ask_handle(leeward_handle *handle, const struct lw_request *request, struct lw_answer *ret_answer)
{
	int none;

	return ask(handle, LW_ASK, request, ret_answer, &none);
}

/* Close the connection because an answer breaks docs/wire.md. Frees the answer; returns the error. */
int lw_bad_answer(leeward_handle *handle, struct lw_answer *answer, const char *wrong)
{
	free(answer->block);
	answer->block = NULL;
	return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: %s", wrong));
}

/* Free an answer that was read; what *failed* (0, -EBADMSG or -ENOMEM) becomes a leeward_error. */
int lw_answered(leeward_handle *handle, struct lw_answer *answer, int failed, const char *wrong)
{
	if (failed == -EBADMSG)
		return lw_bad_answer(handle, answer, wrong);
	free(answer->block);
	return failed ? lw_fail_no_memory() : LEEWARD_OK;
}

/* Send a request whose answer has no content. Returns a leeward_error. */
int lw_ask_nothing(const leeward_sandbox *sandbox, const struct lw_request *request)
{
	struct lw_answer answer;
	int failed = lw_ask(sandbox, request, &answer);

	if (!failed)
		free(answer.block);
	return failed;
}

/* As LW_NUMBER, which gives *field*, the one field of the answer. */
int64_t lw_ask_number(const leeward_sandbox *sandbox, const struct lw_request *request, const struct lw_field *field,
		      int64_t least)
{
	struct lw_answer answer;
	uint64_t number = 0;
	bool flag = false, read;
	int failed = lw_ask(sandbox, request, &answer);

	if (failed)
		return failed;
	if (field->kind == LW_FLAG)
		read = lw_answer_read(&answer.reply.ok, field, 1, &flag);
	else
		read = lw_answer_read(&answer.reply.ok, field, 1, &number) && number >= (uint64_t)least;
	failed = lw_answered(sandbox->handle, &answer, read ? 0 : -EBADMSG, "an answer has no valid number or boolean");
	return failed ? failed : flag ? 1 : (int64_t)number;
}

/* Send the request that was written, whose answer is a result, which the caller frees. NULL after an error, and after
 * *deadline* seconds unless that is 0. */
leeward_result *lw_ask_result(leeward_handle *handle, double deadline)
{
	double until = deadline > 0 ? lw_now() + deadline : INFINITY;
	struct lw_call *call = lw_send_written(handle, LW_RUN, until) ? NULL : lw_await_last(handle, until);

	return call ? lw_calls_take(handle, call) : NULL;
}

/* Check the number of a process or kernel of the sandbox. */
int lw_check_one(const leeward_sandbox *sandbox, const char *what, int64_t number)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	return number < 1 ? lw_fail(LEEWARD_INVALID, "%s: below 1", what) : LEEWARD_OK;
}

/* Ask for a dock, and send the descriptors of *folders* to it. The request for the sandbox has to name *ret_dock. Returns a
 * leeward_error. */
static int dock(leeward_handle *handle, const struct lw_folders *folders, uint64_t *ret_dock)
{
	struct lw_sandbox_dock_answer dock = {0};
	struct lw_answer answer;
	int socket, failed = ask(handle, LW_DOCK, LW_BARE(sandbox_dock), &answer, &socket);

	if (failed)
		return failed;
	failed = LW_READ(&answer.reply.ok, sandbox_dock, &dock) && dock.dock ? 0 : -EBADMSG;
	failed = lw_answered(handle, &answer, failed, "a dock has no number");
	if (!failed)
		failed = lw_folders_send(folders, socket);
	close(socket);
	*ret_dock = dock.dock;
	return failed;
}

/* --- sandboxes ----------------------------------------------------------------- */

/* Copy *given*, of whatever version, into this library's version of the struct, and check it. Returns a leeward_error. */
static int read_options(const leeward_sandbox_options *given, leeward_sandbox_options *ret_options)
{
	leeward_sandbox_options options = {0};

	if (LW_OPTIONS_COPY("options", leeward_sandbox_options, given, FIRST_OPTIONS, &options))
		return LEEWARD_INVALID;
	if (!lw_is_time(options.timeout) || !lw_is_time(options.idle) || !lw_is_time(options.lifetime))
		return lw_invalid("options", "timeout, idle and lifetime must be finite numbers, 0 or more");
	if (options.environment_name && lw_check_text("environment_name", options.environment_name))
		return LEEWARD_INVALID;
	if (options.image && lw_check_text("image", options.image))
		return LEEWARD_INVALID;
	if (options.user && lw_check_text("user", options.user))
		return LEEWARD_INVALID;
	*ret_options = options;
	return lw_mounts_check(options.mounts, options.mount_count);
}

static leeward_sandbox *make(leeward_handle *handle, const char *id)
{
	leeward_sandbox *sandbox = calloc(1, sizeof *sandbox);

	if (!sandbox) {
		lw_fail_no_memory();
		return NULL;
	}
	sandbox->handle = handle;
	memcpy(sandbox->id, id, LW_ID);
	if (syscall(SYS_getrandom, &sandbox->reader, sizeof(uint32_t), 0) < 0) /* glibc has a function since 2.25 */
		sandbox->reader = 0;
	return sandbox;
}

/* Open the folders, send them to a dock, and send the request for the sandbox. Returns a leeward_error. */
static int ask_open(leeward_handle *handle, const leeward_sandbox_options *options, struct lw_answer *ret_answer)
{
	struct lw_folders folders = {0};
	struct lw_sandbox_open values = {
		.profile = lw_bytes_of(options->profile), .environment = lw_bytes_of(options->environment_name),
		.egress = lw_bytes_of(options->egress), .image = lw_bytes_of(options->image),
		.user = lw_bytes_of(options->user), .idle = options->idle, .lifetime = options->lifetime,
		.limits = {options->timeout, options->memory, options->output, options->processes, options->overflow,
			   options->descriptors, options->files, 0, 0},
		.env = {"environment", options->environment, options->environment_count},
		.metadata = {"metadata", options->metadata, options->metadata_count},
	};
	const struct lw_request request = {"sandbox_open", lw_fields_sandbox_open, LW_COUNT(lw_fields_sandbox_open), &values};
	uint64_t given;
	int none, failed = lw_request_check(&request, &given);

	if (!failed && options->mount_count) {
		failed = lw_folders_open(&folders, options->mounts, options->mount_count);
		if (!failed)
			failed = dock(handle, &folders, &values.dock);
		values.mounts = &folders;
	}
	if (!failed)
		failed = ask(handle, LW_ASK, &request, ret_answer, &none);
	lw_folders_close(&folders);
	return failed;
}

leeward_sandbox *leeward_sandbox_open(leeward_handle *handle, const leeward_sandbox_options *given)
{
	struct lw_sandbox_open_answer opened = {0};
	leeward_sandbox *sandbox;
	leeward_sandbox_options options = {0};
	struct lw_answer answer;

	if (!handle) {
		lw_invalid("handle", "NULL");
		return NULL;
	}
	if (read_options(given, &options) || ask_open(handle, &options, &answer))
		return NULL;
	if (!LW_READ(&answer.reply.ok, sandbox_open, &opened) || !lw_is_id(opened.sandbox.data, opened.sandbox.length)) {
		lw_bad_answer(handle, &answer, "an opened sandbox has no id");
		return NULL;
	}
	sandbox = make(handle, opened.sandbox.data);
	free(answer.block);
	return sandbox;
}

leeward_sandbox *leeward_sandbox_attach(leeward_handle *handle, const char *id)
{
	leeward_sandbox *sandbox;
	leeward_sandboxes *about;

	if (!handle || !id || !lw_is_id(id, strlen(id))) {
		lw_invalid(handle ? "id" : "handle", handle ? "not the id of a sandbox" : "NULL");
		return NULL;
	}
	sandbox = make(handle, id);
	about = sandbox ? leeward_sandbox_info_of(sandbox) : NULL;
	if (!about) {
		leeward_sandbox_detach(sandbox);
		return NULL;
	}
	leeward_free_sandboxes(about);
	return sandbox;
}

const char *leeward_sandbox_id(const leeward_sandbox *sandbox)
{
	return sandbox ? sandbox->id : NULL;
}

void leeward_sandbox_detach(leeward_sandbox *sandbox)
{
	free(sandbox);
}

int leeward_sandbox_kill(leeward_sandbox *sandbox)
{
	return lw_ask_nothing(sandbox, LW_REQUEST(sandbox_kill, LW_ABOUT(sandbox)));
}

int leeward_sandbox_extend(leeward_sandbox *sandbox, double idle, double lifetime)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	if (!lw_is_time(idle) || !lw_is_time(lifetime))
		return lw_invalid("idle, lifetime", "both must be finite numbers, 0 or more");
	return lw_ask_nothing(sandbox, LW_REQUEST(sandbox_extend, LW_ABOUT(sandbox), .idle = idle, .lifetime = lifetime));
}

static const char MALFORMED[] = "a sandbox's description is malformed";

leeward_sandboxes *leeward_sandbox_info_of(leeward_sandbox *sandbox)
{
	struct lw_rows rows = {0};
	struct lw_answer answer;
	int failed = lw_ask(sandbox, LW_REQUEST(sandbox_info, LW_ABOUT(sandbox)), &answer);

	if (!failed)
		failed = lw_answered(sandbox->handle, &answer, lw_row_add(&rows, &answer.reply.ok, lw_sandbox_make), MALFORMED);
	return lw_list(&rows, sizeof(leeward_sandboxes), failed);
}

/* Add a page of sandboxes to *rows*. *last* is set to where the next page begins, 0 if this was the last one. Returns a
 * leeward_error. */
static int add_page(leeward_handle *handle, struct lw_rows *rows, uint64_t *last)
{
	struct lw_sandbox_list_answer page = {0};
	struct lw_answer answer;
	int none, failed = ask(handle, LW_ASK, LW_REQUEST(sandbox_list, .after = *last), &answer, &none);

	if (failed)
		return failed;
	failed = LW_READ(&answer.reply.ok, sandbox_list, &page) ? lw_rows_add(rows, &page.sandboxes, lw_sandbox_make) : -EBADMSG;
	if (!page.more || !page.sandboxes.entries)
		page.last = 0;
	else if (page.last <= *last)
		failed = -EBADMSG;
	*last = page.last;
	return lw_answered(handle, &answer, failed, MALFORMED);
}

leeward_sandboxes *leeward_sandbox_list(leeward_handle *handle)
{
	struct lw_rows rows = {0};
	uint64_t last = 0;
	int failed;

	if (!handle) {
		lw_invalid("handle", "NULL");
		return NULL;
	}
	do
		failed = add_page(handle, &rows, &last);
	while (!failed && last);
	return lw_list(&rows, sizeof(leeward_sandboxes), failed);
}

/* --- Python ------------------------------------------------------------------- */

leeward_result *leeward_sandbox_execute(leeward_sandbox *sandbox, int64_t kernel, const char *code, size_t length,
					const leeward_options *given)
{
	leeward_options options;
	leeward_handle *handle;

	if (lw_sandbox_check(sandbox) || lw_options_read(given, &options))
		return NULL;
	if (kernel < 0 || options.module || !code) {
		lw_invalid(kernel < 0 ? "kernel" : "code", kernel < 0 ? "below 0" : "NULL, or options->module is set");
		return NULL;
	}
	handle = sandbox->handle;
	lw_calls_part(handle);
	options.label = NULL;
	if (lw_request_execute(&handle->out, ++handle->last_id, sandbox->id, kernel, code, length, &options))
		return NULL;
	return lw_ask_result(handle, options.deadline);
}

int64_t leeward_kernel_open(leeward_sandbox *sandbox)
{
	return LW_NUMBER(sandbox, kernel_open, 1, .held = false);
}

int64_t leeward_sandbox_copy_files(leeward_sandbox *sandbox, const char *source)
{
	if (!source || !lw_is_id(source, strlen(source)))
		return lw_invalid("source", "not the id of a sandbox");
	return LW_NUMBER(sandbox, sandbox_copy, 0, .source = {source, LW_ID});
}

int leeward_kernel_interrupt(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	return (int)LW_NUMBER(sandbox, kernel_interrupt, 0, .kernel = (uint64_t)kernel);
}

int leeward_kernel_reset(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	return lw_ask_nothing(sandbox, LW_REQUEST(kernel_reset, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel));
}

int leeward_kernel_close(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	return lw_ask_nothing(sandbox, LW_REQUEST(kernel_close, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel));
}

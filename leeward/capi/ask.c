#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "fault.h"
#include "request.h"
#include "sandbox.h"
#include "send.h"

/* The number of a new request, which is written to the handle's buffer. */
int64_t lw_next_request(leeward_handle *handle)
{
	lw_calls_part(handle);
	return ++handle->last_id;
}

/* Begin a request with *fields* fields; the caller writes them, and lw_ask sends the request. */
struct lw_buffer *lw_begin(leeward_handle *handle, const char *op, size_t fields)
{
	lw_request_begin(&handle->out, lw_next_request(handle), op, fields);
	return &handle->out;
}

/* Send the request that lw_begin has begun, and wait for its answer. Returns a leeward_error.
 *
 * Args:
 *	ret_answer: what was answered; the caller frees its block. */
int lw_ask(leeward_handle *handle, const char *op, struct lw_answer *ret_answer)
{
	int failed = lw_request_finish(&handle->out, op);
	struct lw_call *call;

	if (!failed)
		failed = lw_send_request(handle, LW_ASK, INFINITY);
	if (failed)
		return failed;
	call = lw_await_last(handle, INFINITY);
	if (!call)
		return LEEWARD_NO_ANSWER;
	failed = call->code;
	*ret_answer = (struct lw_answer){.block = call->block, .reply = call->reply};
	call->block = NULL;
	lw_calls_take(handle, call);
	return failed;
}

/* Ask for a dock. Returns a leeward_error.
 *
 * Args:
 *	ret_number: of the dock.
 *	ret_socket: on which its descriptors are left; the caller closes it. */
int lw_ask_dock(leeward_handle *handle, int64_t *ret_number, int *ret_socket)
{
	struct lw_answer answer;
	struct lw_call *call;
	int failed;

	lw_begin(handle, "sandbox_dock", 0);
	failed = lw_request_finish(&handle->out, "sandbox_dock");
	if (!failed)
		failed = lw_send_request(handle, LW_DOCK, INFINITY);
	if (failed)
		return failed;
	call = lw_await_last(handle, INFINITY);
	if (!call)
		return LEEWARD_NO_ANSWER;
	failed = call->code;
	answer = (struct lw_answer){.block = call->block, .reply = call->reply};
	*ret_socket = call->socket;
	call->block = NULL;
	call->socket = -1;
	lw_calls_take(handle, call);
	if (failed)
		return failed;
	if (!lw_answer_whole(&answer.reply, "dock", 1, ret_number)) {
		close(*ret_socket);
		return lw_bad_answer(handle, &answer, "a dock has no number");
	}
	free(answer.block);
	return LEEWARD_OK;
}

/* As lw_ask, for a request whose answer is a result, which the caller frees. NULL after an error. */
leeward_result *lw_ask_result(leeward_handle *handle, const char *op, double until)
{
	struct lw_call *call;

	if (lw_request_finish(&handle->out, op) || lw_send_request(handle, LW_RUN, until))
		return NULL;
	call = lw_await_last(handle, until);
	return call ? lw_calls_take(handle, call) : NULL;
}

/* Close the connection because an answer breaks docs/wire.md. Frees the answer; returns the error. */
int lw_bad_answer(leeward_handle *handle, struct lw_answer *answer, const char *wrong)
{
	free(answer->block);
	answer->block = NULL;
	return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: %s", wrong));
}

int lw_sandbox_check(const leeward_sandbox *sandbox)
{
	return sandbox ? LEEWARD_OK : lw_fail(LEEWARD_INVALID, "sandbox: NULL");
}

/* Begin a request about a sandbox, with *fields* fields beside its id. */
struct lw_buffer *lw_about(const leeward_sandbox *sandbox, const char *op, size_t fields)
{
	struct lw_buffer *buffer = lw_begin(sandbox->handle, op, 1 + fields);

	lw_put_word(buffer, "sandbox");
	lw_put_text(buffer, sandbox->id, LW_ID);
	return buffer;
}

/* Check the number of a process or kernel of the sandbox. */
int lw_check_one(const leeward_sandbox *sandbox, const char *what, int64_t number)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	return number < 1 ? lw_fail(LEEWARD_INVALID, "%s: below 1", what) : LEEWARD_OK;
}

/* Send a request whose answer has no content. Returns a leeward_error. */
int lw_ask_nothing(const leeward_sandbox *sandbox, const char *op)
{
	struct lw_answer answer;
	int failed = lw_ask(sandbox->handle, op, &answer);

	if (!failed)
		free(answer.block);
	return failed;
}

/* Send a request whose answer is a boolean, *flag*. Returns 1, 0, or a leeward_error. */
int lw_ask_flag(const leeward_sandbox *sandbox, const char *op, const char *flag)
{
	struct lw_answer answer;
	bool yes;
	int failed = lw_ask(sandbox->handle, op, &answer);

	if (failed)
		return failed;
	if (!lw_answer_flag(&answer.reply, flag, &yes))
		return lw_bad_answer(sandbox->handle, &answer, "an answer is neither true nor false");
	free(answer.block);
	return yes;
}

/* Send a request whose answer is a number *name* of at least *least*. Returns the number, or a leeward_error. */
int64_t lw_ask_number(const leeward_sandbox *sandbox, const char *op, const char *name, int64_t least)
{
	struct lw_answer answer;
	int64_t number;
	int failed = lw_ask(sandbox->handle, op, &answer);

	if (failed)
		return failed;
	if (!lw_answer_whole(&answer.reply, name, least, &number))
		return lw_bad_answer(sandbox->handle, &answer, "an answer has no valid number");
	free(answer.block);
	return number;
}

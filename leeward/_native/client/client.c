/* The functions of leeward.h: what they check, and what they give back.
 *
 * calls.h has the theory of operation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "calls.h"
#include "fault.h"
#include "leeward.h"
#include "request.h"
#include "send.h"
#include "status.h"
#include "text.h"

#ifndef LEEWARD_LIBRARY_VERSION
#error "the build says which version this is"
#endif

/* Jobs in flight on one connection, as the daemon bounds them. */
#define MAX_IN_FLIGHT 256
/* Seconds that a daemon has for a ping or a status where the caller doesn't say. */
#define ANSWER_S 5.0

/* Where it is NULL because leeward_connect failed, its reason is what the caller wants to read. */
static int no_handle(void)
{
	static const char NONE[] = "handle: NULL";
	char reason[LW_FAULT_TEXT];

	if (leeward_last_error_code() != LEEWARD_AWAY)
		return strncmp(leeward_last_error(), NONE, strlen(NONE)) ? lw_fail(LEEWARD_INVALID, NONE)
									: lw_fail_as(LEEWARD_INVALID, leeward_last_error());
	memcpy(reason, leeward_last_error(), strlen(leeward_last_error()) + 1);
	return lw_fail(LEEWARD_INVALID, "%s; before that: %s", NONE, reason);
}

static double deadline_of(double seconds)
{
	return seconds > 0 ? lw_now() + seconds : INFINITY;
}

/* Does a request have so many bytes that it goes by the arena? */
static bool is_large(size_t length, const leeward_options *options)
{
	size_t most = LW_LARGE;

	if (options->file_count > LW_MAX_ENTRIES)
		return false; /* and no request: lw_request_execute says so */
	for (size_t i = 0; i <= options->file_count; i++) {
		size_t bytes = i < options->file_count && options->files ? options->files[i].length : options->stdin_length;

		if (bytes >= most)
			return true;
		most -= bytes;
	}
	return length >= most;
}

/* Send a request without fields, and wait for its answer. Returns a leeward_error.
 *
 * *ret_map is a status, in handle->block. */
static int ask(leeward_handle *handle, enum lw_op op, double until, struct lw_value *ret_map)
{
	int failed = lw_send_plain(handle, op, until);
	struct lw_call *call;

	if (failed)
		return failed;
	call = lw_await_last(handle, until);
	if (!call)
		return LEEWARD_NO_ANSWER;
	failed = call->code;
	if (call->block) {
		free(handle->block);
		handle->block = call->block;
		*ret_map = call->map;
		call->block = NULL;
	}
	lw_calls_take(handle, call);
	return failed;
}

/* Ask for an arena, once in a connection's life. Without one large requests go by the socket. */
static int ask_for_arena(leeward_handle *handle, double until)
{
	int failed = ask(handle, LW_ARENA, until, NULL);

	/* Refused, or gone: the request itself tells whether the daemon is there. */
	return failed == LEEWARD_NO_ANSWER || failed == LEEWARD_BAD_REPLY || failed == LEEWARD_NO_MEMORY ? failed : LEEWARD_OK;
}

/* Encode and send a job. Returns a leeward_error. */
static int submit(leeward_handle *handle, const char *code, size_t length, const leeward_options *given,
		  double *ret_until)
{
	leeward_options options;
	int failed = lw_options_read(given, &options);

	if (failed)
		return failed;
	lw_calls_part(handle);
	*ret_until = deadline_of(options.deadline);
	if (lw_calls_waiting_jobs(handle) >= MAX_IN_FLIGHT)
		return lw_fail(LEEWARD_BUSY, "%d jobs of this handle are in flight", MAX_IN_FLIGHT);
	if (is_large(length, &options) && !handle->link.arena.asked) {
		failed = ask_for_arena(handle, *ret_until);
		if (failed)
			return failed;
	}
	failed = lw_request_execute(&handle->out, ++handle->last_id, code, length, &options);
	return failed ? failed : lw_send_request(handle, LW_JOB, *ret_until);
}

const char *leeward_version(void)
{
	return LEEWARD_LIBRARY_VERSION;
}

leeward_handle *leeward_connect(const char *path)
{
	leeward_handle *handle = calloc(1, sizeof *handle);

	if (!handle) {
		lw_fail_no_memory();
		return NULL;
	}
	if (lw_link_open(&handle->link, path) || lw_link_connect(&handle->link)) {
		leeward_disconnect(handle);
		return NULL;
	}
	return handle;
}

void leeward_disconnect(leeward_handle *handle)
{
	if (!handle)
		return;
	while (handle->count)
		lw_calls_forget(handle, &handle->calls[handle->count - 1]);
	lw_link_free(&handle->link);
	free(handle->out.data);
	free(handle->calls);
	free(handle->block);
	free(handle->status);
	free(handle);
}

leeward_result *leeward_execute(leeward_handle *handle, const char *code, size_t length,
				const leeward_options *options)
{
	struct lw_call *call;
	double until;

	if (!handle) {
		no_handle();
		return NULL;
	}
	if (submit(handle, code, length, options, &until))
		return NULL;
	call = lw_await_last(handle, until);
	return call ? lw_calls_take(handle, call) : NULL;
}

int64_t leeward_submit(leeward_handle *handle, const char *code, size_t length, const leeward_options *options)
{
	double until;
	int failed;

	if (!handle)
		return no_handle();
	failed = submit(handle, code, length, options, &until);
	return failed ? failed : handle->last_id;
}

leeward_result *leeward_wait(leeward_handle *handle, int64_t *id, double timeout)
{
	int64_t wanted = id ? *id : 0;
	struct lw_call *call;

	if (!handle) {
		no_handle();
		return NULL;
	}
	if (isnan(timeout)) {
		lw_fail(LEEWARD_INVALID, "timeout: not a number");
		return NULL;
	}
	lw_calls_part(handle);
	call = wanted ? lw_calls_find(handle, wanted) : lw_calls_first_done(handle);
	if (wanted ? !call || call->op != LW_JOB || call->abandoned : !call && !lw_calls_waiting_jobs(handle)) {
		lw_fail(LEEWARD_INVALID, wanted ? "id: no such job is in flight" : "no job is in flight");
		return NULL;
	}
	call = lw_await(handle, wanted, timeout < 0 ? INFINITY : lw_now() + timeout);
	if (!call)
		return NULL;
	if (id)
		*id = call->id;
	return lw_calls_take(handle, call);
}

int leeward_cancel(leeward_handle *handle, int64_t id)
{
	struct lw_call *call;

	if (!handle)
		return no_handle();
	lw_calls_part(handle);
	call = lw_calls_find(handle, id);
	if (!call || call->op != LW_JOB || call->abandoned)
		return lw_fail(LEEWARD_INVALID, "id: no such job is in flight");
	/* Where it was quicker leeward_wait has it. */
	return call->done ? LEEWARD_OK : lw_send_cancel(handle, id);
}

int leeward_fd(leeward_handle *handle)
{
	if (!handle)
		return no_handle();
	lw_calls_part(handle);
	if (handle->link.fd < 0)
		return lw_fail(LEEWARD_AWAY, "there is no connection now; the next job makes one");
	return handle->link.fd;
}

/* As ask, for a caller that gives *timeout* seconds, with 0 ANSWER_S. */
static int ask_within(leeward_handle *handle, enum lw_op op, double timeout, struct lw_value *ret_map)
{
	if (!handle)
		return no_handle();
	if (!(timeout >= 0))
		return lw_fail(LEEWARD_INVALID, "timeout: no time");
	lw_calls_part(handle);
	return ask(handle, op, lw_now() + (timeout > 0 ? timeout : ANSWER_S), ret_map);
}

int leeward_ping(leeward_handle *handle, double timeout)
{
	return ask_within(handle, LW_PING, timeout, NULL);
}

/* The status as it came; it lives as long as leeward_status's text. For the command line. */
int lw_status(leeward_handle *handle, double timeout, struct lw_value *ret_map)
{
	return ask_within(handle, LW_STATUS, timeout, ret_map);
}

const char *leeward_status(leeward_handle *handle, double timeout)
{
	struct lw_buffer text = {.limit = SIZE_MAX / 2};
	struct lw_value map;
	int failed;

	if (ask_within(handle, LW_STATUS, timeout, &map))
		return NULL;
	failed = lw_json_map(&text, &map);
	lw_put(&text, "", 1);
	if (failed || text.no_memory) {
		free(text.data);
		if (failed)
			lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: a status that holds binary");
		else
			lw_fail_no_memory();
		return NULL;
	}
	free(handle->status);
	handle->status = (char *)text.data;
	return handle->status;
}

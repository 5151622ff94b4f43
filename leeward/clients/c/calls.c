#include "calls.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"

struct lw_call *lw_calls_find(leeward_handle *handle, int64_t id)
{
	for (size_t i = 0; i < handle->count; i++)
		if (handle->calls[i].id == id)
			return &handle->calls[i];
	return NULL;
}

/* The job that was answered first, of those whose result wasn't taken yet; NULL if there is none. */
struct lw_call *lw_calls_first_done(leeward_handle *handle)
{
	struct lw_call *first = NULL;

	for (size_t i = 0; i < handle->count; i++) {
		struct lw_call *call = &handle->calls[i];

		if (call->op == LW_JOB && call->done && (!first || call->rank < first->rank))
			first = call;
	}
	return first;
}

size_t lw_calls_waiting_jobs(const leeward_handle *handle)
{
	size_t jobs = 0;

	for (size_t i = 0; i < handle->count; i++)
		jobs += handle->calls[i].op == LW_JOB && !handle->calls[i].done;
	return jobs;
}

void lw_calls_forget(leeward_handle *handle, struct lw_call *call)
{
	size_t place = (size_t)(call - handle->calls);

	if (!call->done)
		lw_arena_free_slot(&handle->connection, call->slot);
	free(call->text);
	free(call->block);
	if (call->socket >= 0)
		close(call->socket);
	leeward_free_result(call->result);
	handle->count--;
	memmove(call, call + 1, (handle->count - place) * sizeof *call);
}

/* Room for one more call, made before its request is sent. */
int lw_calls_reserve(leeward_handle *handle)
{
	size_t capacity = handle->capacity ? 2 * handle->capacity : 8;
	struct lw_call *grown;

	if (handle->count < handle->capacity)
		return LEEWARD_OK;
	/* Not reallocarray, which is newer than the C libraries that the wheels are for. Twice what
	 * is allocated is far below what a size_t holds. */
	grown = realloc(handle->calls, capacity * sizeof *grown);
	if (!grown)
		return lw_fail_no_memory();
	handle->calls = grown;
	handle->capacity = capacity;
	return LEEWARD_OK;
}

/* Add a call for the request that was sent last; lw_calls_reserve has made the room. */
void lw_calls_add(leeward_handle *handle, enum lw_op op, int slot, bool abandoned)
{
	handle->calls[handle->count++] = (struct lw_call){
		.id = handle->last_id, .op = op, .slot = slot, .socket = -1, .abandoned = abandoned};
}

void lw_calls_complete(leeward_handle *handle, struct lw_call *call, int code)
{
	call->done = true;
	lw_arena_free_slot(&handle->connection, call->slot);
	call->code = code;
	call->may_have_run = code && lw_last_fault()->may_have_run;
	call->retry_after = lw_last_fault()->retry_after;
	call->rank = ++handle->answered;
}

/* Remove a finished call from the list. Returns its result, or NULL and sets this thread's last error. */
leeward_result *lw_calls_take(leeward_handle *handle, struct lw_call *call)
{
	leeward_result *result = call->result;

	if (call->code) {
		lw_fail_as(call->code, call->text ? call->text : "this process has no memory left for the error's text");
		lw_last_fault()->retry_after = call->retry_after;
		lw_last_fault()->may_have_run = call->may_have_run;
	}
	call->result = NULL;
	lw_calls_forget(handle, call);
	return result;
}

/* Close the connection, and end all waiting calls with this thread's last error. Returns *code*.
 *
 * Their requests were sent completely, so the jobs may have run. A daemon's refusal that names no request is about the last
 * frame, or about the whole connection; jobs of earlier frames may have begun. */
int lw_calls_lose(leeward_handle *handle, int code)
{
	bool ran = code > LEEWARD_REFUSED || lw_last_fault()->may_have_run;
	size_t waiting = 0;

	lw_connection_close(&handle->connection);
	for (size_t i = 0; i < handle->count; i++)
		waiting += !handle->calls[i].done;
	ran = ran || waiting > 1;
	for (size_t i = handle->count; i-- > 0;) {
		struct lw_call *call = &handle->calls[i];

		if (call->done)
			continue;
		if (call->abandoned) {
			lw_calls_forget(handle, call);
			continue;
		}
		call->text = strdup(leeward_last_error());
		lw_calls_complete(handle, call, code);
		call->may_have_run = ran;
	}
	return code;
}

/* After a fork the connection and the jobs in flight are the parent's. */
void lw_calls_part(leeward_handle *handle)
{
	if (handle->connection.fd < 0 || handle->connection.pid == getpid())
		return;
	lw_connection_close(&handle->connection);
	for (size_t i = handle->count; i-- > 0;)
		if (!handle->calls[i].done)
			lw_calls_forget(handle, &handle->calls[i]);
}

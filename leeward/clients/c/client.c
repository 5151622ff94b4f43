/* The functions of leeward.h that run jobs; they check arguments and return results.
 *
 * calls.h has the theory of operation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "fault.h"
#include "leeward.h"
#include "operations.h"

#ifndef LEEWARD_LIBRARY_VERSION
#error "the build says which version this is"
#endif

/* Jobs in flight on one connection, as the daemon bounds them. */
#define MAX_IN_FLIGHT 256
/* Seconds to wait for the answer to a ping or a status request, if the caller names no timeout. */
#define ANSWER_S 5.0
/* How long a job is sent again for, the pauses between, all in seconds, and how many connections may end under
 * it; as leeward/client/retry.py has it, a test compares. */
#define RETRY_S 10.0
#define RETRY_FIRST_S 0.02
#define RETRY_MOST_S 0.5
#define RETRY_LOST 3
/* How long a job is sent again after the daemon was busy, in seconds. */
#define RETRY_BUSY_S 30.0

/* Fail because the handle is NULL. If leeward_connect has failed before, the text has its reason. */
static int no_handle(void)
{
	static const char NONE[] = "handle: NULL";
	struct lw_fault before = *lw_last_fault();

	if (before.code == LEEWARD_AWAY)
		return lw_fail(LEEWARD_INVALID, "%s; before that: %s", NONE, before.text);
	return lw_fail_as(LEEWARD_INVALID, strncmp(before.text, NONE, strlen(NONE)) ? NONE : before.text);
}

static double deadline_of(double seconds)
{
	return seconds > 0 ? lw_now() + seconds : INFINITY;
}

/* Whether a request is so large that it is sent through the arena. */
static bool is_large(size_t length, const leeward_options *options)
{
	size_t most = LW_LARGE;

	if (options->file_count > LW_MAX_ENTRIES)
		return false; /* lw_request_execute refuses it */
	for (size_t i = 0; i <= options->file_count; i++) {
		size_t bytes = i < options->file_count && options->files ? options->files[i].length : options->stdin_length;

		if (bytes >= most)
			return true;
		most -= bytes;
	}
	return length >= most;
}

/* Send a request, and wait for its answer; that to a status request is stored in handle->status. Returns a leeward_error. */
static int ask(leeward_handle *handle, enum lw_op op, const struct lw_request *request, double until)
{
	int failed = lw_send(handle, op, request, until);
	struct lw_call *call;

	if (failed)
		return failed;
	call = lw_await_last(handle, until);
	if (!call)
		return LEEWARD_NO_ANSWER;
	failed = call->code;
	if (!failed && op == LW_STATUS) {
		free(handle->status);
		handle->status = call->text;
		call->text = NULL;
	}
	lw_calls_take(handle, call);
	return failed;
}

/* Ask for an arena, once per connection. Without an arena large requests go over the socket. */
static int ask_for_arena(leeward_handle *handle, double until)
{
	int failed = ask(handle, LW_ARENA, LW_BARE(arena), until);

	/* Any other failure is ignored: the request itself will show whether the daemon is there. */
	return failed == LEEWARD_NO_ANSWER || failed == LEEWARD_BAD_REPLY || failed == LEEWARD_NO_MEMORY ? failed : LEEWARD_OK;
}

/* Encode and send a job. Returns a leeward_error. */
static int submit(leeward_handle *handle, const char *code, size_t length, const leeward_options *options,
		  double until)
{
	int failed;

	lw_calls_part(handle);
	if (lw_calls_waiting_jobs(handle) >= MAX_IN_FLIGHT)
		return lw_fail(LEEWARD_BUSY, "%d jobs of this handle are in flight", MAX_IN_FLIGHT);
	if (is_large(length, options) && !handle->connection.arena.asked) {
		failed = ask_for_arena(handle, until);
		if (failed) {
			lw_last_fault()->may_have_run = false;
			return failed;
		}
	}
	failed = lw_request_execute(&handle->out, ++handle->last_id, NULL, 0, code, length, options);
	return failed ? failed : lw_send_written(handle, LW_JOB, until);
}

/* The attempts of one leeward_execute, with the rules of leeward/client/retry.py. */
struct attempts {
	double until, pause;
	double busy_until; /* 0 before the daemon was busy */
	int lost;
	bool may_have_run;
};

/* Seconds before the next attempt, randomized so that many clients don't try again at the same moment. */
static double next_pause(struct attempts *attempts)
{
	double pause = attempts->pause;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	attempts->pause = lw_earlier(2 * pause, RETRY_MOST_S);
	return pause * (0.5 + (double)(now.tv_nsec >> 10 & 255) / 512);
}

static void sleep_for(double seconds)
{
	struct timespec pause = {.tv_sec = (time_t)seconds};

	pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
	nanosleep(&pause, NULL);
}

/* After LEEWARD_BUSY: wait, and return true, if the job is to be sent again. */
static bool again_when_free(const leeward_options *options, struct attempts *attempts)
{
	double after = lw_last_fault()->retry_after, pause = next_pause(attempts), until = attempts->until;

	if (options->no_retry || options->no_retry_busy)
		return false;
	if (!(until < INFINITY)) {
		if (!(attempts->busy_until > 0))
			attempts->busy_until = lw_now() + RETRY_BUSY_S;
		until = attempts->busy_until;
	}
	/* Clients try again at different moments, and never before the time that the daemon names. */
	if (after > 0)
		pause += after + after * pause / (2 * RETRY_MOST_S);
	if (lw_now() + pause >= until)
		return false;
	sleep_for(pause);
	return true;
}

/* Make a new connection. If that fails, the last error stays as it was. */
static bool reconnect(leeward_handle *handle)
{
	struct lw_fault first = *lw_last_fault(); /* it says more than "no daemon" */

	if (!lw_connection_connect(&handle->connection))
		return true;
	*lw_last_fault() = first;
	return false;
}

/* After a failure: if the job is to be sent again, wait, make a connection for it, and return true. */
static bool again(leeward_handle *handle, const leeward_options *options, struct attempts *attempts)
{
	int code = lw_last_fault()->code;
	double seconds = 0;

	attempts->may_have_run = attempts->may_have_run || lw_last_fault()->may_have_run;
	lw_last_fault()->may_have_run = attempts->may_have_run;
	if (code == LEEWARD_BUSY && handle->connection.fd >= 0)
		return again_when_free(options, attempts);
	if (code == LEEWARD_BUSY) /* refused with its connection */
		return !attempts->may_have_run && again_when_free(options, attempts) && reconnect(handle);
	if (options->no_retry || lw_calls_waiting_jobs(handle))
		return false;
	if (code == LEEWARD_SHUTTING_DOWN)
		seconds = next_pause(attempts);
	else if (code != LEEWARD_AWAY || (attempts->may_have_run && !options->idempotent) || ++attempts->lost > RETRY_LOST)
		return false;
	if (!(attempts->until < INFINITY))
		attempts->until = lw_now() + RETRY_S;
	/* Leave as much time for the answer as for the pause: an attempt that begins at the deadline can't succeed. */
	if (lw_now() + 2 * seconds >= attempts->until)
		return false;
	lw_calls_lose(handle, code); /* a new connection may reach the daemon's successor */
	sleep_for(seconds);
	return reconnect(handle);
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
	if (lw_connection_open(&handle->connection, path) || lw_connection_connect(&handle->connection)) {
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
	lw_connection_free(&handle->connection);
	free(handle->out.data);
	free(handle->calls);
	free(handle->status);
	free(handle);
}

leeward_result *leeward_execute(leeward_handle *handle, const char *code, size_t length,
				const leeward_options *given)
{
	struct attempts attempts = {.pause = RETRY_FIRST_S};
	leeward_result *result = NULL;
	leeward_options options;
	struct lw_call *call;
	double until;

	if (!handle) {
		no_handle();
		return NULL;
	}
	if (lw_options_read(given, &options))
		return NULL;
	attempts.until = until = deadline_of(options.deadline);
	lw_calls_part(handle);
	if (lw_connection_connect(&handle->connection))
		return NULL;
	do {
		call = submit(handle, code, length, &options, until) ? NULL : lw_await_last(handle, until);
		if (call)
			result = lw_calls_take(handle, call);
	} while (!result && again(handle, &options, &attempts));
	return result;
}

int64_t leeward_submit(leeward_handle *handle, const char *code, size_t length, const leeward_options *given)
{
	leeward_options options;
	int failed;

	if (!handle)
		return no_handle();
	failed = lw_options_read(given, &options);
	if (!failed)
		failed = submit(handle, code, length, &options, deadline_of(options.deadline));
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

static int end_job(leeward_handle *handle, int64_t id, enum lw_end how)
{
	struct lw_call *call;

	if (!handle)
		return no_handle();
	lw_calls_part(handle);
	call = lw_calls_find(handle, id);
	if (!call || call->op != LW_JOB || call->abandoned)
		return lw_fail(LEEWARD_INVALID, "id: no such job is in flight");
	/* A job that has ended before is left for leeward_wait. */
	return call->done ? LEEWARD_OK : lw_send_cancel(handle, id, how);
}

int leeward_cancel(leeward_handle *handle, int64_t id)
{
	return end_job(handle, id, LW_TAKE_BACK);
}

int leeward_interrupt(leeward_handle *handle, int64_t id)
{
	return end_job(handle, id, LW_INTERRUPT);
}

int leeward_kill(leeward_handle *handle, int64_t id)
{
	return end_job(handle, id, LW_KILL);
}

int leeward_fd(leeward_handle *handle)
{
	if (!handle)
		return no_handle();
	lw_calls_part(handle);
	if (handle->connection.fd < 0)
		return lw_fail(LEEWARD_AWAY, "there is no connection now; the next job makes one");
	return handle->connection.fd;
}

/* As ask, with a timeout in seconds; 0: ANSWER_S. */
static int ask_within(leeward_handle *handle, enum lw_op op, const struct lw_request *request, double timeout)
{
	if (!handle)
		return no_handle();
	if (!(timeout >= 0))
		return lw_fail(LEEWARD_INVALID, "timeout: must be a finite number, 0 or more");
	lw_calls_part(handle);
	return ask(handle, op, request, lw_now() + (timeout > 0 ? timeout : ANSWER_S));
}

int leeward_ping(leeward_handle *handle, double timeout)
{
	return ask_within(handle, LW_PING, LW_BARE(ping), timeout);
}

const char *leeward_status(leeward_handle *handle, double timeout)
{
	return ask_within(handle, LW_STATUS, LW_REQUEST(status, .form = lw_bytes_of("json")), timeout) ? NULL : handle->status;
}

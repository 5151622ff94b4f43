/* The functions of leeward.h.
 *
 * Theory of operation: a handle has one connection and a list of calls. A call is sent
 * whole before the next one begins, and is answered by its id, in any order; answers that
 * nobody waits for yet are kept in the list. While a request is being sent answers are
 * read: a daemon whose replies nobody takes stops reading requests. The first large request
 * asks for an arena before it is sent; its slot is free again with its answer. A connection that
 * breaks answers every call with its error, and the next call makes a new one. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "leeward.h"
#include "link.h"
#include "reply.h"
#include "request.h"
#include "status.h"
#include "text.h"

#ifndef LEEWARD_LIBRARY_VERSION
#error "the build says which version this is"
#endif

/* Jobs in flight on one connection, as the daemon bounds them. */
#define MAX_IN_FLIGHT 256
/* Bytes of a request's buffer that a handle keeps. */
#define KEPT_BUFFER ((size_t)64 << 10)
/* Seconds that a daemon has for a ping or a status where the caller doesn't say. */
#define ANSWER_S 5.0
/* A timed wait may end this much early, in seconds. */
#define GRAIN_S 0.05
/* Seconds that what is there is taken for, once the time is over: bytes that never cease would go on for ever. */
#define LOOK_S 0.1

enum op { JOB, PING, STATUS, CANCEL, ARENA };

struct call {
	int64_t id;
	enum op op;
	bool done;
	bool abandoned; /* its answer is dropped when it comes */
	uint64_t rank;	/* the how manieth answer of this handle it was */
	int slot;	/* of the arena, where its request lies; -1 */
	int code;	/* when done: LEEWARD_OK or what went wrong */
	char *text;	/* an error's message */
	uint8_t *block; /* a status: the frame, and the map in it */
	struct lw_value map;
	leeward_result *result;
};

struct leeward_handle {
	struct lw_link link;
	struct lw_buffer out;
	struct call *calls;
	size_t count, capacity;
	int64_t last_id;
	uint64_t answered;
	uint8_t *block; /* what the last status lies in */
	char *status;	/* the same as JSON */
};

static const struct {
	const char *kind;
	int code;
} REFUSALS[] = {
	{"busy", LEEWARD_BUSY}, {"queue_timeout", LEEWARD_QUEUE_TIMEOUT}, {"shutting_down", LEEWARD_SHUTTING_DOWN},
	{"version", LEEWARD_VERSION_MISMATCH}, {"bad_request", LEEWARD_REJECTED}, {"cancelled", LEEWARD_CANCELLED},
	{"forbidden", LEEWARD_FORBIDDEN},
};

static int refusal_code(const struct lw_value *kind)
{
	for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++)
		if (lw_is(kind, REFUSALS[i].kind))
			return REFUSALS[i].code;
	return LEEWARD_REFUSED;
}

/* fmin(3) would be the only thing that needs libm. */
static double earlier(double one, double other)
{
	return one < other ? one : other;
}

/* --- calls -------------------------------------------------------------------- */

static struct call *find_call(leeward_handle *handle, int64_t id)
{
	for (size_t i = 0; i < handle->count; i++)
		if (handle->calls[i].id == id)
			return &handle->calls[i];
	return NULL;
}

/* The job that was answered first and not taken yet; NULL if there is none. */
static struct call *first_done(leeward_handle *handle)
{
	struct call *first = NULL;

	for (size_t i = 0; i < handle->count; i++) {
		struct call *call = &handle->calls[i];

		if (call->op == JOB && call->done && (!first || call->rank < first->rank))
			first = call;
	}
	return first;
}

static size_t waiting_jobs(const leeward_handle *handle)
{
	size_t jobs = 0;

	for (size_t i = 0; i < handle->count; i++)
		jobs += handle->calls[i].op == JOB && !handle->calls[i].done;
	return jobs;
}

static void forget(leeward_handle *handle, struct call *call)
{
	size_t place = (size_t)(call - handle->calls);

	if (!call->done)
		lw_link_free_slot(&handle->link, call->slot);
	free(call->text);
	free(call->block);
	leeward_free_result(call->result);
	handle->count--;
	memmove(call, call + 1, (handle->count - place) * sizeof *call);
}

/* Room for one more call, made before its request is sent. */
static int reserve(leeward_handle *handle)
{
	size_t capacity = handle->capacity ? 2 * handle->capacity : 8;
	struct call *grown;

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

static void settle(leeward_handle *handle, struct call *call, int code)
{
	call->done = true;
	lw_link_free_slot(&handle->link, call->slot);
	call->code = code;
	call->rank = ++handle->answered;
}

/* The connection is over: close it, and answer all that waits with this thread's last error. */
static int lose(leeward_handle *handle, int code)
{
	lw_link_close(&handle->link);
	for (size_t i = handle->count; i-- > 0;) {
		struct call *call = &handle->calls[i];

		if (call->done)
			continue;
		if (call->abandoned) {
			forget(handle, call);
			continue;
		}
		call->text = strdup(leeward_last_error());
		settle(handle, call, code);
	}
	return code;
}

/* After a fork the connection and the jobs in flight are the parent's. */
static void part_from_parent(leeward_handle *handle)
{
	if (handle->link.fd < 0 || handle->link.owner == getpid())
		return;
	lw_link_close(&handle->link);
	for (size_t i = handle->count; i-- > 0;)
		if (!handle->calls[i].done)
			forget(handle, &handle->calls[i]);
}

/* --- answers ------------------------------------------------------------------ */

static int protocol_error(leeward_handle *handle, const char *wrong)
{
	return lose(handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: %s", wrong));
}

/* The daemon's message as the last error: one line that does nothing to a terminal, and never none. */
static int refused(const struct lw_reply *reply)
{
	size_t length = reply->message.length < LW_FAULT_TEXT ? reply->message.length : LW_FAULT_TEXT;
	struct lw_buffer line = {.limit = SIZE_MAX / 2};
	int code = refusal_code(&reply->kind);

	lw_escape(&line, reply->message.data, length);
	for (size_t i = 0; !line.no_memory && i < line.length; i++)
		if (line.data[i] == '\n' || line.data[i] == '\t')
			line.data[i] = ' ';
	if (line.no_memory)
		lw_fail(code, "this process has no memory left for the reason");
	else if (line.length)
		lw_fail(code, "%.*s", (int)line.length, (const char *)line.data);
	else
		lw_fail(code, "the daemon refused without a reason");
	free(line.data);
	return code;
}

static int answer_job(leeward_handle *handle, struct call *call, const struct lw_reply *reply, uint8_t **block)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	const char *wrong;
	int failed = lw_link_map(&handle->link, reply, mappings);

	if (failed)
		return lose(handle, failed);
	failed = lw_result_make(reply, *block, mappings, &call->result, &wrong);
	if (!failed) {
		*block = NULL; /* the result's now */
		settle(handle, call, LEEWARD_OK);
		return LEEWARD_OK;
	}
	lw_unmap(mappings);
	return failed == -ENOMEM ? lose(handle, lw_fail_no_memory()) : protocol_error(handle, wrong);
}

/* One frame. Takes the block; an error means that the connection was lost. */
static int answer(leeward_handle *handle, uint8_t **block, size_t length)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	struct lw_reply reply;
	const char *wrong;
	struct call *call;
	int failed = LEEWARD_OK;

	if (lw_reply_read(*block + LW_HEADER, length, &reply, &wrong))
		return protocol_error(handle, wrong);
	if (!reply.id)
		return reply.refused ? lose(handle, refused(&reply)) : protocol_error(handle, "an answer to nobody");
	call = find_call(handle, reply.id);
	if (!call || call->done)
		return protocol_error(handle, "an answer to a request that isn't waiting");
	if (call->op == JOB && !reply.refused && !call->abandoned)
		return answer_job(handle, call, &reply, block);
	if (call->op == ARENA && !reply.refused) {
		wrong = lw_link_arena(&handle->link, &reply);
		if (wrong)
			return protocol_error(handle, wrong);
	} else if (reply.arena_count) {
		failed = lw_link_map(&handle->link, &reply, mappings);
		lw_unmap(mappings);
		if (failed)
			return lose(handle, failed);
	}
	if (call->abandoned) {
		forget(handle, call);
		return LEEWARD_OK;
	}
	if (reply.refused) {
		failed = refused(&reply);
		call->text = strdup(leeward_last_error());
	} else if (call->op == STATUS) {
		call->block = *block;
		call->map = reply.ok;
		*block = NULL; /* the call's now */
	}
	settle(handle, call, failed);
	return LEEWARD_OK;
}

/* Take what the daemon has sent.
 *
 * Args:
 *	wait: for LW_PATIENCE_S, if there is nothing.
 *
 * Returns 1 if there was something, 0 if not, or the error that ended the connection. */
static int absorb(leeward_handle *handle, bool wait)
{
	ssize_t got = lw_link_receive(&handle->link, wait);
	int taken;

	if (got == -EAGAIN || got == -EINTR)
		return 0;
	if (got == -EOVERFLOW)
		return lose(handle, lw_fail(LEEWARD_BAD_REPLY, "a result's descriptor was lost: this process has"
							       " too many open files"));
	if (got == -ENOMEM)
		return lose(handle, lw_fail_no_memory());
	if (got <= 0)
		return lose(handle, lw_link_away(&handle->link, "it went away before it answered"));
	do {
		uint8_t *block = NULL;
		size_t length;
		int failed = LEEWARD_OK;

		taken = lw_link_take(&handle->link, &block, &length);
		if (taken == -ENOMEM)
			return lose(handle, lw_fail_no_memory());
		if (taken < 0)
			return protocol_error(handle, "a frame is larger than a reply may be");
		if (taken)
			failed = answer(handle, &block, length);
		free(block);
		if (failed)
			return failed;
	} while (taken);
	if (handle->link.descriptor_count > LW_MAX_DESCRIPTORS)
		return protocol_error(handle, "more descriptors than were announced");
	return 1;
}

/* --- requests ----------------------------------------------------------------- */

static int no_answer(const leeward_handle *handle, const char *format)
{
	char shown[1024];

	lw_ascii(shown, sizeof shown, handle->link.path);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	return lw_fail(LEEWARD_NO_ANSWER, format, shown);
#pragma GCC diagnostic pop
}

/* Send the frame in *out*.
 *
 * Returns LEEWARD_OK; 1 if the connection was gone before one byte of it was taken, so that
 * it can be sent again; or the error, with the connection lost. */
static int transmit(leeward_handle *handle, const struct lw_buffer *out, double until)
{
	double quiet_since = 0;
	size_t sent = 0;

	while (sent < out->length) {
		ssize_t step = lw_link_send(&handle->link, out->data + sent, out->length - sent);
		double now;
		int got;

		if (step > 0) {
			sent += (size_t)step;
			quiet_since = 0;
			continue;
		}
		if (step != -EAGAIN) {
			double start = lw_now();

			/* What the daemon said before it closed says more than that it did. */
			do
				got = absorb(handle, false);
			while (got > 0 && lw_now() < start + LOOK_S);
			if (got < 0 && got != LEEWARD_AWAY)
				return got;
			if (!sent)
				return 1;
			return lose(handle, lw_link_away(&handle->link, "it closed the connection in the middle of a request"));
		}
		now = lw_now();
		if (quiet_since <= 0)
			quiet_since = now;
		if (now >= until)
			return lose(handle, no_answer(handle, "no answer from %s before the deadline"));
		if (now - quiet_since >= LW_PATIENCE_S)
			return lose(handle, no_answer(handle, "the daemon on %s has taken nothing for 10 s"));
		lw_link_wait(&handle->link, POLLIN | POLLOUT, earlier(until - now, quiet_since + LW_PATIENCE_S - now));
		got = absorb(handle, false);
		if (got < 0)
			return sent || got != LEEWARD_AWAY ? got : 1;
	}
	return LEEWARD_OK;
}

/* Send the request in handle->out, whose id is the handle's last one; as transmit.
 *
 * A large one goes by the arena, if there is one, and then *ret_slot* says where it lies. */
static int transmit_request(leeward_handle *handle, double until, int *ret_slot)
{
	struct lw_buffer reference = {.data = NULL};
	size_t length = handle->out.length - LW_HEADER;
	int slot = -1, failed;

	if (length >= LW_LARGE)
		slot = lw_link_put(&handle->link, handle->out.data + LW_HEADER, length);
	if (slot < 0)
		return transmit(handle, &handle->out, until);
	failed = lw_request_slot(&reference, handle->last_id, slot, length);
	if (!failed)
		failed = transmit(handle, &reference, until);
	free(reference.data);
	*ret_slot = slot;
	return failed;
}

/* Send the request in handle->out, whose id is the handle's last one, and expect its answer. */
static int send_request(leeward_handle *handle, enum op op, double until)
{
	bool reused = handle->link.fd >= 0;
	int failed = reserve(handle), slot = -1;

	if (!failed)
		failed = lw_link_connect(&handle->link);
	if (!failed)
		failed = transmit_request(handle, until, &slot);
	if (failed > 0 && reused) {
		/* The daemon was started again since the last call, or found us idle for too long. */
		lose(handle, lw_link_away(&handle->link, "it closed the connection"));
		slot = -1; /* it went with the connection */
		failed = lw_link_connect(&handle->link);
		if (!failed)
			failed = transmit(handle, &handle->out, until);
	}
	if (failed > 0)
		failed = lose(handle, lw_link_away(&handle->link, "it closed the connection"));
	if (handle->out.capacity > KEPT_BUFFER) {
		free(handle->out.data);
		handle->out = (struct lw_buffer){.data = NULL};
	}
	if (!failed)
		handle->calls[handle->count++] = (struct call){.id = handle->last_id, .op = op, .slot = slot};
	return failed;
}

/* Send a small request without waiting for anything. */
static int nudge(leeward_handle *handle, enum op op, int failed)
{
	if (!failed)
		failed = reserve(handle);
	if (failed)
		return lose(handle, failed);
	if (lw_link_send(&handle->link, handle->out.data, handle->out.length) != (ssize_t)handle->out.length)
		return lose(handle, no_answer(handle, "the daemon on %s gives no sign of life"));
	handle->calls[handle->count++] = (struct call){.id = handle->last_id, .op = op, .slot = -1, .abandoned = true};
	return LEEWARD_OK;
}

/* Wait for the answer to *id*, or with 0 to any job.
 *
 * Returns the call; NULL at *until*, with LEEWARD_NOT_YET. */
static struct call *wait_for(leeward_handle *handle, int64_t id, double until)
{
	double heard = lw_now();
	bool asked = false, over = false;

	while (true) {
		struct call *call = id ? find_call(handle, id) : first_done(handle);
		double now, patience = asked ? 2 * LW_PATIENCE_S : LW_PATIENCE_S;
		int got;

		if (call && call->done)
			return call;
		if (over) {
			lw_fail(LEEWARD_NOT_YET, "no job has an answer so far");
			return NULL;
		}
		now = lw_now();
		if (until < INFINITY) {
			if (now < until)
				lw_link_wait(&handle->link, POLLIN, earlier(until - now, heard + patience - now));
			got = absorb(handle, false);
			over = lw_now() >= until + (got > 0 ? LOOK_S : 0);
		} else {
			got = absorb(handle, true);
		}
		if (got > 0) {
			heard = lw_now();
			asked = false;
		} else if (!got && !over && lw_now() - heard >= patience - GRAIN_S) {
			if (asked) {
				lose(handle, no_answer(handle, "the daemon on %s gives no sign of life"));
			} else {
				nudge(handle, PING, lw_request_plain(&handle->out, ++handle->last_id, "ping"));
				asked = true;
			}
		}
	}
}

/* The caller won't wait for *id* any longer. */
static void abandon(leeward_handle *handle, int64_t id)
{
	struct call *call = find_call(handle, id);
	enum op op = call->op;

	if (waiting_jobs(handle) - (op == JOB) == 0) {
		/* Nobody else's answer comes over this connection: its end ends the job, too. */
		forget(handle, call);
		lw_link_close(&handle->link);
		lose(handle, LEEWARD_NO_ANSWER);
		return;
	}
	call->abandoned = true;
	if (op == JOB)
		nudge(handle, CANCEL, lw_request_cancel(&handle->out, ++handle->last_id, id));
}

/* What a call gave, out of the list: its result, or NULL and this thread's last error. */
static leeward_result *take(leeward_handle *handle, struct call *call)
{
	leeward_result *result = call->result;

	if (call->code && call->text)
		lw_fail_as(call->code, call->text);
	else if (call->code)
		lw_fail(call->code, "this process has no memory left for the reason");
	call->result = NULL;
	forget(handle, call);
	return result;
}

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

/* Ask for an arena, once in a connection's life. Without one large requests go by the socket. */
static int ask_for_arena(leeward_handle *handle, double until)
{
	struct call *call;
	int64_t id;
	int failed = lw_request_plain(&handle->out, ++handle->last_id, "arena");

	if (!failed)
		failed = send_request(handle, ARENA, until);
	if (failed)
		return failed;
	handle->link.arena.asked = true;
	id = handle->last_id;
	call = wait_for(handle, id, until);
	if (!call) {
		abandon(handle, id);
		return no_answer(handle, "no answer from %s before the deadline");
	}
	failed = call->code;
	take(handle, call);
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
	part_from_parent(handle);
	*ret_until = deadline_of(options.deadline);
	if (waiting_jobs(handle) >= MAX_IN_FLIGHT)
		return lw_fail(LEEWARD_BUSY, "%d jobs of this handle are in flight", MAX_IN_FLIGHT);
	if (is_large(length, &options) && !handle->link.arena.asked) {
		failed = ask_for_arena(handle, *ret_until);
		if (failed)
			return failed;
	}
	failed = lw_request_execute(&handle->out, ++handle->last_id, code, length, &options);
	return failed ? failed : send_request(handle, JOB, *ret_until);
}

/* --- leeward.h ---------------------------------------------------------------- */

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
		forget(handle, &handle->calls[handle->count - 1]);
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
	struct call *call;
	double until;
	int64_t id;

	if (!handle) {
		no_handle();
		return NULL;
	}
	if (submit(handle, code, length, options, &until))
		return NULL;
	id = handle->last_id;
	call = wait_for(handle, id, until);
	if (call)
		return take(handle, call);
	abandon(handle, id);
	no_answer(handle, "no answer from %s before the deadline");
	return NULL;
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
	struct call *call;

	if (!handle) {
		no_handle();
		return NULL;
	}
	if (isnan(timeout)) {
		lw_fail(LEEWARD_INVALID, "timeout: not a number");
		return NULL;
	}
	part_from_parent(handle);
	call = wanted ? find_call(handle, wanted) : first_done(handle);
	if (wanted ? !call || call->op != JOB || call->abandoned : !call && !waiting_jobs(handle)) {
		lw_fail(LEEWARD_INVALID, wanted ? "id: no such job is in flight" : "no job is in flight");
		return NULL;
	}
	call = wait_for(handle, wanted, timeout < 0 ? INFINITY : lw_now() + timeout);
	if (!call)
		return NULL;
	if (id)
		*id = call->id;
	return take(handle, call);
}

int leeward_cancel(leeward_handle *handle, int64_t id)
{
	struct call *call;
	int failed;

	if (!handle)
		return no_handle();
	part_from_parent(handle);
	call = find_call(handle, id);
	if (!call || call->op != JOB || call->abandoned)
		return lw_fail(LEEWARD_INVALID, "id: no such job is in flight");
	if (call->done)
		return LEEWARD_OK; /* it was quicker; leeward_wait has it */
	failed = lw_request_cancel(&handle->out, ++handle->last_id, id);
	if (!failed)
		failed = transmit(handle, &handle->out, INFINITY);
	if (failed > 0)
		failed = lose(handle, lw_link_away(&handle->link, "it closed the connection"));
	if (!failed)
		failed = reserve(handle);
	if (!failed)
		handle->calls[handle->count++] = (struct call){
			.id = handle->last_id, .op = CANCEL, .slot = -1, .abandoned = true};
	return failed;
}

int leeward_fd(leeward_handle *handle)
{
	if (!handle)
		return no_handle();
	part_from_parent(handle);
	if (handle->link.fd < 0)
		return lw_fail(LEEWARD_AWAY, "there is no connection now; the next job makes one");
	return handle->link.fd;
}

/* Send a request without fields, and wait for its answer. Returns a leeward_error.
 *
 * *ret_map* is the answer, in handle->block. */
static int ask(leeward_handle *handle, enum op op, double timeout, struct lw_value *ret_map)
{
	double until = lw_now() + (timeout > 0 ? timeout : ANSWER_S);
	struct call *call;
	int64_t id;
	int failed;

	if (!handle)
		return no_handle();
	if (!(timeout >= 0))
		return lw_fail(LEEWARD_INVALID, "timeout: no time");
	part_from_parent(handle);
	failed = lw_request_plain(&handle->out, ++handle->last_id, op == STATUS ? "status" : "ping");
	if (!failed)
		failed = send_request(handle, op, until);
	if (failed)
		return failed;
	id = handle->last_id;
	call = wait_for(handle, id, until);
	if (!call) {
		abandon(handle, id);
		return no_answer(handle, "no answer from %s before the deadline");
	}
	failed = call->code;
	if (call->block) {
		free(handle->block);
		handle->block = call->block;
		*ret_map = call->map;
		call->block = NULL;
	}
	take(handle, call);
	return failed;
}

int leeward_ping(leeward_handle *handle, double timeout)
{
	struct lw_value map;

	return ask(handle, PING, timeout, &map);
}

/* The status as it came; it lives as long as leeward_status's text. For the command line. */
int lw_status(leeward_handle *handle, double timeout, struct lw_value *ret_map)
{
	return ask(handle, STATUS, timeout, ret_map);
}

const char *leeward_status(leeward_handle *handle, double timeout)
{
	struct lw_buffer text = {.limit = SIZE_MAX / 2};
	struct lw_value map;
	int failed;

	if (ask(handle, STATUS, timeout, &map))
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

/* Sends requests, takes answers to the calls that they are for, and detects a daemon that doesn't respond. calls.h has the
 * theory of operation.
 *
 * Trust:     none. An answer to no request, a malformed frame and descriptors that weren't announced end the connection. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "fault.h"
#include "text.h"

/* Seconds for which received bytes are still processed after a deadline. Without this bound a daemon that sends without
 * end could hold the caller for ever. */
#define LOOK_S 0.1

/* --- receiving ---------------------------------------------------------------- */

static const struct {
	const char *kind;
	int code;
} REFUSALS[] = {
	{"busy", LEEWARD_BUSY}, {"queue_timeout", LEEWARD_QUEUE_TIMEOUT}, {"shutting_down", LEEWARD_SHUTTING_DOWN},
	{"version", LEEWARD_VERSION_MISMATCH}, {"bad_request", LEEWARD_REJECTED}, {"cancelled", LEEWARD_CANCELLED},
	{"forbidden", LEEWARD_FORBIDDEN}, {"sandbox_over", LEEWARD_SANDBOX_OVER}, {"process_over", LEEWARD_PROCESS_OVER},
	{"session_over", LEEWARD_SESSION_OVER}, {"snapshot_failed", LEEWARD_SNAPSHOT_FAILED},
};

static int refusal_code(const struct lw_value *kind)
{
	for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++)
		if (lw_is(kind, REFUSALS[i].kind))
			return REFUSALS[i].code;
	return LEEWARD_REFUSED;
}

static int protocol_error(leeward_handle *handle, const char *wrong)
{
	return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: %s", wrong));
}

/* Make the daemon's refusal the last error: one line, escaped for a terminal, never empty. Returns its code. */
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
		lw_fail(code, "this process has no memory left for the error's text");
	else if (line.length)
		lw_fail(code, "%.*s", (int)line.length, (const char *)line.data);
	else
		lw_fail(code, "the daemon refused without a reason");
	free(line.data);
	lw_last_fault()->retry_after = reply->retry_after;
	return code;
}

static int answer_job(leeward_handle *handle, struct lw_call *call, const struct lw_reply *reply, uint8_t **block)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	const char *wrong;
	int failed = lw_memfile_map(&handle->connection, reply, mappings);

	if (failed)
		return lw_calls_lose(handle, failed);
	failed = lw_result_make(reply, *block, mappings, &call->result, &wrong);
	if (!failed) {
		*block = NULL; /* the result owns it now */
		lw_calls_complete(handle, call, LEEWARD_OK);
		return LEEWARD_OK;
	}
	lw_unmap(mappings);
	return failed == -ENOMEM ? lw_calls_lose(handle, lw_fail_no_memory()) : protocol_error(handle, wrong);
}

/* Whether the status in *reply* begins as JSON does, and is one line of ASCII without a NUL. */
static bool is_json(const struct lw_reply *reply, struct lw_status_answer *ret_status)
{
	const char *json;
	bool plain = LW_READ(&reply->ok, status, ret_status) && ret_status->json.length;

	json = ret_status->json.data;
	plain = plain && json[0] == '{';
	for (size_t i = 0; plain && i < ret_status->json.length; i++)
		plain = json[i] >= ' ' && json[i] <= '~';
	return plain;
}

/* Show the output in an answer to output_take. Returns what is wrong with the answer, or NULL. */
static const char *answer_output(struct lw_live *live, const struct lw_reply *reply)
{
	struct lw_output_take_answer output = {0};
	struct lw_bytes streams[2];

	if (!LW_READ(&reply->ok, output_take, &output))
		return "no output in an answer to output_take";
	streams[0] = output.stdout_;
	streams[1] = output.stderr_;
	live->asked = false;
	live->over = output.over;
	live->next = output.running ? 0 : lw_now() + LW_LIVE_S;
	if (streams[0].length || streams[1].length)
		live->failed = live->show(live, streams);
	live->taken[0] += streams[0].length;
	live->taken[1] += streams[1].length;
	return NULL;
}

/* Process one frame, and take ownership of *block*. An error means that the connection was closed. */
static int answer(leeward_handle *handle, uint8_t **block, size_t length)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	struct lw_reply reply;
	struct lw_status_answer status = {0};
	const char *wrong;
	struct lw_call *call;
	int failed = LEEWARD_OK;

	if (lw_reply_read(*block + LW_HEADER, length, &reply, &wrong))
		return protocol_error(handle, wrong);
	if (!reply.id)
		return reply.refused ? lw_calls_lose(handle, refused(&reply)) : protocol_error(handle, "an answer to nobody");
	call = lw_calls_find(handle, reply.id);
	if (!call || call->done)
		return protocol_error(handle, "an answer to a request that isn't waiting");
	if (call->op == LW_JOB && !reply.refused && !call->abandoned)
		return answer_job(handle, call, &reply, block);
	wrong = NULL;
	if (call->op == LW_ARENA && !reply.refused) {
		wrong = lw_arena_take(&handle->connection, &reply);
	} else if (call->op == LW_DOCK && !reply.refused) {
		wrong = lw_dock_take(&handle->connection, &reply, &call->socket);
	} else if (reply.arena_count) {
		failed = lw_memfile_map(&handle->connection, &reply, mappings);
		lw_unmap(mappings);
		if (failed)
			return lw_calls_lose(handle, failed);
	}
	if (call->op == LW_OUTPUT && handle->live && !reply.refused)
		wrong = answer_output(handle->live, &reply);
	if (wrong)
		return protocol_error(handle, wrong);
	if (call->op == LW_OUTPUT && handle->live && handle->live->failed)
		return lw_calls_lose(handle, lw_fail(LEEWARD_AWAY, "the job's output can't be written"));
	if (call->abandoned) {
		lw_calls_forget(handle, call);
		return LEEWARD_OK;
	}
	if (reply.refused) {
		failed = refused(&reply);
		call->text = strdup(leeward_last_error());
	} else if (call->op == LW_ASK || call->op == LW_DOCK) {
		call->block = *block;
		call->reply = reply;
		*block = NULL;
	} else if (call->op == LW_STATUS) {
		if (!is_json(&reply, &status))
			return protocol_error(handle, "a status that is no JSON in ASCII");
		call->text = strndup(status.json.data, status.json.length);
		if (!call->text)
			return lw_calls_lose(handle, lw_fail_no_memory());
	}
	lw_calls_complete(handle, call, failed);
	return LEEWARD_OK;
}

/* Receive and process what the daemon has sent; if there is nothing, *wait* at most LW_PATIENCE_S. Returns 1 if something
 * was received, 0 if not, or the error that ended the connection. */
static int receive(leeward_handle *handle, bool wait)
{
	ssize_t got = lw_connection_receive(&handle->connection, wait);
	int taken;

	if (got == -EAGAIN || got == -EINTR)
		return 0;
	if (got == -EOVERFLOW)
		return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "a result's descriptor was lost: this process has"
							       " too many open files"));
	if (got == -ENOMEM)
		return lw_calls_lose(handle, lw_fail_no_memory());
	if (got <= 0)
		return lw_calls_lose(handle, lw_connection_away(&handle->connection, "it went away before it answered"));
	do {
		uint8_t *block = NULL;
		size_t length;
		int failed = LEEWARD_OK;

		taken = lw_connection_take(&handle->connection, &block, &length);
		if (taken == -ENOMEM)
			return lw_calls_lose(handle, lw_fail_no_memory());
		if (taken < 0)
			return protocol_error(handle, "a frame is larger than a reply may be");
		if (taken)
			failed = answer(handle, &block, length);
		free(block);
		if (failed)
			return failed;
	} while (taken);
	if (handle->connection.descriptor_count > LW_MAX_DESCRIPTORS)
		return protocol_error(handle, "more descriptors than were announced");
	return 1;
}

/* --- sending ------------------------------------------------------------------ */

/* Bytes of a request's buffer that a handle keeps. */
#define KEPT_BUFFER ((size_t)64 << 10)

/* Record that the connection was lost, with error *code*, after *sent* bytes of a request. Returns *code*. */
static int lost(int code, size_t sent)
{
	lw_last_fault()->may_have_run = sent && code > LEEWARD_REFUSED;
	return code;
}

/* Send the frame in *out*. Returns LEEWARD_OK; 1 if the connection was closed before a byte of the frame was sent, so that it
 * can be sent again; or the error, with the connection lost. */
static int transmit(leeward_handle *handle, const struct lw_buffer *out, double until)
{
	double quiet_since = 0;
	size_t sent = 0;

	while (sent < out->length) {
		ssize_t step = lw_connection_send(&handle->connection, out->data + sent, out->length - sent);
		double now;
		int got;

		if (step > 0) {
			sent += (size_t)step;
			quiet_since = 0;
			continue;
		}
		if (step != -EAGAIN) {
			double start = lw_now();

			/* Read what the daemon sent before it closed the connection: it may say why. */
			do
				got = receive(handle, false);
			while (got > 0 && lw_now() < start + LOOK_S);
			if (got < 0 && got != LEEWARD_AWAY)
				return lost(got, sent);
			if (!sent)
				return 1;
			return lost(lw_calls_lose(handle, lw_connection_away(&handle->connection,
							   "it closed the connection in the middle of a request")), sent);
		}
		now = lw_now();
		if (quiet_since <= 0)
			quiet_since = now;
		if (now >= until)
			return lost(lw_calls_lose(handle, lw_connection_silent(&handle->connection, "no answer from",
									 "before the deadline")), sent);
		if (now - quiet_since >= LW_PATIENCE_S)
			return lost(lw_calls_lose(handle, lw_connection_silent(&handle->connection, "the daemon on",
									 "has read nothing for 10 s")), sent);
		lw_connection_wait(&handle->connection, POLLIN | POLLOUT, lw_earlier(until - now, quiet_since + LW_PATIENCE_S - now),
			     NULL);
		got = receive(handle, false);
		if (got < 0)
			return sent || got != LEEWARD_AWAY ? lost(got, sent) : 1;
	}
	return LEEWARD_OK;
}

/* Send the request in handle->out, as transmit. A large one goes through the arena, if there is one: *ret_slot* is its slot. */
static int transmit_request(leeward_handle *handle, bool by_arena, double until, int *ret_slot)
{
	struct lw_buffer reference = {.data = NULL};
	size_t length = handle->out.length - LW_HEADER;
	int slot = -1, failed;

	if (by_arena && length >= LW_LARGE)
		slot = lw_arena_put(&handle->connection, handle->out.data + LW_HEADER, length);
	if (slot < 0)
		return transmit(handle, &handle->out, until);
	failed = lw_request_write(&reference, handle->last_id, LW_REQUEST(slot, .slot = (uint64_t)slot, .length = length));
	if (!failed)
		failed = transmit(handle, &reference, until);
	free(reference.data);
	*ret_slot = slot;
	return failed;
}

/* Send the request in handle->out, whose id is the handle's last one, and add a call that waits for its answer. A job of
 * another request than `execute` is LW_RUN; it doesn't go through the arena. */
int lw_send_written(leeward_handle *handle, enum lw_op op, double until)
{
	bool reused = handle->connection.fd >= 0;
	int failed = lw_calls_reserve(handle), slot = -1;

	if (!failed)
		failed = lw_connection_connect(&handle->connection);
	if (!failed)
		failed = transmit_request(handle, op == LW_JOB, until, &slot);
	if (failed > 0 && reused) {
		/* The daemon was restarted since the last call, or has closed an idle connection. */
		lw_calls_lose(handle, lw_connection_away(&handle->connection, "it closed the connection"));
		slot = -1; /* the arena was closed with the connection */
		failed = lw_connection_connect(&handle->connection);
		if (!failed)
			failed = transmit(handle, &handle->out, until);
	}
	if (failed > 0)
		failed = lw_calls_lose(handle, lw_connection_away(&handle->connection, "it closed the connection"));
	if (handle->out.capacity > KEPT_BUFFER) {
		free(handle->out.data);
		handle->out = (struct lw_buffer){.data = NULL};
	}
	if (!failed)
		lw_calls_add(handle, op == LW_RUN ? LW_JOB : op, slot, false);
	return failed;
}

/* Write *request* and send it, as lw_send_written. */
int lw_send(leeward_handle *handle, enum lw_op op, const struct lw_request *request, double until)
{
	int failed = lw_request_write(&handle->out, ++handle->last_id, request);

	if (!failed)
		failed = lw_send_written(handle, op, until);
	if (!failed && op == LW_ARENA)
		handle->connection.arena.asked = true; /* of this connection, which may be a new one */
	return failed;
}

static int write_cancel(leeward_handle *handle, int64_t id, enum lw_end how)
{
	return lw_request_write(&handle->out, ++handle->last_id, LW_REQUEST(cancel, .target = (uint64_t)id,
		.interrupt = how == LW_INTERRUPT, .kill = how == LW_KILL));
}

/* Cancel, interrupt or kill a job. The job's own answer shows whether that was in time. Returns a leeward_error. */
int lw_send_cancel(leeward_handle *handle, int64_t id, enum lw_end how)
{
	int failed = write_cancel(handle, id, how);

	if (!failed)
		failed = lw_calls_reserve(handle);
	if (!failed)
		failed = transmit(handle, &handle->out, INFINITY);
	if (failed > 0)
		failed = lw_calls_lose(handle, lw_connection_away(&handle->connection, "it closed the connection"));
	if (!failed)
		lw_calls_add(handle, LW_CANCEL, -1, true);
	return failed;
}

/* Send the small request in handle->out without waiting, unless writing it has *failed*. If the socket has no room for it,
 * close the connection. A daemon that hands over to the next one reads nothing more and still answers, so after a failure
 * to send the connection stays: the next read gets the answer, or the error. */
static int nudge(leeward_handle *handle, enum lw_op op, int failed)
{
	ssize_t sent;

	if (!failed)
		failed = lw_calls_reserve(handle);
	if (failed)
		return lw_calls_lose(handle, failed);
	sent = lw_connection_send(&handle->connection, handle->out.data, handle->out.length);
	if (sent == -EPIPE || sent == -ECONNRESET)
		return LEEWARD_AWAY;
	if (sent != (ssize_t)handle->out.length)
		return lw_calls_lose(handle, lw_connection_silent(&handle->connection, "the daemon on", "doesn't answer pings"));
	lw_calls_add(handle, op, -1, true);
	return LEEWARD_OK;
}

static int nudge_cancel(leeward_handle *handle, int64_t id, enum lw_end how)
{
	return nudge(handle, LW_CANCEL, write_cancel(handle, id, how));
}

/* --- waiting ------------------------------------------------------------------ */

/* A timed wait may end this much early, in seconds. */
#define GRAIN_S 0.05

/* Pass Ctrl-C on to job *id*: the first one interrupts the job, the second one kills it. */
static void hand_on(leeward_handle *handle, int64_t id)
{
	struct lw_presses *presses = handle->presses;

	while (handle->connection.fd >= 0 && presses->handed_on < presses->count && presses->handed_on < 2)
		nudge_cancel(handle, id, ++presses->handed_on == 1 ? LW_INTERRUPT : LW_KILL);
}

/* Ask for the output of job *id* if that is due. Returns the seconds until it is due again, or INFINITY. */
static double look(leeward_handle *handle, int64_t id, double now)
{
	struct lw_live *live = handle->live;

	if (!live || handle->connection.fd < 0)
		return INFINITY;
	if (live->of != id) {
		live->of = id;
		live->next = now + LW_LIVE_S;
		live->asked = live->over = false;
	}
	if (live->asked || live->over)
		return INFINITY;
	if (now < live->next)
		return live->next - now;
	if (nudge(handle, LW_OUTPUT, lw_request_write(&handle->out, ++handle->last_id, LW_REQUEST(output_take,
			.target = (uint64_t)id, .stdout_ = live->taken[0], .stderr_ = live->taken[1]))))
		live->over = true; /* the rest comes with the answer */
	else
		live->asked = true;
	return INFINITY;
}

/* As lw_await. *mask*: the signals that are blocked during the wait; NULL: no change. */
static struct lw_call *await(leeward_handle *handle, int64_t id, double until, const sigset_t *mask)
{
	double heard = lw_now();
	struct lw_call *first = id ? lw_calls_find(handle, id) : NULL;
	bool asked = false, over = false, live = handle->live && first && first->op == LW_JOB;

	while (true) {
		struct lw_call *call = id ? lw_calls_find(handle, id) : lw_calls_first_done(handle);
		double now, patience = asked ? 2 * LW_PATIENCE_S : LW_PATIENCE_S;
		int got;

		if (call && call->done)
			return call;
		if (over) {
			lw_fail(LEEWARD_NOT_YET, "no job has an answer so far");
			return NULL;
		}
		now = lw_now();
		if (until < INFINITY || mask || live) {
			double wait = lw_earlier(until - now, heard + patience - now);

			if (mask)
				hand_on(handle, id); /* Ctrl-C that came while the request was sent */
			if (live)
				wait = lw_earlier(wait, look(handle, id, now));
			if (handle->connection.fd < 0)
				continue; /* it has broken: the call has its error */
			if (now < until)
				lw_connection_wait(&handle->connection, POLLIN, wait, mask);
			if (mask)
				hand_on(handle, id);
			if (handle->connection.fd < 0)
				continue; /* it has broken: the call has its error */
			got = receive(handle, false);
			over = lw_now() >= until + (got > 0 ? LOOK_S : 0);
		} else {
			got = receive(handle, true);
		}
		if (got > 0) {
			heard = lw_now();
			asked = false;
		} else if (!got && !over && lw_now() - heard >= patience - GRAIN_S) {
			if (asked) {
				lw_calls_lose(handle, lw_connection_silent(&handle->connection, "the daemon on", "doesn't answer pings"));
			} else {
				nudge(handle, LW_PING, lw_request_write(&handle->out, ++handle->last_id, LW_BARE(ping)));
				asked = true;
			}
		}
	}
}

/* Wait for the answer to *id*, or with 0 to any job. Returns the call; NULL at *until*, with LEEWARD_NOT_YET. */
struct lw_call *lw_await(leeward_handle *handle, int64_t id, double until)
{
	struct lw_call *call = id ? lw_calls_find(handle, id) : NULL;
	sigset_t interrupt, before;

	if (!handle->presses || !call || call->op != LW_JOB)
		return await(handle, id, until, NULL);
	/* SIGINT is unblocked only during the wait, so one that comes before the wait ends it. */
	sigemptyset(&interrupt);
	sigaddset(&interrupt, SIGINT);
	sigprocmask(SIG_BLOCK, &interrupt, &before);
	handle->presses->wanted = 1;
	call = await(handle, id, until, &before);
	handle->presses->wanted = 0;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return call;
}

/* The caller won't wait for *id* any longer. */
static void abandon(leeward_handle *handle, int64_t id)
{
	struct lw_call *call = lw_calls_find(handle, id);
	enum lw_op op = call->op;

	if (lw_calls_waiting_jobs(handle) - (op == LW_JOB) == 0) {
		/* No other call waits on this connection, and closing it ends the job, too. */
		lw_calls_forget(handle, call);
		lw_connection_close(&handle->connection);
		lw_calls_lose(handle, LEEWARD_NO_ANSWER);
		return;
	}
	call->abandoned = true;
	if (op == LW_JOB)
		nudge_cancel(handle, id, LW_TAKE_BACK);
}

/* Wait for the answer to the request that was sent last, and give it up at *until*. Returns the call; NULL with
 * LEEWARD_NO_ANSWER. */
struct lw_call *lw_await_last(leeward_handle *handle, double until)
{
	int64_t id = handle->last_id; /* kept: a ping during the wait changes last_id */
	struct lw_call *call = lw_await(handle, id, until);

	if (!call) {
		abandon(handle, id);
		lw_connection_silent(&handle->connection, "no answer from", "before the deadline");
	}
	return call;
}

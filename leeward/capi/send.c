#include "send.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>

#include "fault.h"
#include "memfile.h"
#include "receive.h"

/* Bytes of a request's buffer that a handle keeps. */
#define KEPT_BUFFER ((size_t)64 << 10)

/* The ops of requests without fields. */
static const char *const BARE[] = {[LW_PING] = "ping", [LW_ARENA] = "arena"};

/* Record that the connection was lost, with error *code*, after *sent* bytes of a request. Returns *code*. */
static int lost(int code, size_t sent)
{
	return lw_fail_ran(code, sent && code > LEEWARD_REFUSED);
}

/* Send the frame in *out*.
 *
 * Returns LEEWARD_OK; 1 if the connection was closed before a byte of the frame was sent, so that it can be sent again; or
 * the error, with the connection lost. */
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

			/* Read what the daemon sent before it closed the connection: it may say why. */
			do
				got = lw_receive(handle, false);
			while (got > 0 && lw_now() < start + LW_LOOK_S);
			if (got < 0 && got != LEEWARD_AWAY)
				return lost(got, sent);
			if (!sent)
				return 1;
			return lost(lw_calls_lose(handle, lw_link_away(&handle->link,
							   "it closed the connection in the middle of a request")), sent);
		}
		now = lw_now();
		if (quiet_since <= 0)
			quiet_since = now;
		if (now >= until)
			return lost(lw_calls_lose(handle, lw_link_silent(&handle->link, "no answer from",
									 "before the deadline")), sent);
		if (now - quiet_since >= LW_PATIENCE_S)
			return lost(lw_calls_lose(handle, lw_link_silent(&handle->link, "the daemon on",
									 "has read nothing for 10 s")), sent);
		lw_link_wait(&handle->link, POLLIN | POLLOUT, lw_earlier(until - now, quiet_since + LW_PATIENCE_S - now),
			     NULL);
		got = lw_receive(handle, false);
		if (got < 0)
			return sent || got != LEEWARD_AWAY ? lost(got, sent) : 1;
	}
	return LEEWARD_OK;
}

/* Send the request in handle->out, whose id is the handle's last one; as transmit.
 *
 * A large request goes through the arena, if there is one, and *ret_slot* is its slot. */
static int transmit_request(leeward_handle *handle, bool by_arena, double until, int *ret_slot)
{
	struct lw_buffer reference = {.data = NULL};
	size_t length = handle->out.length - LW_HEADER;
	int slot = -1, failed;

	if (by_arena && length >= LW_LARGE)
		slot = lw_arena_put(&handle->link, handle->out.data + LW_HEADER, length);
	if (slot < 0)
		return transmit(handle, &handle->out, until);
	failed = lw_request_slot(&reference, handle->last_id, slot, length);
	if (!failed)
		failed = transmit(handle, &reference, until);
	free(reference.data);
	*ret_slot = slot;
	return failed;
}

/* Send the request in handle->out, whose id is the handle's last one, and add a call that waits for its answer. A job of
 * another request than `execute` is LW_RUN; it doesn't go through the arena. */
int lw_send_request(leeward_handle *handle, enum lw_op op, double until)
{
	bool reused = handle->link.fd >= 0;
	int failed = lw_calls_reserve(handle), slot = -1;

	if (!failed)
		failed = lw_link_connect(&handle->link);
	if (!failed)
		failed = transmit_request(handle, op == LW_JOB, until, &slot);
	if (failed > 0 && reused) {
		/* The daemon was restarted since the last call, or has closed an idle connection. */
		lw_calls_lose(handle, lw_link_away(&handle->link, "it closed the connection"));
		slot = -1; /* the arena was closed with the connection */
		failed = lw_link_connect(&handle->link);
		if (!failed)
			failed = transmit(handle, &handle->out, until);
	}
	if (failed > 0)
		failed = lw_calls_lose(handle, lw_link_away(&handle->link, "it closed the connection"));
	if (handle->out.capacity > KEPT_BUFFER) {
		free(handle->out.data);
		handle->out = (struct lw_buffer){.data = NULL};
	}
	if (!failed)
		lw_calls_add(handle, op == LW_RUN ? LW_JOB : op, slot, false);
	return failed;
}

/* Send a ping, or a request for the status or an arena, and add a call that waits for its answer. */
int lw_send_plain(leeward_handle *handle, enum lw_op op, double until)
{
	int64_t id = ++handle->last_id;
	int failed = op == LW_STATUS ? lw_request_status(&handle->out, id) : lw_request_bare(&handle->out, id, BARE[op]);

	if (!failed)
		failed = lw_send_request(handle, op, until);
	if (!failed && op == LW_ARENA)
		handle->link.arena.asked = true; /* of this connection, which may be a new one */
	return failed;
}

/* Cancel, interrupt or kill a job. The job's own answer shows whether that was in time. Returns a leeward_error. */
int lw_send_cancel(leeward_handle *handle, int64_t id, enum lw_end how)
{
	int failed = lw_request_cancel(&handle->out, ++handle->last_id, id, how);

	if (!failed)
		failed = lw_calls_reserve(handle);
	if (!failed)
		failed = transmit(handle, &handle->out, INFINITY);
	if (failed > 0)
		failed = lw_calls_lose(handle, lw_link_away(&handle->link, "it closed the connection"));
	if (!failed)
		lw_calls_add(handle, LW_CANCEL, -1, true);
	return failed;
}

/* Send a small request without waiting. If the socket has no room for it, close the connection. A daemon that hands over to
 * the next one reads nothing more and still answers, so after a failure to send the connection stays: the next read gets
 * the answer, or the error. */
static int nudge(leeward_handle *handle, enum lw_op op, int failed)
{
	ssize_t sent;

	if (!failed)
		failed = lw_calls_reserve(handle);
	if (failed)
		return lw_calls_lose(handle, failed);
	sent = lw_link_send(&handle->link, handle->out.data, handle->out.length);
	if (-EPIPE == sent || -ECONNRESET == sent)
		return LEEWARD_AWAY;
	if (sent != (ssize_t)handle->out.length)
		return lw_calls_lose(handle, lw_link_silent(&handle->link, "the daemon on", "doesn't answer pings"));
	lw_calls_add(handle, op, -1, true);
	return LEEWARD_OK;
}

int lw_nudge_ping(leeward_handle *handle)
{
	return nudge(handle, LW_PING, lw_request_bare(&handle->out, ++handle->last_id, BARE[LW_PING]));
}

int lw_nudge_cancel(leeward_handle *handle, int64_t id, enum lw_end how)
{
	return nudge(handle, LW_CANCEL, lw_request_cancel(&handle->out, ++handle->last_id, id, how));
}

int lw_nudge_output(leeward_handle *handle, int64_t id, const uint64_t taken[2])
{
	return nudge(handle, LW_OUTPUT, lw_request_output(&handle->out, ++handle->last_id, id, taken));
}

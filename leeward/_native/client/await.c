#include "await.h"

#include <math.h>
#include <poll.h>

#include "fault.h"
#include "receive.h"
#include "send.h"

/* A timed wait may end this much early, in seconds. */
#define GRAIN_S 0.05

/* Wait for the answer to *id*, or with 0 to any job.
 *
 * Returns the call; NULL at *until*, with LEEWARD_NOT_YET. */
struct lw_call *lw_await(leeward_handle *handle, int64_t id, double until)
{
	double heard = lw_now();
	bool asked = false, over = false;

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
		if (until < INFINITY) {
			if (now < until)
				lw_link_wait(&handle->link, POLLIN, lw_earlier(until - now, heard + patience - now));
			got = lw_receive(handle, false);
			over = lw_now() >= until + (got > 0 ? LW_LOOK_S : 0);
		} else {
			got = lw_receive(handle, true);
		}
		if (got > 0) {
			heard = lw_now();
			asked = false;
		} else if (!got && !over && lw_now() - heard >= patience - GRAIN_S) {
			if (asked) {
				lw_calls_lose(handle, lw_link_silent(&handle->link, "the daemon on", "gives no sign of life"));
			} else {
				lw_nudge_ping(handle);
				asked = true;
			}
		}
	}
}

/* The caller won't wait for *id* any longer. */
static void abandon(leeward_handle *handle, int64_t id)
{
	struct lw_call *call = lw_calls_find(handle, id);
	enum lw_op op = call->op;

	if (lw_calls_waiting_jobs(handle) - (op == LW_JOB) == 0) {
		/* Nobody else's answer comes over this connection: its end ends the job, too. */
		lw_calls_forget(handle, call);
		lw_link_close(&handle->link);
		lw_calls_lose(handle, LEEWARD_NO_ANSWER);
		return;
	}
	call->abandoned = true;
	if (op == LW_JOB)
		lw_nudge_cancel(handle, id);
}

/* Wait for the answer to the request that was sent last, and give it up at *until*.
 *
 * Returns the call; NULL with LEEWARD_NO_ANSWER. */
struct lw_call *lw_await_last(leeward_handle *handle, double until)
{
	int64_t id = handle->last_id; /* a ping while it waits has a later one */
	struct lw_call *call = lw_await(handle, id, until);

	if (!call) {
		abandon(handle, id);
		lw_link_silent(&handle->link, "no answer from", "before the deadline");
	}
	return call;
}

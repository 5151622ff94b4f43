#include "await.h"

#include <math.h>
#include <poll.h>
#include <signal.h>

#include "fault.h"
#include "receive.h"
#include "send.h"

/* A timed wait may end this much early, in seconds. */
#define GRAIN_S 0.05

/* Pass Ctrl-C on to job *id*: the first one interrupts the job, the second one kills it. */
static void hand_on(leeward_handle *handle, int64_t id)
{
	struct lw_presses *presses = handle->presses;

	while (handle->link.fd >= 0 && presses->handed_on < presses->count && presses->handed_on < 2)
		lw_nudge_cancel(handle, id, ++presses->handed_on == 1 ? LW_INTERRUPT : LW_KILL);
}

/* Ask for the output of job *id* if that is due. Returns the seconds until it is due again, or INFINITY. */
static double look(leeward_handle *handle, int64_t id, double now)
{
	struct lw_live *live = handle->live;

	if (!live || handle->link.fd < 0)
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
	if (lw_nudge_output(handle, id, live->taken))
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
			if (handle->link.fd < 0)
				continue; /* it has broken: the call has its error */
			if (now < until)
				lw_link_wait(&handle->link, POLLIN, wait, mask);
			if (mask)
				hand_on(handle, id);
			if (handle->link.fd < 0)
				continue; /* it has broken: the call has its error */
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
				lw_calls_lose(handle, lw_link_silent(&handle->link, "the daemon on", "doesn't answer pings"));
			} else {
				lw_nudge_ping(handle);
				asked = true;
			}
		}
	}
}

/* Wait for the answer to *id*, or with 0 to any job.
 *
 * Returns the call; NULL at *until*, with LEEWARD_NOT_YET. */
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
		lw_link_close(&handle->link);
		lw_calls_lose(handle, LEEWARD_NO_ANSWER);
		return;
	}
	call->abandoned = true;
	if (op == LW_JOB)
		lw_nudge_cancel(handle, id, LW_TAKE_BACK);
}

/* Wait for the answer to the request that was sent last, and give it up at *until*.
 *
 * Returns the call; NULL with LEEWARD_NO_ANSWER. */
struct lw_call *lw_await_last(leeward_handle *handle, double until)
{
	int64_t id = handle->last_id; /* kept: a ping during the wait changes last_id */
	struct lw_call *call = lw_await(handle, id, until);

	if (!call) {
		abandon(handle, id);
		lw_link_silent(&handle->link, "no answer from", "before the deadline");
	}
	return call;
}

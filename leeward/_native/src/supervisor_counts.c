/* The supervisor's counts: which calls each job was refused, how often, and which refusals are reported when.
 *
 * Runs in:  the daemon; lw_count_refusal on the supervisor's thread, the rest on its callers'. All of it under the
 *           supervisor's mutex. supervisor.c explains the whole. */

#include "supervisor_private.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <unistd.h>

/* The first refusal of a call is reported at once, repeated ones after this time. */
#define REPORT_MS 100

/* The counter of a call: its own, or that of all other calls if the table is full. */
static struct lw_refused *kind_of(struct lw_listener *listener, uint32_t arch, int32_t nr)
{
	uint32_t at = ((uint32_t)nr ^ arch >> 24) % LW_SUPERVISOR_KINDS;

	for (uint32_t tried = 0; tried < LW_SUPERVISOR_KINDS; tried++) {
		struct lw_refused *kind = &listener->kinds[at];

		if (!kind->count) {
			kind->arch = arch;
			kind->nr = nr;
			return kind;
		}
		if (kind->arch == arch && kind->nr == nr)
			return kind;
		at = (at + 1) % LW_SUPERVISOR_KINDS;
	}
	return &listener->other;
}

/* Count the refusal of supervisor->request. The mutex is held. */
void lw_count_refusal(struct lw_supervisor *supervisor, struct lw_listener *listener, uint64_t now)
{
	const struct seccomp_notif *request = supervisor->request;
	struct lw_refused *kind = kind_of(listener, request->data.arch, request->data.nr);

	kind->pid = request->pid;
	kind->unreported++;
	listener->unreported = true;
	if (kind->count++ && !supervisor->report_ms && !listener->quiet)
		supervisor->report_ms = now + REPORT_MS;
	else if (1 == kind->count && !listener->quiet)
		lw_poke(supervisor->reports);
}

/* End the check in which a runner tries forbidden calls, before its job has begun: count from zero, and report refusals from
 * now on. Returns 0, or -ENOENT for a slot that isn't in use. */
int lw_supervisor_end_check(struct lw_supervisor *supervisor, uint32_t slot)
{
	int failed = -ENOENT;

	pthread_mutex_lock(&supervisor->mutex);
	if (slot < supervisor->top && supervisor->listeners[slot]) {
		struct lw_listener *listener = supervisor->listeners[slot];

		memset(listener->kinds, 0, sizeof(listener->kinds));
		memset(&listener->other, 0, sizeof(listener->other));
		listener->unreported = listener->quiet = false;
		failed = 0;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return failed;
}

static void tell(const struct lw_listener *listener, const struct lw_refused *kind, struct lw_denied *denied)
{
	denied->job = listener->job;
	denied->count = kind->count;
	denied->unreported = kind->unreported;
	denied->arch = kind->arch;
	denied->nr = kind == &listener->other ? LW_OTHER_NR : kind->nr;
	denied->pid = kind->pid;
}

/* Fill in what a job was refused so far. Returns the number of entries, at most LW_SUPERVISOR_MOST. The mutex is held. */
uint32_t lw_tell_refusals(const struct lw_listener *listener, struct lw_denied *ret_denied)
{
	uint32_t told = 0;

	for (uint32_t at = 0; at < LW_SUPERVISOR_KINDS; at++)
		if (listener->kinds[at].count)
			tell(listener, &listener->kinds[at], &ret_denied[told++]);
	if (listener->other.count)
		tell(listener, &listener->other, &ret_denied[told++]);
	return told;
}

/* What a job was refused so far; `ret_denied` has room for LW_SUPERVISOR_MOST.
 * Returns 0, or -ENOENT for a slot that isn't in use. */
int lw_supervisor_counts(struct lw_supervisor *supervisor, uint32_t slot, struct lw_denied *ret_denied,
			 uint32_t *ret_count)
{
	int failed = -ENOENT;

	pthread_mutex_lock(&supervisor->mutex);
	if (slot < supervisor->top && supervisor->listeners[slot]) {
		*ret_count = lw_tell_refusals(supervisor->listeners[slot], ret_denied);
		failed = 0;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return failed;
}

/* The sum of the counts of lw_supervisor_counts. Returns 0, or -ENOENT for a slot that isn't in use. */
int lw_supervisor_total(struct lw_supervisor *supervisor, uint32_t slot, uint64_t *ret_total)
{
	int failed = -ENOENT;

	pthread_mutex_lock(&supervisor->mutex);
	if (slot < supervisor->top && supervisor->listeners[slot]) {
		const struct lw_listener *listener = supervisor->listeners[slot];

		*ret_total = listener->other.count;
		for (uint32_t at = 0; at < LW_SUPERVISOR_KINDS; at++)
			*ret_total += listener->kinds[at].count;
		failed = 0;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return failed;
}

/* Add what wasn't reported yet of one listener to the `told` entries, as far as there is room. Returns their new number. */
static uint32_t report(struct lw_listener *listener, struct lw_denied *ret_denied, uint32_t told)
{
	for (uint32_t at = 0; at <= LW_SUPERVISOR_KINDS; at++) {
		struct lw_refused *kind = at < LW_SUPERVISOR_KINDS ? &listener->kinds[at] : &listener->other;

		if (!kind->unreported)
			continue;
		if (told == LW_SUPERVISOR_MOST)
			return told;
		tell(listener, kind, &ret_denied[told++]);
		kind->unreported = 0;
	}
	listener->unreported = false;
	return told;
}

/* Report what was refused since the last call, summed up by job and system call;
 * `ret_denied` has room for LW_SUPERVISOR_MOST. If there is more, the eventfd is
 * readable again. Returns 0. */
int lw_supervisor_drain(struct lw_supervisor *supervisor, struct lw_denied *ret_denied, uint32_t *ret_count)
{
	uint32_t told = 0, from;
	bool more = false;

	pthread_mutex_lock(&supervisor->mutex);
	lw_unpoke(supervisor->reports);
	from = supervisor->drain_from;
	for (uint32_t turn = 0; turn < supervisor->top && !more; turn++) {
		uint32_t slot = (from + turn) % supervisor->top;
		struct lw_listener *listener = supervisor->listeners[slot];

		if (listener && listener->unreported) {
			told = report(listener, ret_denied, told);
			more = listener->unreported;
			supervisor->drain_from = slot + 1;
		}
	}
	if (more)
		lw_poke(supervisor->reports);
	else
		supervisor->report_ms = 0;
	pthread_mutex_unlock(&supervisor->mutex);
	*ret_count = told;
	return 0;
}

/* The supervisor under ThreadSanitizer: jobs that flood come and go while two threads ask
 * for counts and drain. Exits with 0 if every count is right; the sanitizer says the rest. */

#include "floods.h"

#include <stdatomic.h>
#include <stdbool.h>

#define JOBS 24
#define AT_ONCE 6

static atomic_bool over;

static void *drain(void *supervisor)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	uint32_t count;

	while (!over)
		lw_supervisor_drain(supervisor, denied, &count);
	return NULL;
}

/* How often a job was refused the call that is always refused; inotify is, until its job has a grant. */
static uint64_t refused(const struct lw_denied *denied, uint32_t count, uint64_t job)
{
	uint64_t times = 0;

	for (uint32_t at = 0; at < count; at++) {
		if (denied[at].nr == SYS_getppid)
			times = denied[at].count;
		else if (!WATCHES || denied[at].nr != SYS_inotify_init1)
			return 0;
		if (denied[at].job != job)
			return 0;
	}
	return times;
}

int main(void)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	struct lw_supervisor *supervisor;
	uint32_t slots[AT_ONCE], count;
	uint64_t charged;
	int link = nursery(JOBS), failed = 0;
	pthread_t drainer;

	if (lw_supervisor_start(&supervisor))
		fail("lw_supervisor_start");
	if (WATCHES && lw_supervisor_set_watchers(supervisor, JOBS, 0))
		fail("lw_supervisor_set_watchers");
	pthread_create(&drainer, NULL, drain, supervisor);
	for (int wave = 0; wave < JOBS / AT_ONCE; wave++) {
		for (int at = 0; at < AT_ONCE; at++)
			if (lw_supervisor_add(supervisor, receive_fd(link), (uint64_t)(wave * AT_ONCE + at), false, -1, &slots[at]))
				fail("lw_supervisor_add");
		failed |= lw_supervisor_grant(supervisor, slots[0], WATCHES ? 0 : 1 << 20, -1);
		for (int at = 1; at < AT_ONCE; at++)
			failed |= lw_supervisor_share(supervisor, slots[at], slots[0]);
		for (int at = 0; at < AT_ONCE; at++) {
			do {
				lw_supervisor_counts(supervisor, slots[at], denied, &count);
			} while (refused(denied, count, (uint64_t)(wave * AT_ONCE + at)) < ENOUGH / 2);
			failed |= lw_supervisor_charged(supervisor, slots[at], &charged) || charged;
			lw_supervisor_remove(supervisor, slots[at], denied, &count);
			failed |= !refused(denied, count, (uint64_t)(wave * AT_ONCE + at));
			failed |= lw_supervisor_remove(supervisor, slots[at], denied, &count) != -ENOENT;
		}
	}
	over = true;
	pthread_join(drainer, NULL);
	lw_supervisor_stop(supervisor);
	return failed;
}

/* What the C library keeps of a thread, for a clone that it doesn't know of. Calls nothing of it: see alone/state.c. */

#include "clone.h"
#include "raw.h"
#include "spawn.h"

#include <errno.h>
#include <sys/prctl.h>

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

/* What lw_reborn needs of the calling thread. PR_GET_TID_ADDRESS: Linux 3.5. Returns 0, or -errno. */
int lw_thread_now(struct lw_thread *ret)
{
	const long err = raw(SYS_prctl, PR_GET_TID_ADDRESS, (long)&ret->tid_address, 0, 0, 0);

	return (int)(err < 0 ? err : raw(SYS_get_robust_list, 0, (long)&ret->robust, (long)&ret->robust_size, 0, 0));
}

/* CLONE_VM has dropped the init's rseq registration, so the job has none, but glibc assumes that there is one:
 * sched_getcpu() would return the same, stale processor for ever. */
static void restore_rseq(void)
{
	if (!&__rseq_size || __rseq_size == 0)
		return;
	char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
	if (raw(SYS_rseq, (long)area, 32, 0, RSEQ_SIGNATURE, 0) < 0)
		((volatile uint32_t *)area)[1] = (uint32_t)-2; /* RSEQ_CPU_ID_REGISTRATION_FAILED */
}

/* In a clone that has returned by _longjmp: restore the state of the thread, as libc's fork(2) does. */
void lw_reborn(const struct lw_thread *thread)
{
	raw(SYS_set_robust_list, (long)thread->robust, (long)thread->robust_size, 0, 0, 0);
	restore_rseq();
}

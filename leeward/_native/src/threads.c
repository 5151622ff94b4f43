/* Ending another thread of one's own process.
 *
 * Runs in:  the zygote, before it makes its first clone.
 *
 * The thread gets a signal whose handler only calls exit(2). Its stack stays mapped, and locks that it holds stay locked,
 * as a clone of the process would find them. So this is only for a thread that waits for work and holds nothing. */

#include "threads.h"

#include "raw.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The last one of the real-time signals: no other code uses it. */
#define LEAVE SIGRTMAX

__attribute__((no_sanitize("address", "undefined", "thread")))
static void leave(int number)
{
	(void)number;
	for (;;)
		raw(SYS_exit, 0, 0, 0, 0, 0);
}

/* Have thread *tid* of this process take its last signal, whose handler stays until lw_end_no_more. Returns 0 or -errno. */
int lw_end_thread(int tid)
{
	struct sigaction action = { .sa_handler = leave };

	if (tid == (int)syscall(SYS_gettid))
		return -EINVAL;
	if (sigaction(LEAVE, &action, NULL) < 0)
		return -errno;
	return syscall(SYS_tgkill, getpid(), tid, LEAVE) < 0 ? -errno : 0;
}

/* Restore the default action of the signal, when the ended threads are gone. Returns 0 or -errno. */
int lw_end_no_more(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL };

	return sigaction(LEAVE, &action, NULL) < 0 ? -errno : 0;
}

/* Find out which pages a job touches: a clone runs a job as a runner does, and then reads its own page map.
 *
 * Runs in:  the zygote, before its first keeper; the job in a clone of it.
 * Source:   pagemap(5): Documentation/admin-guide/mm/pagemap.rst
 *
 * A page that a clone has written is mapped by the clone alone; one of a file that it has read is present, because a clone
 * starts without such pages. Both hold only as long as the parent writes nothing, so the parent waits in C. The clone does
 * exactly what a job does: it begins in C (lw_job_begin), returns to the interpreter, and is back in C for the reply. */

#include "scout.h"

#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_ENTRY 8
#define ENTRIES 512

/* Far longer than a small job takes on a loaded machine. */
#define DEADLINE_MS 10000

static const struct lw_scout *scouting;

/* In the clone, when its job has ended: write the page map entries to `out`, and exit. */
static void tell(void)
{
	static uint64_t entries[ENTRIES];
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	for (uint32_t i = 0; i < scouting->count && map >= 0; i++) {
		uint64_t first = scouting->ranges[i].start / page, left = scouting->ranges[i].size / page;

		while (left) {
			const size_t some = PAGE_ENTRY * (left < ENTRIES ? left : ENTRIES);

			if (pread(map, entries, some, (off_t)(first * PAGE_ENTRY)) != (ssize_t)some ||
			    write(scouting->out, entries, some) != (ssize_t)some)
				_exit(1);
			first += some / PAGE_ENTRY;
			left -= some / PAGE_ENTRY;
		}
	}
	_exit(map < 0);
}

/* Have a clone run a job and report the pages that it touches. Returns 0 in the clone, with its frame read if `beginning` is
 * set; it exits when its job has ended. In the caller, then: 1 if all pages are reported; -ECHILD if the job failed or took
 * too long; another -errno if there was no clone. */
int lw_scout(const struct lw_scout *how)
{
	int pidfd = -1;
	siginfo_t info = { 0 };
	const int pid = lw_clone(0, -1, &pidfd);

	if (pid < 0)
		return pid;
	if (pid == 0) {
		for (int i = 0; i < LW_SCOUT_ENDS; i++)
			if (dup2(how->ends[i], i) < 0)
				_exit(1);
		scouting = how;
		lw_job_watch(tell);
		if (how->beginning && !lw_job_begin(how->beginning))
			_exit(1);
		return 0;
	}
	struct pollfd over = { .fd = pidfd, .events = POLLIN };
	if (poll(&over, 1, DEADLINE_MS) <= 0)
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	while (waitid((idtype_t)3 /* P_PIDFD */, (id_t)pidfd, &info, WEXITED) < 0 && errno == EINTR)
		;
	close(pidfd);
	return info.si_code == CLD_EXITED && info.si_status == 0 ? 1 : -ECHILD;
}

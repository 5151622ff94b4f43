/* A program that is started in namespaces of its own.
 *
 * Runs in:  the daemon, which may have other threads; the child, until it is that program.
 *
 * Theory of operation. The child shares the daemon's memory (CLONE_VM) and has a stack of its own in struct lw_start. It
 * makes only the raw system calls of a table, and the last of them is execve(2). The caller waits until the child
 * has left this memory, which the end of a close-on-exec pipe shows, before it frees struct lw_start. No page is copied,
 * no handler of a fork runs, and no lock of another thread is needed.
 *
 * The child starts with all signals blocked: a handler of the daemon's would run on the daemon's memory. The program
 * unblocks them. */

#include "start.h"

#include "clone.h"
#include "raw.h"
#include "steps.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>

#define STACK_SIZE (16U << 10)

struct lw_start {
	const struct lw_step *steps;
	uint32_t count;
	uint32_t done;         /* written by the child: how many steps had an allowed result */
	int64_t result;        /* written by the child: the result of the next one */
	_Alignas(16) unsigned char stack[STACK_SIZE];
};

/* Room for one start; NULL when there is no memory. */
struct lw_start *lw_start_new(void)
{
	struct lw_start *start = aligned_alloc(16, sizeof(struct lw_start));

	if (start)
		start->done = 0, start->result = 0;
	return start;
}

/* Free *start*. Call it only after the child has left this memory. */
void lw_start_free(struct lw_start *start)
{
	free(start);
}

__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void start_main(void *argument)
{
	struct lw_start *start = argument;

	start->done = lw_run_steps(start->steps, start->count, &start->result);
	for (;;)
		raw(SYS_exit_group, 127, 0, 0, 0, 0);
}

/* Start a child in new namespaces (*flags*, CLONE_NEW*) that takes *steps*.
 *
 * clone3(2), Linux 5.3. Returns its pid with *ret_pidfd set, or -errno. */
int lw_start(struct lw_start *start, uint64_t flags, const struct lw_step *steps, uint32_t count, int *ret_pidfd)
{
	uint64_t all = ~0ULL, before = 0;
	int pidfd = -1;
	struct clone_request request = {
		.flags = flags | CLONE_VM | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)&pidfd,
		.stack = (uint64_t)(uintptr_t)start->stack,
		.stack_size = STACK_SIZE,
		.exit_signal = SIGCHLD,
	};

	start->steps = steps;
	start->count = count;
	long err = raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof(all), 0);
	if (err < 0)
		return (int)err;
	long pid = clone3_onto(&request, start_main, start);
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof(before), 0);
	if (pid > 0)
		*ret_pidfd = pidfd;
	return (int)pid;
}

/* How many steps of the child have succeeded, and the result of the next one in *ret_result. Call it after the child has
 * ended. */
uint32_t lw_start_done(const struct lw_start *start, int64_t *ret_result)
{
	*ret_result = start->result;
	return start->done;
}

/* Making processes: keepers by clone3, runners as an init and a job.
 *
 * Runs in:  zygote and keeper, both single-threaded; then init and job.
 *
 * A runner is two processes. The init is pid 1 of its pid namespace: it reaps orphans and ends when the job ends. It is a
 * C loop that shares the keeper's memory (CLONE_VM), so it costs no page tables. The job is pid 2: a copy of the keeper,
 * which wakes up inside the keeper's own call of lw_spawn_runner.
 *
 * Theory of operation
 *
 *   keeper                    init (own stack, keeper's memory)    job
 *   _setjmp; clone3(VM) ----> PDEATHSIG
 *   futex wait                clone3(INTO_CGROUP) ---------------> attach to cgroups,
 *     |                       close all, drop all, filter          _longjmp, returns 0
 *   returns pid <------------ state = LOCKED, wake
 *                             wait4 until the job is gone
 *   (reads both)              status, time = ..., exit
 *
 * An init of kept namespaces (lw_init_stay) has no job: a helper makes the runners there, beside.c. Its orphans are reaped
 * by the kernel, as it ignores SIGCHLD, and it only tells whether one lives.
 *
 * The keeper sleeps while the job is copied from its memory, so the copy is consistent. Init and keeper share thread-local
 * storage too, errno included: the init makes raw system calls only and calls nothing of libc but _longjmp, in the job. */

/* glibc's fortified longjmp takes a jump to another stack for an attack. */
#undef _FORTIFY_SOURCE

#include "clone.h"
#include "raw.h"
#include "spawn.h"
#include "steps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif

enum { STARTING = 0, LOCKED = 1, FAILED = 2 };

/* Enough for the init's few frames; nothing there recurses. */
#define STACK_SIZE (32U << 10)

/* A worker whose init needs longer than 5 s is useless. */
#define BIRTH_DEADLINE_S 5

struct lw_init {
	uint32_t state;        /* futex: STARTING, LOCKED or FAILED */
	int32_t error;         /* -errno where FAILED */
	int32_t status;        /* wait status of the job, valid once `ended` is 1 */
	uint32_t ended;
	uint64_t spent_us;     /* processor time of all children that it has reaped, and of their reaped children */
	uint64_t largest;      /* bytes that one of them, or a child of theirs that they reaped, had at once, at the most */
	uint64_t page;         /* bytes of a page */
	uint32_t asked;        /* futex: lw_init_alone waits for `alone` */
	int32_t alone;
	const struct lw_runner *how;
	struct lw_thread thread;
	jmp_buf resume;        /* in the job: back into lw_spawn_runner */
	_Alignas(16) unsigned char stack[STACK_SIZE];
};

/* Bytes that a process of this usage had at once, at the most. Its faults leave out what it inherited and never touched,
 * and most of what it maps of files. */
__attribute__((no_sanitize("address", "undefined", "thread")))
uint64_t lw_largest(const struct rusage *used, uint64_t page)
{
	const uint64_t resident = (uint64_t)used->ru_maxrss << 10;
	const uint64_t faults = (uint64_t)(used->ru_minflt + used->ru_majflt) * page;

	return faults < resident ? faults : resident;
}

static long lock_init(const struct lw_runner *how)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2];
	struct sock_fprog program = { .len = how->filter_count,
				      .filter = (struct sock_filter *)(uintptr_t)how->filter };
	long err;

	/* All zero, without a memset call that the compiler might take from libc. */
	for (unsigned i = 0; i < 2; i++)
		none[i].effective = none[i].permitted = none[i].inheritable = 0;

	if ((err = raw(SYS_capset, (long)&head, (long)none, 0, 0, 0)) < 0)
		return err;
	if ((err = raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) < 0)
		return err;
	if (how->ruleset >= 0 &&
	    (err = raw(SYS_landlock_restrict_self, how->ruleset, 0, 0, 0, 0)) < 0)
		return err;
	if ((err = raw(SYS_close_range, 0, ~0U, 0, 0, 0)) < 0)
		return err;
	return raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0);
}

static void report(struct lw_init *init, uint32_t state, long err)
{
	init->error = (int32_t)err;
	__atomic_store_n(&init->state, state, __ATOMIC_RELEASE);
	raw(SYS_futex, (long)&init->state, FUTEX_WAKE_PRIVATE, 1, 0, 0);
}

/* The init. The job, which is cloned here, leaves this function by _longjmp. */
__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void init_main(void *argument)
{
	struct lw_init *init = argument;
	const struct lw_runner *how = init->how;
	struct clone_request request = {
		.flags = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
		.child_tid = (uint64_t)(uintptr_t)init->thread.tid_address,
		.exit_signal = SIGCHLD,
	};
	uint64_t all_signals = ~0ULL;
	long err = raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);

	/* The job alone goes into the leaf. The init shares the keeper's memory, and
	 * the kernel, out of memory in a group, kills all that share memory with it. */
	if (how->cgroup >= 0) {
		request.flags |= CLONE_INTO_CGROUP;
		request.cgroup = (uint64_t)how->cgroup;
	}
	long job = err < 0 ? err : raw(SYS_clone3, (long)&request, sizeof(request), 0, 0, 0);
	if (job == 0) {
		/* clone3 can't join v1 hierarchies, so the job joins them before anything else. */
		for (uint32_t i = 0; i < how->attach_count && err >= 0; i++)
			err = raw(SYS_write, how->attach[i], (long)"0", 1, 0, 0);
		init->error = err < 0 ? (int32_t)err : 0; /* in the job's own copy */
		_longjmp(init->resume, 1);
	}

	/* The job has its own copy of everything; from here on this is pid 1. */
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all_signals, 0, sizeof(all_signals), 0);
	err = job < 0 ? job : lock_init(how);
	report(init, err < 0 ? FAILED : LOCKED, err);

	while (err >= 0) {
		int status;
		struct rusage used;
		long pid = raw(SYS_wait4, -1, (long)&status, 0, (long)&used, 0);
		if (pid > 0) {
			const uint64_t most = lw_largest(&used, init->page);

			init->spent_us += microseconds(&used.ru_utime) + microseconds(&used.ru_stime);
			init->largest = most > init->largest ? most : init->largest;
		}
		if (pid == job) {
			init->status = status;
			__atomic_store_n(&init->ended, 1, __ATOMIC_RELEASE);
			break;
		}
		if (pid < 0 && pid != -EINTR)
			break;
	}
	raw_exit(0);
}

__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void stay_main(void *argument)
{
	struct lw_init *init = argument;
	const struct { void *handler; unsigned long flags; void *restorer; uint64_t mask; } ignored = { .handler = SIG_IGN };
	uint64_t none = 0;
	long err = raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);

	/* Without handlers the kernel drops a job's signals to pid 1. Blocked ones would wait, for later jobs to see and to lack. */
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof(none), 0);
	if (err >= 0)
		err = raw(SYS_rt_sigaction, SIGCHLD, (long)&ignored, 0, sizeof(ignored.mask), 0);
	err = err < 0 ? err : lock_init(init->how);
	report(init, err < 0 ? FAILED : LOCKED, err);
	while (err >= 0) {
		if (!__atomic_load_n(&init->asked, __ATOMIC_ACQUIRE)) {
			raw(SYS_futex, (long)&init->asked, FUTEX_WAIT_PRIVATE, 0, 0, 0);
			continue;
		}
		init->alone = raw(SYS_wait4, -1, 0, WNOHANG, 0, 0) == -ECHILD;
		__atomic_store_n(&init->asked, 0, __ATOMIC_RELEASE);
		raw(SYS_futex, (long)&init->asked, FUTEX_WAKE_PRIVATE, 1, 0, 0);
	}
	raw_exit(0);
}

/* In a helper: make an init without a job, pid 1 where the helper's children are, and a child of the keeper. Returns 0 when
 * its locks are set, or -errno; *ret_pid is set if there is a process. Only raw system calls. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_init_stay(struct lw_init *init, const struct lw_runner *how, int *ret_pid, int *ret_pidfd)
{
	struct clone_request request = {
		.flags = CLONE_VM | CLONE_PARENT | CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
		.pidfd = (uint64_t)(uintptr_t)ret_pidfd,
		.stack = (uint64_t)(uintptr_t)init->stack,
		.stack_size = STACK_SIZE,
	};
	const struct timespec deadline = { .tv_sec = BIRTH_DEADLINE_S };

	init->state = STARTING;
	init->how = how;
	const long pid = clone3_onto(&request, stay_main, init);
	if (pid < 0)
		return (int)pid;
	*ret_pid = (int)pid;
	raw(SYS_futex, (long)&init->state, FUTEX_WAIT_PRIVATE, STARTING, (long)&deadline, 0);
	const uint32_t state = __atomic_load_n(&init->state, __ATOMIC_ACQUIRE);
	return state == LOCKED ? 0 : state == FAILED ? init->error : -ETIMEDOUT;
}

/* In a helper: whether no child of this init lives; also false if it doesn't answer. Only raw system calls. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_init_alone(struct lw_init *init)
{
	const struct timespec deadline = { .tv_sec = 1 };

	__atomic_store_n(&init->asked, 1, __ATOMIC_RELEASE);
	raw(SYS_futex, (long)&init->asked, FUTEX_WAKE_PRIVATE, 1, 0, 0);
	raw(SYS_futex, (long)&init->asked, FUTEX_WAIT_PRIVATE, 1, (long)&deadline, 0);
	return !__atomic_load_n(&init->asked, __ATOMIC_ACQUIRE) && init->alone;
}

/* Like fork(2), with namespaces (*flags*, CLONE_NEW*), a cgroup (Linux 5.7) and a pidfd. Returns 0 in the child, its pid in
 * the caller, which has one thread, or -errno. */
int lw_clone(uint64_t flags, int cgroup, int *ret_pidfd)
{
	struct lw_thread thread;
	int pidfd = -1, err = lw_thread_now(&thread);

	if (err < 0)
		return err;

	struct clone_request request = {
		.flags = flags | CLONE_PIDFD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
		.pidfd = (uint64_t)(uintptr_t)&pidfd,
		.child_tid = (uint64_t)(uintptr_t)thread.tid_address,
		.exit_signal = SIGCHLD,
	};
	if (cgroup >= 0) {
		request.flags |= CLONE_INTO_CGROUP;
		request.cgroup = (uint64_t)cgroup;
	}
	long pid = raw(SYS_clone3, (long)&request, sizeof(request), 0, 0, 0);
	if (pid == 0)
		syscall(SYS_set_robust_list, thread.robust, thread.robust_size);
	else if (pid > 0)
		*ret_pidfd = pidfd;
	return (int)pid;
}

__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void start_main(void *argument)
{
	struct lw_start *start = argument;

	start->done = lw_run_steps(start->steps, start->count, &start->result);
	raw_exit(127);
}

/* Start a child in new namespaces (*flags*, CLONE_NEW*) that takes *steps*, with all signals blocked: a handler would run
 * on the caller's memory. clone3(2), Linux 5.3. Returns its pid, or -errno. */
static long start_with(struct lw_start *start, struct clone_request *request)
{
	uint64_t all = ~0ULL, before = 0;

	request->flags |= CLONE_VM;
	request->exit_signal = SIGCHLD;
	request->stack = ((uint64_t)(uintptr_t)start->stack + 15) & ~15ULL;
	request->stack_size = sizeof(start->stack) - 16;
	long err = raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof(all), 0);
	if (err < 0)
		return err;
	long pid = clone3_onto(request, start_main, start);
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof(before), 0);
	return pid;
}

/* Start a program in namespaces of its own, from a daemon that may have other threads: the last of *steps* is execve(2),
 * and until then the child makes only raw system calls. The caller keeps *start* until the child has left this memory,
 * which the end of a close-on-exec pipe shows. So no page is copied, no handler of a fork runs, and no lock of another
 * thread is needed. The program unblocks the signals. */
int lw_start(struct lw_start *start, uint64_t flags, const struct lw_step *steps, uint32_t count, int *ret_pidfd)
{
	int pidfd = -1;
	struct clone_request request = { .flags = flags | CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd };

	start->steps = steps;
	start->count = count;
	long pid = start_with(start, &request);
	if (pid > 0)
		*ret_pidfd = pidfd;
	return (int)pid;
}

/* Have a child execute lw_run_steps, in new namespaces or in those that the steps enter, and wait until it has ended. If
 * the child is pid 1 of a new pid namespace, that namespace is unusable afterwards. The caller sleeps meanwhile.
 * Returns as lw_run_steps does; or -1 if clone3 has failed, with its -errno in *ret_result. */
int64_t lw_run_steps_aside(uint64_t flags, const struct lw_step *steps, uint32_t count, int64_t *ret_result)
{
	struct lw_start start; /* an initializer would write all pages of its stack */
	struct clone_request request = { .flags = flags | CLONE_VFORK };

	start.steps = steps;
	start.count = count;
	start.done = 0;
	start.result = 0;
	long pid = start_with(&start, &request);
	if (pid < 0) {
		*ret_result = pid;
		return -1;
	}
	while (raw(SYS_wait4, pid, 0, 0, 0, 0) == -EINTR)
		;
	*ret_result = start.result;
	return start.done;
}

struct lw_init *lw_init_new(void)
{
	void *at = mmap(NULL, sizeof(struct lw_init), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

/* Free *init*. Call it only after the init was reaped, because the init runs on this memory. */
void lw_init_free(struct lw_init *init)
{
	munmap(init, sizeof(*init));
}

/* After the init was reaped: the job's wait status; or -ECHILD if the init was killed, and the job with it. */
int lw_init_status(const struct lw_init *init, int *ret_status)
{
	if (!__atomic_load_n(&init->ended, __ATOMIC_ACQUIRE))
		return -ECHILD;
	*ret_status = init->status;
	return 0;
}

/* After the init was reaped: processor time of the job and of the orphans that it had reaped, in microseconds. The time of
 * processes that were killed with the init is missing. */
uint64_t lw_init_spent_us(const struct lw_init *init)
{
	return init->spent_us;
}

/* The same: bytes that one of those processes had at once, at the most; 0 if that isn't known. */
uint64_t lw_init_largest(const struct lw_init *init)
{
	return init->largest;
}

/* In the job: 0, or the -errno of the attempt to join a cgroup. */
int lw_init_join_error(const struct lw_init *init)
{
	return init->error;
}

static int await_birth(struct lw_init *init, int pidfd)
{
	struct timespec tick = { .tv_nsec = 100000000 };

	for (int i = 0; i < 10 * BIRTH_DEADLINE_S; i++) {
		uint32_t state = __atomic_load_n(&init->state, __ATOMIC_ACQUIRE);
		siginfo_t info = { 0 };

		if (state != STARTING)
			return state == LOCKED ? 0 : init->error;
		syscall(SYS_futex, &init->state, FUTEX_WAIT_PRIVATE, STARTING, &tick, NULL, 0);
		/* Killed before it could set the state, for example by the OOM killer. */
		if (waitid((idtype_t)3 /* P_PIDFD */, (id_t)pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
		    info.si_pid && __atomic_load_n(&init->state, __ATOMIC_ACQUIRE) == STARTING)
			return -ESRCH;
	}
	return -ETIMEDOUT;
}

/* Make an init and its job. clone3(2), Linux 5.9 (close_range). Returns 0 in the job; in the caller the pid of the init,
 * whose locks are set, with *ret_pidfd set; or -errno, and then no process is left. The caller has one thread and holds the
 * locks that CPython holds in os.fork. */
int lw_spawn_runner(struct lw_init *init, const struct lw_runner *how, int *ret_pidfd)
{
	int pidfd = -1, err = lw_thread_now(&init->thread);

	if (err < 0)
		return err;
	init->state = STARTING;
	init->ended = 0;
	init->spent_us = 0;
	init->largest = 0;
	init->page = (uint64_t)sysconf(_SC_PAGESIZE);
	init->how = how;
	/* Everything that the job reads after the jump is in *init*. */
	if (_setjmp(init->resume)) {
		lw_reborn(&init->thread);
		return 0;
	}

	struct clone_request request = {
		.flags = how->flags | CLONE_VM | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)&pidfd,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)init->stack,
		.stack_size = STACK_SIZE,
	};
	long pid = clone3_onto(&request, init_main, init);
	if (pid < 0)
		return (int)pid;

	err = await_birth(init, pidfd);
	if (err < 0) {
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
		while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR)
			;
		close(pidfd);
		return err;
	}
	*ret_pidfd = pidfd;
	return (int)pid;
}

/* A kernel's branch: a fork whose parent has ended at once, so that the sandbox's init reaps it.
 *
 * Runs in:  a kernel's process behind all locks, the process between it and its branch, and the branch.
 *
 * The one between runs on the kernel's memory (vfork), so that page tables are copied once. What it calls is libc's fork:
 * handlers of libraries (pthread_atfork) and libc's own locks work on the kernel's memory and its thread's storage, as if
 * the kernel's thread called it, which sleeps meanwhile. The branch returns on its copy of the stack.
 *
 * The branch takes its ends and says that it is there before the interpreter's hooks run: the daemon looks at it meanwhile. */

/* Python.h first, and without the stable ABI's own idea of stdlib macros. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOST 70 /* EX_SOFTWARE */

/* In the branch: wait until the process between has been reaped, then take the ends. The first one is the door. */
static void take_ends(const int *ends, const int *places, int gate, uint8_t word)
{
	char none;

	while (read(gate, &none, 1) < 0 && errno == EINTR)
		;
	setsid();
	for (int at = 0; at < LW_BRANCH_ENDS; at++)
		if (dup2(ends[at], places[at]) < 0 || fcntl(places[at], F_SETFD, at < LW_BRANCH_PIPES ? FD_CLOEXEC : 0) < 0)
			_exit(LOST);
	if (send(places[0], &word, 1, MSG_NOSIGNAL) != 1)
		_exit(LOST);
}

/* Fork a branch, with CPython's functions around a fork. Returns 0 in the branch, which has *ends* at *places* then, a
 * session of its own, and has sent *word* on the first of them; its pid in the caller, or -errno. The caller closes *ends*. */
int lw_branch(const int *ends, const int *places, uint8_t word)
{
	/* Written by the process between, in the caller's memory, unless it is killed before; and by the branch in its own. */
	volatile int made = -ESRCH;
	struct lw_thread thread;
	sigset_t all, before;
	int gate[2], err = lw_thread_now(&thread);

	if (err < 0)
		return err;
	if (pipe2(gate, O_CLOEXEC) < 0)
		return -errno;
	PyGILState_STATE held = PyGILState_Ensure();
	PyOS_BeforeFork();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler would run on the caller's memory */

	pid_t between = vfork();
	if (between == 0) {
		pid_t pid = fork();
		if (pid) {
			made = pid < 0 ? -errno : pid;
			_exit(0);
		}
		made = 0;
	} else if (between < 0) {
		made = -errno;
	} else {
		while (waitpid(between, NULL, 0) < 0 && errno == EINTR)
			;
	}

	close(gate[1]);
	if (!made) {
		lw_reborn(&thread);
		take_ends(ends, places, gate[0], word);
	}
	close(gate[0]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	(made ? PyOS_AfterFork_Parent : PyOS_AfterFork_Child)();
	PyGILState_Release(held);
	return made;
}

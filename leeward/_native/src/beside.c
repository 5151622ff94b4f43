/* One more process in the namespaces of a runner: a program, or a copy of the keeper.
 *
 * Runs in:  the keeper, single-threaded; then a helper, and the new process until it is a program.
 *
 * Theory of operation
 *
 *   keeper              helper (keeper's memory and files)  process
 *   clone3(VM|FILES) -> block signals, wait for an order
 *   busy = 1, wake ---> setns: pid, mount, ipc, uts
 *     sleeps            clone3(PARENT|VM|VFORK) ----------> cgroups, limits, locks, execve
 *                       busy = 0, wake <------------------- (a program, or gone)
 *
 * A process that has entered a pid namespace by setns(2) can't leave it again. So a helper enters it, and makes one clone
 * there, by CLONE_PARENT a child of the keeper, which sees its end by pidfd. Its orphans go to the runner's init. Until
 * its execve the process runs on the keeper's memory, as after vfork(2), so no page table is copied. Meanwhile the keeper
 * sleeps, the process makes only raw system calls, and the OOM killer spares it (in_vfork), and with it the keeper.
 *
 * Where Landlock knows borders of domains (ABI 6), one helper makes all processes of a sandbox but porters, which mount. It
 * restricts itself before the first, behind the last call that Landlock forbids. They inherit its domain, in which they
 * reach each other's sockets and signal each other, and nobody outside. The helper itself is in no pid namespace that they
 * see, and in no process group of theirs.
 *
 * A *base* is a helper in namespaces of its own, those of several runners, one after the other. Its pid namespace is its
 * children's, not its own, so no runner sees it. A runner there is its child, a copy as below. When one is over, the base
 * asks whether anything is left: a process, a file, an attribute of a folder; then the namespaces end with it. System V's objects
 * need no look: the next runner gets another ipc namespace.
 *
 * A copy (no command) is made like a runner's job: it returns from the keeper's own call, with its own memory.
 *
 * A program's arguments come from a client, in a memory file of the daemon's. A keeper serves one client after the other,
 * and each job is a copy of its memory. So they are in a mapping of their own, which is unmapped before the next order. */

/* glibc's fortified longjmp takes a jump to another stack for an attack. */
#undef _FORTIFY_SOURCE

#include "beside.h"

#include "clone.h"
#include "raw.h"
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STACK_SIZE (16U << 10)

/* Nobody reads this status; the failure is in struct lw_fate. */
#define EXIT_NEVER_RAN 70

/* A folder of the runner's tmpfs on which no client can mount anything; spec/folders.py. */
#define SCRATCH "/dev/shm"
/* The tmpfs has as many names as files of this size would have room. */
#define BYTES_A_NAME 4096

struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

struct birth {
	const struct lw_beside *how;
	struct lw_fate fate;
	int32_t pid;           /* of the process, in the keeper's pid namespace; 0: not made yet */
	int32_t pidfd;
	struct lw_thread thread;
	jmp_buf resume;        /* in a copy: back into lw_spawn_beside */
	_Alignas(16) unsigned char stack[STACK_SIZE];
};

struct lw_helper {
	uint32_t busy;                /* futex: an order is there that isn't carried out */
	int32_t pid, keeper;
	struct birth *birth;          /* the order; NULL: exit */
	const struct lw_step *domain; /* its locks, which it takes once */
	uint32_t count;
	const struct lw_runner *own;  /* of a base: how its init is made; else NULL */
	struct lw_init *init;
	int32_t init_pid, init_pidfd, init_error;
	int32_t runner;               /* the pid of the last runner, 0 before the first */
	bool ruled, over;             /* `domain` was taken; an order without `birth` is to exit, and not to look */
	bool empty;                   /* nothing was left at the last look */
	int32_t status;               /* and the runner's end */
	struct rusage used;
	_Alignas(16) unsigned char stack[STACK_SIZE];
};

static const int kinds[LW_NAMESPACES] = { CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS };

static int all(int fd, void *ret, size_t size, off_t offset)
{
	ssize_t got;

	while ((got = pread(fd, ret, size, offset)) < 0 && errno == EINTR)
		;
	if (got < 0)
		return -errno;
	return (size_t)got == size ? 0 : -EPROTO;
}

/* Fill *row* with pointers to `count` strings from *at* on, and a NULL. Returns where they end; NULL if not before *end*. */
static char *take(char **row, uint32_t count, char *at, const char *end)
{
	for (uint32_t i = 0; i < count; i++) {
		char *nul = memchr(at, 0, (size_t)(end - at));
		if (!nul)
			return NULL;
		row[i] = at;
		at = nul + 1;
	}
	row[count] = NULL;
	return at;
}

/* Read the arguments from *fd*, for lw_command_free. Returns 0; -EPROTO for malformed content; or another -errno. */
int lw_command_read(int fd, struct lw_command *ret)
{
	struct lw_command_head head;
	int err = all(fd, &head, sizeof(head), 0);

	if (err < 0)
		return err;
	if (!head.paths || !head.arguments || head.paths > LW_COMMAND_STRINGS || head.arguments > LW_COMMAND_STRINGS ||
	    head.variables > LW_COMMAND_STRINGS || !head.size || head.size > LW_COMMAND_BYTES)
		return -EPROTO;

	const size_t pointers = ((size_t)head.paths + head.arguments + head.variables + 3) * sizeof(char *);
	const size_t size = pointers + head.size;
	char **rows = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if ((void *)rows == MAP_FAILED)
		return -ENOMEM;
	struct lw_command command = { .memory = rows, .size = size, .paths = rows,
				      .arguments = rows + head.paths + 1,
				      .variables = rows + head.paths + 1 + head.arguments + 1 };
	char *folder[2] = { NULL, NULL }, *at = (char *)rows + pointers;
	const char *end = at + head.size;

	if ((err = all(fd, at, head.size, sizeof(head))) == 0) {
		if (!(at = take(folder, 1, at, end)) || !(at = take(command.paths, head.paths, at, end)) ||
		    !(at = take(command.arguments, head.arguments, at, end)) ||
		    !(at = take(command.variables, head.variables, at, end)) || at != end)
			err = -EPROTO;
	}
	if (err < 0) {
		lw_command_free(&command);
		return err;
	}
	command.folder = folder[0];
	*ret = command;
	return 0;
}

void lw_command_free(struct lw_command *command)
{
	munmap(command->memory, command->size);
}

static int fail(struct lw_fate *fate, enum lw_stage stage, long result)
{
	fate->stage = stage;
	fate->result = result;
	return -1;
}

static long set_limit(int number, uint64_t soft, uint64_t hard)
{
	const uint64_t limit[2] = { soft, hard };

	return soft ? raw(SYS_prlimit64, 0, number, (long)limit, 0, 0) : 0;
}

/* In the new process: join cgroups, set processor and limits. Only raw system calls. 0, or -1 with *ret_fate set. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_beside_prepare(const struct lw_beside *how, struct lw_fate *ret_fate)
{
	long err = 0;

	/* clone3 can't join v1 hierarchies, so the process joins them before anything else. */
	for (uint32_t i = 0; i < how->attach_count && err >= 0; i++)
		err = raw(SYS_write, how->attach[i], (long)"0", 1, 0, 0);
	if (err < 0)
		return fail(ret_fate, LW_AT_CGROUP, err);
	if (how->cpu >= 0) {
		uint8_t one[128];
		for (unsigned i = 0; i < sizeof(one); i++)
			((volatile uint8_t *)one)[i] = 0; /* without a memset call that the compiler might take from libc */
		if (how->cpu >= (int)sizeof(one) * 8)
			return fail(ret_fate, LW_AT_AFFINITY, -EINVAL);
		one[how->cpu / 8] = (uint8_t)(1U << how->cpu % 8);
		if ((err = raw(SYS_sched_setaffinity, 0, sizeof(one), (long)one, 0, 0)) < 0)
			return fail(ret_fate, LW_AT_AFFINITY, err);
	}
	if (how->reaper && (err = raw(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) < 0)
		return fail(ret_fate, LW_AT_RLIMITS, err);
	if ((err = set_limit(RLIMIT_NPROC, how->most_tasks, how->most_tasks)) < 0 ||
	    (err = set_limit(RLIMIT_DATA, how->data, how->most_data)) < 0)
		return fail(ret_fate, LW_AT_RLIMITS, err);
	return 0;
}

/* Execute the first of the paths that can be executed. Returns -errno as a shell would report it: -EACCES if one of the
 * files exists but can't be executed, else the error of the last one. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static long run(const struct lw_command *command)
{
	long err = -ENOENT;

	for (char **path = command->paths; *path; path++) {
		long got = raw(SYS_execve, (long)*path, (long)command->arguments, (long)command->variables, 0, 0);
		if (got != -ENOENT && got != -ENOTDIR && !(got == -EACCES && path[1]))
			return got;
		if (got == -EACCES || err != -EACCES)
			err = got;
	}
	return err;
}

__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void process_main(void *argument)
{
	struct birth *birth = argument;
	const struct lw_beside *how = birth->how;
	const struct lw_command *command = how->command;
	/* Signals that the interpreter ignores; CLONE_CLEAR_SIGHAND has reset only those with handlers. */
	static const int ignored[] = { SIGPIPE, SIGXFSZ };
	const struct kernel_sigaction usual = { .handler = NULL }; /* SIG_DFL */
	uint64_t none = 0;
	long err = 0;

	for (unsigned i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		raw(SYS_rt_sigaction, ignored[i], (long)&usual, 0, sizeof(usual.mask), 0);
	birth->fate.inside = (int32_t)raw(SYS_getpid, 0, 0, 0, 0, 0);
	if (lw_beside_prepare(how, &birth->fate) == 0) {
		int64_t result = 0;
		birth->fate.done = lw_run_steps(how->steps, how->count, &result);
		if (birth->fate.done < how->count)
			fail(&birth->fate, LW_AT_STEP, result ? result : -EPROTO);
		else if ((err = set_limit(RLIMIT_NOFILE, how->most_descriptors, how->most_descriptors)) < 0) /* late, as `rlimits.late` */
			fail(&birth->fate, LW_AT_RLIMITS, err);
		else if ((err = raw(SYS_chdir, (long)command->folder, 0, 0, 0, 0)) < 0)
			fail(&birth->fate, LW_AT_FOLDER, err);
		else {
			raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof(none), 0);
			fail(&birth->fate, LW_AT_EXEC, run(command));
		}
	}
	raw_exit(EXIT_NEVER_RAN);
}

/* Write *value* as text into *ret*, of 24 bytes. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static const char *decimal(uint64_t value, char *ret)
{
	char *at = ret + 23;

	*at = 0;
	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	return at;
}

/* In the helper, in the runner's mounts: give its tmpfs the size *files*, and names enough. fspick(2), Linux 5.2. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static long resize(uint64_t files)
{
	struct statfs was;
	char text[24];
	long err = raw(SYS_statfs, (long)SCRATCH, (long)&was, 0, 0, 0);
	long fs = err < 0 ? err : raw(SYS_fspick, AT_FDCWD, (long)SCRATCH, FSPICK_CLOEXEC | FSPICK_SYMLINK_NOFOLLOW, 0, 0);

	if (fs < 0)
		return fs;
	err = raw(SYS_fsconfig, fs, FSCONFIG_SET_STRING, (long)"size", (long)decimal(files, text), 0);
	if (err >= 0 && was.f_files < files / BYTES_A_NAME)
		err = raw(SYS_fsconfig, fs, FSCONFIG_SET_STRING, (long)"nr_inodes", (long)decimal(files / BYTES_A_NAME, text), 0);
	if (err >= 0)
		err = raw(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, 0, 0, 0);
	raw(SYS_close, fs, 0, 0, 0, 0);
	return err;
}

/* In a helper: enter the runner's namespaces, and give its tmpfs the size *files*, unless that is 0. 0, or -1. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static int enter(struct birth *birth, uint64_t files)
{
	long got = 0;

	for (unsigned i = 0; i < LW_NAMESPACES && got >= 0; i++)
		got = raw(SYS_setns, birth->how->namespaces[i], kinds[i], 0, 0, 0);
	if (got < 0)
		return fail(&birth->fate, LW_AT_NAMESPACES, got);
	if (files && (got = resize(files)) < 0)
		return fail(&birth->fate, LW_AT_FILES, got);
	return 0;
}

/* In a helper, in the namespaces: make the process. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static void make(struct birth *birth, uint64_t before)
{
	const struct lw_beside *how = birth->how;
	const bool child = how->helper && how->helper->own;
	struct clone_request request = {
		.flags = CLONE_PIDFD | (child ? 0 : CLONE_PARENT),
		.pidfd = (uint64_t)(uintptr_t)&birth->pidfd,
		.exit_signal = child ? SIGCHLD : 0,
	};
	long got;

	if (how->cgroup >= 0) {
		request.flags |= CLONE_INTO_CGROUP;
		request.cgroup = (uint64_t)how->cgroup;
	}
	if (how->command) {
		request.flags |= CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND;
		request.stack = (uint64_t)(uintptr_t)birth->stack;
		request.stack_size = STACK_SIZE;
		got = clone3_onto(&request, process_main, birth);
	} else {
		request.flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
		request.child_tid = (uint64_t)(uintptr_t)birth->thread.tid_address;
		raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof(before), 0);
		got = raw(SYS_clone3, (long)&request, sizeof(request), 0, 0, 0);
		if (got == 0)
			_longjmp(birth->resume, 1);
	}
	if (got < 0)
		fail(&birth->fate, LW_AT_CLONE, got);
	else
		birth->pid = (int32_t)got;
}

/* In a base: whether the runners' tmpfs is as it was, its folders given their modes and times again. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static bool cleared(const struct lw_runner *how)
{
	struct statfs now;
	long err = raw(SYS_statfs, (long)how->folders[0], (long)&now, 0, 0, 0);

	for (uint32_t i = 0; i < how->folder_count && err == 0; i++) {
		const long folder = (long)how->folders[i];

		err = raw(SYS_fchmodat, AT_FDCWD, folder, i ? 01777 : 0755, 0, 0);
		err = err < 0 ? err : raw(SYS_utimensat, AT_FDCWD, folder, 0, 0, 0);
		err = err < 0 ? err : raw(SYS_listxattr, folder, 0, 0, 0, 0);
	}
	return err == 0 && now.f_bfree == now.f_blocks && now.f_files - now.f_ffree == 1 + how->folder_count;
}

/* In a base: reap the last runner, which has ended, and look whether anything is left. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static void look(struct lw_helper *base)
{
	const long got = raw(SYS_wait4, base->runner, (long)&base->status, 0, (long)&base->used, 0);

	/* A process that the runner has made with its own parent is a child here, all others are the init's. */
	base->empty = got == base->runner && raw(SYS_unshare, CLONE_NEWIPC, 0, 0, 0, 0) == 0 &&
		      raw(SYS_wait4, -1, 0, WNOHANG, 0, 0) == -ECHILD && lw_init_alone(base->init) &&
		      cleared(base->own);
}

/* In a base: make the next runner. */
__attribute__((no_sanitize("address", "undefined", "thread")))
static void make_own(struct lw_helper *base, struct birth *birth, uint64_t before)
{
	int64_t result = 0;

	if (base->init_error)
		fail(&birth->fate, LW_AT_NAMESPACES, base->init_error);
	else if (base->runner && !base->ruled && lw_run_steps(base->domain, base->count, &result) != base->count)
		fail(&birth->fate, LW_AT_STEP, result);
	else {
		const uint64_t all_signals = ~0ULL;

		base->ruled = base->runner;
		make(birth, before);
		raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all_signals, 0, sizeof(all_signals), 0);
		base->runner = birth->pid;
	}
}

__attribute__((noreturn, no_sanitize("address", "undefined", "thread")))
static void helper_main(void *argument)
{
	struct lw_helper *helper = argument;
	uint64_t all_signals = ~0ULL, before = 0;
	int64_t result = 0;
	bool locked = false;

	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all_signals, (long)&before, sizeof(all_signals), 0);
	/* If the keeper is killed, the daemon recognizes the orphaned helper by this name, and reaps it. */
	raw(SYS_prctl, PR_SET_NAME, (long)LW_HELPER, 0, 0, 0);
	raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (helper->own) {
		const long got = raw(SYS_unshare, CLONE_NEWPID, 0, 0, 0, 0);
		helper->init_error = got < 0 ? (int)got : lw_init_stay(helper->init, helper->own, &helper->init_pid, &helper->init_pidfd);
	}
	while (raw(SYS_getppid, 0, 0, 0, 0, 0) == helper->keeper) {
		if (!__atomic_load_n(&helper->busy, __ATOMIC_ACQUIRE)) {
			raw(SYS_futex, (long)&helper->busy, FUTEX_WAIT_PRIVATE, 0, 0, 0);
			continue;
		}
		struct birth *birth = helper->birth;
		if (!birth && (!helper->own || helper->over))
			break;
		if (!birth)
			look(helper);
		else if (helper->own)
			make_own(helper, birth, before);
		else if (enter(birth, locked ? 0 : birth->how->files) == 0) {
			locked = locked || lw_run_steps(helper->domain, helper->count, &result) == helper->count;
			if (locked)
				make(birth, before);
			else
				fail(&birth->fate, LW_AT_NAMESPACES, result);
		}
		__atomic_store_n(&helper->busy, 0, __ATOMIC_RELEASE);
		raw(SYS_futex, (long)&helper->busy, FUTEX_WAKE_PRIVATE, 1, 0, 0);
	}
	/* Init's end waits until somebody has reaped every process of its namespace, of which some are children of a base. */
	while (helper->own && raw(SYS_wait4, -1, 0, 0, 0, 0) != -ECHILD)
		;
	raw_exit(0);
}

/* Hand *birth* to *helper*, which isn't busy; without one it exits. */
static void order(struct lw_helper *helper, struct birth *birth)
{
	helper->birth = birth;
	__atomic_store_n(&helper->busy, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &helper->busy, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static struct lw_helper *new_helper(const struct lw_step *domain, uint32_t count)
{
	struct lw_helper *helper = mmap(NULL, sizeof(*helper), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if ((void *)helper == MAP_FAILED)
		return NULL;
	helper->keeper = getpid();
	helper->domain = domain;
	helper->count = count;
	return helper;
}

/* Start *helper*, in new namespaces (*flags*, CLONE_NEW*). */
static bool started(struct lw_helper *helper, uint64_t flags)
{
	struct clone_request request = {
		.flags = CLONE_VM | CLONE_FILES | flags,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)helper->stack,
		.stack_size = STACK_SIZE,
	};
	helper->pid = (int32_t)clone3_onto(&request, helper_main, helper);
	return helper->pid > 0;
}

/* Make a helper, which takes the *count* steps of *domain* before its first order. NULL if that isn't possible. */
struct lw_helper *lw_helper_new(const struct lw_step *domain, uint32_t count)
{
	struct lw_helper *helper = new_helper(domain, count);

	if (!helper || started(helper, 0))
		return helper;
	munmap(helper, sizeof(*helper));
	return NULL;
}

/* Have *helper* make the process of *birth*. Returns when it has, or has failed, or was killed. */
static void give(struct lw_helper *helper, struct birth *birth)
{
	const struct timespec tick = { .tv_nsec = 100000000 };
	siginfo_t info = { 0 };

	order(helper, birth);
	while (__atomic_load_n(&helper->busy, __ATOMIC_ACQUIRE) && !info.si_pid) {
		syscall(SYS_futex, &helper->busy, FUTEX_WAIT_PRIVATE, 1, &tick, NULL, 0);
		waitid(P_PID, (id_t)helper->pid, &info, WEXITED | WNOHANG | WNOWAIT);
	}
}

/* Make a base, whose init is made as *how* says. All runners but the first have the rules of Landlock that the *count*
 * steps of *rules* leave. NULL if that isn't possible. */
struct lw_helper *lw_base_new(const struct lw_runner *how, const struct lw_step *rules, uint32_t count)
{
	struct lw_helper *base = new_helper(rules, count);
	struct lw_init *init = lw_init_new();

	if (base && init) {
		base->own = how;
		base->init = init;
		base->init_pidfd = -1;
		if (started(base, how->flags & ~(uint64_t)CLONE_NEWPID))
			return base;
	}
	if (init)
		lw_init_free(init);
	if (base)
		munmap(base, sizeof(*base));
	return NULL;
}

/* The last runner of *base* has ended: whether nothing is left where it was, so that there may be another one. */
bool lw_base_over(struct lw_helper *base, int *ret_status, struct rusage *ret_used)
{
	base->empty = false;
	base->status = -1;
	give(base, NULL);
	*ret_status = base->status;
	*ret_used = base->used;
	return base->empty;
}

/* End *base*, and with its init all that is left there. */
void lw_base_end(struct lw_helper *base)
{
	struct lw_init *init = base->init;
	const pid_t pid = base->init_pid;

	if (base->init_pidfd >= 0) {
		syscall(SYS_pidfd_send_signal, base->init_pidfd, SIGKILL, NULL, 0);
		close(base->init_pidfd);
	}
	base->over = true;
	lw_helper_end(base);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	lw_init_free(init);
}

/* The parent of its runners. */
int lw_base_pid(const struct lw_helper *base)
{
	return base->pid;
}

void lw_helper_end(struct lw_helper *helper)
{
	order(helper, NULL);
	while (waitpid(helper->pid, NULL, 0) < 0 && errno == EINTR)
		;
	munmap(helper, sizeof(*helper));
}

/* Kill and reap a process whose start has failed; it may have exited already. */
static void forget(struct birth *birth)
{
	siginfo_t info;

	syscall(SYS_pidfd_send_signal, birth->pidfd, SIGKILL, NULL, 0);
	while (waitid((idtype_t)3 /* P_PIDFD */, (id_t)birth->pidfd, &info, WEXITED) < 0 && errno == EINTR)
		;
	close(birth->pidfd);
}

/* Make the process. clone3(2), Linux 5.9 (close_range, in its locks). Returns its pid in the caller's namespace, with
 * *ret_pidfd set, when a program was executed; 0 in a copy, which has to set its locks itself; or -1, with *ret_fate set,
 * and then no process is left. The caller has one thread. */
int lw_spawn_beside(const struct lw_beside *how, struct lw_fate *ret_fate, int *ret_pidfd)
{
	struct birth *birth = mmap(NULL, sizeof(*birth), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*ret_fate = (struct lw_fate){ 0 };
	if ((void *)birth == MAP_FAILED)
		return fail(ret_fate, LW_AT_CLONE, -ENOMEM);
	birth->how = how;
	birth->pidfd = -1;
	if (lw_thread_now(&birth->thread) < 0) {
		munmap(birth, sizeof(*birth));
		return fail(ret_fate, LW_AT_CLONE, -ENOSYS);
	}

	/* Everything that a copy reads after the jump is in *birth*. */
	if (_setjmp(birth->resume)) {
		lw_reborn(&birth->thread);
		return 0;
	}

	struct lw_helper *helper = how->helper ? how->helper : lw_helper_new(NULL, 0);
	if (helper)
		give(helper, birth);
	if (helper && helper != how->helper)
		lw_helper_end(helper);
	*ret_fate = birth->fate;
	int pid = birth->pid;
	if (!pid && !ret_fate->result)
		fail(ret_fate, LW_AT_CLONE, -ESRCH); /* there is no helper, or it was killed */
	if (ret_fate->result) {
		pid = 0;
		if (birth->pidfd >= 0)
			forget(birth);
	} else {
		*ret_pidfd = birth->pidfd;
	}
	munmap(birth, sizeof(*birth));
	return pid ? pid : -1;
}

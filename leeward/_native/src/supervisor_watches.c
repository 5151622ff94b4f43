/* Watches of files: inotify for jobs, on files of writable mounts of their own view. And the thread for what may wait.
 *
 * Runs in:  the daemon; `answer_later` on a thread of its own, since a path's walk may wait for a disk, and the closing of an
 *           inotify descriptor for the kernel. docs/decisions/0174 has the reasons. Ids and owners are its matter as well
 *           (supervisor_ids.c, supervisor_owners.c).
 *
 * Theory of operation. A new inotify descriptor is the job's own: its call continues, by a decision on registers alone, so
 * that the kernel counts descriptor and events for the job. How many a sandbox may have, and how many watches, bounds the
 * kernel by numbers that the keeper wrote for its user namespace (isolation/watching.py). The supervisor counts sandboxes.
 *
 * inotify_add_watch names a file by a path in the task's memory, which another thread may change. So that call never
 * continues. The thread copies the path, walks it in the task's root to an O_PATH descriptor, judges this object, takes a
 * copy of the task's inotify descriptor, and adds the watch to the object by its own descriptor. Whatever a task swaps
 * meanwhile, names or descriptors: only what was judged is watched, and by a descriptor that was the task's.
 *
 * A listener whose call is being looked at isn't read until the answer, so each has one such call at most. */

#include "supervisor_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "steps.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* <linux/openat2.h>, which older headers lack */
#define NO_MAGICLINKS 0x02	/* RESOLVE_NO_MAGICLINKS */
#define IN_ROOT 0x10		/* RESOLVE_IN_ROOT */

/* Tries of a walk that a rename has disturbed. */
#define TRIES 8

/* How long the end of the supervisor waits for a walk. */
#define STOP_MS 2000

#define PAGE 4096
#define PROC_MAGIC 0x9fa0	/* <linux/magic.h> */

/* Bits of f_flags; statfs(2). */
#define READ_ONLY 0x01
#define FLAGS_ARE_SET 0x20

/* The answer to a job where a call of ours failed: that we have no room is no decision about the job. */
static int failed_here(void)
{
	return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -ENOMEM : -EACCES;
}

int lw_file_of(pid_t task, const char *name, int flags)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", task, name);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? failed_here() : fd;
}

/* Process, user and group. A task's name in this text has no newline, so that it can't be taken for another line. */
int lw_identify(struct lw_asker *asker)
{
	int fd = lw_file_of((pid_t)asker->request->pid, "status", O_RDONLY);
	const char *tgid, *uid, *gid;
	char text[PAGE];
	ssize_t got;

	if (fd < 0)
		return fd;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got < 0 ? 0 : got] = '\0';
	tgid = strstr(text, "\nTgid:");
	uid = strstr(text, "\nUid:");
	gid = strstr(text, "\nGid:");
	return tgid && uid && gid && sscanf(tgid, "\nTgid: %d", &asker->tgid) == 1 &&
		sscanf(uid, "\nUid: %*u %*u %*u %u", &asker->uid) == 1 &&
		sscanf(gid, "\nGid: %*u %*u %*u %u", &asker->gid) == 1 ? 0 : -EACCES;
}

/* Copy the path at `from` in the task's memory, behind the folder if it is relative: a descriptor of the task's, or AT_FDCWD.
 * The kernel copies up to the first page that isn't there. Returns 0 or -errno; -ENOENT for an empty path alone. */
int lw_copy_path(struct lw_asker *asker, uint64_t from, int at)
{
	const size_t first = PAGE - from % PAGE;
	char path[PATH_MAX];
	struct iovec into = { path, sizeof(path) };
	struct iovec parts[2] = { { (void *)(uintptr_t)from, first },			/* NOLINT */
				  { (void *)(uintptr_t)(from + first), sizeof(path) - first } };
	ssize_t got = process_vm_readv((pid_t)asker->request->pid, &into, 1, parts, sizeof(path) == first ? 1 : 2, 0);
	char link[64];
	ssize_t folder = 0;

	if (got < 0)
		return errno == EFAULT ? -EFAULT : -EACCES;
	if (!memchr(path, '\0', (size_t)got))
		return (size_t)got == sizeof(path) ? -ENAMETOOLONG : -EFAULT;
	if (!*path)
		return -ENOENT;
	if (*path != '/') {
		if (at == AT_FDCWD)
			snprintf(link, sizeof(link), "/proc/%u/cwd", asker->request->pid);
		else
			snprintf(link, sizeof(link), "/proc/%u/fd/%d", asker->request->pid, at);
		folder = readlink(link, asker->path, PATH_MAX - 1);
		if (folder < 0)
			return -EACCES;
		asker->path[folder++] = '/';
	}
	strcpy(asker->path + folder, path);
	return 0;
}

/* Close a copy of a task's descriptor, which may be the last. The last close of a socket, and of those that are in flight in
 * it, waits for as long as the task wants (SO_LINGER), but not in a process that exits: so one has a copy until then. */
static void let_go(int fd)
{
	const struct timespec look = { 0, 20000000 };
	struct stat status;
	uint32_t *closed;
	int pid;

	if (fd < 0 || fstat(fd, &status) || !S_ISSOCK(status.st_mode)) {
		if (fd >= 0)
			close(fd);
		return;
	}
	closed = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid = closed == MAP_FAILED ? -1 : (int)syscall(SYS_clone, 0, 0, 0, 0, 0);	/* no signal at its end */
	if (!pid) {
		for (int looks = 0; looks < 100 && !__atomic_load_n(closed, __ATOMIC_ACQUIRE); looks++)
			syscall(SYS_futex, closed, FUTEX_WAIT, 0, &look, NULL, 0);
		syscall(SYS_exit_group, 0);
	}
	close(fd);
	if (pid > 0) {
		__atomic_store_n(closed, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, closed, FUTEX_WAKE, 1, NULL, NULL, 0);
		while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
			;
	}
	if (closed != MAP_FAILED)
		munmap(closed, PAGE);
}

/* Whether the descriptor is one of inotify's, so that a copy of another is taken only if it changes meanwhile. Where the files
 * of /proc are root's, because the task isn't dumpable, the copy alone tells. */
static int check_inotify(const struct lw_asker *asker)
{
	char path[64], text[64];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", asker->tgid, (int)asker->request->data.args[0]);
	got = readlink(path, text, sizeof(text) - 1);
	if (got < 0)
		return errno == ENOENT ? -EBADF : errno == EACCES ? 0 : failed_here();
	text[got] = '\0';
	return strcmp(text, "anon_inode:inotify") ? -EINVAL : 0;
}

static int take_inotify(struct lw_asker *asker)
{
	int failed = check_inotify(asker);
	int pidfd = failed ? -1 : (int)syscall(SYS_pidfd_open, asker->tgid, 0);

	if (failed)
		return failed;
	if (pidfd < 0)
		return failed_here();
	asker->inotify = (int)syscall(SYS_pidfd_getfd, pidfd, (int)asker->request->data.args[0], 0);
	if (asker->inotify < 0)
		asker->inotify = errno == EBADF ? -EBADF : failed_here();
	close(pidfd);
	return asker->inotify < 0 ? asker->inotify : 0;
}

/* Walk to the object as the task would: in its root, by its ids, but through no link of /proc, which would be ours. */
int lw_walk(struct lw_asker *asker, int flags)
{
	const struct {
		uint64_t flags, mode, resolve;
	} how = { (uint64_t)(O_PATH | O_CLOEXEC | flags), 0, IN_ROOT | NO_MAGICLINKS };

	for (int tries = 0; tries < TRIES; tries++) {
		asker->object = (int)syscall(SYS_openat2, asker->root, asker->path, &how, sizeof(how));
		if (asker->object >= 0)
			return 0;
		if (errno != EAGAIN)
			break;
	}
	return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG ? -errno : failed_here();
}

/* Whether it is a file or folder of a mount to which the sandbox may write: such mounts are its own, or are shown to it
 * for writing. A device or a file of /proc is the host's, whatever its mount says. */
static bool is_own(int object)
{
	struct statfs system;
	struct stat status;

	return !fstat(object, &status) && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) &&
		!fstatfs(object, &system) && (unsigned long)system.f_type != PROC_MAGIC &&
		(system.f_flags & (READ_ONLY | FLAGS_ARE_SET)) == FLAGS_ARE_SET;
}

/* Walk, judge and add. Returns the watch, or -errno. */
static int add(struct lw_asker *asker)
{
	const uint32_t mask = (uint32_t)asker->request->data.args[2];
	char link[64];
	int watch = lw_walk(asker, (mask & IN_DONT_FOLLOW ? O_NOFOLLOW : 0) | (mask & IN_ONLYDIR ? O_DIRECTORY : 0));

	if (watch)
		return watch;
	if (!is_own(asker->object))
		return -EACCES;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", asker->object);
	watch = inotify_add_watch(asker->inotify, link, mask & ~(uint32_t)IN_DONT_FOLLOW);
	return watch >= 0 ? watch : -errno;
}

/* The listener of `tag` if its task still waits for the answer to `request`, with the mutex held. */
static struct lw_listener *waiting(const struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request)
{
	struct lw_listener *listener = lw_tagged(supervisor, tag);
	uint64_t id = request->id;

	return listener && listener->fd >= 0 && !ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) ? listener : NULL;
}

/* Whether what was opened of the task was its own: its number isn't another's by now. */
bool lw_still_waits(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request)
{
	bool still;

	pthread_mutex_lock(&supervisor->mutex);
	still = waiting(supervisor, tag, request);
	pthread_mutex_unlock(&supervisor->mutex);
	return still;
}

static int watch_for_task(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request)
{
	struct lw_asker asker = { .request = request, .root = -1, .inotify = -1, .object = -1 };
	bool other;
	int result = lw_identify(&asker);

	if (!result)
		result = lw_copy_path(&asker, request->data.args[1], AT_FDCWD);
	if (!result)
		result = take_inotify(&asker);
	if (!result) {
		asker.root = lw_file_of((pid_t)request->pid, "root", O_PATH | O_DIRECTORY);
		result = asker.root < 0 ? asker.root : 0;
	}
	if (!result)
		result = lw_still_waits(supervisor, tag, request) ? 0 : -EACCES;
	if (!result) {
		other = lw_become(asker.uid, asker.gid);
		result = add(&asker);
		lw_return(other);
	}
	if (asker.root >= 0)
		close(asker.root);
	if (asker.object >= 0)
		close(asker.object);
	let_go(asker.inotify);
	return result;
}

uint64_t lw_faults_so_far(void)
{
	struct rusage own;

	getrusage(RUSAGE_THREAD, &own);
	return (uint64_t)own.ru_minflt + (uint64_t)own.ru_majflt;
}

/* Write into the memory of a task that asks who it is. Pages that the task hasn't touched yet become its own by faults of this
 * thread. The watch, where no cgroup counts memory, goes by faults of the task's: so these pages are charged. */
static int tell_ids(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request)
{
	int mem = lw_file_of((pid_t)request->pid, "mem", O_WRONLY), result = mem < 0 ? mem : -EACCES;
	struct lw_listener *listener;
	uint64_t before;

	if (mem < 0)
		return result;
	if (lw_still_waits(supervisor, tag, request))
		result = 0;
	if (!result) {
		before = lw_faults_so_far();
		result = lw_tell_ids(request, mem);
		pthread_mutex_lock(&supervisor->mutex);
		listener = lw_tagged(supervisor, tag);
		if (listener)
			lw_charge_pages(listener, lw_faults_so_far() - before);
		pthread_mutex_unlock(&supervisor->mutex);
	}
	close(mem);
	return result;
}

static uint64_t spent_us(void)
{
	struct timespec spent;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
	return (uint64_t)spent.tv_sec * 1000000 + (uint64_t)spent.tv_nsec / 1000;
}

/* Answer the call, which took `us` of a processor, and read the listener again. */
static void tell_task(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request, int result,
		      uint64_t us)
{
	struct lw_listener *listener = waiting(supervisor, tag, request);
	struct seccomp_notif_resp *response = supervisor->response;

	if (listener) {
		memset(response, 0, supervisor->response_size);
		response->id = request->id;
		response->error = result < 0 ? result : 0;
		response->val = result < 0 ? 0 : result;
		while (result != LW_GO_ON && ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_SEND, response) && errno == EINTR)
			;
		if (result == LW_GO_ON)
			lw_let_go_on(supervisor, listener);
		if (result == -EACCES) {
			lw_count_refusal(supervisor, listener, request);
			lw_poke(supervisor->wake);	/* the thread that looks at the clock */
		}
	}
	listener = lw_tagged(supervisor, tag);
	if (listener)
		lw_take_time(listener, us);
	if (listener && listener->watched)
		lw_watch_for(supervisor, listener, EPOLLIN);
}

static void *answer_later(void *argument)
{
	struct lw_supervisor *supervisor = argument;

	syscall(SYS_setgroups, 0, NULL);	/* this thread's; root's groups aren't the jobs'. EPERM: a user's are */
	pthread_mutex_lock(&supervisor->mutex);
	while (!supervisor->stopping) {
		const struct lw_listener *listener;
		struct seccomp_notif request;
		uint64_t tag, began;
		int result;

		if (supervisor->asked == supervisor->taken) {
			pthread_cond_wait(&supervisor->asks, &supervisor->mutex);
			continue;
		}
		tag = supervisor->asking[supervisor->taken++ % LW_SUPERVISOR_JOBS];
		listener = lw_tagged(supervisor, tag);
		if (!listener)
			continue;
		request = listener->asked;
		pthread_mutex_unlock(&supervisor->mutex);
		began = spent_us();
		result = lw_is_about_ids(&request) ? tell_ids(supervisor, tag, &request)
			: lw_is_about_owners(&request) ? lw_look_at_owner(supervisor, tag, &request)
			: watch_for_task(supervisor, tag, &request);
		pthread_mutex_lock(&supervisor->mutex);
		tell_task(supervisor, tag, &request, result, spent_us() - began);
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return NULL;
}

static int start_watcher(struct lw_supervisor *supervisor)
{
	int failed = lw_start_thread(supervisor, answer_later, "lw-watches", &supervisor->watcher);

	supervisor->has_watcher = !failed;
	return failed;
}

/* Hand supervisor->request over to the thread. Returns false if it has too many, or there can't be one. */
bool lw_ask_later(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	if (!supervisor->has_watcher && start_watcher(supervisor))
		return false;
	if (supervisor->asked - supervisor->taken == LW_SUPERVISOR_JOBS)
		return false;
	listener->asked = *supervisor->request;
	supervisor->asking[supervisor->asked++ % LW_SUPERVISOR_JOBS] = lw_tag_of(listener);
	lw_watch_for(supervisor, listener, 0);	/* a hang-up still shows */
	pthread_cond_signal(&supervisor->asks);
	return true;
}

/* End the thread, once `stopping` is set. Returns false if it still waits for a disk: then the supervisor's memory stays. */
bool lw_stop_watcher(struct lw_supervisor *supervisor)
{
	if (!supervisor->has_watcher)
		return true;
	pthread_cond_signal(&supervisor->asks);
	for (int waited_ms = 0; waited_ms < STOP_MS; waited_ms++) {	/* a wait with an end goes by the wall clock */
		if (!pthread_tryjoin_np(supervisor->watcher, NULL))
			return true;
		poll(NULL, 0, 1);
	}
	return pthread_detach(supervisor->watcher);
}

/* Whether a process with a new user namespace of its own may write to `path`, a file of /proc/sys/user. */
bool lw_can_bound_watches(const char *path)
{
	int status, pid = (int)syscall(SYS_clone, CLONE_NEWUSER, 0, 0, 0, 0);	/* no signal at its end */

	if (!pid)
		syscall(SYS_exit_group, syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0) < 0);
	if (pid < 0)
		return false;
	while (waitpid(pid, &status, __WALL) < 0)
		if (errno != EINTR)
			return false;
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* Let `most` sandboxes at once watch files, each with LW_WATCH_INSTANCES descriptors; where no cgroup counts memory, each
 * descriptor is charged with `queue` bytes. Call it once, before there are listeners. Returns 0 or -errno. */
int lw_supervisor_set_watchers(struct lw_supervisor *supervisor, uint32_t most, uint64_t queue)
{
	int failed;

	pthread_mutex_lock(&supervisor->mutex);
	failed = start_watcher(supervisor);
	if (!failed) {
		supervisor->most_watchers = most;
		supervisor->queue = queue;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return failed;
}

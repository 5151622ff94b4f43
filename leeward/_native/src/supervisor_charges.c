/* Grants of memory that no process's resident set shows, and that no cgroup counts.
 *
 * Runs in:  the daemon; lw_grant on the supervisor's thread, the rest on its callers'. All of it under the supervisor's
 *           mutex. supervisor.c explains the whole; docs/decisions/0046 has the reasons.
 *
 * The call for a shared mapping without a file continues, and the job is charged with its length. Flags and length are
 * registers of the waiting task: nobody can change them before the kernel uses them. Only the task's process and those
 * that it forks can hold the mapping's pages, and all of these have this listener. So the charge is taken back when the
 * listener is removed, and not before.
 *
 * A call that protects much memory continues, with a higher RLIMIT_DATA for what is writable and executable. Length and
 * protection are registers, too.
 *
 * The call for a watch of epoll continues, and is counted: the kernel bounds the watches of all processes of a user
 * (epoll(7)), and keeps memory for each that no resident set shows. A job may have as many as it leaves to the others.
 * The operation is a register, too. Whether the call fails afterwards, or the watch is removed, isn't known. A descriptor of
 * epoll's or inotify's can be passed to a process of another listener, which outlives its maker. So what is charged for
 * them is given back when none is left of those that share the purse, but for its holder, which in a sandbox runs nothing.
 *
 * A memory file is an unnamed file on the job's tmpfs, whose size the tmpfs bounds and the watch reads. It is opened
 * with the ids of the job, since no other user exists on that file system. */

#include "supervisor_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND (1UL << 1)
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

/* Bytes that the kernel needs for a mapping beside its pages: for a file, an inode, a directory entry, a map. */
#define BESIDE 4096
#define PAGE 4096

/* Bytes that the kernel needs for a watch of epoll: an epitem and an eppoll_entry, 128 and 64 to 72 bytes on Linux 6.18;
 * or of inotify: a mark, a connector and a number, some 200. */
#define WATCH 256

/* The protection of code that is written while it runs. */
#define CODE (PROT_WRITE | PROT_EXEC)

/* The type of a mapping, in its flags. */
#define TYPE 0x0f

static bool sent(const struct lw_supervisor *supervisor, const struct lw_listener *listener)
{
	while (ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_SEND, supervisor->response))
		if (errno != EINTR)
			return false;
	return true;
}

static void refuse(struct lw_supervisor *supervisor, const struct lw_listener *listener, int error)
{
	supervisor->response->error = -error;
	supervisor->response->flags = 0;
	sent(supervisor, listener);
}

/* Have the kernel execute the call, by a decision on registers alone: another thread could change the task's memory. A call
 * about owners may go on whatever its memory says, as it may without such a filter. */
bool lw_let_go_on(struct lw_supervisor *supervisor, const struct lw_listener *listener)
{
	supervisor->response->error = 0;
	supervisor->response->val = 0;
	supervisor->response->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	return sent(supervisor, listener);
}

static void grant_mapping(struct lw_supervisor *supervisor, struct lw_listener *listener, uint64_t length)
{
	struct lw_purse *purse = listener->purse;
	uint64_t left = purse->limit > purse->charged ? purse->limit - purse->charged : 0, cost;

	cost = length > left ? length : (length + PAGE - 1) / PAGE * PAGE + BESIDE; /* no overflow */
	if (cost > left) {
		refuse(supervisor, listener, ENOMEM);
		return;
	}
	/* Charged before the task goes on, and taken back only if it doesn't. */
	listener->charged += cost;
	purse->charged += cost;
	if (!lw_let_go_on(supervisor, listener)) {
		listener->charged -= cost;
		purse->charged -= cost;
	}
}

/* A segment of System V outlives the task that makes it, and ends with the sandbox: so its charge is the purse's. The call is
 * charged that may find one and make none, too. */
static void grant_segment(struct lw_supervisor *supervisor, struct lw_listener *listener, uint64_t length, bool makes)
{
	struct lw_purse *purse = listener->purse;
	uint64_t left = purse->limit > purse->charged ? purse->limit - purse->charged : 0, cost = 0;

	if (makes)
		cost = length > left ? length : (length + PAGE - 1) / PAGE * PAGE + BESIDE; /* no overflow */
	if (cost > left) {
		refuse(supervisor, listener, ENOMEM);
		return;
	}
	purse->charged += cost;
	if (!lw_let_go_on(supervisor, listener))
		purse->charged -= cost;
}

/* Charge pages that became the task's without a fault of its own, where no cgroup counts them. */
void lw_charge_pages(struct lw_listener *listener, uint64_t pages)
{
	if (!listener->purse->limit)
		return;
	listener->charged += pages * PAGE;
	listener->purse->charged += pages * PAGE;
}

/* Charge the purse with epoll's `watches` and with `bytes`, or take that back, whatever becomes of the listener. */
static void keep(struct lw_supervisor *supervisor, const struct lw_listener *listener, uint64_t watches, uint64_t bytes)
{
	struct lw_purse *purse = listener->purse;

	purse->watches += watches;
	supervisor->watches += watches;
	purse->charged += bytes;
	if (!listener->owns_purse) {
		purse->others_watches += watches;
		purse->others_bytes += bytes;
	}
}

static void grant_watch(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	struct lw_purse *purse = listener->purse;
	uint64_t left = supervisor->most_watches > supervisor->watches
		? supervisor->most_watches - supervisor->watches : 0;
	uint64_t cost = purse->limit ? WATCH : 0;	/* 0: a cgroup counts it */

	if (purse->watches >= left) {
		refuse(supervisor, listener, ENOSPC);
		return;
	}
	if (cost && (purse->limit < purse->charged || purse->limit - purse->charged < cost)) {
		refuse(supervisor, listener, ENOMEM);
		return;
	}
	keep(supervisor, listener, 1, cost);
	if (!lw_let_go_on(supervisor, listener))
		keep(supervisor, listener, (uint64_t)-1, -cost);
}

static void grant_inotify(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	struct lw_purse *purse = listener->purse;
	const bool first = !purse->watching, charged = purse->limit && purse->queues < LW_WATCH_INSTANCES;
	uint64_t cost = charged ? supervisor->queue + (purse->queues ? 0 : LW_WATCH_WATCHES * WATCH) : 0;

	if (first && supervisor->watchers >= supervisor->most_watchers) {
		refuse(supervisor, listener, EMFILE);
		return;
	}
	if (charged && (purse->limit < purse->charged || purse->limit - purse->charged < cost)) {
		refuse(supervisor, listener, ENOMEM);
		return;
	}
	if (!lw_let_go_on(supervisor, listener))
		return;
	purse->watching = true;
	supervisor->watchers += first;
	purse->queues += charged;
	purse->others_queues += charged && !listener->owns_purse;
	keep(supervisor, listener, 0, cost);
}

/* The threads that have other filesystem ids now, and whether the daemon was dumpable before the first of them. */
static pthread_mutex_t ids_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t others;
static int dumpable;

/* Give this thread the filesystem ids, until lw_return with what this returns. The change clears that the daemon is
 * dumpable. */
bool lw_become(unsigned int uid, unsigned int gid)
{
	if (uid == geteuid() && gid == getegid())
		return false;
	pthread_mutex_lock(&ids_mutex);
	if (!others++)
		dumpable = prctl(PR_GET_DUMPABLE);
	pthread_mutex_unlock(&ids_mutex);
	syscall(SYS_setfsgid, gid);
	syscall(SYS_setfsuid, uid);
	return true;
}

void lw_return(bool other)
{
	if (!other)
		return;
	syscall(SYS_setfsuid, geteuid());
	syscall(SYS_setfsgid, getegid());
	pthread_mutex_lock(&ids_mutex);
	if (!--others && dumpable == 1)
		prctl(PR_SET_DUMPABLE, 1);
	pthread_mutex_unlock(&ids_mutex);
}

/* Make an unnamed file in the folder `files`, with its owner's ids. */
static int unnamed_file(int files)
{
	struct stat folder;
	bool other;
	int fd, error;

	if (fstat(files, &folder))
		return -errno;
	other = lw_become(folder.st_uid, folder.st_gid);
	fd = openat(files, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0700);
	error = errno;
	lw_return(other);
	return fd < 0 ? -error : fd;
}

static void grant_file(struct lw_supervisor *supervisor, const struct lw_listener *listener, uint32_t flags)
{
	struct seccomp_notif_addfd give = { .id = supervisor->request->id, .flags = SECCOMP_ADDFD_FLAG_SEND,
					    .newfd_flags = flags & MFD_CLOEXEC ? O_CLOEXEC : 0 };
	int fd = unnamed_file(listener->purse->files), number;

	if (fd < 0) {
		refuse(supervisor, listener, fd == -EMFILE || fd == -ENFILE ? ENFILE : ENOMEM);
		return;
	}
	give.srcfd = (uint32_t)fd;
	number = ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_ADDFD, &give);
	if (number < 0 && errno == EINVAL) {	/* before Linux 5.14: in two steps */
		give.flags = 0;
		number = ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_ADDFD, &give);
		if (number >= 0) {
			supervisor->response->error = 0;
			supervisor->response->val = number;
			sent(supervisor, listener);
		}
	}
	if (number < 0 && errno != ENOENT)	/* ENOENT: the task has died meanwhile */
		refuse(supervisor, listener, errno == EMFILE ? EMFILE : ENOMEM);
	close(fd);
}

/* Let the call go on; before, if it makes writable code, let the process write `length` bytes more than its RLIMIT_DATA,
 * within the hard limit. The kernel counts memory for code that isn't touched, and the watch counts what is. If the task has
 * died, its number may be another's, who gains what its own hard limit allows. */
static void grant_protection(struct lw_supervisor *supervisor, const struct lw_listener *listener, uint64_t length,
			     bool code)
{
	const pid_t task = (pid_t)supervisor->request->pid;
	struct rlimit limit;

	if (code && task && !prlimit(task, RLIMIT_DATA, NULL, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = length < limit.rlim_max - limit.rlim_cur ? limit.rlim_cur + length : limit.rlim_max;
		prlimit(task, RLIMIT_DATA, &limit, NULL);	/* else the kernel refuses the call, as it would */
	}
	lw_let_go_on(supervisor, listener);
}

static bool is_inotify_init(int nr)
{
#ifdef SYS_inotify_init
	if (nr == SYS_inotify_init)
		return true;
#endif
	return nr == SYS_inotify_init1;
}

/* Answer supervisor->request if it asks for such memory, a watch, ids or owners; or have the other thread answer. If not, the
 * caller has to refuse the call. */
bool lw_grant(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	const struct seccomp_data *call = &supervisor->request->data;
	uint32_t flags;

	if (call->arch != OWN_ARCH)
		return false;
	if (call->nr == SYS_mprotect || call->nr == __NR_pkey_mprotect) {
		grant_protection(supervisor, listener, call->args[1], (call->args[2] & CODE) == CODE);
		return true;
	}
	if (lw_answer_ids(supervisor, listener) || lw_answer_owners(supervisor, listener))
		return true;
	if (!listener->purse->limit && !supervisor->most_watches && !supervisor->most_watchers)
		return false;
	if (call->nr == SYS_mmap) {
		flags = (uint32_t)call->args[3];
		if ((flags & TYPE) != MAP_SHARED || !(flags & MAP_ANONYMOUS) || flags & MAP_HUGETLB)
			return false;
		grant_mapping(supervisor, listener, call->args[1]);
		return true;
	}
	if (call->nr == SYS_shmget) {
		flags = (uint32_t)call->args[2];
		if (flags & SHM_HUGETLB)
			return false;
		grant_segment(supervisor, listener, call->args[1], (key_t)call->args[0] == IPC_PRIVATE || flags & IPC_CREAT);
		return true;
	}
	if (call->nr == SYS_epoll_ctl) {
		if ((uint32_t)call->args[1] != EPOLL_CTL_ADD)
			return false;
		grant_watch(supervisor, listener);
		return true;
	}
	if (is_inotify_init(call->nr)) {
		if (supervisor->most_watchers)
			grant_inotify(supervisor, listener);
		return supervisor->most_watchers;
	}
	if (call->nr == SYS_inotify_add_watch)
		return listener->purse->watching && lw_ask_later(supervisor, listener);
	if (call->nr == SYS_memfd_create) {
		flags = (uint32_t)call->args[1];
		if (flags & ~(uint32_t)(MFD_CLOEXEC | MFD_EXEC) || listener->purse->files < 0)
			return false;
		grant_file(supervisor, listener, flags);
		return true;
	}
	return false;
}

/* Give a new listener the purse of the job in slot `of`; else one of its own, which grants nothing yet. Returns 0 or -errno. */
int lw_give_purse(struct lw_supervisor *supervisor, struct lw_listener *listener, int64_t of)
{
	struct lw_listener *holder = of < 0 ? NULL : lw_in_slot(supervisor, (uint32_t)of);
	struct timespec now;

	listener->purse = holder ? holder->purse : calloc(1, sizeof(*listener->purse));
	if (!listener->purse)
		return -ENOMEM;
	if (!holder) {
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
		listener->purse->since = now.tv_sec * 1000000000LL + now.tv_nsec;
		listener->purse->files = -1;
		listener->owns_purse = true;
	}
	listener->purse->users++;
	return 0;
}

/* Take a listener's purse away; the last listener of a purse frees it. */
void lw_leave_purse(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	struct lw_purse *purse = listener->purse;

	if (!purse)
		return;
	listener->purse = NULL;
	purse->charged -= listener->charged;
	listener->charged = 0;
	if (listener->owns_purse) {	/* its descriptor is going to be closed */
		purse->files = -1;
		purse->limit = 0;
		purse->others_watches = purse->others_bytes = purse->others_queues = 0;	/* they stay until the last is gone */
		listener->owns_purse = false;
	}
	if (!--purse->users) {
		supervisor->watches -= purse->watches;
		supervisor->watchers -= purse->watching;
		lw_forget_owners(supervisor, purse);
		free(purse);
	} else if (purse->users == 1) {
		supervisor->watches -= purse->others_watches;
		purse->watches -= purse->others_watches;
		purse->charged -= purse->others_bytes;
		purse->queues -= purse->others_queues;
		purse->others_watches = purse->others_bytes = purse->others_queues = 0;
	}
}

/* Grant the job in `slot` shared mappings without a file, of `limit` bytes altogether, memory files in the folder `files`,
 * and watches; 0 and -1 grant watches only. The caller removes the slot before it closes `files`. Returns 0 or -errno. */
int lw_supervisor_grant(struct lw_supervisor *supervisor, uint32_t slot, uint64_t limit, int files)
{
	struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	if (listener) {
		listener->purse->limit = limit;
		listener->purse->files = files;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return listener ? 0 : -ENOENT;
}

/* Let the job in `slot` share the purse of the job in `of`. */
int lw_supervisor_share(struct lw_supervisor *supervisor, uint32_t slot, uint32_t of)
{
	struct lw_listener *listener, *holder;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	holder = lw_in_slot(supervisor, of);
	if (listener && holder && listener->purse != holder->purse) {
		lw_leave_purse(supervisor, listener);
		listener->purse = holder->purse;
		listener->purse->users++;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return listener && holder ? 0 : -ENOENT;
}

/* Grant `most` watches of epoll to all jobs together. A job may have as many as it leaves to the others. */
void lw_supervisor_set_watches(struct lw_supervisor *supervisor, uint64_t most)
{
	pthread_mutex_lock(&supervisor->mutex);
	supervisor->most_watches = most;
	pthread_mutex_unlock(&supervisor->mutex);
}

int lw_supervisor_charged(struct lw_supervisor *supervisor, uint32_t slot, uint64_t *ret_bytes)
{
	struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	*ret_bytes = listener ? listener->purse->charged : 0;
	pthread_mutex_unlock(&supervisor->mutex);
	return listener ? 0 : -ENOENT;
}

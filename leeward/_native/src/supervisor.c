/* The supervisor: one thread that answers refused system calls of all jobs.
 *
 * Runs in:  the daemon. supervisor_charges.c grants memory, where nothing but the daemon counts it; supervisor_ids.c plays
 *           root's part in images; supervisor_watches.c has a thread of its own for files to watch.
 *
 * Theory of operation. A filter's listener is readable while a task waits for an answer. The thread waits for all listeners
 * by epoll, level-triggered, and gives each ready one one answer a turn: EACCES, but for memory that supervisor_charges.c
 * grants. So a job that floods delays another by one answer. A job that has used up its tokens (RATE_PER_MS) sleeps until
 * it has some again, which costs the others nothing.
 *
 * The thread reads nothing of the task, not its memory and not its /proc, only the registers that the kernel has copied:
 * so its answer can't depend on what a task changes meanwhile, and the notification's id needn't be checked again (SEND
 * does that, and says ENOENT). For a refusal it opens and allocates nothing, so neither EMFILE nor ENOMEM prevents it.
 *
 * One mutex guards everything but the waiting. The thread holds it for at most EVENTS answers; callers hold it for copying
 * a table. A listener is closed under it, and its slot's generation goes up, so that an event fetched before can't hit a
 * later job.
 *
 * RECV would block if nothing were waiting, and can't be told not to. It is called only when epoll has just reported
 * EPOLLIN, and by this thread alone: if the task has died since then, its count remains, and RECV returns ENOENT. */

#include "supervisor_private.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Listeners served in one turn, with the mutex held: about 100 us. */
#define EVENTS 16

/* Answers to one job: 1000 at once, then 4 a millisecond. An answer costs this thread about 12 us, so that a flood takes 5 %
 * of a processor; and 256 tasks that all wait get theirs within 64 ms. */
#define RATE_PER_MS 4
#define BURST 1000

/* Microseconds for a token where a call takes longer, since it names a long path: a fifth of a processor at most. */
#define TOKEN_US 50

/* How long a job without tokens waits at least; until the next look at all of them. */
#define MUTED_MS 10

/* The first refusal of a call is reported at once, repeated ones after this time. */
#define REPORT_MS 100

#define WAKE_TAG UINT64_MAX

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void lw_poke(int eventfd)
{
	const uint64_t one = 1;

	/* EAGAIN: the counter is full, and so the other side is awake already. */
	while (write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void lw_unpoke(int eventfd)
{
	uint64_t count;

	while (read(eventfd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

uint64_t lw_tag_of(const struct lw_listener *listener)
{
	return (uint64_t)listener->generation << 32 | listener->slot;
}

struct lw_listener *lw_tagged(const struct lw_supervisor *supervisor, uint64_t tag)
{
	struct lw_listener *listener = supervisor->listeners[tag & UINT32_MAX];

	return listener && lw_tag_of(listener) == tag ? listener : NULL;
}

void lw_watch_for(const struct lw_supervisor *supervisor, struct lw_listener *listener, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = lw_tag_of(listener) };

	epoll_ctl(supervisor->epoll, EPOLL_CTL_MOD, listener->fd, &event);
}

static void unmute(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	if (listener->muted) {
		listener->muted = false;
		supervisor->muted--;
	}
}

/* Stop waiting for a listener whose tasks are all gone: its level-triggered hang-up would wake the thread for ever. */
static void unwatch(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	unmute(supervisor, listener);
	if (listener->watched)
		epoll_ctl(supervisor->epoll, EPOLL_CTL_DEL, listener->fd, NULL);
	listener->watched = false;
}

/* Close a listener that can't be read for an unknown reason. The kernel then refuses the calls itself, with ENOSYS. */
static void give_up(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	unwatch(supervisor, listener);
	close(listener->fd);
	listener->fd = -1;
}

/* The counter of a call: its own, or that of all other calls if the table is full. */
static struct lw_refused *kind_of(struct lw_listener *listener, uint32_t arch, int32_t nr)
{
	uint32_t at = ((uint32_t)nr ^ arch >> 24) % LW_SUPERVISOR_KINDS;

	for (uint32_t tried = 0; tried < LW_SUPERVISOR_KINDS; tried++) {
		struct lw_refused *kind = &listener->kinds[at];

		if (!kind->count) {
			kind->arch = arch;
			kind->nr = nr;
			return kind;
		}
		if (kind->arch == arch && kind->nr == nr)
			return kind;
		at = (at + 1) % LW_SUPERVISOR_KINDS;
	}
	return &listener->other;
}

void lw_count_refusal(struct lw_supervisor *supervisor, struct lw_listener *listener, const struct seccomp_notif *request)
{
	struct lw_refused *kind = kind_of(listener, request->data.arch, request->data.nr);

	kind->pid = request->pid;
	kind->unreported++;
	listener->unreported = true;
	if (kind->count++ && !supervisor->report_ms && !listener->quiet)
		supervisor->report_ms = now_ms() + REPORT_MS;
	else if (kind->count == 1 && !listener->quiet)
		lw_poke(supervisor->reports);
}

static void answer(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	struct seccomp_notif *request = supervisor->request;
	struct seccomp_notif_resp *response = supervisor->response;

	memset(request, 0, supervisor->request_size);	/* or the kernel says EINVAL */
	if (ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_RECV, request)) {
		if (errno != ENOENT && errno != EINTR)	/* ENOENT: the task has died meanwhile */
			give_up(supervisor, listener);
		return;
	}
	memset(response, 0, supervisor->response_size);
	response->id = request->id;
	if (lw_grant(supervisor, listener))
		return;
	response->error = -EACCES;
	/* ENOENT: the task has died meanwhile. */
	while (ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_SEND, response) && errno == EINTR)
		;
	lw_count_refusal(supervisor, listener, request);
}

static void fill(struct lw_listener *listener, uint64_t now)
{
	uint64_t more;

	if (now < listener->filled_ms)	/* it owes some yet */
		return;
	more = (now - listener->filled_ms) * RATE_PER_MS;
	listener->tokens = more >= BURST - listener->tokens ? BURST : listener->tokens + (uint32_t)more;
	listener->filled_ms = now;
}

/* Take the tokens for `us` microseconds of a processor beyond the one that a call takes; those that it hasn't got, it owes. */
void lw_take_time(struct lw_listener *listener, uint64_t us)
{
	uint64_t cost = us / TOKEN_US;

	fill(listener, now_ms());
	if (cost > listener->tokens) {
		listener->filled_ms += (cost - listener->tokens) / RATE_PER_MS;
		cost = listener->tokens;
	}
	listener->tokens -= (uint32_t)cost;
}

static void serve(struct lw_supervisor *supervisor, struct lw_listener *listener, uint32_t events, uint64_t now)
{
	if (!(events & EPOLLIN)) {
		unwatch(supervisor, listener);
		return;
	}
	fill(listener, now);
	if (listener->tokens) {
		listener->tokens--;
		answer(supervisor, listener);
		return;
	}
	lw_watch_for(supervisor, listener, 0);	/* a hang-up still shows */
	listener->muted = true;
	if (!supervisor->muted++)
		supervisor->unmute_ms = now + MUTED_MS;
}

static void unmute_all(struct lw_supervisor *supervisor)
{
	for (uint32_t slot = 0; slot < supervisor->top && supervisor->muted; slot++) {
		struct lw_listener *listener = supervisor->listeners[slot];

		if (listener && listener->muted) {
			unmute(supervisor, listener);
			lw_watch_for(supervisor, listener, EPOLLIN);
		}
	}
}

/* Do what is due by the clock. Returns the milliseconds until more is due, or -1. */
static int tick(struct lw_supervisor *supervisor, uint64_t now)
{
	uint64_t next = UINT64_MAX;

	if (supervisor->muted && supervisor->unmute_ms <= now)
		unmute_all(supervisor);
	if (supervisor->report_ms && supervisor->report_ms <= now) {
		supervisor->report_ms = 0;
		lw_poke(supervisor->reports);
	}
	if (supervisor->muted)
		next = supervisor->unmute_ms;
	if (supervisor->report_ms && supervisor->report_ms < next)
		next = supervisor->report_ms;
	return next == UINT64_MAX ? -1 : (int)(next - now);
}

static void *run(void *argument)
{
	struct lw_supervisor *supervisor = argument;
	struct epoll_event events[EVENTS];
	int timeout = -1;

	for (;;) {
		int ready = epoll_wait(supervisor->epoll, events, EVENTS, timeout);
		uint64_t now = now_ms();

		pthread_mutex_lock(&supervisor->mutex);
		if (supervisor->stopping)
			break;
		for (int at = 0; at < ready; at++) {
			struct lw_listener *listener;

			if (events[at].data.u64 == WAKE_TAG) {
				lw_unpoke(supervisor->wake);
				continue;
			}
			listener = lw_tagged(supervisor, events[at].data.u64);
			if (listener)	/* else removed since epoll_wait */
				serve(supervisor, listener, events[at].events, now);
		}
		timeout = tick(supervisor, now);
		pthread_mutex_unlock(&supervisor->mutex);
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return NULL;
}

/* Signals are for the thread that runs Python. */
int lw_start_thread(struct lw_supervisor *supervisor, void *(*body)(void *), const char *name, pthread_t *ret_thread)
{
	sigset_t all, before;
	int failed;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(ret_thread, NULL, body, supervisor);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!failed)
		pthread_setname_np(*ret_thread, name);
	return -failed;
}

static void release(struct lw_supervisor *supervisor)
{
	for (uint32_t slot = 0; slot < supervisor->top; slot++) {
		if (supervisor->listeners[slot] && supervisor->listeners[slot]->fd >= 0)
			close(supervisor->listeners[slot]->fd);
		if (supervisor->listeners[slot])
			lw_leave_purse(supervisor, supervisor->listeners[slot]);
		free(supervisor->listeners[slot]);
	}
	if (supervisor->epoll >= 0)
		close(supervisor->epoll);
	if (supervisor->wake >= 0)
		close(supervisor->wake);
	if (supervisor->reports >= 0)
		close(supervisor->reports);
	free(supervisor->request);
	free(supervisor->response);
	pthread_mutex_destroy(&supervisor->mutex);
	pthread_cond_destroy(&supervisor->asks);
	free(supervisor);
}

static int prepare(struct lw_supervisor *supervisor)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = WAKE_TAG };
	struct seccomp_notif_sizes sizes;

	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes)) /* Linux 5.0 */
		return -errno;
	/* A newer kernel may write more than the structs that we were built with. */
	supervisor->request_size = sizes.seccomp_notif > sizeof(struct seccomp_notif)
		? sizes.seccomp_notif : sizeof(struct seccomp_notif);
	supervisor->response_size = sizes.seccomp_notif_resp > sizeof(struct seccomp_notif_resp)
		? sizes.seccomp_notif_resp : sizeof(struct seccomp_notif_resp);
	supervisor->request = malloc(supervisor->request_size);
	supervisor->response = malloc(supervisor->response_size);
	if (!supervisor->request || !supervisor->response)
		return -ENOMEM;
	supervisor->epoll = epoll_create1(EPOLL_CLOEXEC);
	supervisor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	supervisor->reports = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (supervisor->epoll < 0 || supervisor->wake < 0 || supervisor->reports < 0)
		return -errno;
	return epoll_ctl(supervisor->epoll, EPOLL_CTL_ADD, supervisor->wake, &event) ? -errno : 0;
}

int lw_supervisor_start(struct lw_supervisor **ret_supervisor)
{
	struct lw_supervisor *supervisor = calloc(1, sizeof(*supervisor));
	int failed;

	if (!supervisor)
		return -ENOMEM;
	supervisor->epoll = supervisor->wake = supervisor->reports = -1;
	pthread_mutex_init(&supervisor->mutex, NULL);
	pthread_cond_init(&supervisor->asks, NULL);
	failed = prepare(supervisor);
	if (!failed)
		failed = lw_start_thread(supervisor, run, "lw-supervisor", &supervisor->thread);
	if (failed) {
		release(supervisor);
		return failed;
	}
	*ret_supervisor = supervisor;
	return 0;
}

/* End the thread, close all listeners and free everything. A refused call of a job that still runs then gets ENOSYS. */
void lw_supervisor_stop(struct lw_supervisor *supervisor)
{
	pthread_mutex_lock(&supervisor->mutex);
	supervisor->stopping = true;
	pthread_mutex_unlock(&supervisor->mutex);
	lw_poke(supervisor->wake);
	pthread_join(supervisor->thread, NULL);
	if (lw_stop_watcher(supervisor))
		release(supervisor);
}

/* An eventfd, readable when lw_supervisor_drain has something. The supervisor keeps and closes it. */
int lw_supervisor_eventfd(const struct lw_supervisor *supervisor)
{
	return supervisor->reports;
}

struct lw_listener *lw_in_slot(const struct lw_supervisor *supervisor, uint32_t slot)
{
	return slot < supervisor->top ? supervisor->listeners[slot] : NULL;
}

/* Whether all tasks behind a listener are gone, for good: the thread needn't wake up to find that. */
static bool is_over(int fd)
{
	struct pollfd listener = { .fd = fd, .events = POLLIN };

	return poll(&listener, 1, 0) == 1 && listener.revents == POLLHUP;
}

static uint32_t free_slot(const struct lw_supervisor *supervisor)
{
	uint32_t slot = 0;

	while (slot < supervisor->top && supervisor->listeners[slot])
		slot++;
	return slot;
}

/* Answer for this listener from now on, and count for `job`, which shares the grants of the job in slot `of`, or of -1: a
 * process whose calls wait already finds its grants with the first answer. If `quiet`, the eventfd isn't made readable until
 * lw_supervisor_end_check. Returns 0, and the supervisor owns the fd; or -errno: EUSERS for too many jobs. */
int lw_supervisor_add(struct lw_supervisor *supervisor, int fd, uint64_t job, bool quiet, int64_t of, uint32_t *ret_slot)
{
	struct lw_listener *listener = calloc(1, sizeof(*listener));
	struct epoll_event event = { .events = EPOLLIN };
	const bool over = is_over(fd);
	int failed;

	if (!listener)
		return -ENOMEM;
	pthread_mutex_lock(&supervisor->mutex);
	failed = lw_give_purse(supervisor, listener, of);
	listener->slot = free_slot(supervisor);
	listener->generation = ++supervisor->generation;
	listener->fd = fd;
	listener->job = job;
	listener->quiet = quiet;
	listener->tokens = BURST;
	listener->filled_ms = now_ms();
	listener->watched = !over;
	event.data.u64 = lw_tag_of(listener);
	if (listener->slot >= LW_SUPERVISOR_JOBS)
		failed = -EUSERS;
	else if (!failed && !over && epoll_ctl(supervisor->epoll, EPOLL_CTL_ADD, fd, &event))
		failed = -errno;
	if (failed) {
		lw_leave_purse(supervisor, listener);
	} else {
		*ret_slot = listener->slot;
		supervisor->listeners[listener->slot] = listener;
		if (supervisor->top <= listener->slot)
			supervisor->top = listener->slot + 1;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	if (failed)
		free(listener);
	return failed;
}

static void tell(const struct lw_listener *listener, const struct lw_refused *kind, struct lw_denied *denied)
{
	denied->job = listener->job;
	denied->count = kind->count;
	denied->unreported = kind->unreported;
	denied->arch = kind->arch;
	denied->nr = kind == &listener->other ? LW_OTHER_NR : kind->nr;
	denied->pid = kind->pid;
}

/* Fill in what a job was refused so far. Returns the number of entries, at most LW_SUPERVISOR_MOST. */
static uint32_t tell_refusals(const struct lw_listener *listener, struct lw_denied *ret_denied)
{
	uint32_t told = 0;

	for (uint32_t at = 0; at < LW_SUPERVISOR_KINDS; at++)
		if (listener->kinds[at].count)
			tell(listener, &listener->kinds[at], &ret_denied[told++]);
	if (listener->other.count)
		tell(listener, &listener->other, &ret_denied[told++]);
	return told;
}

/* Stop answering and close the listener. Returns the counts of lw_supervisor_counts as well, of which the caller reports
 * those that weren't drained. 0, or -ENOENT for a slot that isn't in use, as all functions with a slot. */
int lw_supervisor_remove(struct lw_supervisor *supervisor, uint32_t slot, struct lw_denied *ret_denied,
			 uint32_t *ret_count)
{
	struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	if (listener) {
		*ret_count = tell_refusals(listener, ret_denied);
		unwatch(supervisor, listener);
		if (listener->fd >= 0)
			close(listener->fd);
		lw_leave_purse(supervisor, listener);
		supervisor->listeners[slot] = NULL;
		while (supervisor->top && !supervisor->listeners[supervisor->top - 1])
			supervisor->top--;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	free(listener);
	return listener ? 0 : -ENOENT;
}

/* End the check in which a runner tries forbidden calls, before its job has begun: count from zero, and report refusals. */
int lw_supervisor_end_check(struct lw_supervisor *supervisor, uint32_t slot)
{
	struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	if (listener) {
		memset(listener->kinds, 0, sizeof(listener->kinds));
		memset(&listener->other, 0, sizeof(listener->other));
		listener->unreported = listener->quiet = false;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return listener ? 0 : -ENOENT;
}

/* What a job was refused so far; `ret_denied` has room for LW_SUPERVISOR_MOST. */
int lw_supervisor_counts(struct lw_supervisor *supervisor, uint32_t slot, struct lw_denied *ret_denied,
			 uint32_t *ret_count)
{
	struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	if (listener)
		*ret_count = tell_refusals(listener, ret_denied);
	pthread_mutex_unlock(&supervisor->mutex);
	return listener ? 0 : -ENOENT;
}

int lw_supervisor_total(struct lw_supervisor *supervisor, uint32_t slot, uint64_t *ret_total)
{
	const struct lw_listener *listener;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_in_slot(supervisor, slot);
	if (listener) {
		*ret_total = listener->other.count;
		for (uint32_t at = 0; at < LW_SUPERVISOR_KINDS; at++)
			*ret_total += listener->kinds[at].count;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return listener ? 0 : -ENOENT;
}

/* Add what wasn't reported yet of one listener to the `told` entries, as far as there is room. Returns their new number. */
static uint32_t report(struct lw_listener *listener, struct lw_denied *ret_denied, uint32_t told)
{
	for (uint32_t at = 0; at <= LW_SUPERVISOR_KINDS; at++) {
		struct lw_refused *kind = at < LW_SUPERVISOR_KINDS ? &listener->kinds[at] : &listener->other;

		if (!kind->unreported)
			continue;
		if (told == LW_SUPERVISOR_MOST)
			return told;
		tell(listener, kind, &ret_denied[told++]);
		kind->unreported = 0;
	}
	listener->unreported = false;
	return told;
}

/* Report what was refused since the last call, summed up by job and system call; `ret_denied` has room for
 * LW_SUPERVISOR_MOST. If there is more, the eventfd is readable again. Returns 0. */
int lw_supervisor_drain(struct lw_supervisor *supervisor, struct lw_denied *ret_denied, uint32_t *ret_count)
{
	uint32_t told = 0, from;
	bool more = false;

	pthread_mutex_lock(&supervisor->mutex);
	lw_unpoke(supervisor->reports);
	from = supervisor->drain_from;
	for (uint32_t turn = 0; turn < supervisor->top && !more; turn++) {
		uint32_t slot = (from + turn) % supervisor->top;
		struct lw_listener *listener = supervisor->listeners[slot];

		if (listener && listener->unreported) {
			told = report(listener, ret_denied, told);
			more = listener->unreported;
			supervisor->drain_from = slot + 1;
		}
	}
	if (more)
		lw_poke(supervisor->reports);
	else
		supervisor->report_ms = 0;
	pthread_mutex_unlock(&supervisor->mutex);
	*ret_count = told;
	return 0;
}

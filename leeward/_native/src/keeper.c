/* The loop of a keeper: makes runners on demand, and reaps them.
 *
 * Runs in:  the keeper, single-threaded, in place of its interpreter.
 *
 * The interpreter enters lw_keep and stays; each job comes out of it in a clone. So no
 * bytecode runs in a keeper any more. That counts because each clone makes
 * the keeper's pages shared again: a loop in Python copied some 200 of them
 * for every runner, one in C copies its stack and its table.
 *
 * Its messages are lw_keeper_message, with descriptors beside them:
 *
 *   ARM    [birth end] + [cgroup directory] + tasks files
 *   ARMED  [init pidfd, job write, reply read, stdout read, stderr read]
 *   ENDED, FAILED   none */

#include "keeper.h"

#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Linux 5.14; older headers lack it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Far above spares + the runner with the job + one on its way. */
#define MOST_RUNNERS 128
#define MOST_FDS 16

struct runner {
	struct lw_init *init;
	uint64_t number;
	pid_t pid;
};

/* One slot of `poll` more than of `runners`: the channel is the first. */
struct keeper {
	int channel;
	nfds_t count;
	struct pollfd poll[1 + MOST_RUNNERS];
	struct runner runners[1 + MOST_RUNNERS];
};

struct ends {
	int ours, theirs;
};

enum { JOB, REPLY, OUT, ERR, PIPES };

static void close_all(const int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		close(fds[i]);
}

/* 1 with a message, whose descriptors are the caller's; 0 at the end; or -errno,
 * EPROTO for what no daemon of ours says. */
static int receive(int channel, struct lw_keeper_message *ret, int *ret_fds, unsigned *ret_count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
	struct iovec piece = { .iov_base = ret, .iov_len = sizeof(*ret) };
	struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control) };
	ssize_t got;

	while ((got = recvmsg(channel, &header, MSG_CMSG_CLOEXEC)) < 0 && EINTR == errno)
		;
	*ret_count = 0;
	if (got < 0)
		return ECONNRESET == errno ? 0 : -errno;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at))
		if (SOL_SOCKET == at->cmsg_level && SCM_RIGHTS == at->cmsg_type) {
			*ret_count = (unsigned)((at->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(ret_fds, CMSG_DATA(at), *ret_count * sizeof(int));
		}
	if (0 == got) {
		close_all(ret_fds, *ret_count);
		return 0;
	}
	if (got != sizeof(*ret) || header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ||
	    LW_KEEPER_MARK != ret->mark || LW_ARM != ret->kind ||
	    *ret_count != 1U + (ret->into & LW_INTO ? 1U : 0U) + ret->attach) {
		close_all(ret_fds, *ret_count);
		return -EPROTO;
	}
	return 1;
}

static int say(int channel, struct lw_keeper_message message, const int *fds, unsigned count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(PIPES * sizeof(int) + sizeof(int))] = { 0 };
	struct iovec piece = { .iov_base = &message, .iov_len = sizeof(message) };
	struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1 };

	message.mark = LW_KEEPER_MARK;
	if (count) {
		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
	}
	while (sendmsg(channel, &header, MSG_NOSIGNAL) < 0)
		if (EINTR != errno)
			return -errno;
	return 0;
}

static int fail(const struct keeper *keeper, uint64_t number, enum lw_keeper_call call, int err)
{
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_FAILED, .into = (uint8_t)call,
				     .value = -err, .runner = number }, NULL, 0);
}

/* Made by the keeper, so that they belong to the worker's uid: a job may reopen /dev/stdout. */
static int open_pipes(struct ends *ret)
{
	for (int i = 0; i < PIPES; i++) {
		int pair[2];
		if (pipe2(pair, O_CLOEXEC) < 0) {
			int err = -errno;
			while (i-- > 0) {
				close(ret[i].ours);
				close(ret[i].theirs);
			}
			return err;
		}
		ret[i] = JOB == i ? (struct ends){ .ours = pair[1], .theirs = pair[0] }
				  : (struct ends){ .ours = pair[0], .theirs = pair[1] };
		fcntl(ret[i].ours, F_SETFL, (JOB == i ? O_WRONLY : O_RDONLY) | O_NONBLOCK);
	}
	return 0;
}

/* In the job: cgroups, processor, and every lock. The first failure is the last thing tried. */
static void go(const struct lw_way *way, const struct lw_keeper_message *order, int join_error,
	       struct lw_born *ret_born)
{
	int cpu = order->value;

	*ret_born = (struct lw_born){ .join_error = join_error, .hurried = !!(order->into & LW_HURRIED) };
	if (join_error)
		return;
	if (cpu >= 0) {
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET((size_t)cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one) < 0) {
			ret_born->affinity_error = -errno;
			return;
		}
	}
	/* Copied now, in one go, and not one by one by faults. Where it can't be (before
	 * Linux 5.14, or no longer mapped) the faults will do it. */
	for (uint32_t i = 0; i < way->page_count && !ret_born->hurried; i++)
		raw(SYS_madvise, (long)way->pages[i].start, (long)way->pages[i].size, MADV_POPULATE_WRITE, 0, 0);
	ret_born->done = lw_run_steps(way->steps, way->count, &ret_born->result);
	ret_born->sound = ret_born->done == way->count;
}

/* 1 in the job; in the keeper 0, whether a runner came of it or not, or -errno where the daemon can't be told. */
static int arm(struct keeper *keeper, const struct lw_runner *how, const struct lw_way *way,
	       const struct lw_keeper_message *order, const int *fds, struct lw_born *ret_born)
{
	struct ends pipes[PIPES];
	struct lw_runner this_one = *how;
	int pidfd = -1, err;

	if (keeper->count > MOST_RUNNERS)
		return fail(keeper, order->runner, LW_ROOM, -ENOSPC);
	if ((err = open_pipes(pipes)) < 0)
		return fail(keeper, order->runner, LW_PIPE2, err);

	const bool into = order->into & LW_INTO;
	this_one.cgroup = into ? fds[1] : -1;
	this_one.attach = fds + 1 + (into ? 1 : 0);
	this_one.attach_count = order->attach;
	struct lw_init *init = lw_init_new();
	int pid = init ? lw_spawn_runner(init, &this_one, &pidfd) : -ENOMEM;
	if (0 == pid) {
		for (int i = 0; i < PIPES; i++)
			*way->ends[i] = pipes[i].theirs;
		*way->ends[PIPES] = fds[0];
		go(way, order, lw_init_join_error(init), ret_born);
		return 1;
	}

	if (pid < 0) {
		if (init)
			lw_init_free(init);
		err = fail(keeper, order->runner, init ? LW_CLONE3 : LW_MMAP, pid);
	} else {
		const int given[1 + PIPES] = { pidfd, pipes[JOB].ours, pipes[REPLY].ours, pipes[OUT].ours,
					       pipes[ERR].ours };
		keeper->poll[keeper->count] = (struct pollfd){ .fd = pidfd, .events = POLLIN };
		keeper->runners[keeper->count] = (struct runner){ init, order->runner, pid };
		keeper->count++;
		err = say(keeper->channel, (struct lw_keeper_message){ .kind = LW_ARMED, .value = pid,
				.runner = order->runner }, given, 1 + PIPES);
	}
	for (int i = 0; i < PIPES; i++) {
		close(pipes[i].ours);
		close(pipes[i].theirs);
	}
	return err;
}

static int reap(struct keeper *keeper, nfds_t at)
{
	struct runner gone = keeper->runners[at];
	int status = -1;

	while (waitpid(gone.pid, NULL, 0) < 0 && EINTR == errno)
		;
	close(keeper->poll[at].fd);
	if (lw_init_status(gone.init, &status) < 0)
		status = -1;
	lw_init_free(gone.init);
	keeper->count--;
	keeper->poll[at] = keeper->poll[keeper->count];
	keeper->runners[at] = keeper->runners[keeper->count];
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_ENDED, .value = status,
				     .runner = gone.number }, NULL, 0);
}

/* Serve until the daemon is gone.
 *
 * Linux 5.9 (close_range, in the init). *how* is the model of all runners: its
 * cgroup and its attach are each order's own. Returns 1 in a job, which has
 * gone *way* as far as *ret_born says; 0 in the keeper when the daemon is gone; or -errno. */
int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *way, struct lw_born *ret_born)
{
	struct keeper keeper = { .channel = channel, .count = 1 };
	int ret = 0;

	keeper.poll[0] = (struct pollfd){ .fd = channel, .events = POLLIN };
	while (ret >= 0) {
		if (poll(keeper.poll, keeper.count, -1) < 0) {
			ret = EINTR == errno ? 0 : -errno;
			continue;
		}
		/* Backwards: reap moves the last into the gap. */
		for (nfds_t at = keeper.count - 1; at > 0 && ret >= 0; at--)
			if (keeper.poll[at].revents)
				ret = reap(&keeper, at);
		if (ret < 0 || !keeper.poll[0].revents)
			continue;

		struct lw_keeper_message order;
		int fds[MOST_FDS];
		unsigned count;
		if ((ret = receive(channel, &order, fds, &count)) <= 0)
			break;
		if (1 == (ret = arm(&keeper, how, way, &order, fds, ret_born)))
			return 1;
		close_all(fds, count);
	}
	return -EPIPE == ret ? 0 : ret;
}

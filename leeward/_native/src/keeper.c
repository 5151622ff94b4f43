/* The loop of a keeper: makes runners on demand, and reaps them.
 *
 * Runs in:  the keeper, single-threaded, in place of its interpreter.
 *
 * The interpreter calls lw_keep, which returns in the keeper only when the daemon is gone, and in each job, which is a
 * clone. So a keeper runs no bytecode: each clone makes its pages shared again, and a loop in Python copied some 200 of
 * them for every runner, a loop in C only its stack and its table.
 *
 * Messages are struct lw_keeper_message, with these descriptors:
 *
 *   ARM     [birth end] + [cgroup directory] + tasks files
 *   ARMED   [init pidfd, job write, reply read, stdout read, stderr read]
 *   START   [pid, mount, ipc, uts namespace] + [ruleset] + [birth end, stdin, stdout, stderr, command's memory file]
 *           + [cgroup directory] + tasks files; of an interpreter and a porter the five are birth end, job, reply,
 *           stdout, stderr
 *   STARTED [pidfd]
 *   MAKE    [control end] + [cgroup directory] + tasks files, for the zygote
 *   MADE    [pidfd]
 *   ENDED, FAILED, EXITED, UNSTARTED   none
 *
 * Namespaces are kept by a base (beside.c), one at a time, if ARM names their user; the runners of others are as if
 * there were none.
 *
 * A process that START makes is in a runner's namespaces and the keeper's own child: beside.c. */

#include "keeper.h"

#include "loop_private.h"
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

/* Far above the number of a worker's runners and processes that the daemon allows. */
#define MOST_CHILDREN 256
#define MOST_FDS 24

/* Descriptors of a START between the ruleset and the cgroup directory. */
#define START_ENDS 5

/* A runner; or, with init NULL, a further process of a live sandbox, or a runner in kept namespaces. */
struct child {
	struct lw_init *init;
	uint64_t number;
	pid_t pid;
	struct lw_helper *helper; /* of a runner: makes the further processes; NULL if none does, or has to stay */
	bool kept;                /* the runner in the base */
};

/* One slot of `poll` more than of `children`: the channel is the first. */
struct keeper {
	int channel;
	bool asked; /* lw_hot_pin was called */
	struct lw_helper *base; /* NULL: none; without a runner it is empty */
	uint64_t holder;        /* whose it is */
	bool taken;             /* there is a runner in it */
	nfds_t count;
	struct pollfd poll[1 + MOST_CHILDREN];
	struct child children[1 + MOST_CHILDREN];
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

/* How many descriptors an order must have; 0 for an invalid one. */
static unsigned expected(const struct lw_keeper_message *order)
{
	const unsigned entry = (order->into & LW_INTO ? 1U : 0U) + order->attach;

	if (order->kind == LW_ARM && !(order->into & ~(LW_INTO | LW_HURRIED | LW_PROVED | LW_UNPINNED | LW_AGAIN)))
		return 1U + entry;
	if (order->kind == LW_MAKE && !(order->into & ~LW_INTO))
		return 1U + entry;
	const unsigned what = order->into & (LW_TERMINAL | LW_INTERPRETER | LW_PORTER);
	if (order->kind == LW_START && !(what & (what - 1)))
		return LW_NAMESPACES + (order->into & LW_RULESET ? 1U : 0U) + START_ENDS + entry;
	return 0;
}

/* Returns 1, and the caller closes the order's descriptors; 0 at the channel's end; -EPROTO for an invalid order; -errno. */
static int receive(int channel, struct lw_keeper_message *ret, int *ret_fds, unsigned *ret_count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
	struct iovec piece = { .iov_base = ret, .iov_len = sizeof(*ret) };
	struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control) };
	ssize_t got;

	while ((got = recvmsg(channel, &header, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		;
	*ret_count = 0;
	if (got < 0)
		return errno == ECONNRESET ? 0 : -errno;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at))
		if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS) {
			*ret_count = (unsigned)((at->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(ret_fds, CMSG_DATA(at), *ret_count * sizeof(int));
		}
	if (got == 0) {
		close_all(ret_fds, *ret_count);
		return 0;
	}
	if (got != sizeof(*ret) || header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ||
	    ret->mark != LW_KEEPER_MARK || !*ret_count || *ret_count != expected(ret)) {
		close_all(ret_fds, *ret_count);
		return -EPROTO;
	}
	return 1;
}

static int say(int channel, struct lw_keeper_message message, const int *fds, unsigned count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(PIPES * sizeof(int) + sizeof(int))] = { 0 };
	struct iovec piece;
	struct msghdr header;

	message.mark = LW_KEEPER_MARK;
	lw_message(&header, &piece, control, (const uint8_t *)&message, sizeof(message), fds, count);
	while (sendmsg(channel, &header, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

static int fail(const struct keeper *keeper, uint64_t number, enum lw_keeper_call call, int err)
{
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_FAILED, .into = (uint8_t)call,
				     .value = -err, .runner = number }, NULL, 0);
}

static void watch(struct keeper *keeper, int pidfd, struct child child)
{
	keeper->poll[keeper->count] = (struct pollfd){ .fd = pidfd, .events = POLLIN };
	keeper->children[keeper->count] = child;
	keeper->count++;
}

static void close_pipes(const struct ends *pipes, int count)
{
	for (int i = 0; i < count; i++) {
		close(pipes[i].ours);
		close(pipes[i].theirs);
	}
}

/* Make the pipes of a runner. The keeper makes them so that they belong to the worker's uid, and a job can reopen
 * /dev/stdout. Returns 0 or -errno. */
static int open_pipes(struct ends *ret)
{
	for (int i = 0; i < PIPES; i++) {
		int pair[2];
		if (pipe2(pair, O_CLOEXEC) < 0) {
			int err = -errno;
			close_pipes(ret, i);
			return err;
		}
		ret[i] = i == JOB ? (struct ends){ .ours = pair[1], .theirs = pair[0] }
				  : (struct ends){ .ours = pair[0], .theirs = pair[1] };
		fcntl(ret[i].ours, F_SETFL, (i == JOB ? O_WRONLY : O_RDONLY) | O_NONBLOCK);
	}
	return 0;
}

/* In the job: set every lock. With `hurried`, also do everything else that comes before its code. */
static void walk(const struct lw_way *way, bool proved, struct lw_born *ret_born)
{
	const uint32_t end = proved && way->once ? way->once : way->count;

	/* Copy these pages together now, and not one by one by faults. If that fails (before
	 * Linux 5.14, or if one is no longer mapped), the faults copy them. */
	for (uint32_t i = 0; i < way->page_count && !ret_born->hurried; i++)
		raw(SYS_madvise, (long)way->pages[i].start, (long)way->pages[i].size, MADV_POPULATE_WRITE, 0, 0);
	ret_born->done = lw_run_steps(way->steps, end, &ret_born->result);
	if (ret_born->done == end && end < way->count)
		ret_born->done += 1 + lw_run_steps(way->steps + end + 1, way->count - end - 1, &ret_born->result);
	ret_born->sound = ret_born->done == way->count;
	if (ret_born->sound && ret_born->hurried && way->beginning)
		ret_born->begun = lw_job_begin(way->beginning);
}

/* In the job: check that it is in its cgroups, set its processor, and set every lock. Stops at the first failure. */
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
	walk(way, order->into & LW_PROVED, ret_born);
}

static void end_base(struct keeper *keeper)
{
	struct lw_helper *base = keeper->base;

	keeper->base = NULL;
	if (base)
		lw_base_end(base);
}

/* Tell the daemon of the runner that *pid* is, or the parent of, and wait for its end. 0 or -errno. */
static int armed(struct keeper *keeper, const struct ends *pipes, int pidfd, struct child child)
{
	const int given[1 + PIPES] = { pidfd, pipes[JOB].ours, pipes[REPLY].ours, pipes[OUT].ours, pipes[ERR].ours };

	watch(keeper, pidfd, child);
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_ARMED, .value = child.pid,
			.runner = child.number }, given, 1 + PIPES);
}

/* In the job: set its ends, and go. Returns 1. */
static int be_job(const struct lw_way *way, const struct ends *pipes, int birth, const struct lw_keeper_message *order,
		  int join_error, struct lw_born *ret_born)
{
	for (int i = 0; i < PIPES; i++)
		*way->ends[i] = pipes[i].theirs;
	*way->ends[PIPES] = birth;
	go(way, order, join_error, ret_born);
	return 1;
}

/* Make a runner in the namespaces that are kept for the order's `sandbox`. Returns as `arm`, which has opened *pipes*. */
static int arm_kept(struct keeper *keeper, const struct lw_runner *how, const struct lw_way *ways,
		    const struct lw_keeper_message *order, const int *fds, const struct ends *pipes, struct lw_born *ret_born)
{
	const bool into = order->into & LW_INTO;
	struct lw_fate fate = { 0 };
	int pidfd = -1;

	if (keeper->taken || !how->folder_count)
		return fail(keeper, order->runner, LW_ROOM, -EBUSY);
	if (!(order->into & LW_AGAIN) || keeper->holder != order->sandbox)
		end_base(keeper);
	const bool again = keeper->base;
	const struct lw_way *way = &ways[again ? LW_NEXT : LW_FIRST];
	if (!again && !(keeper->base = lw_base_new(how, ways[LW_RULES].steps, ways[LW_RULES].count)))
		return fail(keeper, order->runner, LW_MMAP, -ENOMEM);
	const struct lw_beside beside = { .cgroup = into ? fds[1] : -1, .attach = fds + 1 + (into ? 1 : 0),
					  .attach_count = order->attach, .cpu = -1, .helper = keeper->base };
	const int pid = lw_spawn_beside(&beside, &fate, &pidfd);
	if (pid == 0) {
		const int join_error = lw_beside_prepare(&beside, &fate) < 0 ? (int)fate.result : 0;
		be_job(way, pipes, fds[0], order, join_error, ret_born);
		ret_born->again = again;
		ret_born->begun <<= again;
		return 1;
	}
	if (pid < 0) {
		end_base(keeper);
		return fail(keeper, order->runner, LW_CLONE3, (int)fate.result);
	}
	keeper->holder = order->sandbox;
	keeper->taken = true;
	return armed(keeper, pipes, pidfd, (struct child){ .number = order->runner, .pid = lw_base_pid(keeper->base),
							   .kept = true });
}

/* Make a runner. Returns 1 in the job; in the keeper 0, also if that failed, or -errno if the daemon can't be told. */
static int arm(struct keeper *keeper, const struct lw_runner *how, const struct lw_way *ways,
	       const struct lw_keeper_message *order, const int *fds, struct lw_born *ret_born)
{
	struct ends pipes[PIPES];
	const struct lw_way *way = &ways[LW_FIRST];
	struct lw_runner this_one = *how;
	int pidfd = -1, err;

	if (keeper->count > MOST_CHILDREN)
		return fail(keeper, order->runner, LW_ROOM, -ENOSPC);
	/* Not earlier, because it gives the keeper pages of its own; and only once, because a refusal is permanent. */
	if ((order->into & (LW_HURRIED | LW_UNPINNED)) == LW_HURRIED && way->hot_count && !keeper->asked) {
		keeper->asked = true;
		lw_hot_pin(way->hot, way->hot_count);
		if (way->taken)
			lw_snapshot_drop(way->taken);
	}
	if ((err = open_pipes(pipes)) < 0)
		return fail(keeper, order->runner, LW_PIPE2, err);

	if (order->sandbox) {
		if ((err = arm_kept(keeper, how, ways, order, fds, pipes, ret_born)) <= 0)
			close_pipes(pipes, PIPES);
		return err;
	}
	const bool into = order->into & LW_INTO;
	this_one.cgroup = into ? fds[1] : -1;
	this_one.attach = fds + 1 + (into ? 1 : 0);
	this_one.attach_count = order->attach;
	struct lw_init *init = lw_init_new();
	int pid = init ? lw_spawn_runner(init, &this_one, &pidfd) : -ENOMEM;
	if (pid == 0)
		return be_job(way, pipes, fds[0], order, lw_init_join_error(init), ret_born);

	if (pid < 0) {
		if (init)
			lw_init_free(init);
		err = fail(keeper, order->runner, init ? LW_CLONE3 : LW_MMAP, pid);
	} else {
		err = armed(keeper, pipes, pidfd, (struct child){ .init = init, .number = order->runner, .pid = pid });
	}
	close_pipes(pipes, PIPES);
	return err;
}

static int unstarted(const struct keeper *keeper, const struct lw_keeper_message *order, const struct lw_way *way,
		     const struct lw_fate *fate)
{
	const bool step = fate->stage == LW_AT_STEP && way->layers && fate->done < way->count;

	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_UNSTARTED, .into = (uint8_t)fate->stage,
			.attach = step ? way->layers[fate->done] : 0, .value = (int32_t)fate->result,
			.runner = order->runner, .tasks = (uint64_t)(uint32_t)fate->inside }, NULL, 0);
}

/* The helper of the runner *number*, which *domain* locks. 0, and *ret_helper* is set; or -errno. */
static int helper_of(struct keeper *keeper, uint64_t number, const struct lw_way *domain, struct lw_helper **ret_helper)
{
	for (nfds_t at = 1; at < keeper->count; at++) {
		struct child *child = &keeper->children[at];
		if (!child->init || child->number != number)
			continue;
		if (!child->helper)
			child->helper = lw_helper_new(domain->steps, domain->count);
		*ret_helper = child->helper;
		return child->helper ? 0 : -EAGAIN;
	}
	return -ESRCH;
}

/* Provide what makes the process of *how*, which takes *way*: the helper, and the command, which is read from *fd*. 0, or
 * -errno. */
static int provide(struct keeper *keeper, const struct lw_way *ways, const struct lw_way *way,
		   const struct lw_keeper_message *order, int fd, struct lw_beside *how, struct lw_command *ret_command)
{
	int err;

	if (!way->count)
		return -ENOSYS;
	if (keeper->count > MOST_CHILDREN)
		return -ENOSPC;
	/* A porter mounts, which Landlock would forbid. */
	if (ways[LW_DOMAIN].count && !(order->into & LW_PORTER) &&
	    (err = helper_of(keeper, order->sandbox, &ways[LW_DOMAIN], &how->helper)) < 0)
		return err;
	return how->command ? lw_command_read(fd, ret_command) : 0;
}

/* Start a process in the namespaces of a runner. Returns as `arm`. */
static int start(struct keeper *keeper, const struct lw_way *ways, const struct lw_keeper_message *order,
		 const int *fds, struct lw_born *ret_born)
{
	const bool copy = order->into & (LW_INTERPRETER | LW_PORTER);
	const struct lw_way *way = &ways[order->into & LW_PORTER ? LW_CARRY : copy ? LW_COPY
					 : order->into & LW_TERMINAL ? LW_ON_TERMINAL : LW_PROGRAM];
	const int *ends = fds + LW_NAMESPACES + (order->into & LW_RULESET ? 1 : 0);
	const int *entry = ends + START_ENDS;
	struct lw_command command;
	struct lw_beside how = {
		.namespaces = fds,
		.cgroup = order->into & LW_INTO ? *entry : -1,
		.attach = entry + (order->into & LW_INTO ? 1 : 0),
		.attach_count = order->attach,
		.cpu = order->value,
		.reaper = !!(order->into & LW_REAPER),
		.most_tasks = order->tasks,
		.data = order->data,
		.most_data = order->spent_us,
		.most_descriptors = order->descriptors,
		.files = order->files,
		.steps = way->steps,
		.count = way->count,
		.command = copy ? NULL : &command,
	};
	struct lw_fate fate = { 0 };
	int pidfd = -1;

	fate.result = provide(keeper, ways, way, order, ends[4], &how, &command);
	if (fate.result < 0)
		return unstarted(keeper, order, way, &fate);
	/* A program has stdin, stdout, stderr and birth; an interpreter job, reply, stdout, stderr and birth. */
	const unsigned given = copy ? 4 : 3;
	for (unsigned i = 0; i < given; i++)
		*way->ends[i] = ends[1 + i];
	*way->ends[given] = ends[0];
	if (order->into & LW_RULESET && way->ends[given + 1])
		*way->ends[given + 1] = fds[LW_NAMESPACES];
	const int pid = lw_spawn_beside(&how, &fate, &pidfd);
	if (pid == 0) {
		*ret_born = (struct lw_born){ .hurried = !!(order->into & LW_HURRIED),
						.beside = order->into & (LW_INTERPRETER | LW_PORTER) };
		if (lw_beside_prepare(&how, &fate) == 0)
			walk(way, false, ret_born);
		else
			*(fate.stage == LW_AT_AFFINITY ? &ret_born->affinity_error : &ret_born->join_error) = (int)fate.result;
		return 1;
	}
	if (!copy)
		lw_command_free(&command);
	if (pid < 0)
		return unstarted(keeper, order, way, &fate);
	watch(keeper, pidfd, (struct child){ .number = order->runner, .pid = pid });
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_STARTED, .value = pid,
			.runner = order->runner, .tasks = (uint64_t)(uint32_t)fate.inside }, &pidfd, 1);
}

static void forget(struct keeper *keeper, nfds_t at)
{
	close(keeper->poll[at].fd);
	keeper->count--;
	keeper->poll[at] = keeper->poll[keeper->count];
	keeper->children[at] = keeper->children[keeper->count];
}

static int reap_process(struct keeper *keeper, nfds_t at)
{
	const uint64_t number = keeper->children[at].number;
	struct rusage used = { 0 }, own;
	siginfo_t info = { 0 };
	long err;

	while ((err = raw(SYS_waitid, 3 /* P_PIDFD */, keeper->poll[at].fd, (long)&info, WEXITED, (long)&used)) == -EINTR)
		;
	forget(keeper, at);
	const int status = err < 0 ? -1 : info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8
			 : info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
	/* The kernel's maximum began with the keeper's resident set, because the process ran on the keeper's memory. */
	getrusage(RUSAGE_SELF, &own);
	const long peak = used.ru_maxrss > own.ru_maxrss ? used.ru_maxrss : 0;
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_EXITED, .value = status, .runner = number,
			.spent_us = microseconds(&used.ru_utime) + microseconds(&used.ru_stime),
			.tasks = (uint64_t)peak << 10 }, NULL, 0);
}

/* The runner in the base has ended. If anything of it is left, that ends as well, and with it the base. */
static int reap_kept(struct keeper *keeper, nfds_t at)
{
	const uint64_t number = keeper->children[at].number;
	struct rusage used = { 0 };
	int status = -1;

	forget(keeper, at);
	keeper->taken = false;
	if (!lw_base_over(keeper->base, &status, &used))
		end_base(keeper);
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_ENDED, .value = status, .runner = number,
			.spent_us = microseconds(&used.ru_utime) + microseconds(&used.ru_stime),
			.tasks = lw_largest(&used, (uint64_t)sysconf(_SC_PAGESIZE)) }, NULL, 0);
}

static int reap(struct keeper *keeper, nfds_t at)
{
	struct child gone = keeper->children[at];
	int status = -1;

	if (gone.kept)
		return reap_kept(keeper, at);
	if (!gone.init)
		return reap_process(keeper, at);
	while (waitpid(gone.pid, NULL, 0) < 0 && errno == EINTR)
		;
	forget(keeper, at);
	if (gone.helper)
		lw_helper_end(gone.helper);
	if (lw_init_status(gone.init, &status) < 0)
		status = -1;
	const uint64_t spent_us = lw_init_spent_us(gone.init), largest = lw_init_largest(gone.init);
	lw_init_free(gone.init);
	return say(keeper->channel, (struct lw_keeper_message){ .kind = LW_ENDED, .value = status,
				     .runner = gone.number, .spent_us = spent_us, .tasks = largest }, NULL, 0);
}

/* Serve until the daemon is gone. Linux 5.9 (close_range, in the init). *how* is the model of all runners; cgroup and
 * attach come with each order. Returns 1 in a job, which has come as far as *ret_born says; 0 in the keeper when the daemon
 * is gone; or -errno. */
int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *ways, struct lw_born *ret_born)
{
	struct keeper keeper = { .channel = channel, .count = 1 };
	int ret = 0;

	keeper.poll[0] = (struct pollfd){ .fd = channel, .events = POLLIN };
	while (ret >= 0) {
		if (poll(keeper.poll, keeper.count, -1) < 0) {
			ret = errno == EINTR ? 0 : -errno;
			continue;
		}
		/* Backwards, because reap moves the last entry into the gap. */
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
		ret = order.kind == LW_MAKE ? -EPROTO : order.kind == LW_ARM ? arm(&keeper, how, ways, &order, fds, ret_born)
					   : start(&keeper, ways, &order, fds, ret_born);
		if (ret == 1)
			return 1;
		close_all(fds, count);
	}
	return ret == -EPIPE ? 0 : ret;
}

/* Take the steps up to the first whose result isn't allowed. Returns whether there is none. */
static bool settle(struct lw_settling *settling)
{
	const struct lw_step *steps = settling->steps;
	const uint32_t bounds[] = { 0, settling->aside, settling->last, settling->count };

	for (unsigned part = 0; part < 3; part++) {
		const uint32_t count = bounds[part + 1] - bounds[part];
		const int64_t done = part == 1 && count ? lw_run_steps_aside(CLONE_NEWPID, steps + bounds[1], count,
									     &settling->result)
							: lw_run_steps(steps + bounds[part], count, &settling->result);
		settling->done = bounds[part] + (done < 0 ? 0 : (uint32_t)done);
		if (done != count)
			return false;
	}
	return true;
}

/* In the keeper of *order*: settle and serve, without the zygote's *channel*. */
static int be_keeper(int channel, const struct lw_keeper_message *order, const int *fds, unsigned count,
		     struct lw_settling *settling, struct lw_runner *how, const struct lw_way *ways, struct lw_born *ret_born)
{
	int64_t joined = 0;

	for (unsigned i = count - order->attach; i < count && joined >= 0; i++)
		joined = raw(SYS_write, fds[i], (long)"0", 1, 0, 0);
	close(channel);
	/* A low number: the paths of Landlock's rules have those from landlock.HELD on. */
	*settling->channel = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
	close_all(fds, count);
	if (joined < 0) {
		settling->done = settling->count;
		settling->result = joined;
		return LW_UNSETTLED;
	}
	if (settling->map)
		*settling->map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (!settle(settling))
		return LW_UNSETTLED;
	how->ruleset = settling->ruleset ? *settling->ruleset : -1;
	return lw_keep(*settling->channel, how, ways, ret_born);
}

static void wake(int number)
{
	(void)number;
}

/* In the zygote, which has one thread: make keepers in new namespaces (*flags*, CLONE_NEW*) for the daemon, and reap them.
 * In bytecode a zygote wrote a hundred pages for each, of which that keeper then had the old ones for itself. Returns 0 in
 * the zygote when the daemon is gone, or -errno; in a keeper LW_UNSETTLED, or as lw_keep; in a job 1. */
int lw_make_keepers(int channel, uint64_t flags, struct lw_settling *settling, struct lw_runner *how,
		    const struct lw_way *ways, struct lw_born *ret_born)
{
	struct pollfd heard = { .fd = channel, .events = POLLIN };
	struct sigaction waking = { .sa_handler = wake }, usual;
	sigset_t child, before;
	int ret;

	/* The ends of keepers interrupt the wait, and only that. */
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	sigaction(SIGCHLD, &waking, &usual);
	for (ret = 1; ret > 0;) {
		struct lw_keeper_message order;
		int fds[MOST_FDS], pidfd = -1;
		unsigned count;

		const int ready = ppoll(&heard, 1, NULL, &before);
		ret = ready < 0 && errno != EINTR ? -errno : 1;
		while (ready < 0 && waitpid(-1, NULL, WNOHANG) > 0) /* takes a step for each keeper that lives */
			;
		if (ready <= 0)
			continue;
		if ((ret = receive(channel, &order, fds, &count)) <= 0)
			break;
		if (order.kind != LW_MAKE) {
			close_all(fds, count);
			ret = -EPROTO;
			break;
		}
		const int pid = lw_clone(flags, order.into & LW_INTO ? fds[1] : -1, &pidfd);
		if (pid == 0) {
			sigaction(SIGCHLD, &usual, NULL);
			sigprocmask(SIG_SETMASK, &before, NULL);
			return be_keeper(channel, &order, fds, count, settling, how, ways, ret_born);
		}
		close_all(fds, count);
		const struct lw_keeper_message answer = { .kind = pid < 0 ? LW_FAILED : LW_MADE, .into = pid < 0 ? LW_KEEPER : 0,
							  .value = pid < 0 ? -pid : pid, .runner = order.runner };
		ret = say(channel, answer, &pidfd, pid > 0);
		ret = ret < 0 ? ret : 1; /* the daemon would wait for this keeper for ever: it makes another zygote */
		if (pidfd >= 0)
			close(pidfd);
	}
	while (waitpid(-1, NULL, WNOHANG) > 0) /* those that live on are the daemon's to reap */
		;
	sigaction(SIGCHLD, &usual, NULL);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return ret == -EPIPE ? 0 : ret;
}

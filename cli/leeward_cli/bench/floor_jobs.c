/* The floor of a job: each message is run as code in a process of its own, with the locks and the tree of processes that a
 * job must have, and nothing else of leeward.
 *
 * Runs in:  an interpreter that calls lw_floor_jobs (floor_peers.py), compiled as a library by floors.py.
 *
 * We are the daemon, an interpreter that runs no code itself. Each keeper has a user and a network namespace and a root; for
 * each job it makes an init on its own memory, in the job's namespaces; and that the job, a copy of the interpreter, which is
 * init's only child, since pid 1 wouldn't get its own signals. */

#include "floors.c"

#include <poll.h>
#include <setjmp.h>

#define KEEPERS 8
#define STACK (64U << 10)

enum { OUT = 1, ERR, CODE, BIRTH, CHANNEL = 10, FIRST_FILE = 100 };  /* descriptors of a job; of a keeper; of groups */
enum { JOINED = 3, FILES = 7 };  /* what a job is written into, and with what is read at its end; 0 where there is no group */

struct keeper {
	const int *groups;
	int channel, code, out, err, birth, listener;
	int status;
	size_t size, told;
	bool busy;
	char text[MOST], said[MOST];
};

static jmp_buf begin;
static _Alignas(16) unsigned char stack[STACK];

/* On the keeper's memory, whose stack the job finds as it was. */
static int init(void *none)
{
	int status;

	(void)none;
	const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!child)
		_longjmp(begin, 1);
	while (waitpid(-1, &status, 0) != child)
		;
	syscall(SYS_exit_group, status ? 1 : 0);
	return 0;
}

/* In a job: its descriptors, mounts and locks; then its code. Returns the code's length. */
static ssize_t armed(const int *groups, const int *ends, char *ret_code)
{
	const unsigned long most = MS_NOSUID | MS_NODEV;

	for (unsigned i = 0; i < JOINED && groups[i]; i++)
		if (write(groups[i], "0", 1) != 1)
			_exit(fail("a group"));
	if (dup2(ends[0], CODE) < 0 || dup2(ends[1], OUT) < 0 || dup2(ends[2], 2) < 0 || dup2(ends[3], BIRTH) < 0 ||
	    syscall(SYS_close_range, BIRTH + 1, ~0U, 0) || unshare(CLONE_NEWCGROUP) || sethostname("job", 3) ||
	    mount("proc", "/proc", "proc", most | MS_NOEXEC, "subset=pid") || mount("tmpfs", "/tmp", "tmpfs", most, NULL) ||
	    chdir("/tmp") || !locked(BIRTH) || close(BIRTH))
		_exit(fail("a job"));
	return read(CODE, ret_code, MOST);
}

/* Returns in jobs alone. */
static ssize_t keep(int channel, const int *groups, char *ret_code)
{
	const int all = CLONE_VM | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | SIGCHLD;
	static int ends[4];
	int status;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (got(channel, ends, 4)) {
		if (_setjmp(begin))
			return armed(groups, ends, ret_code);
		const pid_t child = clone(init, stack + STACK, all, NULL);
		for (unsigned i = 0; i < 4; i++)
			close(ends[i]);
		if (child < 0 || waitpid(child, &status, 0) != child || write(channel, &status, sizeof(status)) != sizeof(status))
			_exit(fail("an init"));
	}
	_exit(0);
}

static bool start(struct keeper *keeper)
{
	int code[2], out[2], err[2], birth[2];

	if (pipe2(code, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, birth))
		return false;
	const int ends[] = { code[0], out[1], err[1], birth[1] };
	const bool fine = give(keeper->channel, ends, 4);

	for (unsigned i = 0; i < 4; i++)
		close(ends[i]);
	keeper->code = code[1];
	keeper->out = out[0];
	keeper->err = err[0];
	keeper->birth = birth[0];
	keeper->listener = keeper->status = -1;
	keeper->told = 0;
	keeper->busy = true;
	return fine;
}

static void shut(int *fd)
{
	close(*fd);
	*fd = -1;
}

/* Take what is there of a job, and answer when all of it has come. */
static bool take(struct keeper *keeper, const struct pollfd *there, int client)
{
	char none, number[64];

	if (there[0].revents) {
		if (!got(keeper->birth, &keeper->listener, 1) || write(keeper->code, keeper->text, keeper->size) != (ssize_t)keeper->size)
			return false;
		shut(&keeper->birth);
		shut(&keeper->code);
	}
	if (there[1].revents) {
		const ssize_t size = read(keeper->out, keeper->said + keeper->told, MOST - keeper->told);

		if (size <= 0)
			shut(&keeper->out);
		else
			keeper->told += (size_t)size;
	}
	if (there[2].revents && read(keeper->err, &none, 1) <= 0)
		shut(&keeper->err);
	if (there[3].revents && read(keeper->channel, &keeper->status, sizeof(keeper->status)) != sizeof(keeper->status))
		return false;
	if (keeper->out >= 0 || keeper->err >= 0 || keeper->status < 0)
		return true;
	for (unsigned i = JOINED; i < FILES && keeper->groups[i]; i++)
		if (pread(keeper->groups[i], number, sizeof(number), 0) <= 0)
			return false;
	close(keeper->listener);
	keeper->busy = false;
	return !keeper->status && write(client, keeper->said, keeper->told) == (ssize_t)keeper->told;
}

static bool server(int client, struct keeper *keepers)
{
	for (;;) {
		struct pollfd there[1 + 4 * KEEPERS] = { { .fd = client, .events = POLLIN } };
		struct keeper *idle = NULL;

		for (unsigned i = 0; i < KEEPERS; i++) {
			struct keeper *one = &keepers[i];
			const int fds[] = { one->birth, one->out, one->err, one->channel };

			for (unsigned j = 0; j < 4; j++)
				there[1 + 4 * i + j] = (struct pollfd){ .fd = one->busy ? fds[j] : -1, .events = POLLIN };
			if (!one->busy)
				idle = one;
		}
		if (!idle)
			there[0].fd = -1;
		if (poll(there, 1 + 4 * KEEPERS, -1) < 0)
			return false;
		for (unsigned i = 0; i < KEEPERS; i++)
			if (keepers[i].busy && !take(&keepers[i], there + 1 + 4 * i, client))
				return false;
		if (idle && there[0].revents) {
			const ssize_t size = read(client, idle->text, MOST);

			if (size <= 0)
				return true;
			idle->size = (size_t)size;
			if (!start(idle))
				return false;
		}
	}
}

/* *groups* has FILES descriptors for each keeper. Returns the code's length in a job; in the daemon 0 at the end, or -1. */
ssize_t lw_floor_jobs(int client, const int *groups, char *ret_code);
ssize_t lw_floor_jobs(int client, const int *groups, char *ret_code)
{
	static struct keeper keepers[KEEPERS];

	for (unsigned i = 0; i < KEEPERS; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
			return -fail("socketpair");
		const pid_t child = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
		if (child < 0)
			return -fail("clone");
		if (!child) {
			const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

			/* Numbers that no job's descriptors have. */
			if (dup2(ends[1], CHANNEL) < 0 || syscall(SYS_close_range, CHANNEL + 1, FIRST_FILE - 1, 0))
				_exit(fail("a keeper"));
			for (int fd = 0; fd < CHANNEL; fd++)
				if (fd != 2)
					dup2(nothing, fd);
			if (read(CHANNEL, ret_code, 1) != 1 || !rooted(false))
				_exit(fail("a keeper"));
			return keep(CHANNEL, groups + i * FILES, ret_code);
		}
		close(ends[1]);
		keepers[i].channel = ends[0];
		keepers[i].groups = groups + i * FILES;
		if (!mapped(child) || write(ends[0], "", 1) != 1)
			return -fail("id maps");
	}
	return server(client, keepers) ? 0 : -fail("a job");
}

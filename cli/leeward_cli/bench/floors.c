/* The floors that want C: what the kernel takes for the hops of a call, and for a refused system call.
 *
 * Runs in:  processes of its own, compiled by floors.py when `leeward bench` starts.
 *
 *     floors four               client, we, a child, we, client: a socket as descriptor 0 and pipes to the child
 *     floors two                client, we, client
 *     floors through PROGRAM ...  as four, and the child is PROGRAM, which reads from descriptor 0 and writes to 1
 *     floors pour BYTES         for each message: so many bytes from a child by a pipe into a memory file
 *     floors denied PROGRAM ... run PROGRAM with chroot(2) refused by us, its supervisor, as barely as that can be done
 *     floors boxes COUNT        make so many sandboxes as barely as that can be done, each with a program that has run
 *     floors command            for each message: /usr/bin/true in one such sandbox, by its pid 1, with two pipes to us
 *
 * Each does nothing but pass on what comes, and ends with its peer. */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 4096
#define PIECE (1 << 20)
#define MOST_FDS 4

static int fail(const char *what)
{
	perror(what);
	return 1;
}

/* Everything from `from` to `to`, until there is no more. */
static void echo(int from, int to)
{
	char message[MOST];
	ssize_t size;

	while ((size = read(from, message, sizeof(message))) > 0)
		if (write(to, message, (size_t)size) != size)
			break;
}

static int two(void)
{
	echo(0, 0);
	return 0;
}

/* The child echoes; or it is `program`, if there is one. */
static int four(char **program)
{
	char message[MOST];
	int down[2], up[2];
	ssize_t size;

	if (pipe(down) || pipe(up))
		return fail("pipe");
	switch (fork()) {
	case -1:
		return fail("fork");
	case 0:
		close(down[1]);
		close(0);
		if (program) {
			if (dup2(down[0], 0) || dup2(up[1], 1) != 1)
				_exit(fail("dup2"));
			execv(program[0], program);
			_exit(fail(program[0]));
		}
		echo(down[0], up[1]);
		_exit(0);
	default:
		break;
	}
	close(down[0]);
	close(up[1]);
	while ((size = read(0, message, sizeof(message))) > 0) {
		if (write(down[1], message, (size_t)size) != size)
			break;
		size = read(up[0], message, sizeof(message));
		if (size <= 0 || write(0, message, (size_t)size) != size)
			break;
	}
	return 0;
}

static int pour_once(size_t size)
{
	static char piece[PIECE];
	int ends[2], between[2], file = memfd_create("pour", MFD_CLOEXEC);
	size_t left = size;
	pid_t child;

	if (file < 0 || pipe(ends) || pipe(between))
		return fail("memfd_create");
	fcntl(ends[1], F_SETPIPE_SZ, PIECE); /* what an ordinary user may have */
	fcntl(between[1], F_SETPIPE_SZ, PIECE);
	child = fork();
	if (child < 0)
		return fail("fork");
	if (!child) {
		for (; left && write(ends[1], piece, PIECE) == PIECE; left -= PIECE)
			continue;
		_exit(!!left);
	}
	close(ends[1]);
	/* By a second pipe: while one is spliced into a file it is locked, and its writer waits. */
	while (left) {
		ssize_t got = splice(ends[0], NULL, between[1], NULL, left, 0);

		if (got <= 0)
			return fail("splice");
		left -= (size_t)got;
		while (got) {
			ssize_t put = splice(between[0], NULL, file, NULL, (size_t)got, 0);

			if (put <= 0)
				return fail("splice");
			got -= put;
		}
	}
	close(ends[0]);
	close(between[0]);
	close(between[1]);
	close(file);
	waitpid(child, NULL, 0);
	return 0;
}

static int pour(size_t size)
{
	char message;

	while (read(0, &message, 1) == 1)
		if (pour_once(size) || write(0, &message, 1) != 1)
			return 1;
	return 0;
}

/* The program has ended, and nobody is left who could ask; RECV wouldn't say so. */
static void over(int number)
{
	int status;

	(void)number;
	_exit(wait(&status) > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* Send *count* descriptors, which stay ours. */
static bool give(int channel, const int *fds, size_t count)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(MOST_FDS * sizeof(int))] = { 0 };
	const size_t size = count * sizeof(int);
	struct iovec data = { room, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(size) };

	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(size) };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, size);
	return sendmsg(channel, &message, 0) == 1;
}

/* Receive as many; false at the end. */
static bool got(int channel, int *ret_fds, size_t count)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(MOST_FDS * sizeof(int))], byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };

	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message) ||
	    CMSG_FIRSTHDR(&message)->cmsg_len != CMSG_LEN(count * sizeof(int)))
		return false;
	memcpy(ret_fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), count * sizeof(int));
	return true;
}

static int refused(int link, char **program)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_chroot, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(lines) / sizeof(*lines), .filter = lines };
	int listener;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (listener < 0)
		return fail("seccomp");
	if (!give(link, &listener, 1))
		return fail("sendmsg");
	close(listener);
	close(link);
	execv(program[0], program);
	return fail(program[0]);
}

static int supervise(int listener)
{
	for (;;) {
		struct seccomp_notif request = { 0 };
		struct seccomp_notif_resp response = { 0 };

		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request)) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return fail("SECCOMP_IOCTL_NOTIF_RECV");
		}
		response.id = request.id;
		response.error = -EACCES;
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) && errno != ENOENT)
			return fail("SECCOMP_IOCTL_NOTIF_SEND");
	}
}

static int denied(char **program)
{
	int links[2], listener;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, links))
		return fail("socketpair");
	child = fork();
	if (child < 0)
		return fail("fork");
	if (!child) {
		close(links[0]);
		_exit(refused(links[1], program));
	}
	close(links[1]);
	if (!got(links[0], &listener, 1))
		return fail("no listener came");
	if (signal(SIGCHLD, over) == SIG_ERR)
		return fail("signal");
	if (waitpid(child, NULL, WNOHANG))	/* it ended before there was a handler */
		return 1;
	return supervise(listener);
}

#define INSTRUCTIONS 300
#define ROOT "/tmp"

static uint64_t spent_us(int whose)
{
	struct rusage used;

	getrusage(whose, &used);
	return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Returns the descriptor by which a supervisor gets the calls that wait for it, or -1. */
static int filtered(void)
{
	struct sock_filter lines[INSTRUCTIONS];
	struct sock_fprog filter = { .len = INSTRUCTIONS, .filter = lines };
	const unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;

	lines[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 1; i < INSTRUCTIONS - 1; i++)	/* numbers that no call has */
		lines[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 10000 + i, 0, 0);
	lines[INSTRUCTIONS - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? -1 : (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
}

/* Rights on files by path, and no other: what a sandbox may read, and where it may write. */
static bool ruled(void)
{
	static const char *const paths[] = { "/usr", "/bin", "/lib", "/lib64", "/proc", "/tmp" };
	const uint64_t all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1, reading = LANDLOCK_ACCESS_FS_EXECUTE |
		LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
	const struct landlock_ruleset_attr handled = { .handled_access_fs = all };
	const int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);

	if (rules < 0)
		return errno == EOPNOTSUPP || errno == ENOSYS; /* a kernel without it */
	for (unsigned i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
		struct landlock_path_beneath_attr rule = {
			.allowed_access = i < 5 ? reading : all, .parent_fd = open(paths[i], O_PATH | O_CLOEXEC) };

		if (rule.parent_fd < 0)
			continue; /* not every host has all */
		if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0))
			return false;
		close(rule.parent_fd);
	}
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_landlock_restrict_self, rules, 0) && !close(rules);
}

/* The locks of a job behind its namespaces and mounts. The supervisor, behind *birth* if there is one, gets the filter's
 * listener. */
static bool locked(int birth)
{
	static const struct { int of; rlim_t most; } limits[] = {
		{ RLIMIT_CORE, 0 }, { RLIMIT_NOFILE, 256 }, { RLIMIT_FSIZE, 1 << 26 }, { RLIMIT_MEMLOCK, 1 << 16 },
		{ RLIMIT_MSGQUEUE, 0 }, { RLIMIT_SIGPENDING, 256 } };
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const struct __user_cap_data_struct none[2] = { 0 };
	int listener;

	for (unsigned i = 0; i < sizeof(limits) / sizeof(*limits); i++)
		if (setrlimit(limits[i].of, &(struct rlimit){ limits[i].most, limits[i].most }))
			return false;
	if (setsid() < 0 || syscall(SYS_capset, &header, none) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || !ruled() ||
	    (listener = filtered()) < 0)
		return false;
	return (birth < 0 || give(birth, &listener, 1)) && !close(listener);
}

/* A root of its own with the host's programs, read-only, and a folder to write to. With *alone* its own processes, else the
 * host's: a keeper's jobs mount theirs, and /tmp, themselves. */
static bool rooted(bool alone)
{
	static const char *const folders[] = { "usr", "bin", "lib", "lib64", "proc", "tmp", "dev" };
	const unsigned long most = MS_NOSUID | MS_NODEV;

	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", ROOT, "tmpfs", most, "mode=755") ||
	    chdir(ROOT))
		return false;
	for (unsigned i = 0; i < sizeof(folders) / sizeof(*folders); i++) {
		char from[32];

		snprintf(from, sizeof(from), "/%s", folders[i]);
		if (mkdir(folders[i], 0755))
			return false;
		if (i < 4 && !access(from, F_OK) && (mount(from, folders[i], NULL, MS_BIND, NULL) ||
		    mount(NULL, folders[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | most, NULL)))
			return false;
	}
	if (alone ? mount("proc", "proc", "proc", most | MS_NOEXEC, "subset=pid") || mount("tmpfs", "tmp", "tmpfs", most, NULL) ||
	    mount("devpts", "dev", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance") : mount("/proc", "proc", NULL, MS_BIND | MS_REC, NULL))
		return false;
	return !syscall(SYS_pivot_root, ".", ".") && !umount2(".", MNT_DETACH) && !chdir("/");
}

/* Behind all locks, as the sandbox's first process, which stays. */
static bool parked(void)
{
	const pid_t child = fork();

	if (child)
		return child > 0;
	if (!locked(-1))
		_exit(fail("a first process"));
	for (;;)
		pause();
}

/* Pid 1 of a sandbox: has a program run behind all locks, tells the processor time of all that, and stays. */
static int box(int ready, int done)
{
	char *const program[] = { "true", NULL };
	uint64_t spent = 0;
	int status = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(ready, &status, 1) == 1 && rooted(true) && parked()) {
		const pid_t child = vfork();

		if (!child) {
			if (locked(-1))
				execv("/usr/bin/true", program);
			_exit(127);
		}
		if (waitpid(child, &status, 0) == child && !status)
			spent = 1 + spent_us(RUSAGE_SELF) + spent_us(RUSAGE_CHILDREN);
	}
	if (write(done, &spent, sizeof(spent)) != sizeof(spent))
		return 1;
	for (;;)
		pause();
}

static bool mapped(pid_t child)
{
	const char *const names[] = { "setgroups", "uid_map", "gid_map" };
	char path[64], text[3][32] = { "deny" };

	snprintf(text[1], sizeof(*text), "0 %u 1", getuid());
	snprintf(text[2], sizeof(*text), "0 %u 1", getgid());
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", child, names[i]);
		const int file = open(path, O_WRONLY | O_CLOEXEC);
		const bool fine = file >= 0 && write(file, text[i], strlen(text[i])) > 0;

		close(file);
		if (!fine)
			return false;
	}
	return true;
}

/* Prints the processor time of all, in microseconds, and keeps them until it reads the end of its input. */
static int boxes(unsigned long count)
{
	const long all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
	uint64_t spent = 0, one;
	int ready[2], done[2];

	if (pipe(done))
		return fail("pipe");
	for (unsigned long i = 0; i < count; i++) {
		if (pipe(ready))
			return fail("pipe");
		const pid_t child = (pid_t)syscall(SYS_clone, all | SIGCHLD, 0, 0, 0, 0);
		if (child < 0)
			return fail("clone");
		if (!child)
			_exit(box(ready[0], done[1]));
		if (!mapped(child) || write(ready[1], "", 1) != 1)
			return fail("id maps");
		close(ready[0]);
		close(ready[1]);
	}
	for (unsigned long i = 0; i < count; i++) {
		if (read(done[0], &one, sizeof(one)) != sizeof(one) || !one)
			return fail("a sandbox");
		spent += one;
	}
	printf("%llu\n", (unsigned long long)(spent + spent_us(RUSAGE_SELF)));
	fflush(stdout);
	while (read(0, &one, 1) > 0)
		;
	return 0;
}

/* Pid 1 of a sandbox, whose root is done: for each three descriptors a program, whose status it sends. */
static int serve(int channel)
{
	char *const program[] = { "true", NULL };
	int ends[3], status;

	while (got(channel, ends, 3)) {
		const pid_t child = vfork();

		if (!child) {
			if (dup2(ends[0], 1) == 1 && dup2(ends[1], 2) == 2 && locked(ends[2]))
				execv("/usr/bin/true", program);
			_exit(127);
		}
		for (unsigned i = 0; i < 3; i++)
			close(ends[i]);
		if (waitpid(child, &status, 0) != child || write(channel, &status, sizeof(status)) != sizeof(status))
			return 1;
	}
	return 0;
}

/* One program in the sandbox behind `channel`, to its end and that of its output. */
static bool ran(int channel)
{
	int out[2], err[2], birth[2], status, listener;
	char none;

	if (pipe(out) || pipe(err) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, birth))
		return false;
	bool fine = give(channel, (int[]){ out[1], err[1], birth[1] }, 3);

	close(out[1]);
	close(err[1]);
	close(birth[1]);
	fine = fine && got(birth[0], &listener, 1) && read(channel, &status, sizeof(status)) == sizeof(status) && !status &&
	       !read(out[0], &none, 1) && !read(err[0], &none, 1);
	close(out[0]);
	close(err[0]);
	close(birth[0]);
	close(listener);
	return fine;
}

static int command(void)
{
	const long all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
	char message[MOST];
	int ends[2];
	ssize_t size;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return fail("socketpair");
	const pid_t child = (pid_t)syscall(SYS_clone, all | SIGCHLD, 0, 0, 0, 0);
	if (child < 0)
		return fail("clone");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(read(ends[1], message, 1) == 1 && rooted(true) ? serve(ends[1]) : fail("a sandbox"));
	}
	close(ends[1]);
	if (!mapped(child) || write(ends[0], "", 1) != 1)
		return fail("id maps");
	while ((size = read(0, message, sizeof(message))) > 0)
		if (!ran(ends[0]) || write(0, message, (size_t)size) != size)
			return fail("a command");
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 2 && !strcmp(arguments[1], "four"))
		return four(NULL);
	if (count > 2 && !strcmp(arguments[1], "through"))
		return four(arguments + 2);
	if (count == 3 && !strcmp(arguments[1], "pour"))
		return pour(strtoul(arguments[2], NULL, 10));
	if (count == 2 && !strcmp(arguments[1], "two"))
		return two();
	if (count > 2 && !strcmp(arguments[1], "denied"))
		return denied(arguments + 2);
	if (count == 3 && !strcmp(arguments[1], "boxes"))
		return boxes(strtoul(arguments[2], NULL, 10));
	if (count == 2 && !strcmp(arguments[1], "command"))
		return command();
	fputs("floors four | two | through PROGRAM ... | pour BYTES | denied PROGRAM ... | boxes COUNT | command\n", stderr);
	return 2;
}

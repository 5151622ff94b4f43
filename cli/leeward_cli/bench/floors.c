/* The floors that want C: what the kernel takes for the hops of a call, and for a refused system call.
 *
 * Runs in:  processes of its own, compiled by floors.py when `leeward bench` starts.
 *
 *     floors four               client, we, a child, we, client: a socket as descriptor 0 and pipes to the child
 *     floors two                client, we, client
 *     floors through PROGRAM ...  as four, and the child is PROGRAM, which reads from descriptor 0 and writes to 1
 *     floors pour BYTES         for each message: so many bytes from a child by a pipe into a memory file
 *     floors denied PROGRAM ... run PROGRAM with chroot(2) refused by us, its supervisor, as barely as that can be done
 *
 * Each does nothing but pass on what comes, and ends with its peer. */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 4096
#define PIECE (1 << 20)

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

static int refused(int link, char **program)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_chroot, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(lines) / sizeof(*lines), .filter = lines };
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { room, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int listener;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (listener < 0)
		return fail("seccomp");
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(listener));
	memcpy(CMSG_DATA(header), &listener, sizeof(listener));
	if (sendmsg(link, &message, 0) != 1)
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
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))], byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
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
	if (recvmsg(links[0], &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
		return fail("no listener came");
	memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(listener));
	if (signal(SIGCHLD, over) == SIG_ERR)
		return fail("signal");
	if (waitpid(child, NULL, WNOHANG))	/* it ended before there was a handler */
		return 1;
	return supervise(listener);
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
	fputs("floors four | two | through PROGRAM ... | pour BYTES | denied PROGRAM ...\n", stderr);
	return 2;
}

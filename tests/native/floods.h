/* Jobs that flood: what the native tests of supervisor and loop share.
 *
 * The flooding processes are made by a process of one thread, before there are others. */

#ifndef LW_TEST_FLOODS_H
#define LW_TEST_FLOODS_H

#include "kernel.h"
#include "supervisor.h"

#include <errno.h>
#include <linux/filter.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef WATCHES
#define WATCHES 0	/* 1: the jobs use inotify, too */
#endif

/* Half of it is made by each third job, before it dies. */
#define ENOUGH 200

#ifdef pthread_mutex_lock	/* the control: built with both calls renamed to this one */
int no_lock(pthread_mutex_t *mutex)
{
	(void)mutex;
	return 0;
}
#endif

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void send_fd(int link, int fd)
{
	char byte = 'l', room[CMSG_SPACE(sizeof(fd))] = {0};
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(link, &message, 0) != 1)
		fail("sendmsg");
}

static int receive_fd(int link)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	int fd;

	if (recvmsg(link, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
		fail("recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Refused calls until there is no supervisor any more; every third one dies before. */
static void flood(int link, int which)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WATCHES ? SYS_inotify_init1 : SYS_getppid, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WATCHES ? SYS_inotify_add_watch : SYS_getppid, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(program) / sizeof(*program), .filter = program };
	int listener, inotify = -1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (listener < 0)
		fail("seccomp");
	send_fd(link, listener);
	close(listener);
	for (int calls = 0; which % 3 || calls < ENOUGH / 2; calls++) {
		if (WATCHES && inotify < 0)
			inotify = inotify_init1(IN_CLOEXEC);
		if (WATCHES && inotify >= 0 && inotify_add_watch(inotify, "/", IN_DELETE_SELF) != 1)
			break;
		if (syscall(SYS_getppid) != -1 || errno != EACCES)
			break;
	}
	_exit(0);
}

/* Make `jobs` such processes, from one of a single thread; returns a socket from which their listeners come. */
static int nursery(int jobs)
{
	int links[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, links))
		fail("socketpair");
	if (fork()) {
		close(links[1]);
		return links[0];
	}
	close(links[0]);	/* or listeners on their way would live on with us */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int which = 0; which < jobs; which++)
		if (!fork())
			flood(links[1], which);
	while (wait(NULL) > 0)
		;
	_exit(0);
}

#endif

/* The supervisor under ThreadSanitizer: jobs that flood come and go while two threads ask
 * for counts and drain. Exits with 0 if every count is right; the sanitizer says the rest.
 *
 * The flooding processes are made by a process of one thread, before there are others. */

#include "seccomp.h"
#include "supervisor.h"

#include <errno.h>
#include <linux/filter.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS 24
#define AT_ONCE 6
#define ENOUGH 200

static atomic_bool over;

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
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = 4, .filter = program };
	int listener;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (listener < 0)
		fail("seccomp");
	send_fd(link, listener);
	close(listener);
	for (int calls = 0; which % 3 || calls < ENOUGH / 2; calls++)
		if (syscall(SYS_getppid) != -1 || errno != EACCES)
			break;
	_exit(0);
}

static int nursery(void)
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
	for (int which = 0; which < JOBS; which++)
		if (!fork())
			flood(links[1], which);
	while (wait(NULL) > 0)
		;
	_exit(0);
}

static void *drain(void *supervisor)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	uint32_t count;

	while (!over)
		lw_supervisor_drain(supervisor, denied, &count);
	return NULL;
}

int main(void)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	struct lw_supervisor *supervisor;
	uint32_t slots[AT_ONCE], count;
	int link = nursery(), failed = 0;
	pthread_t drainer;

	if (lw_supervisor_start(&supervisor))
		fail("lw_supervisor_start");
	pthread_create(&drainer, NULL, drain, supervisor);
	for (int wave = 0; wave < JOBS / AT_ONCE; wave++) {
		for (int at = 0; at < AT_ONCE; at++)
			if (lw_supervisor_add(supervisor, receive_fd(link), (uint64_t)(wave * AT_ONCE + at), &slots[at]))
				fail("lw_supervisor_add");
		for (int at = 0; at < AT_ONCE; at++) {
			do {
				lw_supervisor_counts(supervisor, slots[at], denied, &count);
			} while (!count || denied[0].count < ENOUGH / 2);
			lw_supervisor_remove(supervisor, slots[at], denied, &count);
			failed |= count != 1 || denied[0].nr != SYS_getppid
				|| denied[0].job != (uint64_t)(wave * AT_ONCE + at);
			failed |= lw_supervisor_remove(supervisor, slots[at], denied, &count) != -ENOENT;
		}
	}
	over = true;
	pthread_join(drainer, NULL);
	lw_supervisor_stop(supervisor);
	return failed;
}

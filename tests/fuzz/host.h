/* The system calls of the library, played by session.c: -include puts this before every source. */
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int fake_socket(int domain, int type, int protocol);
int fake_connect(int fd, const struct sockaddr *address, socklen_t length);
int fake_setsockopt(int fd, int level, int option, const void *value, socklen_t length);
int fake_getsockopt(int fd, int level, int option, void *value, socklen_t *length);
ssize_t fake_send(int fd, const void *data, size_t length, int flags);
ssize_t fake_recvmsg(int fd, struct msghdr *message, int flags);
int fake_ppoll(struct pollfd *polled, nfds_t count, const struct timespec *time, const sigset_t *mask);
int fake_clock_gettime(clockid_t clock, struct timespec *ret_now);
int fake_fcntl(int fd, int command, ...);
int fake_fstat(int fd, struct stat *ret_about);
int fake_open(const char *path, int flags, ...);
ssize_t fake_readlink(const char *path, char *ret_target, size_t size);
ssize_t fake_sendmsg(int fd, const struct msghdr *message, int flags);
void *fake_mmap(void *start, size_t length, int protection, int flags, int fd, off_t offset);
int fake_munmap(void *start, size_t length);
int fake_close(int fd);

#define socket fake_socket
#define connect fake_connect
#define setsockopt fake_setsockopt
#define getsockopt fake_getsockopt
#define send fake_send
#define recvmsg fake_recvmsg
#define ppoll fake_ppoll
#define clock_gettime fake_clock_gettime
#define fcntl fake_fcntl
#define fstat fake_fstat
#define open fake_open
#define readlink fake_readlink
#define sendmsg fake_sendmsg
#define mmap fake_mmap
#define munmap fake_munmap
#define close fake_close

/* The constants that the syscall filter compares arguments with, by name.
 *
 * The values come from the kernel's headers. Constants that Debian 12's headers (Linux 6.1) lack, or that only another
 * architecture has, are defined here, with the kernel version that added them. All have the same value on x86_64 and
 * aarch64, since one machine makes the filters of both. */

#include "arguments.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#ifdef __x86_64__
#include <asm/prctl.h>
#endif

/* _IOR('T', 0x2A, struct termios2), 44 bytes; <asm/termbits.h> clashes with libc's. */
#undef TCGETS2
#define TCGETS2 0x802c542a

/* _IOW('T', 0x2B to 0x2D, struct termios2) */
#undef TCSETS2
#undef TCSETSW2
#undef TCSETSF2
#define TCSETS2 0x402c542b
#define TCSETSW2 0x402c542c
#define TCSETSF2 0x402c542d

/* From the kernel's headers; libc's has O_DIRECTORY too, which is another bit on aarch64 than on x86_64. */
#undef __O_TMPFILE
#define __O_TMPFILE 020000000

/* From the kernel's net/socket.h: all other bits of a socket's type are flags. */
#define SOCK_TYPE_MASK 0xf

#ifndef F_OFD_GETLK	/* 3.15 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif
#ifndef F_ADD_SEALS	/* 3.17 */
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#endif

#ifndef CLONE_NEWTIME	/* 5.6 */
#define CLONE_NEWTIME 0x00000080
#endif

#ifndef MADV_COLD	/* 5.4 */
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ	/* 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE	/* 6.1 */
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL	/* 6.13 */
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#ifndef RWF_DONTCACHE	/* 6.14 */
#define RWF_DONTCACHE 0x00000080
#endif

#ifndef PR_SET_VMA	/* 5.17 */
#define PR_SET_VMA 0x53564d41
#endif

/* arch_prctl(2) and its header exist only on x86. */
#ifndef ARCH_SET_FS
#define ARCH_SET_GS 0x1001
#define ARCH_SET_FS 0x1002
#define ARCH_GET_FS 0x1003
#define ARCH_GET_GS 0x1004
#endif
#ifndef ARCH_GET_XCOMP_SUPP	/* 5.16 */
#define ARCH_GET_XCOMP_SUPP 0x1021
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#ifndef ARCH_SHSTK_STATUS	/* 6.6 */
#define ARCH_SHSTK_STATUS 0x5005
#endif
/* From an early version of control-flow enforcement; no released kernel has it, but the libcs of
 * distributions call it at every exec. */
#define ARCH_CET_STATUS 0x3001

#define V(name) { #name, (uint32_t)(name) },

static const struct { const char *name; uint32_t value; } values[] = {
	V(CLONE_NEWNS) V(CLONE_NEWCGROUP) V(CLONE_NEWUTS) V(CLONE_NEWIPC) V(CLONE_NEWUSER)
	V(CLONE_NEWPID) V(CLONE_NEWNET) V(CLONE_NEWTIME)

	V(AF_UNIX) V(SOL_SOCKET) V(SO_REUSEADDR) V(SO_BROADCAST) V(SO_SNDBUF) V(SO_RCVBUF)
	V(SO_KEEPALIVE) V(SO_OOBINLINE) V(SO_PRIORITY) V(SO_LINGER) V(SO_REUSEPORT) V(SO_PASSCRED)
	V(SO_RCVLOWAT) V(SO_SNDLOWAT) V(SO_RCVTIMEO) V(SO_SNDTIMEO) V(SO_TIMESTAMP)
	V(SO_ATTACH_FILTER)

	V(AF_INET) V(AF_INET6) V(SOCK_TYPE_MASK) V(SOCK_STREAM) V(SOCK_SEQPACKET) V(SOCK_DGRAM) V(IPPROTO_IP)
	V(AF_NETLINK) V(SOCK_RAW) V(NETLINK_ROUTE) V(NETLINK_AUDIT)
	V(IPPROTO_TCP) V(IPPROTO_UDP) V(IPPROTO_IPV6) V(TCP_NODELAY) V(TCP_MAXSEG) V(TCP_CORK)
	V(TCP_KEEPIDLE) V(TCP_KEEPINTVL) V(TCP_KEEPCNT) V(TCP_SYNCNT) V(TCP_LINGER2)
	V(TCP_DEFER_ACCEPT) V(TCP_QUICKACK) V(TCP_USER_TIMEOUT) V(TCP_FASTOPEN)
	V(TCP_NOTSENT_LOWAT) V(IP_TOS) V(IP_TTL) V(IP_MTU_DISCOVER) V(IP_RECVERR) V(IP_PKTINFO)
	V(IP_RECVTOS) V(IP_RECVTTL) V(IPV6_V6ONLY) V(IPV6_TCLASS) V(IPV6_UNICAST_HOPS)
	V(IPV6_MTU_DISCOVER) V(IPV6_RECVERR) V(IPV6_RECVPKTINFO) V(IPV6_RECVTCLASS)
	V(IPV6_RECVHOPLIMIT)

	V(FIONREAD) V(FIONBIO) V(FIOCLEX) V(FIONCLEX) V(FIOASYNC) V(TCGETS) V(TCGETS2) V(TIOCGWINSZ)
	V(TIOCGPGRP) V(FICLONE) V(TIOCSTI) V(TIOCLINUX) V(TIOCSETD) V(TIOCCONS) V(TIOCVHANGUP)
	V(TIOCGPTN) V(TIOCSPTLCK) V(TIOCGPTLCK) V(TIOCGPTPEER) V(TCSETS) V(TCSETSW) V(TCSETSF)
	V(TCSETS2) V(TCSETSW2) V(TCSETSF2) V(TCSBRK) V(TCSBRKP) V(TCXONC) V(TCFLSH) V(TIOCOUTQ)
	V(TIOCSCTTY) V(TIOCNOTTY) V(TIOCSPGRP) V(TIOCGSID) V(TIOCSIG) V(TIOCSWINSZ) V(TIOCPKT)
	V(TIOCGPKT)

	V(F_DUPFD) V(F_GETFD) V(F_SETFD) V(F_GETFL) V(F_SETFL) V(F_GETLK) V(F_SETLK) V(F_SETLKW)
	V(RLIMIT_CORE) V(RLIMIT_CPU) V(RLIMIT_FSIZE) V(RLIMIT_DATA)
	V(RLIMIT_STACK) V(RLIMIT_RSS) V(RLIMIT_NPROC) V(RLIMIT_NOFILE)
	V(RLIMIT_MEMLOCK) V(RLIMIT_AS) V(RLIMIT_LOCKS) V(RLIMIT_SIGPENDING)
	V(RLIMIT_MSGQUEUE) V(RLIMIT_NICE) V(RLIMIT_RTPRIO) V(RLIMIT_RTTIME)

	V(F_OFD_GETLK) V(F_OFD_SETLK) V(F_OFD_SETLKW) V(F_DUPFD_CLOEXEC) V(F_SETPIPE_SZ)
	V(F_GETPIPE_SZ) V(F_ADD_SEALS) V(F_GET_SEALS) V(F_SETLEASE) V(F_NOTIFY) V(F_SETOWN)
	V(F_SETSIG) V(EPOLL_CTL_ADD) V(EPOLL_CTL_MOD) V(EPOLL_CTL_DEL)

	V(PR_SET_PDEATHSIG) V(PR_GET_PDEATHSIG) V(PR_GET_DUMPABLE) V(PR_SET_DUMPABLE)
	V(PR_SET_NAME) V(PR_GET_NAME) V(PR_GET_SECCOMP) V(PR_SET_SECCOMP) V(PR_CAPBSET_READ)
	V(PR_CAPBSET_DROP) V(PR_SET_KEEPCAPS) V(PR_GET_TSC) V(PR_GET_SECUREBITS) V(PR_GET_TIMERSLACK)
	V(PR_SET_TIMERSLACK) V(PR_GET_TID_ADDRESS) V(PR_SET_CHILD_SUBREAPER)
	V(PR_GET_CHILD_SUBREAPER) V(PR_SET_NO_NEW_PRIVS) V(PR_GET_NO_NEW_PRIVS)
	V(PR_GET_THP_DISABLE) V(PR_CAP_AMBIENT) V(PR_GET_SPECULATION_CTRL) V(PR_SET_VMA)
	V(PR_SET_MM) V(PR_SET_PTRACER)

	V(ARCH_SET_GS) V(ARCH_SET_FS) V(ARCH_GET_FS) V(ARCH_GET_GS) V(ARCH_GET_XCOMP_SUPP)
	V(ARCH_GET_XCOMP_PERM) V(ARCH_REQ_XCOMP_PERM) V(ARCH_SHSTK_STATUS) V(ARCH_CET_STATUS)

	V(MADV_NORMAL) V(MADV_RANDOM) V(MADV_SEQUENTIAL) V(MADV_WILLNEED) V(MADV_DONTNEED)
	V(MADV_FREE) V(MADV_REMOVE) V(MADV_DONTFORK) V(MADV_DOFORK) V(MADV_MERGEABLE)
	V(MADV_HUGEPAGE) V(MADV_NOHUGEPAGE) V(MADV_DONTDUMP) V(MADV_DODUMP) V(MADV_WIPEONFORK)
	V(MADV_KEEPONFORK) V(MADV_COLD) V(MADV_PAGEOUT) V(MADV_POPULATE_READ)
	V(MADV_POPULATE_WRITE) V(MADV_COLLAPSE) V(MADV_GUARD_INSTALL) V(MADV_GUARD_REMOVE)

	V(MAP_SHARED) V(MAP_ANONYMOUS) V(MAP_HUGETLB) V(MFD_HUGETLB)

	V(RWF_NOWAIT) V(RWF_DONTCACHE) V(MSG_OOB)
	V(POSIX_FADV_NORMAL) V(POSIX_FADV_RANDOM) V(POSIX_FADV_SEQUENTIAL)
	V(POSIX_FADV_WILLNEED) V(POSIX_FADV_DONTNEED) V(POSIX_FADV_NOREUSE)
	V(PRIO_PROCESS) V(PRIO_USER)

	V(S_ISUID) V(S_ISGID) V(O_CREAT) V(__O_TMPFILE) V(O_WRONLY) V(O_RDWR) V(CLONE_THREAD) V(CLONE_VM)
	V(S_IFMT) V(S_IFREG) V(S_IFIFO) V(S_IFSOCK) V(S_IFCHR) V(S_IFBLK)

	V(PER_LINUX)

	V(SECCOMP_RET_KILL_PROCESS) V(SECCOMP_RET_ERRNO) V(SECCOMP_RET_USER_NOTIF)
	V(SECCOMP_RET_ALLOW)

	V(AUDIT_ARCH_X86_64) V(AUDIT_ARCH_AARCH64) V(AUDIT_ARCH_I386) V(AUDIT_ARCH_ARM)
};

/* Find the low 32 bits of a constant, which the kernel reads as a 32-bit number, by its name. Returns 0, or -ENOENT. */
int lw_argument_value(const char *name, uint32_t *ret_value)
{
	for (size_t at = 0; at < sizeof(values) / sizeof(values[0]); at++)
		if (!strcmp(values[at].name, name)) {
			*ret_value = values[at].value;
			return 0;
		}
	return -ENOENT;
}

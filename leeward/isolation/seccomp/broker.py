"""
The system calls of the egress broker: an interpreter with sockets, whose resolver reads files and starts threads.

Default:   EPERM. The broker has no supervisor. If a library of the host's resolver tries another call, it does without.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, ENOSYS, ENOTTY

from leeward.isolation.seccomp.rules import ALLOW, Rule, each, errno, flags, is_, number, rows, under

_SOCKET = "connects to hosts that the policy allows; the resolver asks name servers"

BROKER_RULES: tuple[Rule, ...] = (
    *rows("read write readv writev pread64 lseek close fcntl dup dup3 fstat newfstatat statx pipe2 splice", ALLOW,
          "the broker uses its own descriptors"),
    *(Rule(name, ALLOW, "the resolver reads files, which Landlock chooses; no file is opened for writing",
           (flags(2 if name == "openat" else 1, lack="O_WRONLY O_RDWR O_CREAT"),))
      for name in ("open", "openat")),
    *rows("stat lstat access faccessat faccessat2 readlink readlinkat getdents64", ALLOW,
          "libraries look for files before they open them"),
    *(Rule("socket", ALLOW, _SOCKET, (is_(0, family), under(1, "SOCK_TYPE_MASK", kind), protocol))
      for family in ("AF_INET", "AF_INET6")
      for kind, name in (("SOCK_STREAM", "IPPROTO_TCP"), ("SOCK_DGRAM", "IPPROTO_UDP"))
      for protocol in (number(2, 0), is_(2, name))),
    *(Rule("socket", ALLOW, "getaddrinfo(3) asks which addresses this host has",
           (is_(0, "AF_NETLINK"), under(1, "SOCK_TYPE_MASK", "SOCK_RAW"), is_(2, "NETLINK_ROUTE"))),),
    *rows("socket", errno(EAFNOSUPPORT), "no Unix sockets, such as the daemon's; the resolver does without"),
    *rows("bind", ALLOW, "getaddrinfo(3) binds its netlink socket; Landlock refuses TCP ports"),
    *rows("connect accept accept4 sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg shutdown getsockname getpeername"
          " getsockopt setsockopt", ALLOW, "connections and queries"),
    *rows("poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2", ALLOW,
          "the event loop, and the resolver's waits"),
    *rows("mmap munmap mremap mprotect madvise brk", ALLOW, "allocates memory, and loads libraries of the resolver"),
    *rows("futex set_robust_list rseq sched_yield sched_getaffinity gettid getpid getppid set_tid_address", ALLOW,
          "the resolver starts threads"),
    *rows("clone3", errno(ENOSYS), "its flags are in memory, which a filter can't read; libc falls back to clone"),
    Rule("clone", ALLOW, "threads, and no processes", (flags(0, have="CLONE_THREAD CLONE_VM"),)),
    *rows("rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall", ALLOW, "the interpreter's signals"),
    *rows("clock_gettime clock_nanosleep clock_getres gettimeofday nanosleep getrandom uname sysinfo getuid geteuid"
          " getgid getegid getresuid getresgid getrusage", ALLOW, "reads clocks, random bytes and its own ids"),
    *each("prctl", 0, "PR_SET_NAME PR_GET_SECCOMP", "names threads, and checks that this filter is in force"),
    *rows("capget", ALLOW, "checks that the broker has no capability"),
    *each("ioctl", 1, "FIONBIO", "makes sockets non-blocking"),
    *rows("ioctl", errno(ENOTTY), "isatty(3) returns false"),
    *rows("exit exit_group", ALLOW, "the end of the broker and of its threads"),
)

"""
The table: every system call that Linux has, and why a job may make it or not.

Runs in:   where the programs are made, and the tests; pure data.
Measured:  CPython 3.11 to 3.13 and their tests, the coreutils and shells of Debian, git,
           sqlite, numpy, pandas and matplotlib, under strace and inside the sandbox.
Left out:  nothing, so that a new call of the kernel gets a decision; a test sees to it.

Where no row of a call fits its arguments: NOTIFY. A call that programs don't repeat
after EINTR (close, fork) is never NOTIFY: a signal can end the wait for the supervisor.
"""

from __future__ import annotations

from errno import EACCES, ENOSYS

from leeward.isolation.seccomp.rules import (
    ALLOW,
    NOTIFY,
    Needs,
    Rule,
    each,
    errno,
    flags,
    is_,
    null,
    number,
    rows,
    under,
)

#: clone(2) with any of these makes a namespace.
NEW_NAMESPACES = ("CLONE_NEWNS CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET"
                  " CLONE_NEWTIME")

#: All of getrlimit(2) but RLIMIT_CORE.
LIMITS = ("RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE RLIMIT_MEMLOCK"
          " RLIMIT_AS RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME")

FILES = (
    *rows("read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range"
          " dup dup2 dup3", ALLOW, "a job uses its own descriptors"),
    *rows("open openat creat", ALLOW, "the mount view and Landlock decide which"),
    *rows("openat2", errno(ENOSYS),
          "what it asks lies in memory, where no filter looks; who probes falls back to openat"),
    *rows("stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64"
          " statfs fstatfs", ALLOW, "a look at what the mount view shows"),
    *rows("getcwd chdir fchdir umask", ALLOW, "each process has a working directory and a mask"),
    *rows("mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat", ALLOW,
          "what is writable is the job's own tmpfs; all else is mounted read-only"),
    *rows("truncate ftruncate fallocate fadvise64 readahead copy_file_range sendfile sync_file_range", ALLOW,
          "contents of files: sqlite, shutil, cp. The result's memfd is never in a job's hands"),
    *rows("fsync fdatasync msync", ALLOW, "sqlite and its like; nothing happens on a tmpfs"),
    *rows("sync syncfs", errno(0), "would write back the host's disks; a job's files are memory. Answered, not done"),
    *rows("chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat", ALLOW,
          "its own files; EROFS or EPERM elsewhere, which tar, shutil and install expect"),
    *rows("getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr"
          " removexattr lremovexattr fremovexattr", ALLOW,
          "cp and shutil.copystat; without capabilities no attribute that means anything can be set"),
    *rows("getxattrat setxattrat listxattrat removexattrat file_getattr file_setattr", errno(ENOSYS),
          "newer than libc; who probes falls back to the older calls"),
    *(Rule(name, ALLOW, "plain files, FIFOs, sockets; devices are nobody's, the whiteout 0:0 too", (match,))
      for name, arg in (("mknod", 1), ("mknodat", 2))
      for match in (flags(arg, lack="S_IFMT"), *(under(arg, "S_IFMT", kind) for kind in ("S_IFREG", "S_IFIFO",
                                                                                          "S_IFSOCK")))),
    *rows("flock", ALLOW, "locks between a job's processes"),
    *rows("inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_init fanotify_mark", NOTIFY,
          "all jobs and the host share the files under /usr: a watch there shows what others open. tail -f polls then"),
    *rows("name_to_handle_at open_by_handle_at", NOTIFY, "a made-up handle reaches past the mount view"),
    *rows("cachestat", errno(ENOSYS), "tells which of the host's files somebody read; probes fall back"),
    *rows("quotactl quotactl_fd ustat sysfs lookup_dcookie", NOTIFY, "the host's filesystems, not a job's"),
    *rows("io_setup io_destroy io_getevents io_pgetevents io_submit io_cancel", NOTIFY,
          "pages that are in flight keep files busy after the job; Python has no use for it"),
    *rows("io_uring_setup io_uring_enter io_uring_register", NOTIFY,
          "ring operations pass by this filter. EACCES and not ENOSYS: programs that probe take either for a no, and"
          " the refusal shows in the result"),
    *rows("splice tee vmsplice", NOTIFY, "pages parked in a pipe outlive their file's seals"),
)

DESCRIPTORS = (
    *rows("pipe pipe2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime", ALLOW,
          "event loops and subprocess"),
    *rows("poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2", ALLOW,
          "waiting for descriptors"),
    *each("fcntl", 1, "F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_SETFL",
          "what any program does with descriptors"),
    *each("fcntl", 1, "F_GETLK F_SETLK F_SETLKW F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW",
          "record locks; sqlite lives by them"),
    *each("fcntl", 1, "F_GETPIPE_SZ", "a question"),
    *each("fcntl", 1, "F_SETPIPE_SZ", "buffers of programs that move much", needs=Needs.MEMORY_COUNTED),
    *each("fcntl", 1, "F_ADD_SEALS F_GET_SEALS",
          "seals of its own memfds (Wayland, dbus, ctypes users); it never holds the result's"),
    # Refused, by having no row: F_SETLEASE, which holds up whoever opens a file of the host that has the
    # job's user id; F_NOTIFY, which inotify replaced; F_SETOWN and F_SETSIG, signals at a descriptor's will.
    *each("ioctl", 1, "FIOCLEX FIONCLEX FIONBIO FIONREAD",
          "close-on-exec, non-blocking, bytes waiting; Python sets the first"),
    *each("ioctl", 1, "TCGETS TCGETS2 TIOCGWINSZ TIOCGPGRP", "isatty() and a terminal's size: questions"),
    *each("ioctl", 1, "FICLONE", "cp asks before each copy"),
    # Refused with all other requests: TIOCSTI and TIOCLINUX, which type on a terminal, and TIOCSETD, which
    # loads a driver.
)

MEMORY = (
    *rows("brk munmap mremap mprotect mincore mlock mlock2 munlock mlockall munlockall", ALLOW,
          "a process's own memory; RLIMIT_MEMLOCK bounds the locks"),
    *rows("mmap", ALLOW, "counted by the cgroup", needs=Needs.MEMORY_COUNTED),
    Rule("mmap", ALLOW, "a file: its pages are the file's", (flags(3, lack="MAP_ANONYMOUS"),)),
    Rule("mmap", ALLOW, "private memory; shared memory without a file could be filled by one process, then let go by it"
                        " and kept by another, so that no resident set shows it",
         (flags(3, have="MAP_ANONYMOUS", lack="MAP_SHARED"),)),
    *each("madvise", 2, "MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE"
          " MADV_DONTFORK MADV_DOFORK MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK"
          " MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_COLLAPSE"
          " MADV_GUARD_INSTALL MADV_GUARD_REMOVE",
          "allocators, thread stacks, mmap.madvise. Not MADV_MERGEABLE: merged pages tell by their timing what"
          " others hold"),
    *rows("memfd_create", ALLOW, "memory files; the cgroup counts them", needs=Needs.MEMORY_COUNTED),
    *rows("memfd_secret userfaultfd", NOTIFY, "memory that can't be reclaimed; page faults that wait for a job's whim"),
    *rows("pkey_alloc pkey_free pkey_mprotect", ALLOW, "JITs guard their code pages with these"),
    *rows("mseal", NOTIFY, "nothing needs it yet"),
    *rows("map_shadow_stack", errno(ENOSYS), "libc asks and goes without"),
    *rows("get_mempolicy", ALLOW, "libnuma asks when it is loaded"),
    *rows("mbind set_mempolicy", errno(EACCES), "where memory lies is the host's choice. OpenBLAS and libnuma try it by"
                                                " themselves: a record in every numpy job would say nothing"),
    *rows("set_mempolicy_home_node migrate_pages move_pages", NOTIFY, "where memory lies is the host's choice"),
    *rows("remap_file_pages process_madvise process_mrelease", NOTIFY, "obsolete, or about another process's memory"),
    *rows("shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl", ALLOW,
          "System V IPC of its own IPC namespace, which ends with the job; the cgroup counts its memory",
          needs=Needs.MEMORY_COUNTED),
    *rows("mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr", NOTIFY,
          "neither Python nor its usual packages have POSIX queues; their memory is locked"),
)

PROCESSES = (
    *rows("fork vfork", ALLOW, "subprocess, multiprocessing; pids.max or RLIMIT_NPROC counts"),
    Rule("clone", ALLOW, "threads and processes without new namespaces", (flags(0, lack=NEW_NAMESPACES),)),
    *rows("clone3", errno(ENOSYS), "its flags lie in memory, where no filter looks; libc falls back to clone"),
    *rows("execve execveat", ALLOW, "subprocess; what can run is a matter of mounts and Landlock"),
    *rows("exit exit_group wait4 waitid", ALLOW, "the end of processes"),
    *rows("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal", ALLOW,
          "the pid namespace holds the job alone"),
    *rows("rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause"
          " restart_syscall", ALLOW, "signals to itself"),
    *rows("getpid getppid gettid getpgid getpgrp getsid setpgid setsid getuid geteuid getgid getegid getgroups"
          " getresuid getresgid", ALLOW, "who am I; process groups for subprocess and shells"),
    *rows("setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset", ALLOW,
          "without a capability the kernel lets nobody become another; programs drop what they don't have"),
    *rows("futex set_robust_list get_robust_list set_tid_address rseq membarrier", ALLOW, "threads"),
    *rows("futex_waitv futex_wake futex_wait futex_requeue", errno(ENOSYS), "who probes falls back to futex"),
    *rows("sched_yield sched_getaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler"
          " sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr getcpu getpriority"
          " setpriority ioprio_get", ALLOW, "os.sched_*, nice; without a capability and by rlimits only downwards"),
    *rows("sched_setaffinity", ALLOW, "os.sched_setaffinity, taskset; cpu.max holds the limit",
          needs=Needs.AFFINITY_FREE),
    *rows("sched_setattr ioprio_set", NOTIFY, "nobody needs it, and deadlines take processors from others"),
    *rows("getrlimit getrusage times sysinfo uname", ALLOW, "questions about itself and the machine"),
    *each("setrlimit", 0, LIMITS, "the resource module, ulimit; limits only go down"),
    Rule("prlimit64", ALLOW, "what libc makes of getrlimit", (is_(1, "RLIMIT_CORE"), null(2))),
    *each("prlimit64", 1, LIMITS, "what libc makes of getrlimit and setrlimit"),
    # Answered, not done: scripts with `ulimit -c 0` go on.
    *(Rule(name, errno(0), "it is 1, which keeps the host's core handler from running; at 0 that would run",
           (is_(arg, "RLIMIT_CORE"),)) for name, arg in (("setrlimit", 0), ("prlimit64", 1))),
    *rows("uretprobe uprobe", ALLOW, "the way back from a probe that the host's administrator set in a library"),
    *rows("arch_prctl", ALLOW, "thread pointers: every exec sets one", is_(0, "ARCH_SET_FS")),
    *each("arch_prctl", 0, "ARCH_GET_FS ARCH_SET_GS ARCH_GET_GS", "the other thread pointers"),
    *each("arch_prctl", 0, "ARCH_GET_XCOMP_SUPP ARCH_GET_XCOMP_PERM ARCH_REQ_XCOMP_PERM", "matrix units, for BLAS"),
    *each("arch_prctl", 0, "ARCH_CET_STATUS ARCH_SHSTK_STATUS", "libc asks at every exec"),
    *rows("personality", ALLOW, "the question", number(0, 0xFFFF_FFFF)),
    *rows("personality", ALLOW, "to be what it is; other personalities turn address randomness off",
          is_(0, "PER_LINUX")),
)

PRCTL = (
    *each("prctl", 0, "PR_SET_NAME PR_GET_NAME", "threads have names"),
    *each("prctl", 0, "PR_SET_VMA", "allocators name their memory"),
    *each("prctl", 0, "PR_SET_PDEATHSIG PR_GET_PDEATHSIG",
          "for a job's own children; what ends the job with its daemon is the pid namespace and the cgroup"),
    *each("prctl", 0, "PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS", "it is set; it can't be cleared"),
    *rows("prctl", ALLOW, "to hide its memory from others", is_(0, "PR_SET_DUMPABLE"), number(1, 0)),
    *each("prctl", 0, "PR_GET_DUMPABLE PR_GET_SECCOMP PR_GET_SECUREBITS PR_CAPBSET_READ PR_GET_TSC PR_GET_TIMERSLACK"
          " PR_GET_TID_ADDRESS PR_GET_CHILD_SUBREAPER PR_GET_THP_DISABLE PR_GET_SPECULATION_CTRL", "questions"),
    *rows("prctl", errno(EACCES), "as seccomp(2)", is_(0, "PR_SET_SECCOMP")),
    # Refused, by having no row: what touches capabilities (PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_SET_SECUREBITS),
    # opens a process to others (PR_SET_DUMPABLE 1, PR_SET_PTRACER), moves its memory map (PR_SET_MM), merges its
    # pages with those of others (PR_SET_MEMORY_MERGE), or nobody asked for.
)

TIME = (
    *rows("time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep", ALLOW, "clocks can be read"),
    *rows("alarm getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete", ALLOW,
          "timers of its own"),
    *rows("settimeofday clock_settime clock_adjtime adjtimex", NOTIFY, "clocks are the host's"),
    *rows("getrandom", ALLOW, "hash seeds, os.urandom"),
)

SOCKETS = (
    Rule("socket", ALLOW, "Unix sockets; in a network namespace of its own they lead nowhere else. No other family:"
                          " each is a driver of the kernel", (is_(0, "AF_UNIX"),)),
    Rule("socketpair", ALLOW, "asyncio, multiprocessing", (is_(0, "AF_UNIX"),)),
    *rows("bind connect listen accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockname"
          " getpeername getsockopt", ALLOW, "on Unix sockets; asyncio's loop wakes itself by sendto"),
    *each("setsockopt", 2, "SO_REUSEADDR SO_REUSEPORT SO_BROADCAST SO_KEEPALIVE SO_OOBINLINE SO_PRIORITY SO_LINGER"
          " SO_PASSCRED SO_RCVLOWAT SO_RCVTIMEO SO_SNDTIMEO SO_TIMESTAMP",
          "what socket, asyncio and multiprocessing set. Not SO_ATTACH_FILTER: a job's code in the kernel",
          is_(1, "SOL_SOCKET")),
    *each("setsockopt", 2, "SO_SNDBUF SO_RCVBUF", "larger buffers", is_(1, "SOL_SOCKET"), needs=Needs.MEMORY_COUNTED),
)

NEVER = (
    *rows("seccomp", errno(EACCES), "a second listener could answer in our place, by CONTINUE, once ours is closed;"
                                    " so the filter itself says no, with or without a supervisor"),
    *rows("unshare setns", NOTIFY, "a new user namespace is where most ways into the kernel begin"),
    *rows("mount umount2 pivot_root chroot open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount"
          " fspick statmount listmount listns", NOTIFY, "no job mounts"),
    *rows("ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd", NOTIFY, "into another process, past its guard"),
    *rows("bpf perf_event_open", NOTIFY, "programs in the kernel, and eyes in it"),
    *rows("keyctl add_key request_key", NOTIFY, "keys belong to a user id and outlive jobs"),
    *rows("landlock_create_ruleset landlock_add_rule landlock_restrict_self lsm_get_self_attr lsm_set_self_attr"
          " lsm_list_modules", NOTIFY, "the locks are on; jobs don't add to them"),
    *rows("init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load"
          " kexec_file_load reboot swapon swapoff acct syslog vhangup sethostname setdomainname nfsservctl", NOTIFY,
          "the host's machine"),
    *rows("iopl ioperm modify_ldt set_thread_area get_thread_area", NOTIFY, "ports and segments of the processor"),
    *rows("_sysctl uselib epoll_ctl_old epoll_wait_old getpmsg putpmsg afs_syscall tuxcall security vserver", NOTIFY,
          "gone from the kernel, or never in it"),
)

RULES: tuple[Rule, ...] = FILES + DESCRIPTORS + MEMORY + PROCESSES + PRCTL + TIME + SOCKETS + NEVER

#: The sandbox's init, pid 1, a loop in C: it reaps, it ends. What isn't here kills it.
INIT_RULES: tuple[Rule, ...] = (
    *rows("wait4 waitid", ALLOW, "reaps orphans, and sees the job's process end"),
    *rows("exit exit_group", ALLOW, "ends the namespace"),
    *rows("futex", ALLOW, "wakes the keeper once, to say that it is locked; they share memory anyway"),
)

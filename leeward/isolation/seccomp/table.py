"""
The table: every system call of Linux, and the reason why a job may or may not make it.

Measured:  CPython 3.11 to 3.13 and their tests, the coreutils and shells of Debian, git, sqlite, numpy, pandas and
           matplotlib, under strace and inside the sandbox.
Complete:  a test checks that every call has a row, so that each new call of the kernel gets a decision.

If no row of a call matches its arguments, the action is NOTIFY. A signal can interrupt the wait for the supervisor, so
calls that programs don't repeat after EINTR (close, fork) are never NOTIFY.
"""

from __future__ import annotations

from errno import EACCES, EAFNOSUPPORT, EINVAL, ENOMEM, ENOSYS, EOPNOTSUPP

from leeward.isolation.seccomp import widen_loopback, widen_root, widen_terminal
from leeward.isolation.seccomp.rules import (
    ALLOW,
    JUDGED,
    NOTIFY,
    Needs,
    Rule,
    below,
    each,
    errno,
    flags,
    init,
    is_,
    null,
    number,
    rows,
    under,
)

#: The flags with which clone(2) makes a namespace.
NEW_NAMESPACES = ("CLONE_NEWNS CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET"
                  " CLONE_NEWTIME")

#: The limits of getrlimit(2) except RLIMIT_CORE.
LIMITS = ("RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE RLIMIT_MEMLOCK"
          " RLIMIT_AS RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME")

#: The reason of rows that refuse huge pages.
HUGE = ("huge pages come from a pool that the host's administrator has reserved for other programs, and no limit on"
        " memory counts them. The kernel returns the same error if the pool is empty, and programs fall back")

#: The reason of rows with the init's number.
INIT = ("the init has the job's user id, so the kernel would allow the call. An init that gets no processor time delays"
        " the end of its job, and the worker's next job")

#: Mode bits that no call may set on a file: in a folder of the host to which a sandbox may write, a set-id file would
#: be a program that runs with the client's user id for every user who starts it. Elsewhere the bits have no effect.
NO_SET_ID = "S_ISUID S_ISGID"

FILES = (
    *rows("read write readv writev pread64 pwrite64 preadv pwritev lseek close close_range"
          " dup dup2 dup3", ALLOW, "a job uses its own descriptors"),
    *rows("preadv2 pwritev2", ALLOW, "a job uses its own descriptors", flags(5, lack="RWF_NOWAIT RWF_DONTCACHE")),
    *rows("preadv2 pwritev2", errno(EOPNOTSUPP),
          "these flags read only pages that are in the page cache, or leave none there: a job could see which of the"
          " host's files were read lately, without a change by its own reads. The kernel returns the same error for"
          " files that don't support the flags; callers fall back"),
    *(Rule(name, ALLOW, "the mounts and Landlock decide which files; no job makes a set-id file", (match,))
      for name, test in (("open", 1), ("openat", 2), ("creat", 0))
      for match in (flags(test + 1, lack=NO_SET_ID),
                    *((flags(test, lack="O_CREAT __O_TMPFILE"),) if test else ()))),  # no mode then
    *rows("openat2", errno(ENOSYS),
          "its arguments are in memory, which a filter can't read; callers that probe fall back to openat"),
    *rows("stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64"
          " statfs fstatfs", ALLOW, "metadata of files that the mounts show"),
    *rows("getcwd chdir fchdir umask", ALLOW, "each process has a working directory and a mask"),
    *rows("mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat", ALLOW,
          "only the job's own tmpfs is writable; everything else is mounted read-only"),
    *rows("truncate ftruncate fallocate readahead copy_file_range sync_file_range", ALLOW,
          "sqlite, shutil and cp change contents of files. A job never has a descriptor of the result's memfd"),
    *each("fadvise64", 3, "POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED"
          " POSIX_FADV_NOREUSE", "databases, cat and tar give hints about their own reads"),
    *rows("fadvise64", errno(0), "would drop a file of the host from the page cache, which other processes notice by"
                                 " the time that they wait. The call succeeds without effect",
          is_(3, "POSIX_FADV_DONTNEED")),
    *rows("sendfile splice", errno(EINVAL),
          "put pages of a file into a pipe or a socket, not copies, so that they can change while they wait there. Their"
          " manual pages document EINVAL, at which callers fall back to read and write, such as grep before /dev/null"),
    *rows("fsync fdatasync msync", ALLOW, "databases such as sqlite; on a tmpfs they do nothing"),
    *rows("sync syncfs", errno(0),
          "would write to the host's disks; a job's files are in memory. The call succeeds without effect"),
    *(Rule(name, ALLOW, "changes its own files; other files give EROFS or EPERM, which tar, shutil and install expect;"
                        " no job makes a set-id file",
           (flags(mode, lack=NO_SET_ID),), Needs.NOT_ROOT)
      for name, mode in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2))),
    *rows("utime utimes futimesat utimensat", ALLOW,
          "changes its own files; other files give EROFS or EPERM, which tar, shutil and install expect"),
    *rows("chown fchown lchown fchownat", ALLOW,
          "changes its own files; other files give EROFS or EPERM, which tar, shutil and install expect",
          needs=Needs.NOT_ROOT),
    *rows("getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr"
          " removexattr lremovexattr fremovexattr", ALLOW,
          "cp and shutil.copystat copy attributes; to set one that gives a privilege needs a capability"),
    *rows("getxattrat setxattrat listxattrat removexattrat file_getattr file_setattr", errno(ENOSYS),
          "newer than the C library; callers that probe fall back to the older calls"),
    *(Rule(name, ALLOW, "regular files, FIFOs and sockets; no job makes a device, not even the whiteout 0:0", (match,))
      for name, arg in (("mknod", 1), ("mknodat", 2))
      for match in (flags(arg, lack=f"S_IFMT {NO_SET_ID}"),
                    *(under(arg, f"S_IFMT {NO_SET_ID}", kind) for kind in ("S_IFREG", "S_IFIFO", "S_IFSOCK")))),
    *rows("flock", ALLOW, "locks between a job's processes"),
    *rows("inotify_init inotify_init1 inotify_add_watch", JUDGED,
          "files and folders to which the sandbox may write can be watched, 8 descriptors and 8192 watches for a sandbox."
          " A watch of the files under /usr would show which of them the host's processes open. Where /proc/sys/user"
          " can't bound the numbers nothing can be watched; then programs are told to poll, by CHOKIDAR_USEPOLLING and"
          " its like"),
    *rows("inotify_rm_watch", ALLOW, "takes back a watch of its own"),
    *rows("fanotify_init fanotify_mark", NOTIFY, "sees what other processes do with whole file systems"),
    *rows("name_to_handle_at open_by_handle_at", NOTIFY, "a forged handle opens a file that the mounts don't show"),
    *rows("cachestat mincore", errno(ENOSYS),
          "show which of the host's files were read lately; callers that probe fall back"),
    *rows("quotactl quotactl_fd ustat sysfs lookup_dcookie", NOTIFY, "these calls are about the host's file systems"),
    *rows("io_setup io_destroy io_getevents io_pgetevents io_submit io_cancel", NOTIFY,
          "pages in flight keep files busy after the job has ended; Python doesn't use these calls"),
    *rows("io_uring_setup io_uring_enter io_uring_register", NOTIFY,
          "this filter doesn't see the operations on a ring. EACCES instead of ENOSYS, so that the result shows the"
          " refusal; programs that probe accept either error"),
    *rows("tee vmsplice", NOTIFY, "pages in a pipe stay in use after their file was sealed"),
)

DESCRIPTORS = (
    *rows("pipe pipe2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime", ALLOW,
          "event loops and subprocess"),
    *rows("poll ppoll select pselect6 epoll_create epoll_create1 epoll_wait epoll_pwait epoll_pwait2", ALLOW,
          "waiting for descriptors"),
    *each("epoll_ctl", 1, "EPOLL_CTL_MOD EPOLL_CTL_DEL", "changes and removes what an epoll descriptor waits for"),
    Rule("epoll_ctl", ALLOW, "the kernel bounds the descriptors for which all processes of one user wait by epoll; no"
                             " resident set shows their memory. If jobs share a user id, each may have as many as it"
                             " leaves to the others; beyond that it gets ENOSPC, as from the kernel",
         (is_(1, "EPOLL_CTL_ADD"),), Needs.WATCHES_GRANTED),
    *each("fcntl", 1, "F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_SETFL",
          "usual operations on descriptors"),
    *each("fcntl", 1, "F_GETLK F_SETLK F_SETLKW F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW",
          "record locks, which sqlite needs"),
    *each("fcntl", 1, "F_GETPIPE_SZ", "reads a pipe's size"),
    *(Rule("fcntl", ALLOW, "makes pipes smaller, or keeps their size. A larger pipe would take from the pages that the"
                           " kernel grants to all pipes of a user, which jobs of an ordinary user's daemon share",
           (is_(1, "F_SETPIPE_SZ"), size)) for size in (below(2, 0x1_0000), number(2, 0x1_0000))),
    *each("fcntl", 1, "F_ADD_SEALS F_GET_SEALS",
          "seals its own memfds (Wayland, dbus, users of ctypes); a job never has a descriptor of the result's memfd"),
    # Refused, because there is no row: F_SETLEASE, which delays processes that open a file of the host with the
    # job's user id; F_NOTIFY, which inotify replaced; F_SETOWN and F_SETSIG, which make a descriptor send signals.
    *each("ioctl", 1, "FIOCLEX FIONCLEX FIONBIO FIONREAD",
          "set close-on-exec and non-blocking, and count waiting bytes; Python sets close-on-exec"),
    *each("ioctl", 1, "TCGETS TCGETS2 TIOCGWINSZ TIOCGPGRP", "isatty() and a terminal's size; these only read"),
    *each("ioctl", 1, "FICLONE", "cp tries it before each copy"),
    # Refused with all other requests: TIOCSTI and TIOCLINUX, which put input into a terminal, and TIOCSETD, which
    # loads a driver.
)

MEMORY = (
    *rows("brk munmap mremap mlock mlock2 munlock mlockall munlockall", ALLOW,
          "these calls change a process's own memory; RLIMIT_MEMLOCK bounds locked memory"),
    *rows("mprotect pkey_mprotect", ALLOW, "JIT compilers protect their code. Without a cgroup, the supervisor allows calls"
                                           " for 64 MiB and more; if they make code writable, it raises RLIMIT_DATA before:"
                                           " V8 does that for each thread, and touches little of it",
          needs=Needs.MEMORY_CHARGED),
    *rows("mprotect pkey_mprotect", ALLOW, "protect memory; RLIMIT_DATA bounds what can be written", below(1, 64 << 20)),
    Rule("mmap", errno(ENOMEM), HUGE, (flags(3, have="MAP_ANONYMOUS MAP_HUGETLB"),)),
    *rows("mmap", ALLOW, "the cgroup counts the memory. Without a cgroup, a shared mapping without a file is charged"
                         " with its length, because one process could fill and unmap it while another one keeps it, and"
                         " no resident set would show it. ENOMEM if that exceeds the limit",
          needs=Needs.MEMORY_CHARGED),
    Rule("mmap", ALLOW, "maps a file, to which the pages belong", (flags(3, lack="MAP_ANONYMOUS"),)),
    Rule("mmap", ALLOW, "maps private memory, which resident sets show",
         (flags(3, have="MAP_ANONYMOUS", lack="MAP_SHARED MAP_HUGETLB"),)),
    *each("madvise", 2, "MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE"
          " MADV_DONTFORK MADV_DOFORK MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK"
          " MADV_KEEPONFORK MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_COLLAPSE"
          " MADV_GUARD_INSTALL MADV_GUARD_REMOVE",
          "allocators, thread stacks, mmap.madvise. Not MADV_MERGEABLE: the timing of merged pages shows which pages"
          " other processes have in memory"),
    *(Rule("madvise", errno(0), "would make the kernel drop pages, also those of a mapped file of the host. The"
                                " call is a hint, and succeeds without effect", (is_(2, advice),))
      for advice in ("MADV_COLD", "MADV_PAGEOUT")),
    Rule("memfd_create", errno(ENOMEM), HUGE, (flags(1, have="MFD_HUGETLB"),)),
    *rows("memfd_create", ALLOW, "the cgroup counts memory files. Without a cgroup, the job gets an unnamed file of its"
                                 " tmpfs instead, which has no seals; so MFD_ALLOW_SEALING is refused",
          needs=Needs.MEMORY_CHARGED),
    *rows("memfd_secret userfaultfd", NOTIFY,
          "make memory that can't be reclaimed, and page faults that wait as long as a job wants"),
    *rows("pkey_alloc pkey_free", ALLOW, "JIT compilers protect their code pages with these"),
    *rows("mseal", NOTIFY, "no program needs it yet"),
    *rows("map_shadow_stack", errno(ENOSYS), "the C library probes it, and works without it"),
    *rows("get_mempolicy", ALLOW, "libnuma reads it when it is loaded"),
    *rows("mbind set_mempolicy", errno(EACCES), "the host chooses the NUMA node of memory. OpenBLAS and libnuma"
                                                " always try it, so a record in every numpy job would be noise"),
    *rows("set_mempolicy_home_node migrate_pages move_pages", NOTIFY, "the host chooses the NUMA node of memory"),
    *rows("remap_file_pages process_madvise process_mrelease", NOTIFY, "obsolete, or for another process's memory"),
    *rows("shmget", ALLOW, "System V IPC is in the job's own IPC namespace, which ends with the job; the cgroup counts its"
                           " memory. Without a cgroup, a segment is charged with its length until the end of the job or"
                           " sandbox. PostgreSQL makes one, and takes EACCES for another server's",
          needs=Needs.MEMORY_CHARGED),
    *rows("shmat shmctl shmdt", ALLOW, "a segment's memory is counted or charged when it is made"),
    *rows("semget semop semtimedop semctl msgget msgsnd msgrcv msgctl", ALLOW, "the same, but for what is charged",
          needs=Needs.MEMORY_COUNTED),
    *rows("mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr", NOTIFY,
          "Python and its usual packages don't use POSIX queues, whose memory is locked"),
)

PROCESSES = (
    *rows("fork vfork", ALLOW, "subprocess, multiprocessing; pids.max or RLIMIT_NPROC bounds the number"),
    Rule("clone", ALLOW, "starts threads and processes without new namespaces", (flags(0, lack=NEW_NAMESPACES),)),
    *rows("clone3", errno(ENOSYS), "its flags are in memory, which a filter can't read; libc falls back to clone"),
    *rows("execve execveat", ALLOW, "subprocess; the mounts and Landlock decide which programs"),
    *rows("exit exit_group wait4 waitid", ALLOW, "the end of processes"),
    *rows("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal", ALLOW,
          "only the job's own processes are in its pid namespace"),
    *rows("rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause"
          " restart_syscall", ALLOW, "handle a process's own signals"),
    *rows("getpid getppid gettid getpgid getpgrp getsid setpgid setsid getgroups capget", ALLOW,
          "read a process's own ids; subprocess and shells set process groups"),
    *rows("getuid geteuid getgid getegid getresuid getresgid", ALLOW, "read a process's own ids", needs=Needs.NOT_ROOT),
    *rows("setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset", ALLOW,
          "without a capability no process gets another id; programs make these calls to drop privileges",
          needs=Needs.NOT_ROOT),
    *rows("futex set_robust_list get_robust_list set_tid_address rseq membarrier", ALLOW, "threads need them"),
    *rows("futex_waitv futex_wake futex_wait futex_requeue", errno(ENOSYS), "callers that probe fall back to futex"),
    *(Rule(name, NOTIFY, INIT, (init(0),)) for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity",
                                                        "prlimit64")),
    Rule("setpriority", NOTIFY, INIT, (is_(0, "PRIO_PROCESS"), init(1))),
    Rule("setpriority", NOTIFY, "the init is among the processes of the job's user", (is_(0, "PRIO_USER"),)),
    *rows("sched_yield sched_getaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler"
          " sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr getcpu getpriority"
          " setpriority ioprio_get", ALLOW,
          "os.sched_*, nice; without a capability, and by the rlimits, a priority can only fall"),
    *rows("sched_setaffinity", ALLOW, "os.sched_setaffinity, taskset; cpu.max holds the limit",
          needs=Needs.AFFINITY_FREE),
    *rows("sched_setattr ioprio_set", NOTIFY,
          "no program needs them, and deadline scheduling takes processor time from other processes"),
    *rows("getrlimit getrusage times sysinfo uname", ALLOW, "read facts about the process and the machine"),
    *each("setrlimit", 0, LIMITS, "the module resource, ulimit; a limit can only be lowered"),
    Rule("prlimit64", ALLOW, "the C library uses it for getrlimit", (is_(1, "RLIMIT_CORE"), null(2))),
    *each("prlimit64", 1, LIMITS, "the C library uses it for getrlimit and setrlimit"),
    # The call succeeds without effect, so that scripts with `ulimit -c 0` go on.
    *(Rule(name, errno(0), "the limit is 1, at which the host's core handler doesn't run; at 0 it would run",
           (is_(arg, "RLIMIT_CORE"),)) for name, arg in (("setrlimit", 0), ("prlimit64", 1))),
    *rows("uretprobe uprobe", ALLOW, "the return from a probe that the host's administrator has set in a library"),
    *rows("arch_prctl", ALLOW, "every exec sets a thread pointer", is_(0, "ARCH_SET_FS")),
    *each("arch_prctl", 0, "ARCH_GET_FS ARCH_SET_GS ARCH_GET_GS", "read and set the other thread pointers"),
    *each("arch_prctl", 0, "ARCH_GET_XCOMP_SUPP ARCH_GET_XCOMP_PERM ARCH_REQ_XCOMP_PERM",
          "BLAS enables the processor's matrix units"),
    *each("arch_prctl", 0, "ARCH_CET_STATUS ARCH_SHSTK_STATUS", "the C library reads it at every exec"),
    *rows("personality", ALLOW, "reads the personality", number(0, 0xFFFF_FFFF)),
    *rows("personality", ALLOW, "sets the default; other personalities can turn address randomization off",
          is_(0, "PER_LINUX")),
)

PRCTL = (
    *each("prctl", 0, "PR_SET_NAME PR_GET_NAME", "threads have names"),
    *each("prctl", 0, "PR_SET_VMA", "allocators name their memory"),
    *each("prctl", 0, "PR_SET_PDEATHSIG PR_GET_PDEATHSIG",
          "a job sets it for its own children. A job that clears its own signal still ends with the daemon, by its pid"
          " namespace"),
    *each("prctl", 0, "PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS", "the flag is set already, and can't be cleared"),
    *rows("prctl", ALLOW, "makes a process's memory unreadable for others", is_(0, "PR_SET_DUMPABLE"), number(1, 0)),
    *each("prctl", 0, "PR_GET_DUMPABLE PR_GET_SECCOMP PR_GET_SECUREBITS PR_CAPBSET_READ PR_GET_TSC PR_GET_TIMERSLACK"
          " PR_GET_TID_ADDRESS PR_GET_CHILD_SUBREAPER PR_GET_THP_DISABLE PR_GET_SPECULATION_CTRL",
          "read attributes of the process"),
    *rows("prctl", errno(EACCES), "for the same reason as seccomp(2)", is_(0, "PR_SET_SECCOMP")),
    Rule("prctl", errno(EACCES), "there are no capabilities to keep. Not left to the supervisor, which answers it for root",
         (is_(0, "PR_SET_KEEPCAPS"),), Needs.NOT_ROOT),
    # Refused, because there is no row: calls that change capabilities (PR_CAPBSET_DROP, PR_CAP_AMBIENT,
    # PR_SET_SECUREBITS), open a process to others (PR_SET_DUMPABLE 1, PR_SET_PTRACER), move its memory map (PR_SET_MM),
    # merge its pages with those of others (PR_SET_MEMORY_MERGE), or that no program was seen to need.
)

TIME = (
    *rows("time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep", ALLOW, "read clocks and sleep"),
    *rows("alarm getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete", ALLOW,
          "set a process's own timers"),
    *rows("settimeofday clock_settime clock_adjtime adjtimex", NOTIFY, "would set the host's clocks"),
    *rows("getrandom", ALLOW, "hash seeds, os.urandom"),
)

#: Calls with the flags MSG_*, and the argument that has them.
MESSAGES = (("sendto", 3), ("recvfrom", 3), ("sendmsg", 2), ("recvmsg", 2), ("sendmmsg", 3), ("recvmmsg", 3))

SOCKETS = (
    Rule("socket", ALLOW, "makes Unix sockets; in the job's own network namespace they reach no other process. No"
                          " other family, since each adds kernel code that a job can attack", (is_(0, "AF_UNIX"),),
         Needs.HOST_HIDDEN),
    Rule("socket", errno(EACCES), "such a view has sockets of the host's daemons, and a read-only mount doesn't prevent"
                                  " connections. Not counted, since the C library tries nscd's socket in each `ls -l`",
         (is_(0, "AF_UNIX"),), Needs.HOST_SHOWN),
    *rows("socket", errno(EAFNOSUPPORT), "su, useradd and sudo end where this fails with another error: they take this one"
                                         " for a kernel without audit", is_(0, "AF_NETLINK"), is_(2, "NETLINK_AUDIT")),
    Rule("socketpair", ALLOW, "asyncio, multiprocessing", (is_(0, "AF_UNIX"),), Needs.HOST_HIDDEN),
    *(Rule("socketpair", ALLOW, "asyncio, multiprocessing. Not datagrams: each may go to the path of another socket,"
                                " by an address in memory that sendmsg reads",
           (is_(0, "AF_UNIX"), under(1, "SOCK_TYPE_MASK", kind)), Needs.HOST_SHOWN)
      for kind in ("SOCK_STREAM", "SOCK_SEQPACKET")),
    *rows("connect", ALLOW, "connects Unix sockets", needs=Needs.HOST_HIDDEN),
    *rows("bind listen accept accept4 shutdown getsockname getpeername getsockopt", ALLOW, "for Unix sockets"),
    *(Rule(name, ALLOW, "for Unix sockets; asyncio's loop wakes itself by sendto", (flags(arg, lack="MSG_OOB"),))
      for name, arg in MESSAGES),
    *(Rule(name, errno(EOPNOTSUPP), "urgent bytes of Unix sockets (Linux 5.15) have had vulnerabilities; no program was"
                                    " seen to need them. A kernel built without them returns the same error",
            (flags(arg, have="MSG_OOB"),))
      for name, arg in MESSAGES),
    *each("setsockopt", 2, "SO_REUSEADDR SO_REUSEPORT SO_BROADCAST SO_KEEPALIVE SO_OOBINLINE SO_PRIORITY SO_LINGER"
          " SO_PASSCRED SO_RCVLOWAT SO_RCVTIMEO SO_SNDTIMEO SO_TIMESTAMP",
          "socket, asyncio and multiprocessing set these. Not SO_ATTACH_FILTER, which runs a job's code in the kernel",
          is_(1, "SOL_SOCKET")),
    *each("setsockopt", 2, "SO_SNDBUF SO_RCVBUF", "larger buffers", is_(1, "SOL_SOCKET"), needs=Needs.MEMORY_COUNTED),
)

REFUSED = (
    *rows("seccomp", errno(EACCES), "once the supervisor's listener is closed, a second listener could answer in"
                                    " its place and allow calls. So the filter itself refuses the call, with or"
                                    " without a supervisor"),
    *rows("unshare setns", NOTIFY, "most attacks on the kernel need a new user namespace"),
    *rows("mount umount2 pivot_root chroot open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount"
          " fspick statmount listmount listns", NOTIFY, "no job mounts"),
    *rows("ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd", NOTIFY, "these calls access another process"),
    *rows("bpf perf_event_open", NOTIFY, "these calls run programs in the kernel, and observe it"),
    *rows("keyctl add_key request_key", NOTIFY, "keys belong to a user id and outlive jobs"),
    *rows("landlock_create_ruleset landlock_add_rule landlock_restrict_self lsm_get_self_attr lsm_set_self_attr"
          " lsm_list_modules", NOTIFY, "the locks are set already; jobs don't add to them"),
    *rows("init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load"
          " kexec_file_load reboot swapon swapoff acct syslog vhangup sethostname setdomainname nfsservctl", NOTIFY,
          "these calls control the host"),
    *rows("iopl ioperm modify_ldt set_thread_area get_thread_area", NOTIFY,
          "these calls give access to ports and segments of the processor"),
    *rows("_sysctl uselib epoll_ctl_old epoll_wait_old getpmsg putpmsg afs_syscall tuxcall security vserver", NOTIFY,
          "removed from the kernel, or never part of it"),
)

RULES: tuple[Rule, ...] = FILES + DESCRIPTORS + MEMORY + PROCESSES + PRCTL + TIME + SOCKETS + REFUSED
RULES += widen_loopback.RULES + widen_terminal.RULES + widen_root.RULES

#: The calls of the sandbox's init, pid 1, a loop in C that reaps and exits. Any other call kills it.
INIT_RULES: tuple[Rule, ...] = (
    *rows("wait4 waitid", ALLOW, "reaps orphans, and notices the end of the job's process"),
    *rows("exit exit_group", ALLOW, "ends the namespace"),
    *rows("futex", ALLOW, "wakes the keeper once, when the init is locked; they share memory anyway"),
)

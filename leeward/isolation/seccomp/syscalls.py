"""The numbers of Linux's system calls up to 6.19, by syscall_64.tbl and scripts/syscall.tbl. From 424 on all agree."""

from __future__ import annotations

from leeward._native.arguments import value

ARCHES = ("x86_64", "aarch64")

#: The values by which the kernel reports the architecture of a call to filters and to the supervisor.
AUDIT_ARCH = {arch: value(f"AUDIT_ARCH_{arch.upper()}") for arch in ARCHES}

#: The calls in the order of their numbers; each line begins with the number of its first one.
_TABLES = {"x86_64": """
0 read write open close stat fstat lstat poll lseek mmap
10 mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv
20 writev access pipe select sched_yield mremap msync mincore madvise shmget
30 shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid
40 sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
50 listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve
60 exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
70 msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd
80 chdir fchdir rename mkdir rmdir creat link unlink symlink readlink
90 chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
100 times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
110 getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid
120 getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo
130 rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
140 getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
146 sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall
153 vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync
163 acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl
173 ioperm create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg
182 putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr
192 lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time
202 futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit
210 io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages
217 getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime
225 timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group
232 epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink
242 mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl
251 ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
260 fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
270 pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages
280 utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4
289 signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open
299 recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs
307 sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
316 renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2
326 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq uretprobe
336 uprobe""", "aarch64": """
0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr
10 fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie
19 eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch
28 inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat
38 renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate
48 faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close
58 vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64
68 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee
78 readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
87 timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address
97 unshare futex set_robust_list get_robust_list nanosleep getitimer setitimer kexec_load init_module
106 delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete clock_settime
113 clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
120 sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
126 sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend
134 rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority
141 getpriority reboot setregid setgid setreuid setuid setresuid getresuid setresgid getresgid
151 setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname
161 sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday settimeofday
171 adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo mq_open
181 mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget
191 semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind
201 listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown
211 sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl clone
221 execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall
231 munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages
240 rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs setns
269 sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2
277 seccomp getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2
287 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load"""}
_SINCE_424 = """
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig
432 fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
442 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
448 process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake
455 futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
463 setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr listns"""


def _numbers(table: str) -> dict[str, int]:
    return {name: int(first) + at for first, *names in map(str.split, table.strip().splitlines())
            for at, name in enumerate(names)}


#: NUMBERS[arch][name] is the call's number on that architecture.
NUMBERS: dict[str, dict[str, int]] = {arch: _numbers(table + _SINCE_424) for arch, table in _TABLES.items()}

#: NAMES[arch][number] is the call's name.
NAMES: dict[str, dict[int, str]] = {
    arch: {number: name for name, number in numbers.items()} for arch, numbers in NUMBERS.items()
}

#: Every name.
ALL: tuple[str, ...] = tuple(dict.fromkeys(name for numbers in NUMBERS.values() for name in numbers))


def name_of(number: int, arch: str) -> str:
    """The call's name, or "syscall_NNN" for a number that no kernel here knows."""
    return NAMES.get(arch, {}).get(number, f"syscall_{number}")

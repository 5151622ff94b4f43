"""
Making processes: keepers, and runners as an init and a job.

Runs in:   zygote and keeper; the child sides of `clone` and `Init.spawn`.
Needs:     one thread. Linux 5.9 (close_range); 5.7 for CLONE_INTO_CGROUP.
Source:    clone(2), pidfd_open(2), set_tid_address(2), get_robust_list(2)
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from leeward._native._shim import ffi, lib
from leeward.errors import KernelRefusal


class Clone(enum.IntFlag):
    """
    The namespace flags of clone(2).
    """

    NEWNS = lib.CLONE_NEWNS
    NEWCGROUP = lib.CLONE_NEWCGROUP
    NEWUTS = lib.CLONE_NEWUTS
    NEWIPC = lib.CLONE_NEWIPC
    NEWUSER = lib.CLONE_NEWUSER
    NEWPID = lib.CLONE_NEWPID
    NEWNET = lib.CLONE_NEWNET


def clone(flags: Clone | int, cgroup: int = -1) -> tuple[int, int]:
    """
    Fork with new namespaces, straight into *cgroup* (a directory descriptor) if given.

    CPython's after-fork duties are done on both sides.

    Returns:
        (0, -1) in the child; (pid, pidfd) in the caller, who owns the pidfd.

    Raises:
        KernelRefusal: with the errno of clone3(2).
    """
    pidfd = ffi.new("int *", -1)
    lib.lw_before_fork()
    pid = lib.lw_clone(flags, cgroup, pidfd)
    if 0 == pid:
        lib.lw_after_fork_child()
        return 0, -1
    lib.lw_after_fork_parent()
    if pid < 0:
        raise KernelRefusal("clone3", f"flags={Clone(flags)!r}, cgroup={cgroup}", -pid)
    return pid, pidfd[0]


class Init:
    """
    The init of one runner, seen from the keeper; `free` it once it was reaped.
    """

    def __init__(self) -> None:
        self._init = lib.lw_init_new()
        if ffi.NULL == self._init:
            raise MemoryError("no memory for the stack of an init")
        self.pid = -1
        self.pidfd = -1

    def spawn(self, flags: Clone | int, *, cgroup: int, attach: Sequence[int], ruleset: int, filter: bytes) -> bool:
        """
        Make init and job.

        Args:
            flags: namespaces of both.
            cgroup: the job's, a directory descriptor for CLONE_INTO_CGROUP, or -1.
            attach: tasks files (cgroup v1) that the job joins before anything else.
            ruleset: Landlock ruleset that the init enters, or -1.
            filter: BPF of the init.

        Returns:
            True in the job; False in the keeper, with `pid` and `pidfd` set (the caller's).

        Raises:
            KernelRefusal: with the errno of the step that failed; nothing is left behind.
        """
        fds = ffi.new("int[]", list(attach))
        program = ffi.from_buffer(filter)
        how = ffi.new("struct lw_runner *")
        how.flags, how.cgroup, how.ruleset = flags, cgroup, ruleset
        how.attach, how.attach_count = fds, len(attach)
        how.filter, how.filter_count = program, len(filter) // 8  # struct sock_filter
        pidfd = ffi.new("int *", -1)
        lib.lw_before_fork()
        pid = lib.lw_spawn_runner(self._init, how, pidfd)
        if 0 == pid:
            lib.lw_after_fork_child()
            return True
        lib.lw_after_fork_parent()
        if pid < 0:
            raise KernelRefusal("clone3", f"flags={Clone(flags)!r}, cgroup={cgroup}", -pid, "while making a runner")
        self.pid, self.pidfd = pid, pidfd[0]
        return False

    def status(self) -> int | None:
        """
        The job's wait status once the init was reaped; None if the init was killed under it.
        """
        status = ffi.new("int *")
        return status[0] if 0 == lib.lw_init_status(self._init, status) else None

    def join_error(self) -> int:
        """
        In the job: 0, or the errno with which one of *attach* could not be joined.
        """
        return -int(lib.lw_init_join_error(self._init))

    def free(self) -> None:
        """
        Unmap its stack; only after it was reaped.
        """
        if self._init is not None:
            lib.lw_init_free(self._init)
            self._init = None

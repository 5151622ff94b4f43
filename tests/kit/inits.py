"""
Inits and jobs one by one, from Python: `lw_keep` makes them in C, and only in answer to its channel.

Runs in:   processes of tests that stand in for a keeper.
"""

from __future__ import annotations

from collections.abc import Sequence

from leeward._native._shim import ffi, lib
from leeward._native.spawn import Clone
from leeward.errors import KernelRefusal


class Init:
    """The init of one runner, seen from the keeper; `free` it once it was reaped."""

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
        """The job's wait status once the init was reaped; None if the init was killed under it."""
        status = ffi.new("int *")
        return status[0] if 0 == lib.lw_init_status(self._init, status) else None

    def join_error(self) -> int:
        """In the job: 0, or the errno with which one of *attach* could not be joined."""
        return -int(lib.lw_init_join_error(self._init))

    def free(self) -> None:
        """Unmap its stack; only after it was reaped."""
        if self._init is not None:
            lib.lw_init_free(self._init)
            self._init = None

"""
Makes keepers, by a zygote with one thread. Runners, each an init and a job, are made by `_native.keeper_loop`.

Source:    clone(2), pidfd_open(2), set_tid_address(2), get_robust_list(2); Linux 5.7 for CLONE_INTO_CGROUP
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence

from leeward._native._shim import ffi, lib
from leeward.errors import KernelRefusal


class Clone(enum.IntFlag):
    NEWNS = lib.CLONE_NEWNS
    NEWCGROUP = lib.CLONE_NEWCGROUP
    NEWUTS = lib.CLONE_NEWUTS
    NEWIPC = lib.CLONE_NEWIPC
    NEWUSER = lib.CLONE_NEWUSER
    NEWPID = lib.CLONE_NEWPID
    NEWNET = lib.CLONE_NEWNET


def clone(flags: Clone | int, cgroup: int = -1) -> tuple[int, int]:
    """
    Fork with new namespaces, straight into *cgroup* (a directory descriptor) if given. CPython's functions around a
    fork are called on both sides. Returns (0, -1) in the child; (pid, pidfd) in the caller, who owns the pidfd.
    """
    pidfd = ffi.new("int *", -1)
    lib.lw_before_fork()
    pid = lib.lw_clone(flags, cgroup, pidfd)
    if pid == 0:
        lib.lw_after_fork_child()
        return 0, -1
    lib.lw_after_fork_parent()
    if pid < 0:
        raise KernelRefusal("clone3", f"flags={Clone(flags)!r}, cgroup={cgroup}", -pid)
    return pid, pidfd[0]


def twin(flags: Clone | int = 0, cgroup: int = -1) -> tuple[int, int]:
    """
    As `clone`, for a caller with one thread: neither CPython's functions around a fork are called nor the hooks of
    os.register_at_fork. docs/decisions/0010
    """
    pidfd = ffi.new("int *", -1)
    pid = lib.lw_clone(flags, cgroup, pidfd)
    if pid < 0:
        raise KernelRefusal("clone3", f"flags={Clone(flags)!r}, cgroup={cgroup}", -pid)
    return pid, pidfd[0]


def branch(ends: Sequence[int], places: Sequence[int], word: bytes) -> int:
    """
    Fork a process whose parent has ended, with CPython's functions around a fork; other threads may run. Returns 0 in it:
    it leads a session, has *ends* at *places*, of which the last two are inherited by programs, and has sent *word* on the
    first; its pid in the caller, who closes *ends*. OSError.
    """
    sys.audit("os.fork")
    made = int(lib.lw_branch(ends, places, word[0]))
    if made < 0:
        raise OSError(-made, os.strerror(-made))
    return made

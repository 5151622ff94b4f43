"""
Chooses the filter for this host among the generated programs.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from leeward.dataclass import dataclass
from leeward.errors import Bug, Unsupported
from leeward.isolation.seccomp import _generated_programs
from leeward.isolation.seccomp._generated_programs import INIT


@dataclass(frozen=True, slots=True)
class Program:
    """
    A filter, ready for seccomp(2).

    Attributes:
        insns: BPF instructions of 8 bytes each.
        rules: the number of rows of the table that it implements.
    """

    insns: bytes
    rules: int

    @property
    def instructions(self) -> int:
        """The number of instructions."""
        return len(self.insns) // 8


def program(*, memory_counted: bool, affinity_fixed: bool, arch: str, loopback: bool = False,
            terminal: bool = False, host: bool = False, shared: bool = False) -> Program:
    """
    The filter of a job; `plan.plan` explains the arguments.

    Raises:
        Unsupported: there is no filter for *arch*.
        Bug: *loopback* and *host* are both true.
    """
    if host and loopback:
        raise Bug("there is no filter for TCP where the host is in view")
    module = _host_programs(terminal) if host else _programs(loopback, terminal)
    of_shared: Mapping[tuple[str, bool], tuple[int, str]] = module.SHARED
    of_own: Mapping[tuple[str, bool, bool], tuple[int, str]] = module.PROGRAMS
    # If no cgroup counts memory, the supervisor decides on watches with or without a shared user id: one program serves
    # both cases.
    rules, insns = (of_shared[_known(arch), affinity_fixed] if shared and memory_counted
                    else of_own[_known(arch), memory_counted, affinity_fixed])
    return Program(bytes.fromhex(insns), rules)


def init_program(arch: str) -> bytes:
    """
    The filter of the sandbox's init, which may wait, exit and wake the keeper. Any other call kills it.

    Raises:
        Unsupported: there is no filter for *arch*.
    """
    return bytes.fromhex(INIT[_known(arch)])


def broker_program(arch: str) -> bytes:
    """
    The filter of the egress broker.

    Raises:
        Unsupported: there is no filter for *arch*.
    """
    from leeward.isolation.seccomp._generated_broker import BROKER

    return bytes.fromhex(BROKER[_known(arch)])


def _programs(loopback: bool, terminal: bool) -> ModuleType:
    """The module with the filters for these settings. All modules except the usual one are imported only when needed."""
    if loopback and terminal:
        from leeward.isolation.seccomp import _generated_loopback_terminal

        return _generated_loopback_terminal
    if loopback:
        from leeward.isolation.seccomp import _generated_loopback

        return _generated_loopback
    if terminal:
        from leeward.isolation.seccomp import _generated_terminal

        return _generated_terminal
    return _generated_programs


def _host_programs(terminal: bool) -> ModuleType:
    if terminal:
        from leeward.isolation.seccomp import _generated_host_terminal

        return _generated_host_terminal
    from leeward.isolation.seccomp import _generated_host

    return _generated_host


def _known(arch: str) -> str:
    if arch not in INIT:
        raise Unsupported("seccomp", have=arch, need=" or ".join(INIT))
    return arch

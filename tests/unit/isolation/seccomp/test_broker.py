"""
The egress broker's filter: what is compiled is the table, and what the table lets through is enough for sockets and no
more.
"""

from __future__ import annotations

import errno
import os
import socket

import pytest

from kit.bpf import disassemble
from leeward.isolation.seccomp import filters
from leeward.isolation.seccomp.compiler.compile import check
from leeward.isolation.seccomp.compiler.plan import broker_plan
from leeward.isolation.seccomp.rules import ALLOW
from leeward.isolation.seccomp.rules import errno as refused
from leeward.isolation.seccomp.syscalls import ARCHES

NO_ARGS = (0, 0, 0, 0, 0, 0)


def test_the_programs_are_those_of_the_table() -> None:
    for arch in ARCHES:
        check(broker_plan(arch), disassemble(filters.broker_program(arch)))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", [
    "execve", "execveat", "ptrace", "fork", "vfork", "mount", "unshare", "setns", "bpf", "keyctl",
    "io_uring_setup", "kill", "tgkill", "pidfd_send_signal", "process_vm_readv", "unlinkat", "renameat2",
    "mkdirat", "socketpair", "listen", "setuid",
])
def test_calls_that_a_broker_does_not_need_are_refused(arch: str, name: str) -> None:
    plan = broker_plan(arch)
    for call in plan.calls.values():
        if name == call.name:
            assert refused(errno.EPERM) == call.decide(NO_ARGS)


@pytest.mark.parametrize("arch", ARCHES)
def test_arguments_decide_about_sockets_files_and_threads(arch: str) -> None:
    """TCP and UDP, no Unix sockets; files for reading alone; threads, no processes."""
    calls = {call.name: call for call in broker_plan(arch).calls.values()}

    for family, kind, action in ((socket.AF_INET, socket.SOCK_STREAM, ALLOW), (socket.AF_INET6, socket.SOCK_DGRAM,
    ALLOW),
                                 (socket.AF_UNIX, socket.SOCK_STREAM, refused(errno.EAFNOSUPPORT)),
                                 (socket.AF_PACKET, socket.SOCK_RAW, refused(errno.EAFNOSUPPORT)),
                                 (socket.AF_INET, socket.SOCK_RAW, refused(errno.EAFNOSUPPORT))):
        assert action == calls["socket"].decide((family, kind | socket.SOCK_CLOEXEC, 0, 0, 0, 0))
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        assert refused(errno.EPERM) == calls["openat"].decide((0, 0, flags | os.O_CLOEXEC, 0, 0, 0))
    assert ALLOW == calls["openat"].decide((0, 0, os.O_RDONLY | os.O_CLOEXEC, 0, 0, 0))
    assert ALLOW == calls["clone"].decide((0x3D0F00, 0, 0, 0, 0, 0))  # pthread_create(3)
    assert refused(errno.EPERM) == calls["clone"].decide((17, 0, 0, 0, 0, 0))  # fork(2)

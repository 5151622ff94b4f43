"""seccomp(2): steps that install a filter, and functions that ask what the kernel supports. seccomp_unotify(2)"""

from __future__ import annotations

import errno
import struct

from leeward._native._shim import lib
from leeward._native.steps import Block, Call, Cell, Gives, Step, result_of
from leeward.errors import KernelRefusal

#: One BPF instruction, in bytes.
INSTRUCTION = 8


def listen_step(listener: Cell, program: bytes, *, killable: bool) -> Step:
    """
    Install *program*, at most 4096 BPF instructions of 8 bytes each; *listener* gets the filter's notification
    descriptor. Irreversible; needs no_new_privs. Linux 5.0. With *killable* (Linux 5.19), only a fatal signal ends a
    task's wait for the answer once the supervisor has received the call. Before that, any signal ends it, and a handler
    without SA_RESTART makes the call fail with EINTR.
    """
    flags = lib.SECCOMP_FILTER_FLAG_NEW_LISTENER | (killable and lib.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
    return Step(Call.SECCOMP, (lib.SECCOMP_SET_MODE_FILTER, flags, _filter(program)), (), Gives.SOMETHING, listener,
                {errno.EBUSY: "another listener is installed already"})


def install_step(program: bytes) -> Step:
    """Install *program*, which needs no supervisor, on the thread that takes this step and on all that it starts."""
    return Step(Call.SECCOMP, (lib.SECCOMP_SET_MODE_FILTER, 0, _filter(program)))


def _filter(program: bytes) -> Block:
    return Block(struct.pack("H6xQ", len(program) // INSTRUCTION, 0), blocks={8: Block(program)})  # struct sock_fprog


def has_user_notif() -> bool:
    """Whether the kernel lets a filter pass calls to a supervisor: SECCOMP_RET_USER_NOTIF, Linux 5.0."""
    action = Block(struct.pack("I", lib.SECCOMP_RET_USER_NOTIF))
    answer = result_of(Call.SECCOMP, lib.SECCOMP_GET_ACTION_AVAIL, 0, action, optional=True)
    return _is_known(answer, known=0, unknown=-errno.EOPNOTSUPP)


def has_wait_killable() -> bool:
    """
    Whether the kernel knows SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19. Flags are checked before the program is
    read, so a program at address 0 gives EFAULT when they are known, and nothing is installed.
    """
    flags = lib.SECCOMP_FILTER_FLAG_NEW_LISTENER | lib.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    answer = result_of(Call.SECCOMP, lib.SECCOMP_SET_MODE_FILTER, flags, 0, optional=True)
    return _is_known(answer, known=-errno.EFAULT, unknown=-errno.EINVAL)


def _is_known(answer: int, *, known: int, unknown: int) -> bool:
    if answer not in (known, unknown):
        raise KernelRefusal("seccomp", "a question", -answer if answer < 0 else errno.EPROTO)
    return answer == known

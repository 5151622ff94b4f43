"""
What daemon, zygote, keepers and newborn runners say to each other.

Runs in:   all four. One message is one SOCK_SEQPACKET datagram: a tag and a record in MessagePack,
           or, for those that a keeper reads and writes in C, a struct lw_keeper_message.
           Descriptors travel beside it; each record says which, in order.
Trust:     daemon to zygote and keeper is trusted both ways: neither has run a job.
           A newborn runner hasn't either, until it says Ready.

    daemon -> zygote   MakeKeeper    [control end] + Entry descriptors
    zygote -> daemon   Made          [pidfd]
    zygote -> daemon   Failed
    daemon -> keeper   Mapped
    keeper -> daemon   Ready
    daemon -> keeper   Arm           [birth end] + Entry descriptors
    keeper -> daemon   Armed         [init pidfd, job write, reply read, stdout read, stderr read]
    keeper -> daemon   Ended | Failed
    runner -> daemon   Locked        [seccomp listener, the job's tmpfs where memory is watched], on the birth socket
    runner -> daemon   Ready | Failed
"""

from __future__ import annotations

import struct

import msgpack

from leeward.dataclass import dataclass
from leeward.errors import KernelRefusal, PeerError
from leeward.wire.records import build, learn, plain

#: A control message is never larger; a longer datagram would be cut, and is refused.
MAX_MESSAGE = 192 << 10
#: Descriptors beside one message, at most.
MAX_FDS = 16


@dataclass(frozen=True, slots=True)
class MakeKeeper:
    """
    Make a keeper.

    Attributes:
        slot: the worker's number.
        into: a cgroup directory for CLONE_INTO_CGROUP is the second descriptor.
        attach: how many tasks files follow.
    """

    slot: int
    into: bool
    attach: int


@dataclass(frozen=True, slots=True)
class Made:
    """
    A keeper exists and waits for its id maps.
    """

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """
    The keeper's uid_map, gid_map and setgroups are written.
    """


@dataclass(frozen=True, slots=True)
class Arm:
    """
    Make a runner and lock it.

    Attributes:
        runner: its number, unique in this daemon's life.
        into, attach: as in MakeKeeper.
        cpu: the one processor that the job may use, where affinity is the CPU limit.
        hurried: a job waits for it already, so it rehearses nothing.
    """

    runner: int
    into: bool
    attach: int
    cpu: int | None = None
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Armed:
    """
    Init and job exist; the job is still on its way to the last lock.
    """

    runner: int
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """
    No process of a runner is left.

    Attributes:
        status: wait status of the job's process, None where the init was killed first.
    """

    runner: int
    status: int | None


@dataclass(frozen=True, slots=True)
class Locked:
    """
    All locks are on; the listener comes with this.
    """


@dataclass(frozen=True, slots=True)
class Ready:
    """
    Waiting for work. *report* tells what a self-check saw, layer by layer.
    """

    report: dict[str, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """
    Something could not be made.

    Attributes:
        number: the slot or runner it was for.
        layer: which lock, or "" where it wasn't one.
        feature: the host feature that is missing, or "".
    """

    number: int
    layer: str
    message: str


Message = MakeKeeper | Made | Mapped | Arm | Armed | Ended | Locked | Ready | Failed

KINDS: tuple[type, ...] = (MakeKeeper, Made, Mapped, Locked, Ready, Failed)
learn(*KINDS)
_TAGS = {kind: tag for tag, kind in enumerate(KINDS)}


#: struct lw_keeper_message of _native/src/keeper.h: mark, kind, into, attach, value, runner.
_FIXED = struct.Struct("=BBBBiQ")
#: The one byte with which no MessagePack starts.
_MARK = 0xC1
_ARM, _ARMED, _ENDED, _FAILED = 1, 2, 3, 4
_INTO, _HURRIED = 1, 2

#: What a keeper's Failed tells of, by number.
_KEEPER_CALLS = (("clone3", "a runner"), ("pipe2", "its ends"), ("mmap", "the stack of its init"),
                 ("clone3", "more runners than a keeper has room for"))


def encode(message: Message) -> bytes:
    """
    One datagram.
    """
    if isinstance(message, Arm):
        flags = message.into * _INTO | message.hurried * _HURRIED
        return _FIXED.pack(_MARK, _ARM, flags, message.attach, -1 if message.cpu is None else message.cpu,
                           message.runner)
    packed = msgpack.packb([_TAGS[type(message)], plain(message)], use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def decode(data: bytes) -> Message:
    """
    The message in one datagram.

    Raises:
        PeerError: it holds none.
    """
    try:
        if _MARK == data[0]:
            return _fixed(data)
        tag, fields = msgpack.unpackb(data, raw=False)
        message: Message = build(KINDS[tag], fields)
    except (ValueError, TypeError, LookupError, struct.error, msgpack.UnpackException) as error:
        raise PeerError(f"not a control message: {error}") from error
    return message


def _fixed(data: bytes) -> Message:
    _, kind, into, attach, value, runner = _FIXED.unpack(data)
    if _ARM == kind:
        return Arm(runner, bool(into & _INTO), attach, None if value < 0 else value, bool(into & _HURRIED))
    if _ARMED == kind:
        return Armed(runner, value)
    if _ENDED == kind:
        return Ended(runner, None if value < 0 else value)
    if _FAILED == kind:
        return Failed(runner, "namespaces", str(KernelRefusal(*_KEEPER_CALLS[into], value)))
    raise ValueError(f"kind {kind}")

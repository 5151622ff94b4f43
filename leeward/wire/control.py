"""
Control messages between the daemon, the zygote, keepers and runners that are being armed.

Runs in:   all four. One message is one SOCK_SEQPACKET datagram: a tag and a record in MessagePack. Messages that a
           zygote or keeper reads or writes in C are a struct lw_keeper_message instead. Descriptors travel beside a message;
           the list below has them in their order.
Trust:     the daemon, the zygote and keepers trust each other, because a zygote and a keeper never run a job. A runner
           is trusted until it has sent Ready; its job comes later.

    daemon -> zygote   MakeKeeper    [control end] + Entry descriptors
    zygote -> daemon   Made          [pidfd]
    zygote -> daemon   Failed
    daemon -> keeper   Mapped
    keeper -> daemon   Ready         [ptmx where there are sandboxes, files of isolation.template.written_by_daemon,
                                      listeners where there is egress]
    daemon -> keeper   Arm           [birth end] + Entry descriptors
    keeper -> daemon   Armed         [init pidfd, job write, reply read, stdout read, stderr read]
    keeper -> daemon   Ended | Failed
    daemon -> keeper   Start         [pid, mount, ipc, uts namespace, ruleset, birth end, four of Start's], then Entry's
    keeper -> daemon   Started       [pidfd]
    keeper -> daemon   Unstarted | Exited
    runner -> daemon   Locked        [seccomp listener, Locked's entrances, the job's tmpfs where memory is watched],
                                     on the birth socket
    runner -> daemon   Ready | Failed
"""

from __future__ import annotations

import enum
import functools
import struct

import msgpack

from leeward.base.dataclass import dataclass
from leeward.errors import KernelRefusal, PeerError, told
from leeward.wire.records import build, learn, to_values

#: Bytes of a control message, at most. A longer datagram would be cut, and is refused.
MAX_MESSAGE = 192 << 10
#: Descriptors beside one message, at most.
MAX_FDS = 32

#: The locks of a new process, and what else its steps are, in no order: `Unstarted.layer` and `Failed.layer` name them.
LAYERS = ("descriptors", "namespaces", "mounts", "entrances", "rlimits", "privileges", "landlock", "seccomp",
          "self-check", "signals", "rules' paths")


@dataclass(frozen=True, slots=True)
class MakeKeeper:
    """Make a keeper."""

    slot: int  # the worker's number
    into: bool  # whether the second descriptor is a cgroup folder for CLONE_INTO_CGROUP
    attach: int  # the number of tasks files whose descriptors follow


@dataclass(frozen=True, slots=True)
class Made:
    """A keeper exists and waits for its id maps."""

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """The keeper's uid_map, gid_map and setgroups are written."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Make a runner and lock it."""

    runner: int  # its number, which the daemon never uses again
    into: bool  # as in MakeKeeper, like `attach`
    attach: int
    cpu: int | None = None  # the processor that the job is pinned to, where affinity is the CPU limit; else None
    hurried: bool = False  # a job already waits for this runner, so the runner doesn't rehearse
    proved: bool = False  # a runner of this keeper was ready before: what only first ones do is left out
    unpinned: bool = False  # a live sandbox or session waits for it, so the keeper keeps no pages of a job's at hand
    holder: int = 0  # the connection for whose jobs alone its namespaces are kept; 0: they end with it
    again: bool = False  # the one before in those that are kept for *holder* was ready


@dataclass(frozen=True, slots=True)
class Armed:
    """The init, in kept namespaces the parent, and the job's process exist. The process is still setting its locks."""

    runner: int
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """No process of a runner is left."""

    runner: int
    status: int | None  # wait status of the job's process, None if the init was killed first
    #: processor seconds of all processes that the init has reaped. The job's process is among them, unless the init was
    #: killed first.
    spent: float = 0.0
    largest: int = 0  # bytes that one of these processes had at once, at the most; 0 if that isn't known


class Kind(enum.IntEnum):
    """What Start makes. The values are flags of keeper.h."""

    PROGRAM = 0       # [stdin, stdout, stderr, a memory file with a launch.block]
    TERMINAL = 16     # the same; its stdin becomes its controlling terminal
    INTERPRETER = 32  # [its ends of job, reply, stdout, stderr]
    PORTER = 64       # the same, of which it uses none: a copy of the keeper for the sandbox's folders


@dataclass(frozen=True, slots=True)
class Start:
    """Make a further process in a runner's namespaces."""

    process: int  # its number, which the daemon never uses again, for processes or runners
    kind: Kind
    ruleset: bool  # whether a Landlock ruleset comes behind the namespaces
    into: bool  # like the next three, as in Arm
    attach: int
    cpu: int | None = None
    hurried: bool = False
    reaper: bool = False  # it becomes a subreaper, so that orphaned descendants become its children
    tasks: int = 0  # its RLIMIT_NPROC; 0 leaves it as it is
    data: int = 0  # the same of RLIMIT_DATA, the soft limit
    descriptors: int = 0  # the same of RLIMIT_NOFILE, for a program
    files: int = 0  # bytes of the sandbox's tmpfs; 0 leaves it as it is
    most_data: int = 0  # the hard limit, where `data` isn't 0
    sandbox: int = 0  # the number of the runner beside which it is


@dataclass(frozen=True, slots=True)
class Started:
    """The process exists: it has all locks and is its program, or it is an interpreter that sets them."""

    process: int
    pid: int  # in the keeper's pid namespace, which is the daemon's
    inside: int  # its pid in its own namespace; 0 for an interpreter


class Stage(enum.IntEnum):
    """Where a process failed to start: enum lw_stage of beside.h."""

    CLONE = 0
    NAMESPACES = 1
    CGROUP = 2
    RLIMITS = 3
    AFFINITY = 4
    STEP = 5
    FOLDER = 6
    EXEC = 7
    FILES = 8


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The process could not be started."""

    process: int
    stage: Stage
    layer: str  # the lock that couldn't be set, where *stage* is STEP; else ""
    result: int  # what the failed call returned: a negative errno, or, of a step, another result that isn't allowed
    inside: int = 0  # the pid that the process had in its own namespace, or 0


@dataclass(frozen=True, slots=True)
class Exited:
    """A process that was started has ended. Descendants of it may be left."""

    process: int
    status: int | None  # its wait status; None if the kernel didn't report it
    spent: float = 0.0  # processor seconds of the process and of those of its children that it has waited for
    #: the largest resident set of the process or such a child, in bytes; 0 if it isn't above the keeper's own
    peak: int = 0


@dataclass(frozen=True, slots=True)
class Locked:
    """All locks are set. The seccomp listener comes with this message."""

    #: the number of descriptors behind the listener by which more processes can be put beside the sender: its pid,
    #: mount, ipc and uts namespaces, and its Landlock ruleset where it has one
    entrances: int = 0
    #: whether the last of them is none, but a detached copy of the layers of an image's root
    layers: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender is ready for work. *report* has the result of its self-check, by layer."""

    report: dict[str, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """Something could not be made."""

    number: int  # the worker's slot, or the runner's number
    layer: str  # the lock that couldn't be set, or "" for anything else
    message: str


@dataclass(frozen=True, slots=True)
class Importing:
    """The zygote begins to import a module of `preload`: *number* is its place there, or one behind the last when all are."""

    number: int


Message = (MakeKeeper | Made | Mapped | Arm | Armed | Ended | Start | Started | Unstarted | Exited | Locked | Ready
           | Failed | Importing)

KINDS: tuple[type, ...] = (Mapped, Locked, Ready, Failed, Importing)
learn(*KINDS)
_TAGS = {kind: tag for tag, kind in enumerate(KINDS)}


#: struct lw_keeper_message of _native/src/keeper.h: mark, kind, into, attach, value, runner, spent_us, tasks,
#: data, descriptors, files, sandbox.
_FIXED = struct.Struct("=BBBBiQQQQQQQ")


class _Tag(enum.IntEnum):
    """enum lw_keeper_kind."""

    ARM = 1
    ARMED = 2
    ENDED = 3
    FAILED = 4
    START = 5
    STARTED = 6
    EXITED = 7
    UNSTARTED = 8
    MAKE = 9
    MADE = 10


#: The one byte that no MessagePack value starts with.
_MARK = 0xC1
#: The cache of decoded messages: bytes of one message, and number of messages, at most.
_SHORT, _KEPT = 512, 64
_INTO, _HURRIED, _RULESET, _REAPER, _PROVED = 1, 2, 4, 8, 128
_UNPINNED, _AGAIN = _RULESET, _REAPER  # of an Arm

#: The call that a keeper's Failed is about, and what it was for, by number.
_KEEPER_CALLS = (("clone3", "a runner"), ("pipe2", "its ends"), ("mmap", "the stack of its init"),
                 ("clone3", "more runners than a keeper has room for"), ("clone3", "a keeper"))


def encode(message: Message) -> bytes:
    """*message* as one datagram."""
    if isinstance(message, Arm):
        flags = (message.into * _INTO | message.hurried * _HURRIED | message.proved * _PROVED
                 | message.unpinned * _UNPINNED | message.again * _AGAIN)
        return _FIXED.pack(_MARK, _Tag.ARM, flags, message.attach, -1 if message.cpu is None else message.cpu,
                           message.runner, 0, 0, 0, 0, 0, message.holder)
    if isinstance(message, Start):
        flags = (message.into * _INTO | message.hurried * _HURRIED | message.ruleset * _RULESET
                 | message.reaper * _REAPER | message.kind)
        return _FIXED.pack(_MARK, _Tag.START, flags, message.attach, -1 if message.cpu is None else message.cpu,
                           message.process, message.most_data, message.tasks, message.data, message.descriptors,
                           message.files, message.sandbox)
    if isinstance(message, MakeKeeper):
        return _FIXED.pack(_MARK, _Tag.MAKE, message.into * _INTO, message.attach, 0, message.slot, 0, 0, 0, 0, 0, 0)
    if isinstance(message, Made):
        return _FIXED.pack(_MARK, _Tag.MADE, 0, 0, message.pid, message.slot, 0, 0, 0, 0, 0, 0)
    packed = msgpack.packb([_TAGS[type(message)], to_values(message)], use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def decode(data: bytes) -> Message:
    """The message in one datagram; PeerError if it isn't one."""
    try:
        if data[0] == _MARK:
            return _fixed(data)
        return _known(data) if len(data) <= _SHORT else _built(data)
    except (ValueError, TypeError, LookupError, struct.error, msgpack.UnpackException) as error:
        raise PeerError(f"not a control message: {told(error)}") from None


def _built(data: bytes) -> Message:
    tag, fields = msgpack.unpackb(data, raw=False)
    message: Message = build(KINDS[tag], fields)
    return message


#: The same, cached by its bytes: all runners of a worker send the same two messages at first, and nobody changes a
#: message.
_known = functools.lru_cache(_KEPT)(_built)


def _fixed(data: bytes) -> Message:
    _, kind, into, attach, value, number, spent_us, tasks, data_limit, descriptors, files, sandbox = _FIXED.unpack(data)
    match kind:
        case _Tag.ARM:
            return Arm(number, bool(into & _INTO), attach, None if value < 0 else value, bool(into & _HURRIED),
                       bool(into & _PROVED), bool(into & _UNPINNED), sandbox, bool(into & _AGAIN))
        case _Tag.ARMED:
            return Armed(number, value)
        case _Tag.ENDED:
            return Ended(number, None if value < 0 else value, spent_us / 1e6, tasks)
        case _Tag.FAILED:
            return Failed(number, "namespaces", str(KernelRefusal(*_KEEPER_CALLS[into], value)))
        case _Tag.START:
            return Start(number, Kind(into & (Kind.TERMINAL | Kind.INTERPRETER | Kind.PORTER)), bool(into & _RULESET),
                         bool(into & _INTO), attach, None if value < 0 else value, bool(into & _HURRIED),
                         bool(into & _REAPER), tasks, data_limit, descriptors, files, spent_us, sandbox)
        case _Tag.STARTED:
            return Started(number, value, tasks)
        case _Tag.EXITED:
            return Exited(number, None if value < 0 else value, spent_us / 1e6, tasks)
        case _Tag.UNSTARTED:
            stage = Stage(into)
            return Unstarted(number, stage, LAYERS[attach] if stage is Stage.STEP else "", value, tasks)
        case _Tag.MAKE:
            return MakeKeeper(number, bool(into & _INTO), attach)
        case _Tag.MADE:
            return Made(number, value)
    raise ValueError(f"kind {kind}")

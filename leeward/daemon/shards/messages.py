"""
The messages between the daemon and a shard, their channel, and how pool and counts are divided and added up.

Trust: both are leeward's own, but both decode bytes of clients: whatever arrives, a message or PeerError comes out.

Each message is a MessagePack array: its name, and its fields as `wire.records` packs them. One that passes a connection
on has its descriptor with it, and a memory file of unread bytes if these are many.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgpack

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.config import Config
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, WRITE, Reactor
from leeward.daemon.loop.sender import MessageSender
from leeward.errors import PeerError, told
from leeward.wire import records

#: Bytes of one message. Lists of ends are cut to this, and unread bytes of a connection go by a memory file beyond
#: INLINE.
MAX_MESSAGE, INLINE = 128 << 10, 16 << 10


@dataclass(frozen=True, slots=True)
class ShardStart:
    """To shard *number*, first: serve jobs by *config*, which is reduced. *lives* counts its predecessors."""

    config: Config
    number: int
    lives: int
    journal: str


@dataclass(frozen=True, slots=True)
class ShardGovern:
    """To a shard: the configuration has changed."""

    config: Config


@dataclass(frozen=True, slots=True)
class PassConnection:
    """In both directions, with a descriptor: the receiver serves it from now on. *keeps*: the client takes no descriptors."""

    user: int
    unread: bytes
    keeps: bool


@dataclass(frozen=True, slots=True)
class ShardDrain:
    """To a shard: take no more jobs, end when none runs, at the latest after *seconds*; *part*: read no further requests."""

    seconds: float
    part: bool  # read no further requests, because another daemon will serve the clients


@dataclass(frozen=True, slots=True)
class ShardCut:
    """To a shard: end running jobs now."""


@dataclass(frozen=True, slots=True)
class ShardMakeRoom:
    """To a shard: close the connection that has been idle for longest."""


@dataclass(frozen=True, slots=True)
class SendCounts:
    """To a shard: send `ShardCounts` with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class ShardReady:
    """From a shard, first: it serves connections, so many at once."""

    places: int


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """From a shard: a connection of *user* has ended."""

    user: int


@dataclass(frozen=True, slots=True)
class ShardActivity:
    """From a shard, while there are jobs: how many requests it has had, and whether a job runs or waits."""

    requests: int
    busy: bool


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """From a shard, for `SendCounts` *number*: MessagePack of `leeward status`, and of `Metrics.counts` with *now*."""

    number: int
    status: bytes
    metrics: bytes


@dataclass(frozen=True, slots=True)
class ShardEnds:
    """From a shard: MessagePack of the last ends of *user*'s jobs, for `telling.events.EventBook.add`."""

    user: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """From a shard: a record for the security log, its fields as MessagePack."""

    event: str
    fields: bytes


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """From a shard, last: it can't start."""

    why: str


Message: TypeAlias = (
    ShardStart | ShardGovern | PassConnection | ShardDrain | ShardCut | ShardMakeRoom | SendCounts | ShardReady
    | ConnectionClosed | ShardActivity | ShardCounts | ShardEnds | ShardRecord | ShardFailed)

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    return pack_map([type(message).__name__, records.to_values(message)])


def decode(data: bytes) -> Message:
    """The message that `encode` made; PeerError if these bytes aren't one."""
    try:
        name, fields = msgpack.unpackb(data, raw=False, strict_map_key=False)
        message: Message = records.build(_KINDS[name], fields)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"not a message of a shard: {told(error)}") from error
    return message


def pack_map(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_map(data: bytes) -> dict[str, Any]:
    """The map that `pack_map` has packed; PeerError if these bytes aren't one."""
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"not a map of a shard: {told(error)}") from error
    if not isinstance(value, dict):
        raise PeerError("not a map of a shard")
    return value


#: Seconds for which the peer may take nothing.
STUCK_S = 10.0
#: Messages that are read in one turn of the loop.
_TURN = 64


class ShardChannel:
    """
    One end of a channel. *heard* gets each message and its descriptors, which it owns then; *ended* is called once with
    the reason when the channel is of no more use, not after `close`.
    """

    costs = "shard"

    def __init__(self, reactor: Reactor, sock: socket.socket, heard: Callable[[Message, list[int]], None],
                 ended: Callable[[str], None]) -> None:
        self._reactor, self._sock, self._heard, self._ended = reactor, sock, heard, ended
        self._sender = MessageSender(reactor, sock, self._end, STUCK_S)
        self._open = True
        sock.setblocking(False)
        reactor.watch(sock.fileno(), READ, self._ready)

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send *message* now or soon. Returns False if the channel has ended; the descriptors stay the caller's."""
        return self._sender.send(encode(message), fds)

    def pass_on(self, connection: socket.socket, message: PassConnection) -> bool:
        """
        Send *message* with the descriptor of *connection*, which stays the caller's. Returns False if the channel has
        ended; OSError if there is no memory file for the unread bytes.
        """
        if len(message.unread) <= INLINE:
            return self.send(message, [connection.fileno()])
        file = os.memfd_create("unread", os.MFD_CLOEXEC)
        try:
            left = memoryview(message.unread)
            while left:
                left = left[os.write(file, left):]
            return self.send(replace(message, unread=b""), [connection.fileno(), file])
        finally:
            os.close(file)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        in_any_case(self._sender.close, partial(self._reactor.forget, self._sock.fileno()), self._sock.close)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._ended(why)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._sender.flush()
        for _ in range(_TURN):
            if not self._open:
                return
            try:
                data, fds, flags, _ = socket.recv_fds(self._sock, MAX_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, fds, flags = b"", [], 0
            if not data:
                in_any_case(*(partial(os.close, fd) for fd in fds), partial(self._end, "its process is gone"))
                return
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise PeerError("a message was cut")
                message = decode(data)
                if len(fds) not in ((1, 2) if isinstance(message, PassConnection) else (0,)):
                    raise PeerError(f"{type(message).__name__} with {len(fds)} descriptors")
            except PeerError as error:
                in_any_case(*(partial(os.close, fd) for fd in fds), partial(self._end, str(error)))
                return
            self._heard(message, fds)

    def broken(self, _error: Exception) -> None:
        self._end("a callback failed: a bug of leeward's")


def taken(message: PassConnection, fds: Sequence[int]) -> tuple[socket.socket, bytes]:
    """The connection that came with *message*, and its unread bytes; OSError if these are lost, and nothing stays open."""
    connection = socket.socket(fileno=fds[0])
    try:
        if len(fds) == 1:
            return connection, message.unread
        with open(fds[1], "rb") as file:
            file.seek(0)
            return connection, file.read()
    except BaseException:
        connection.close()
        raise


#: Counters are in maps within maps: of status and of metrics three at the most.
_DEPTH = 8


def part(total: int, number: int, shards: int) -> int:
    """How many of *total* the process *number* of *shards* has; the daemon's own number is 0."""
    return total // shards + (number < total % shards)


def own_part(config: Config, number: int) -> Config:
    """The configuration by which one process of the daemon makes its pool."""
    return replace(config, pool_size=part(config.pool_size, number, config.shards),
                   queue_size=part(config.queue_size, number, config.shards))


def of_shard(config: Config) -> Config:
    """What a shard has of the daemon's configuration: nothing for guests, sessions, sandboxes and other pools."""
    return replace(config, socket="", group="", metrics="", security_log="", idle_exit=0, max_sessions=0, users={},
                   environments={}, profiles={}, egress={}, allow_network=False)


def added(one: Mapping[str, Any], other: Mapping[str, Any], depth: int = _DEPTH) -> dict[str, Any]:
    """The sums of two maps' numbers, also in maps within them; PeerError for other kinds, or above *depth* maps."""
    if not depth:
        raise PeerError("too many maps in one another")
    total = dict(one)
    for key, value in other.items():
        mine = total.get(key)
        if isinstance(value, Mapping) and (mine is None or isinstance(mine, Mapping)):
            total[key] = added(mine or {}, value, depth - 1)
        elif isinstance(value, (int, float)) and (mine is None or isinstance(mine, (int, float))):
            total[key] = (mine or 0) + value
        elif (isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
              and (mine is None or (isinstance(mine, list) and len(mine) == len(value)))):
            total[key] = [a + b for a, b in zip(mine or [0] * len(value), value, strict=True)]
        else:
            raise PeerError(f"{key!s:.60} is {type(value).__name__}")
    return total

"""
The messages between the daemon and a shard.

Trust:     both are leeward's own, but both decode bytes of clients: whatever arrives, a message or PeerError comes
           out.

Each message is a MessagePack array: its name, and its fields as `wire.records` packs them. A message that passes a
connection on has the connection's descriptor with it, and a memory file of unread bytes if these are many.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgpack

from leeward.daemon.config import Config
from leeward.dataclass import dataclass
from leeward.errors import PeerError
from leeward.wire import records

#: Bytes of one message. Lists of ends are cut to this, and unread bytes of a connection go by a memory file beyond
#: INLINE.
MAX_MESSAGE, INLINE = 128 << 10, 16 << 10


@dataclass(frozen=True, slots=True)
class ShardStart:
    """To a shard, first: serve jobs."""

    config: Config  # the configuration without what a shard doesn't serve
    number: int  # of the shard, from 1 on
    lives: int  # shards that have had this number before
    journal: str  # JOURNAL_STREAM of the daemon's environment


@dataclass(frozen=True, slots=True)
class ShardGovern:
    """To a shard: the configuration has changed."""

    config: Config


@dataclass(frozen=True, slots=True)
class PassConnection:
    """In both directions, with a descriptor: the receiver serves this connection from now on."""

    user: int  # the peer's uid
    unread: bytes  # bytes that were received and not served
    keeps: bool  # whether the client takes no descriptors (`keep_results`)


@dataclass(frozen=True, slots=True)
class ShardDrain:
    """To a shard: take no more jobs, end when none runs, at the latest after *seconds*."""

    seconds: float
    part: bool  # read no further requests, because another daemon will serve the clients


@dataclass(frozen=True, slots=True)
class ShardCut:
    """To a shard: end running jobs now."""


@dataclass(frozen=True, slots=True)
class ShardMakeRoom:
    """To a shard: close the connection that has been idle for longest."""


@dataclass(frozen=True, slots=True)
class AskCounts:
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
    """From a shard: its counters."""

    number: int  # of the `AskCounts`
    status: bytes  # MessagePack of the map of `leeward status`
    metrics: bytes  # MessagePack of `telling.metrics.Metrics.counts` and of what is read at that moment


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
    ShardStart | ShardGovern | PassConnection | ShardDrain | ShardCut | ShardMakeRoom | AskCounts | ShardReady
    | ConnectionClosed | ShardActivity | ShardCounts | ShardEnds | ShardRecord | ShardFailed)

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    """*message* as bytes."""
    return pack_map([type(message).__name__, records.to_values(message)])


def decode(data: bytes) -> Message:
    """The message that `encode` made; PeerError if these bytes aren't one."""
    try:
        name, fields = msgpack.unpackb(data, raw=False, strict_map_key=False)
        message: Message = records.build(_KINDS[name], fields)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"not a message of a shard: {error!r:.120}") from error
    return message


def pack_map(value: Any) -> bytes:
    """A value of plain types as MessagePack."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_map(data: bytes) -> dict[str, Any]:
    """The map that `pack_map` has packed; PeerError if these bytes aren't one."""
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"not a map of a shard: {error!r:.120}") from error
    if not isinstance(value, dict):
        raise PeerError("not a map of a shard")
    return value

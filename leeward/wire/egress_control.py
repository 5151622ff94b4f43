"""
Messages between the daemon and the egress broker.

Runs in:   both. One message is one SOCK_SEQPACKET datagram, as of `wire.control`: a tag and a record in MessagePack.
           Descriptors travel beside a message.
Trust:     the broker trusts the daemon. The daemon doesn't trust the broker, which reads what jobs and servers send:
           its messages are checked field by field and bounded, and their texts are only displayed.

    daemon -> broker   Begin, once, and first
    daemon -> broker   Stand    [listeners, in the order of isolation.egress_route.steps]
    daemon -> broker   Sealed   [where the values of secrets can be read, in their order]
    daemon -> broker   Leased | Over | Gone
    daemon -> broker   FetchOrder    [where the response's body goes, and the request's body if it has one]
    daemon -> broker   Unfetch
    daemon -> broker   Listening | AskAnswer
    broker -> daemon   Decided | Cleared | FetchAnswer | Ask | Unask
"""

from __future__ import annotations

import math

import msgpack

from leeward.base.dataclass import dataclass, field, names
from leeward.errors import PeerError, told

#: Bytes of a message, at most, and of each text in a record.
MAX_MESSAGE, MAX_TEXT = 192 << 10, 512

#: Descriptors beside one message, and items of a list, at most.
MAX_FDS, _MAX_LIST = 24, 64

#: Ports of every sandbox with egress: name servers, and a proxy for programs that want one.
DNS, PROXY = 53, 3128

#: The results of an attempt. "closed" follows "allowed", with the number of bytes.
VERDICTS = ("allowed", "denied", "failed", "closed")


@dataclass(frozen=True, slots=True)
class Begin:
    """How the broker confines itself, before any other message."""

    ids: list[int]  # its uid and gid; [] where it keeps the daemon's
    filter: bytes  # of its system calls, 8 bytes an instruction
    landlock: list[int]  # as `isolation.landlock.reader_rights` has it; [] where there is none
    readable: list[str]  # files and folders of the host that it may read: those of the resolver, and of the interpreter


@dataclass(frozen=True, slots=True)
class Stand:
    """A sandbox's listeners."""

    place: int  # the daemon's number for them, which it never uses again
    ports: list[int]  # of TCP, those of each family's listeners; one for DNS over UDP comes before them
    families: int  # 1 for IPv4 alone, 2 with IPv6


@dataclass(frozen=True, slots=True, repr=False)
class Sealed:
    """
    What all sandboxes of a pool share for TLS that the broker ends, until `Gone` of *place*. Each descriptor beside it
    gives one secret's value and a NUL, which says that the value is whole, and then ends.
    """

    place: int  # a number as of `Stand`
    bundle: str  # the host's file of certificates, or ""
    trusted: bytes  # further ones, PEM
    secrets: list[str]  # their names


@dataclass(frozen=True, slots=True, repr=False)
class Leased:
    """From now on connections to the listeners belong to this lease, and are under this policy."""

    place: int
    lease: int  # never used again
    key: bytes  # by which its names get their addresses; the same one gives the same ones
    policy: dict[str, object]  # as `spec.egress_policy.parse_policy` reads it
    seal: int = 0  # the place of a `Sealed`; 0 for none
    fetch: dict[str, object] = field(default_factory=dict)  # the policy of its fetches, if that is a different one
    signer: bytes = b""  # the key of its authority, PEM; only with a *seal*
    certificate: bytes = b""  # the same key's certificate
    placeholders: list[str] = field(default_factory=list)  # what stands in it for each of the seal's secrets


@dataclass(frozen=True, slots=True)
class Over:
    """The lease of this place is over: the broker must end all its connections, and answer with `Cleared`."""

    place: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing of the lease is left, nor in the queues of the listeners: further connections belong to the next lease."""

    place: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The listeners are gone; or what was `Sealed`."""

    place: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A row of the record."""

    time: float  # seconds since 1970
    lease: int  # the lease that has tried
    number: int  # of the attempt, which all its rows have; from 1 for each lease
    name: str  # the name that was asked for, or ""
    address: str  # the address that was asked for or connected to, or ""
    port: int  # 0 for a name that was asked for
    verdict: str  # one of VERDICTS
    rule: str = ""  # the policy's rule that decided, or ""
    reason: str = ""  # a text for people; "" if the verdict says everything
    sent: int = 0  # bytes from the sandbox
    received: int = 0  # bytes to it


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """A request of a client's, by the policy of the lease of *place*."""

    place: int
    number: int  # never used again
    about: dict[str, object]  # `url`, `method` and `headers`, as `wire.fetches` has checked them


@dataclass(frozen=True, slots=True)
class Unfetch:
    """Nobody waits for that any more."""

    place: int
    number: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The one answer to a `FetchOrder`; the body is in the file that came with that."""

    number: int
    about: dict[str, object]  # as `wire.fetches.check_answer` reads it


@dataclass(frozen=True, slots=True)
class Listening:
    """Whether there is a client that answers questions of rules of `ask`. Before the first such message there is none."""

    on: int  # 1 or 0


@dataclass(frozen=True, slots=True)
class Ask:
    """A connection or request waits for an answer, until `AskAnswer` or `Unask`."""

    lease: int
    number: int  # of the broker's, which it never uses again
    about: dict[str, object]  # as `wire.egress_asks.check_ask` reads it


@dataclass(frozen=True, slots=True)
class Unask:
    """Nobody waits for that any more."""

    number: int


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """The one answer to an `Ask`."""

    number: int
    allow: int  # 1 or 0
    message: str  # a text for the program in the sandbox, and for the record


Message = (Begin | Stand | Sealed | Leased | Over | Gone | Decided | FetchOrder | Unfetch | FetchAnswer | Listening
           | Ask | Unask | AskAnswer | Cleared)

_KINDS: tuple[type, ...] = Message.__args__
_TAGS = {kind: tag for tag, kind in enumerate(_KINDS)}
_HINTS: dict[str, type] = {"int": int, "float": float, "str": str, "bytes": bytes, "list[int]": list, "list[str]": list,
                           "dict[str, object]": dict}


def encode(message: Message) -> bytes:
    """*message* as one datagram."""
    kind = type(message)
    packed = msgpack.packb([_TAGS[kind], *(getattr(message, name) for name in names(kind))])
    assert isinstance(packed, bytes)
    return packed


def decode(data: bytes) -> Message:
    """The message in one datagram; PeerError if it isn't one."""
    if len(data) > MAX_MESSAGE:
        raise PeerError(f"not a message of the egress channel: {len(data)} bytes")
    try:
        tag, *fields = msgpack.unpackb(data, raw=False)
        if type(tag) is not int or not 0 <= tag < len(_KINDS):
            raise PeerError("not a message of the egress channel: of no kind")
        kind = _KINDS[tag]
        hints = [kind.__annotations__[name] for name in names(kind)]
        message: Message = kind(*[_checked(hint, value) for hint, value in zip(hints, fields, strict=True)])
        if isinstance(message, Decided) and message.verdict not in VERDICTS:
            raise PeerError("not a message of the egress channel: no verdict")
    except (ValueError, TypeError, LookupError, msgpack.UnpackException, RecursionError) as error:
        raise PeerError(f"not a message of the egress channel: {told(error)}") from None
    return message


def _checked(hint: str, value: object) -> object:
    kind = _HINTS[hint]
    if type(value) is not kind:
        raise PeerError(f"a value that is no {hint}")
    if isinstance(value, str) and (len(value) > MAX_TEXT or not value.isprintable()):
        raise PeerError("a text that is too long, or not printable")
    if isinstance(value, float) and not math.isfinite(value):
        raise PeerError("a number without end")
    if isinstance(value, int) and not 0 <= value < 1 << 63:
        raise PeerError("a number out of range")
    if isinstance(value, list):
        item = str if hint == "list[str]" else int
        if len(value) > _MAX_LIST or any(type(each) is not item for each in value):
            raise PeerError(f"no {hint} of at most {_MAX_LIST}")
    return value

"""
Messages between the daemon and the egress broker.

Runs in:   both. One message is one SOCK_SEQPACKET datagram, as of `wire.control`: a tag and a record in MessagePack.
           Descriptors travel beside a message.
Trust:     the broker trusts the daemon. The daemon doesn't trust the broker, which reads what jobs and servers send:
           its messages are checked field by field and bounded, and their texts are only displayed.

    daemon -> broker   Begin, once, and first
    daemon -> broker   Stand    [listeners, in the order of isolation.egress.steps]
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

from leeward.dataclass import dataclass, field, names
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
    """
    How the broker confines itself, before any other message.

    Attributes:
        ids: its uid and gid; [] where it keeps the daemon's.
        filter: of its system calls, 8 bytes an instruction.
        landlock: as `isolation.landlock.reader_rights` has it; [] where there is none.
        readable: files and folders of the host that it may read: those of the resolver, and of the interpreter.
    """

    ids: list[int]
    filter: bytes
    landlock: list[int]
    readable: list[str]


@dataclass(frozen=True, slots=True)
class Stand:
    """
    A sandbox's listeners.

    Attributes:
        place: the daemon's number for them, which it never uses again.
        ports: of TCP, those of each family's listeners; one for DNS over UDP comes before them.
        families: 1 for IPv4 alone, 2 with IPv6.
    """

    place: int
    ports: list[int]
    families: int


@dataclass(frozen=True, slots=True, repr=False)
class Sealed:
    """
    What all sandboxes of a pool share for TLS that the broker ends, until `Gone` of *place*.

    Each descriptor beside it gives one secret's value and a NUL, which says that the value is whole, and then ends.

    Attributes:
        place: a number as of `Stand`.
        bundle: the host's file of certificates, or "".
        trusted: further ones, PEM.
        secrets: their names.
    """

    place: int
    bundle: str
    trusted: bytes
    secrets: list[str]


@dataclass(frozen=True, slots=True, repr=False)
class Leased:
    """
    From now on connections to the listeners belong to this lease, and are under this policy.

    Attributes:
        lease: never used again.
        key: by which its names get their addresses; the same one gives the same ones.
        policy: as `spec.egress.parse_policy` reads it.
        seal: the place of a `Sealed`; 0 for none.
        fetch: the policy of its fetches, if that is a different one.
        signer, certificate: the key and the certificate of its authority, PEM; only with a *seal*.
        placeholders: what stands in it for each of the seal's secrets.
    """

    place: int
    lease: int
    key: bytes
    policy: dict[str, object]
    seal: int = 0
    fetch: dict[str, object] = field(default_factory=dict)
    signer: bytes = b""
    certificate: bytes = b""
    placeholders: list[str] = field(default_factory=list)


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
    """
    A row of the record.

    Attributes:
        time: seconds since 1970.
        lease: the lease that has tried.
        number: of the attempt, which all its rows have; from 1 for each lease.
        name: the name that was asked for, or "".
        address: the address that was asked for or connected to, or "".
        port: 0 for a name that was asked for.
        verdict: one of VERDICTS.
        rule: the policy's rule that decided, or "".
        reason: a text for people; "" if the verdict says everything.
        sent, received: bytes from the sandbox and to it.
    """

    time: float
    lease: int
    number: int
    name: str
    address: str
    port: int
    verdict: str
    rule: str = ""
    reason: str = ""
    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """
    A request of a client's, by the policy of the lease of *place*.

    Attributes:
        number: never used again.
        about: `url`, `method` and `headers`, as `wire.fetches` has checked them.
    """

    place: int
    number: int
    about: dict[str, object]


@dataclass(frozen=True, slots=True)
class Unfetch:
    """Nobody waits for that any more."""

    place: int
    number: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """
    The one answer to a `FetchOrder`; the body is in the file that came with that.

    Attributes:
        about: as `wire.fetches.check_answer` reads it.
    """

    number: int
    about: dict[str, object]


@dataclass(frozen=True, slots=True)
class Listening:
    """
    Whether there is a client that answers questions of rules of `ask`. Before the first such message there is none.

    Attributes:
        on: 1 or 0.
    """

    on: int


@dataclass(frozen=True, slots=True)
class Ask:
    """
    A connection or request waits for an answer, until `AskAnswer` or `Unask`.

    Attributes:
        number: of the broker's, which it never uses again.
        about: as `wire.egress_asks.check_ask` reads it.
    """

    lease: int
    number: int
    about: dict[str, object]


@dataclass(frozen=True, slots=True)
class Unask:
    """Nobody waits for that any more."""

    number: int


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """
    The one answer to an `Ask`.

    Attributes:
        allow: 1 or 0.
        message: a text for the program in the sandbox, and for the record.
    """

    number: int
    allow: int
    message: str


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
    """
    The message in one datagram.

    Raises:
        PeerError: the datagram isn't one.
    """
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

"""
The names of a sandbox: queries, answers, and which name has which address. Pure: no sockets and no clock.

Trust:     none. A message becomes a `Query`, or PeerError.
Stands if: a job encodes data in names. No query leaves the host: every answer is made of the sandbox's own addresses.
Source:    RFC 1035; RFC 6891 (EDNS), RFC 7766 (TCP), RFC 9460 (HTTPS, SVCB).

A name that is allowed gets an IPv4 and an IPv6 address of the sandbox's own ranges. By these the broker knows which
name a connection is for. They are derived from the name and a key of the sandbox, so a restarted broker gives the same
ones.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from leeward.errors import PeerError
from leeward.spec.egress_rules import NAMES_V4, NAMES_V6
from leeward.spec.hosts import Address, InvalidHost, parse_host

#: Types and classes of a question.
A, AAAA, SVCB, HTTPS, ANY, OPT, IN = 1, 28, 64, 65, 255, 41, 1

#: Codes of an answer.
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3

#: Seconds that an answer may be kept.
TTL = 30

#: Bytes of a query, at most. One question of the longest name, a cookie and padding have room.
MAX_QUERY = 1232

#: The size of datagrams that the broker announces in OPT records; RFC 6891.
_DATAGRAM = 1232

#: Records beside the question that a query may have: OPT, and a signature that nobody checks.
_MAX_RECORDS = 8

#: Names of one sandbox, at most. Once its table is full, further names get no address.
MAX_NAMES = 4096

_HEAD = struct.Struct(">HHHHHH")
_RESPONSE, _DESIRED, _AVAILABLE, _CHECKING = 0x8000, 0x0100, 0x0080, 0x0010


@dataclass(frozen=True, slots=True)
class Query:
    number: int  # of the message, which the answer repeats
    flags: int  # of the message
    name: str  # in the form of `parse_host`; "" where no host can have such a name
    kind: int  # the type of the question: A, AAAA,
    group: int  # its class; IN is the only one that has answers
    question: bytes  # the bytes of the question, as it was asked
    extended: bool  # the query has an OPT record


def parse_query(message: bytes) -> Query:
    """Parse the query in *message*; PeerError if it isn't one with one question: it gets no answer."""
    if not _HEAD.size <= len(message) <= MAX_QUERY:
        raise PeerError(f"a query of {len(message)} bytes")
    number, flags, questions, answers, authorities, others = _HEAD.unpack_from(message)
    if flags & _RESPONSE or flags & 0x7800 or questions != 1 or answers or authorities or others > _MAX_RECORDS:
        raise PeerError("no query with one question")
    labels, place = _labels(message, _HEAD.size)
    if len(message) - place < 4:
        raise PeerError("a question that is cut off")
    kind, group = struct.unpack_from(">HH", message, place)
    place += 4
    question, extended = message[_HEAD.size:place], False
    for _ in range(others):
        owner, place = _labels(message, place)
        if len(message) - place < 10:
            raise PeerError("a record that is cut off")
        of, _, _, length = struct.unpack_from(">HHIH", message, place)
        place += 10 + length
        if place > len(message) or (of == OPT and (owner or extended)):
            raise PeerError("a record that is cut off, or a second OPT")
        extended = extended or of == OPT
    if place != len(message):
        raise PeerError(f"{len(message) - place} bytes after the last record")
    return Query(number, flags, _name(labels), kind, group, question, extended)


def answer(query: Query, addresses: tuple[Address, ...] = (), code: int = NO_ERROR) -> bytes:
    """Return the message that answers *query*, with those of *addresses* that are of the type of its question."""
    records = [address.packed for address in addresses
               if query.group == IN and query.kind == (A if address.version == 4 else AAAA)]
    flags = _RESPONSE | _AVAILABLE | (query.flags & (_DESIRED | _CHECKING)) | code
    # The owner of each is the name of the question, at offset 12.
    body = b"".join(struct.pack(">HHHIH", 0xc00c, query.kind, IN, TTL, len(data)) + data for data in records)
    option = struct.pack(">BHHIH", 0, OPT, _DATAGRAM, 0, 0) if query.extended else b""
    head = _HEAD.pack(query.number, flags, 1, len(records), 0, 1 if option else 0)
    return head + query.question + body + option


def respond(query: Query, table: NameTable, reachable: Callable[[str], bool]) -> bytes:
    """The message that answers *query* by a sandbox's table and by *reachable*: whether the policy allows a name."""
    if query.group != IN or not query.name or not reachable(query.name):
        return answer(query, code=NO_SUCH_NAME)
    if query.kind not in (A, AAAA):
        return answer(query)  # the name exists without such a record; also for HTTPS and SVCB
    addresses = table.addresses(query.name)
    return answer(query, addresses) if addresses else answer(query, code=SERVER_FAILURE)


def framed(message: bytes) -> bytes:
    return struct.pack(">H", len(message)) + message


class Messages:
    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that *data* completes; PeerError if one is longer than a query may be."""
        self._held += data
        while len(self._held) >= 2:
            length = int.from_bytes(self._held[:2], "big")
            if not _HEAD.size <= length <= MAX_QUERY:
                self._held = b""
                raise PeerError(f"a query of {length} bytes")
            if len(self._held) < 2 + length:
                return
            message, self._held = self._held[2:2 + length], self._held[2 + length:]
            yield message


class NameTable:
    """Which name has which address in one sandbox, and never another one. Another *key* gives other addresses."""

    def __init__(self, key: bytes, most: int = MAX_NAMES) -> None:
        self._key, self._most = key, most
        self._places: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._places)

    def addresses(self, name: str) -> tuple[Address, ...]:
        """The IPv4 and the IPv6 address of *name*; () if it has none and the table is full."""
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= self._most:
                return ()
            place = self._free(name)
            self._places[name], self._names[place] = place, name
        return IPv4Address(int(NAMES_V4.network_address) + place), IPv6Address(int(NAMES_V6.network_address) + place)

    def name(self, address: Address) -> str | None:
        """The name that has *address*; None if no name was given it."""
        if address.version == 4:
            place = int(address) - int(NAMES_V4.network_address)
        else:
            place = int(address) - int(NAMES_V6.network_address)
        return self._names.get(place)

    def _free(self, name: str) -> int:
        # The first and the last address of the range are of no host.
        room = NAMES_V4.num_addresses - 2
        drawn = int.from_bytes(hashlib.blake2b(name.encode(), key=self._key, digest_size=8).digest(), "big") % room
        while drawn + 1 in self._names:
            drawn = (drawn + 1) % room
        return drawn + 1


def _labels(message: bytes, place: int) -> tuple[list[bytes], int]:
    """The labels of the name at *place*, and the place after it; PeerError also for compression, which no query needs."""
    labels: list[bytes] = []
    total = 1
    while place < len(message):
        length = message[place]
        place += 1
        if not length:
            return labels, place
        total += length + 1
        if length > 63 or total > 255 or place + length > len(message):
            break
        labels.append(message[place:place + length])
        place += length
    raise PeerError("a name that is cut off, too long or compressed")


def _name(labels: list[bytes]) -> str:
    """Return the name of a host from its labels; "" if no host can have it, as with a number that is a form of an address."""
    if any(b"." in label for label in labels):
        return ""
    try:
        return parse_host(b".".join(labels).decode("ascii")).name
    except (InvalidHost, UnicodeDecodeError):
        return ""

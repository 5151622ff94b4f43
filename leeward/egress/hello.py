"""
The client hello, a TLS client's first message: the server's name, the protocols, whether it hides the name. Pure.

Trust:     none. Bytes become a `Hello`, "more bytes needed", or HelloError.
Leaves:    a false name. The broker dials the addresses of that name, so the job reaches only the host that it named.
Source:    RFC 8446 §4.1.2 and §5.1, RFC 6066 §3, RFC 7301, RFC 9849 (encrypted client hello).

The hello may come in any number of packets and, cut anywhere, in several records. The caller keeps its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from leeward.errors import PeerError
from leeward.spec.hosts import InvalidHost, parse_host

#: Bytes of a hello, and records that it is in, at most. Browsers send some 2 KiB in one record.
MAX_HELLO, MAX_RECORDS = 16384, 64

#: Bytes that may come before the hello is whole, at most: its records' heads, its own, and itself.
MAX_BYTES = 5 * MAX_RECORDS + 4 + MAX_HELLO

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ALPN, _ECH, _ESNI = 0, 16, 0xfe0d, 0xffce


class HelloError(PeerError):
    """The first bytes of a connection aren't a client hello, or it breaks the protocol; *is_tls*: it began as TLS does."""

    def __init__(self, message: str, is_tls: bool = True) -> None:
        super().__init__(message)
        self.is_tls = is_tls


@dataclass(frozen=True, slots=True)
class Hello:
    name: str  # the server's name, in the form of `parse_host`; "" if there is none
    protocols: tuple[str, ...] = ()  # those of ALPN, in order
    hidden: bool = False  # the true name is encrypted (ECH), or may be; then `name` is a server's in front of it


class HelloReader:
    """Reads the hello of one connection, in as many pieces as it comes. The time for a piece depends on its length alone."""

    def __init__(self) -> None:
        self._head = bytearray()     # of a record, until it is whole
        self._message = bytearray()  # the records' contents
        self._left = 0               # of the record
        self._records = 0

    def feed(self, data: bytes) -> Hello | None:
        """The hello, once *data* completes it, and None before; HelloError if it is none, too long or broken."""
        place = 0
        while place < len(data):
            if not self._left:
                taken = data[place:place + 5 - len(self._head)]
                self._head += taken
                place += len(taken)
                self._check_head()
                continue
            taken = data[place:place + self._left]
            self._message += taken
            self._left -= len(taken)
            place += len(taken)
            needed = self._needed()
            if needed is not None and len(self._message) >= needed:
                return _hello(bytes(self._message[4:needed]))
        return None

    def _check_head(self) -> None:
        # Checked as far as it has arrived, so that another protocol is recognised without waiting for more bytes.
        head = self._head
        if head[0] != _HANDSHAKE or (len(head) > 1 and head[1] != 3):
            raise HelloError("no record of a TLS handshake", is_tls=self._records > 0)
        if len(head) < 5:
            return
        self._left = int.from_bytes(head[3:5], "big")
        self._records += 1
        if not 0 < self._left <= MAX_HELLO or self._records > MAX_RECORDS:
            raise HelloError(f"record {self._records} has {self._left} bytes")
        head.clear()

    def _needed(self) -> int | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise HelloError("the handshake begins with something else than a client hello")
        if len(message) < 4:
            return None
        needed = int.from_bytes(message[1:4], "big")
        if needed > MAX_HELLO:
            raise HelloError(f"a hello of {needed} bytes, {MAX_HELLO} are the most")
        return 4 + needed


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        if len(self.data) - self.place < count:
            raise HelloError("a field of the hello is cut off")
        self.place += count
        return self.data[self.place - count:self.place]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def block(self, count: int) -> bytes:
        """A block that follows its length of *count* bytes."""
        return self.take(self.number(count))

    @property
    def left(self) -> int:
        return len(self.data) - self.place


def _hello(body: bytes) -> Hello:
    reader = _Reader(body)
    reader.take(2 + 32)   # version, random
    if len(reader.block(1)) > 32:
        raise HelloError("a session id of more than 32 bytes")
    reader.block(2)       # cipher suites
    reader.block(1)       # compression
    name, hidden = "", False
    protocols: tuple[str, ...] = ()
    if not reader.left:
        return Hello(name)
    extensions = _Reader(reader.block(2))
    if reader.left:
        raise HelloError("bytes after the hello's extensions")
    seen = set()
    while extensions.left:
        kind, content = extensions.number(2), extensions.block(2)
        if kind in seen:
            raise HelloError(f"extension {kind} twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
        elif kind == _ALPN:
            protocols = _protocols(content)
        elif kind in (_ECH, _ESNI):
            hidden = True
    return Hello(name, protocols, hidden)


def _server_name(content: bytes) -> str:
    reader = _Reader(content)
    names = _Reader(reader.block(2))
    if reader.left or names.number(1) != 0:
        raise HelloError("a server name of another kind than a host's")
    given = names.block(2)
    if names.left:
        raise HelloError("more than one server name")
    try:
        host = parse_host(given.decode("ascii"))
    except (InvalidHost, UnicodeDecodeError):
        raise HelloError("the server name is no name of a host") from None
    if not host.name:
        raise HelloError("the server name is an address")
    return host.name


def _protocols(content: bytes) -> tuple[str, ...]:
    reader = _Reader(content)
    listed, found = _Reader(reader.block(2)), []
    while listed.left:
        found.append(listed.block(1).decode("latin-1"))
    if reader.left or not all(found):
        raise HelloError("a list of protocols that is broken")
    return tuple(found)

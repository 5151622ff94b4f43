"""
Request heads of HTTP/1, checked byte by byte before anything is decided by them. Pure.

Trust:     none. A head becomes a `Head`, or HeadError with the status to answer.
Why:       requests can be smuggled where two programs read one head differently. So every head is refused that another
           program could read differently: bare line feeds, folded lines, both Content-Length and Transfer-Encoding, two
           hosts.
Source:    RFC 9110, RFC 9112.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from leeward.egress.addresses import authority, parse_url
from leeward.errors import PeerError
from leeward.spec.egress_rules import SCHEMES
from leeward.spec.hosts import Host, InvalidHost, parse_host, split_port

#: Bytes of a head, and fields in it, at most.
MAX_HEAD, MAX_FIELDS = 32768, 128

#: Digits of a Content-Length, at most.
_MAX_DIGITS = 15

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]{1,16384}) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")

#: Fields for this hop only; RFC 9110 §7.6.1. A proxy's credentials are for the broker.
_HOP = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings",
                  b"proxy-authorization"))

#: Fields that a Connection field must not name: without them the request would mean something else.
_KEPT = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"cookie"))


class HeadError(PeerError):
    """A head or a body that can't be passed on to the host, with the status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    method: str  # as it was sent; methods are told apart by case
    form: str  # of the target: "origin", "absolute", "authority" (CONNECT) or "asterisk"
    target: str  # as it is sent to the host, in origin form; "*" for "asterisk", "" for "authority"
    host: Host  # the host that the request is for; the target and the Host field agree about it
    port: int  # of that host; the scheme's default where none is given
    fields: tuple[tuple[bytes, bytes], ...]  # in order, without Host and the fields for this hop; names in lower case
    length: int | None  # bytes of the body; None where it comes in chunks
    keeps: bool  # another request may follow
    upgrade: str = ""  # "websocket", or "" for none
    scheme: str = "http"  # by which the request came, "http" or "https"

    @property
    def authority(self) -> str:
        return authority(self.host, self.port, self.scheme)


def find_end(data: bytes | bytearray, start: int = 0) -> int:
    """
    The length of the head that *data* begins with, and its empty line; 0 if more bytes are needed.

    The first *start* bytes were searched before. Raises HeadError if the head is too long, or a line doesn't end in CR
    LF.
    """
    begin = max(0, start - 3)
    end = data.find(b"\r\n\r\n", begin)
    fed = data.find(b"\n", begin, end + 4 if end >= 0 else len(data))
    while fed >= 0:
        if not fed or data[fed - 1] != 0x0d:
            raise HeadError("a line that ends in a bare line feed")
        fed = data.find(b"\n", fed + 1, end + 4 if end >= 0 else len(data))
    if (end + 4 if end >= 0 else len(data)) > MAX_HEAD:
        raise HeadError(f"a head of more than {MAX_HEAD} bytes", 431)
    return end + 4 if end >= 0 else 0


def parse_head(data: bytes, scheme: str = "http") -> Head:
    """Parse a whole head, as `find_end` found it, that came by *scheme*; HeadError if the request can't be passed on."""
    if not data.endswith(b"\r\n\r\n") or len(data) > MAX_HEAD:
        raise HeadError("no whole head")
    lines = data[:-4].split(b"\r\n")
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise HeadError("a line that ends in a bare line feed or carriage return")
    found = _LINE.fullmatch(lines[0])
    if found is None:
        raise HeadError(*_bad_line(lines[0]))
    method, target, minor = found[1].decode(), found[2].decode(), int(found[3])
    if len(lines) - 1 > MAX_FIELDS:
        raise HeadError(f"{len(lines) - 1} fields, {MAX_FIELDS} are the most", 431)
    fields = [_field(line) for line in lines[1:]]
    # Python's http.client before 3.12 opens tunnels by HTTP/1.0, which has no Host field.
    told = _one(fields, b"host", found[2] if method == "CONNECT" and not minor else None)
    form, host, port, passed = _target(method, target, told, scheme)
    length = _length(fields, minor, method)
    options = {word.strip().lower() for name, value in fields if name in (b"connection", b"proxy-connection")
               for word in value.split(b",")}
    if options & _KEPT:
        raise HeadError("a Connection field that names a field of the request itself")
    upgrade = _upgrade(fields, options, minor)
    dropped = _HOP | {b"host"} | options
    if _one(fields, b"expect", b"100-continue").lower() != b"100-continue":
        raise HeadError("an expectation other than 100-continue", 417)
    return Head(method, form, passed, host, port, tuple(each for each in fields if each[0] not in dropped), length,
                b"close" not in options and (minor == 1 or b"keep-alive" in options), upgrade, scheme)


def _bad_line(line: bytes) -> tuple[str, int]:
    target, _, version = line.partition(b" ")[2].rpartition(b" ")
    if line == b"PRI * HTTP/2.0":
        return "HTTP/2 without TLS, a version in which the broker can't read what host a request is for: use HTTP/1.1", 505
    if version.startswith(b"HTTP/") and version not in (b"HTTP/1.0", b"HTTP/1.1"):
        return "another version of HTTP than 1.0 and 1.1", 505
    if len(target) > 16384:
        return "a target of more than 16384 bytes", 414
    return "no request line: METHOD, TARGET and HTTP/1.1 with one space between", 400


def _field(line: bytes) -> tuple[bytes, bytes]:
    if line[:1] in (b" ", b"\t"):
        raise HeadError("a folded line")
    found = _FIELD.fullmatch(line)
    if found is None:
        raise HeadError("a line that is no field: a name, a colon at once, and a value without control characters")
    return found[1].lower(), found[2].rstrip(b" \t")


def _one(fields: list[tuple[bytes, bytes]], name: bytes, default: bytes | None = None) -> bytes:
    """Return the value of the field *name*, which may occur only once; *default* if it is missing."""
    values = [value for each, value in fields if each == name]
    if len(values) > 1:
        raise HeadError(f"{len(values)} fields {name.decode()}")
    if not values and default is None:
        raise HeadError(f"no field {name.decode()}")
    return values[0] if values else default or b""


def _authority(text: str, scheme: str) -> tuple[Host, int]:
    try:
        host, port = split_port(text)
        return parse_host(host), port or SCHEMES.get(scheme, 0)
    except InvalidHost as error:
        raise HeadError(f"the host {text!r:.80}: {error}") from None


def _target(method: str, target: str, field: bytes, scheme: str) -> tuple[str, Host, int, str]:
    """Return the form of the target, the host, the port, and the target in origin form."""
    if not field.isascii():
        raise HeadError("a Host field with other characters than ASCII")
    named = field.decode("ascii")
    if method == "CONNECT":
        host, port = _authority(target, "")
        if not port:
            raise HeadError("a CONNECT without a port")
        # Clients differ in whether the field has the port.
        told = _authority(named, "")
        if told[0] != host or told[1] not in (0, port):
            raise HeadError("the target and the Host field name different hosts")
        return "authority", host, port, ""
    host, port = _authority(named, scheme)
    if target.startswith("/"):
        if "#" in target:
            raise HeadError("a fragment in the target")
        return "origin", host, port, target
    if target == "*" and method == "OPTIONS":
        return "asterisk", host, port, "*"
    if "#" in target:
        raise HeadError("a fragment in the target")
    try:
        url = parse_url(target)
    except InvalidHost as error:
        raise HeadError(f"the target: {error}") from None
    if url.scheme != scheme or url.user:
        raise HeadError(f"a target with the scheme {url.scheme!r:.20}, or with user information")
    if (url.host, url.port) != (host, port):
        raise HeadError("the target and the Host field name different hosts")
    return "absolute", host, port, url.target


def _length(fields: list[tuple[bytes, bytes]], minor: int, method: str) -> int | None:
    given = _one(fields, b"content-length", b"")
    coding = _one(fields, b"transfer-encoding", b"")
    named = {name for name, _ in fields}
    has_length, has_coding = b"content-length" in named, b"transfer-encoding" in named
    if has_length and has_coding:
        raise HeadError("both Content-Length and Transfer-Encoding")
    if has_coding:
        if coding.lower() != b"chunked":
            raise HeadError("a Transfer-Encoding other than chunked", 501)
        if minor == 0:
            raise HeadError("a Transfer-Encoding with HTTP/1.0")
    if has_length and not (given.isdigit() and len(given) <= _MAX_DIGITS):
        raise HeadError("a Content-Length that is no number")
    if method == "CONNECT" and (has_coding or given.strip(b"0")):
        raise HeadError("a CONNECT with a body")
    if method == "TRACE":
        raise HeadError("TRACE would send back what the request was given on its way", 405)
    return None if has_coding else int(given or b"0")


def _upgrade(fields: list[tuple[bytes, bytes]], options: set[bytes], minor: int) -> str:
    """"websocket" if that is offered, else "": the broker couldn't read the requests of HTTP/2 in the clear."""
    offered = [value.strip().lower() for name, value in fields if name == b"upgrade"]
    return "websocket" if minor == 1 and b"upgrade" in options and offered == [b"websocket"] else ""

"""
Requests of one connection, one after another, each with its head checked; and the responses to them. Pure. Needs h11.

Why:       a head is read by `heads`, and h11 writes it anew from what was read: length or chunks, and one spelling of
           each field. So no byte of a job reaches the host that the broker hasn't understood.

`Requests` faces the job, `Responses` the host. One request is under way at a time: the next head is read when
`Requests.is_done` says that the one before was answered, and until then further bytes wait, bounded by `room`.
"""

from __future__ import annotations

import h11

from leeward.egress.faults import fault
from leeward.egress.heads import MAX_HEAD, Head, HeadError, find_end, parse_head
from leeward.errors import PeerError

#: Bytes of a job that wait until the request before them is over, at most.
MAX_WAITING = 65536


class ResponseError(PeerError):
    """A host's response that can't be passed on to the job."""


class BodyEnd:
    """The end of a request's body."""


#: The only instance of `BodyEnd`.
END = BodyEnd()


class Requests:
    """The side of a connection that faces the job; *most* are the bytes of one request's body."""

    def __init__(self, scheme: str = "http", most: int = 10 << 20) -> None:
        self._scheme, self._most = scheme, most
        self._waiting = bytearray()
        self._looked = 0
        self._http: h11.Connection | None = None
        self._body = 0
        self._over = False
        self._head_started = False
        self._ended = False
        self.head: Head | None = None

    @property
    def room(self) -> int:
        """The number of bytes that `receive` accepts now; 0 if nothing may be read from the job."""
        held = len(self._waiting) + (len(self._http.trailing_data[0]) if self._http is not None else 0)
        return max(0, MAX_WAITING - held)

    def receive(self, data: bytes) -> None:
        """Take bytes from the job, b"" at its end; HeadError if they are more than `room`, or end within a body."""
        if len(data) > self.room:
            raise HeadError("more bytes than may wait")
        if not data:
            self._ended = True
        if self._http is None or self._over:
            self._waiting += data
        elif data or self._http.their_state is h11.SEND_BODY:
            self._http.receive_data(data)

    def next(self) -> Head | bytes | BodyEnd | None:
        """
        The next event: a head, its body in pieces, END; None while more bytes are needed, or a request isn't answered.

        Raises HeadError if the request is refused. The caller answers by `refuse`, and closes the connection.
        """
        if self._http is None:
            return self._next_head()
        if self._over:
            return None
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise HeadError(fault("request-body"), error.error_status_hint) from None
        if isinstance(event, h11.Data):
            self._body += len(event.data)
            if self._body > self._most:
                raise HeadError(f"request body too large: more than {self._most} bytes", 413)
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self._over = True
            # What follows the request isn't for this connection of h11's.
            self._waiting += self._http.trailing_data[0]
            return END
        return None

    def send(self, event: h11.Event) -> bytes:
        """The bytes to send to the job for *event* of a response; ResponseError if that breaks the protocol."""
        if self._http is None:
            raise ResponseError("a response to no request")
        try:
            return self._http.send(event) or b""
        except h11.LocalProtocolError:
            raise ResponseError(fault("response-passed")) from None

    def refuse(self, status: int, text: str) -> bytes:
        """A whole response of the broker's own, after which the connection is closed; b"" if one has begun already."""
        if self._http is not None and self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return b""
        body = text.encode("ascii", "backslashreplace")[:2000] + b"\n"
        reason = _REASONS.get(status, b"NotAllowed")
        return (b"HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
                b"X-Leeward: refused\r\nConnection: close\r\n\r\n" % (status, reason, len(body))
                + (b"" if self.head is not None and self.head.method == "HEAD" else body))

    @property
    def is_done(self) -> bool:
        return (self._http is not None and self._over and self.head is not None and self.head.keeps
                and self._http.our_state is h11.DONE)

    def renew(self) -> None:
        self._http, self.head, self._over, self._head_started, self._body, self._looked = None, None, False, False, 0, 0

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun, so that the connection can end without loss."""
        return self._http is None and not self._waiting

    def rest(self) -> bytes:
        """The bytes after the head, held no longer: another protocol follows, after CONNECT or 101."""
        rest = bytes(self._waiting)
        if self._http is not None and not self._over:
            rest += self._http.trailing_data[0]
        self._waiting.clear()
        return rest

    def _next_head(self) -> Head | None:
        if not self._head_started and bytes(self._waiting[:2]) not in (b"", b"\r"):
            self._head_started = True
            if self._waiting.startswith(b"\r\n"):
                del self._waiting[:2]  # RFC 9112 2.2: one empty line before a request is let pass
        end = find_end(self._waiting, self._looked)
        if not end:
            self._looked = len(self._waiting) if self._head_started else 0
            if self._ended and self._waiting:
                raise HeadError("the connection ended within a head")
            return None
        raw = bytes(self._waiting[:end])
        head = parse_head(raw, self._scheme)
        if head.length is not None and head.length > self._most:
            self.head = head
            raise HeadError(f"request body too large: {head.length} bytes, {self._most} are the most", 413)
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            http.receive_data(raw)
            if not isinstance(http.next_event(), h11.Request):
                raise HeadError("no request")
        except h11.RemoteProtocolError as error:
            raise HeadError(fault("request-head"), error.error_status_hint) from None
        rest = bytes(self._waiting[end:])
        self._waiting.clear()
        self._http, self.head = http, head
        if head.form == "authority":
            http.next_event()  # the end of the request, from which on h11 knows that another protocol may follow
            self._over = True
            self._waiting += rest
        elif rest:
            http.receive_data(rest)
        return head


class Responses:
    """The side of a connection that faces the host, for one request; *most* are the bytes of its body, 0 for no bound."""

    def __init__(self, most: int = 0) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._most, self._body, self._ended = most, 0, False

    def request(self, head: Head) -> bytes:
        """The bytes of a request's head, with the values of secrets, for the host; HeadError if h11 refuses it."""
        fields = list(head.fields)
        if head.upgrade:
            fields += [(b"connection", b"upgrade"), (b"upgrade", head.upgrade.encode())]
        elif not head.keeps:
            fields.append((b"connection", b"close"))
        try:
            return self._http.send(h11.Request(method=head.method, target=head.target,
                                               headers=[(b"host", head.authority.encode()), *fields])) or b""
        except h11.LocalProtocolError:
            raise HeadError(fault("request-fields")) from None

    def data(self, piece: bytes) -> bytes:
        """Return the bytes to send to the host for *piece* of the request's body."""
        return self._http.send(h11.Data(data=piece)) or b""

    def end(self) -> bytes:
        """Return the bytes that end the request's body. Trailers aren't passed on."""
        return self._http.send(h11.EndOfMessage()) or b""

    def receive(self, data: bytes) -> None:
        """Take bytes from the host; b"" when the host has closed its side."""
        self._ended = not data
        self._http.receive_data(data)

    def next(self) -> h11.Event | None:
        """The next event; None while more bytes are needed; ResponseError for a broken or too long response."""
        is_head = self._http.their_state is h11.SEND_RESPONSE
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError:
            raise ResponseError(fault("response-cut" if self._ended else "response-head" if is_head
                                      else "response-body")) from None
        if isinstance(event, h11.Data):
            self._body += len(event.data)
            if self._most and self._body > self._most:
                raise ResponseError(f"response body too large: more than {self._most} bytes")
            return h11.Data(data=bytes(event.data))
        if isinstance(event, h11.EndOfMessage):
            return h11.EndOfMessage()  # trailers aren't passed on
        if isinstance(event, (h11.Response, h11.InformationalResponse)):
            return _without_hop(event)
        return None

    @property
    def is_switched(self) -> bool:
        """Whether the host has agreed to another protocol: bytes pass as they are from now on."""
        return self._http.their_state is h11.SWITCHED_PROTOCOL

    @property
    def keeps(self) -> bool:
        """Whether the connection to the host can take another request, with another `Responses`."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self.rest()

    def rest(self) -> bytes:
        return bytes(self._http.trailing_data[0])


def _without_hop(event: h11.Response | h11.InformationalResponse) -> h11.Event:
    """A response's head without the fields between host and broker. The side that faces the job adds its own."""
    kind = type(event)
    fields = [(name, value) for name, value in event.headers if bytes(name) not in
              (b"connection", b"proxy-connection", b"keep-alive", b"proxy-authenticate", b"trailer")]
    if event.status_code == 101:
        fields.append((b"connection", b"upgrade"))
    else:
        fields = [each for each in fields if bytes(each[0]) != b"upgrade"]
    return kind(status_code=event.status_code, headers=fields, reason=event.reason)


_REASONS = {400: b"Bad Request", 403: b"Forbidden", 405: b"Method Not Allowed", 408: b"Request Timeout",
            413: b"Content Too Large", 414: b"URI Too Long", 417: b"Expectation Failed", 429: b"Too Many Requests",
            431: b"Request Header Fields Too Large", 501: b"Not Implemented", 502: b"Bad Gateway",
            504: b"Gateway Timeout", 505: b"HTTP Version Not Supported"}

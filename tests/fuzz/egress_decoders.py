"""
Hostile bytes for what the egress broker decodes: client hellos, first lines, request heads, what hosts give back,
queries, the grammar of policies; for the messages between it and the daemon; and for what is said of a fetch.

Runs in:   as decoders.py, which has these targets among its own.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from math import isfinite

from leeward.base.dataclass import names as names_of
from leeward.egress import dns, hello
from leeward.egress.addresses import parse_url, range_of
from leeward.egress.dns import Messages, NameTable, Query, framed, parse_query, respond
from leeward.egress.exchanges import END, Requests
from leeward.egress.heads import Head, HeadError, parse_head
from leeward.egress.hello import Hello, HelloError, HelloReader
from leeward.egress.masks import LONGEST, MaskedStream, Masks
from leeward.egress.opening import FirstLine
from leeward.egress.policy import CAUSES, VERDICTS, Request, decide
from leeward.egress.short_form import parse_short_form
from leeward.errors import BadRequest, PeerError
from leeward.spec.egress_policy import KEYS, Policy, PolicyError, narrow, parse_policy, policy_map, ports_of
from leeward.spec.egress_rules import compared_path
from leeward.spec.hosts import InvalidHost, parse_host
from leeward.wire import egress_asks, fetches
from leeward.wire import egress_control as control
from leeward.wire.frames import HEADER, decode, encode

#: With which a head can be refused.
STATUSES = {f"error {status}" for status in (400, 405, 413, 414, 417, 431, 501, 505)}

Seeds = list[tuple[bytes, list[tuple[int, int]]]]


def words(data: bytes, parts: bytes) -> list[tuple[int, int]]:
    """Where the words of a text are that these bytes part."""
    places, start = [], 0
    for at, byte in enumerate(data):
        if byte in parts:
            places.append((start, at))
            start = at + 1
    return [*places, (start, len(data))]


class Cut:
    """Cuts inputs at places that depend on a seed."""

    def __init__(self) -> None:
        self._source = random.Random(0)

    def __call__(self, data: bytes) -> list[bytes]:
        step = 1 + int(self._source.random() * 40)
        return [data[at:at + step] for at in range(0, len(data), step)]


class ClientHello:
    """What a TLS client sends first: the same whatever way it is cut, and nothing kept beyond the bounds."""

    tokens = (b"\0\0", b"\xff\xff", b"\x40\x00", b"\x16\x03\x01", b"\x16\x03\x01\0\1\1", b"\x01\x00\x40\x00",
              b"\xfe\x0d\0\0",
              b"\0\x10", b"\0\0\0\x06\0\x04\0\0\1a", b"example.org", b"127.0.0.1", b"\x7f", b"\x01", b"", b"\0" * 32)

    def __init__(self) -> None:
        self._cut = Cut()

    def seeds(self) -> Seeds:
        from kit.hellos import block, of_openssl, records, server_name
        from kit.hellos import hello as made

        alpn = b"\0\x10" + block(block(block(b"h2", 1) + block(b"http/1.1", 1), 2), 2)
        message = made(server_name(b"example.org"), alpn, b"\xfe\x0d\0\x04abcd")
        all_of = [of_openssl("example.org", "h2"), records(message), records(message, 1, 2, 40), records(made())]
        return [(data, [(at, at + size) for at in range(0, len(data) - 4, 3) for size in (1, 2, 4)]) for data in all_of]

    def feed(self, data: bytes) -> bool:
        whole = self._read([data])
        assert whole == self._read(self._cut(data))
        if isinstance(whole, Hello):
            assert not whole.name or parse_host(whole.name).name == whole.name
            assert all(whole.protocols)
        return isinstance(whole, Hello)

    @staticmethod
    def _read(pieces: Iterable[bytes]) -> Hello | str | None:
        reader = HelloReader()
        for piece in pieces:
            try:
                found = reader.feed(piece)
            except HelloError as error:
                return str(error)
            if found is not None:
                return found
            assert len(reader._message) <= 2 * hello.MAX_HELLO
        return None


class Heads:
    """What a job sends to a web server: the same requests whatever way they are cut, each with its head checked."""

    tokens = (b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b"\r\n ", b"Host: example.org\r\n",
              b"Host: a\r\n",
              b"Content-Length: 3\r\n", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n",
              b"3\r\nabc\r\n",
              b"HTTP/1.0", b"HTTP/1.1", b"http://example.org/", b"http://other.org/", b"CONNECT", b"*", b"\xff",
              b"\x0b",
              b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100-continue\r\n",
              b"",
              b"[::1]", b"2130706433", b"%", b"#", b"@", b"ffffffffffffffff", b";x=y")
    texts = (b"GET /a?b HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n",
             (b"POST http://example.org/ HTTP/1.1\r\nHost: example.org:80\r\nContent-Length: 3\r\n\r\nabc"
              b"GET /b HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"),
             (b"PUT / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n"
              b"\r\nHEAD / HTTP/1.0\r\nHost: b\r\n\r\n"),
             b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n\x16\x03",
             b"OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n")

    def __init__(self) -> None:
        self._cut = Cut()

    def seeds(self) -> Seeds:
        return [(text, words(text, b" :\n")) for text in self.texts]

    def feed(self, data: bytes) -> bool:
        whole = self._read([data])
        pieces = self._read(self._cut(data))
        assert whole == pieces, (whole, pieces)
        return bool(whole) and not whole[-1].startswith("error")

    @staticmethod
    def _read(pieces: Iterable[bytes]) -> list[str]:
        """What came of each request, an error at the end."""
        from h11 import EndOfMessage, Response

        requests, found, body = Requests(most=64), [], b""
        try:
            for piece in pieces:
                requests.receive(piece)
                while (event := requests.next()) is not None:
                    if isinstance(event, Head):
                        Heads._look(event)
                        found.append(f"{event.method} {event.target} {event.authority} {event.fields}")
                        body = b""
                    elif event is END:
                        found.append(f"end {body!r}")
                        requests.send(Response(status_code=204, headers=[]))
                        requests.send(EndOfMessage())
                        if not requests.is_done:
                            return found
                        requests.renew()
                    else:
                        body += bytes(event)  # type: ignore[arg-type]
                        assert len(body) <= 64
        except HeadError as error:
            found.append(f"error {error.status}")
        assert not found or found[-1] in STATUSES or not found[-1].startswith("error")
        return found

    @staticmethod
    def _look(head: Head) -> None:
        """Nothing in a head can be read as the end of a line, or as another host."""
        assert head.form in ("origin", "absolute", "authority", "asterisk")
        assert parse_host(head.host.text) == head.host
        assert 0 < head.port < 65536
        for name, value in head.fields:
            assert name not in (b"host", b"connection", b"upgrade")
            assert not set(b"\r\n\0") & {*name, *value}
        assert not set("\r\n\0 ") & set(head.target)


class Queries:
    """What a job asks its name server, by UDP and by TCP."""

    tokens = (b"\0", b"\xc0\x0c", b"\x3f", b"\x40", b"\0\x29", b"\0\1", b"\0\x1c", b"\0\xff", b"\xff\xff",
              b"\x07example\x03org\0",
              b"\x03127\x010\x010\x011\0", b"", b"\x80", b"\0\0\x29\x10\0\0\0\0\0\0\0", b"\x01.")

    def __init__(self) -> None:
        self._cut = Cut()
        self._table = NameTable(b"fuzz", 64)

    def seeds(self) -> Seeds:
        head = b"\0\7\1\0\0\1\0\0\0\0\0"
        name = b"\x07example\x03org\0"
        messages = (head + b"\0" + name + b"\0\1\0\1",
                    head + b"\1" + name + b"\0\x1c\0\1" + b"\0\0\x29\x10\0\0\0\0\0\0\0",
                    head + b"\0" + b"\x01a" + name + b"\0\x41\0\1", head + b"\0" + b"\0" + b"\0\2\0\1")
        return [(data, [(at, at + size) for at in range(len(data) - 2) for size in (1, 2)]) for data in messages]

    def feed(self, data: bytes) -> bool:
        self._stream(framed(data[:4000]) + data[:40])
        try:
            query = parse_query(data)
        except PeerError:
            return False
        assert isinstance(query, Query)
        assert not query.name or parse_host(query.name).name == query.name
        reply = respond(query, self._table, lambda name: name.endswith("org"))
        assert reply[:2] == data[:2]
        assert reply[2] & 0x80
        assert len(reply) <= 600
        assert len(self._table) <= 64
        if reply[7]:
            assert query.name.endswith("org")
            packed = reply[-27:-11] if query.extended else reply[-16:]
            address = ip_address(packed if query.kind == dns.AAAA else packed[-4:])
            assert self._table.name(address) == query.name
        return True

    def _stream(self, data: bytes) -> None:
        found = []
        for pieces in ([data], self._cut(data)):
            messages, read = Messages(), []
            try:
                for piece in pieces:
                    read += list(messages.feed(piece))
                    assert len(messages._held) <= dns.MAX_QUERY + 1
            except PeerError as error:
                read.append(str(error).encode())
            found.append(read)
        assert found[0][-1:] == found[1][-1:]


class Policies:
    """What a client's policy may be, a URL and a path: the grammar, a line each of a text."""

    tokens = (b"*", b"*.", b".", b"..", b":", b"/", b"//", b"://", b"@", b"[", b"]", b"%", b"%2e", b"%2f", b" ", b",",
              b"GET ", b"?",
              b"https://", b"http://", b"0x7f.1", b"2130706433", b"::ffff:127.0.0.1", b"169.254.169.254", b"/8",
              b"/0", b":0",
              b":65536", b"xn--", b"\xc3\x9f", b"\xef\xbc\x91", b"\xe3\x80\x82", b"\xff", b"\0", b"fe80::1%eth0",
              b"a" * 64, b"\n", b"")
    texts = (b"example.org\n*.example.org:8443\n10.1.0.0/16:5432\nGET https://api.example.org/v1/*",
             b"*\n*.datadoghq.com\n[2001:db8::1]:443\n2001:db8::/32", b"get,POST http://b\xc3\xbccher.example/\n127.0.0.1\nx:22",
             b"169.254.0.0/16\n0.0.0.0/0\n*:22\n::1")
    requests = tuple(Request(name, None if address is None else ip_address(address), port, protocol, method, "/v1/x")
                     for name in ("example.org", "a.example.org", "") for address in (None, "1.1.1.1", "127.0.0.1")
                     for port, protocol, method in ((443, "tls", ""), (80, "http", "GET"), (22, "tcp", ""), (0, "dns",
                                                                                                             "")))
    operator = parse_policy({"allow": ["*.example.org", "10.0.0.0/8"], "addresses": ["10.0.0.0/8"]})

    def seeds(self) -> Seeds:
        return [(text, words(text, b" :/\n.")) for text in self.texts]

    def feed(self, data: bytes) -> bool:
        text = data.decode("utf-8", "surrogateescape")
        lines = text.split("\n")
        for line in lines[:2]:
            self._one(line)
        policy: Policy | None = None
        refusal: PolicyError | None = None
        try:
            policy = parse_policy({"allow": lines[:3], "deny": lines[3:4], "ask": lines[4:]})
        except PolicyError as error:
            refusal = error
        if policy is None:
            assert refusal is not None
            assert refusal.place
            assert refusal.reason
            return False
        assert parse_policy(policy_map(policy)) == policy
        assert all(0 < port < 65536 for port in ports_of(policy))
        self._decide(policy, self.requests[len(data) % len(self.requests)])
        return True

    def _decide(self, policy: Policy, request: Request) -> None:
        decision, narrowed = decide(policy, request), decide(narrow(self.operator, policy), request)
        assert decision.verdict in VERDICTS
        assert (decision.verdict == "deny") == (decision.cause in CAUSES)
        assert VERDICTS.index(narrowed.verdict) >= VERDICTS.index(decision.verdict)
        if decision.verdict == "allow" and request.port and request.address is not None and range_of(request.address):
            assert any(rule.network is not None for rule in policy.allow)

    @staticmethod
    def _one(line: str) -> None:
        try:
            host = parse_host(line)
            assert parse_host(host.text) == host
        except InvalidHost:
            pass
        try:
            url = parse_url(line)
            assert url.scheme not in ("http", "https") or parse_url(url.text).text == url.text
        except InvalidHost:
            pass
        path = compared_path(line)
        assert path is None or compared_path(path) == path


class Controls:
    """
    Messages between the daemon and the broker: of the fields' types and within their bounds, and what is taken can be
    sent again.
    """

    tokens = (*(bytes([tag]) for tag in range(len(control._KINDS))), b"\x93", b"\xcf" + b"\xff" * 8,
              b"\xcb\x7f\xf0" + bytes(6), b"\xc0",
              b"\xdc\x00\x41", b"\x80", b"\xa0", b"\xc4\x00", b"\xff", b"\xd9\xff", *(text.encode() for text in
                                                                                   control.VERDICTS))
    starts = tuple(control.encode(message) for message in (
        control.Begin([1, 2], b"\0" * 16, [3, 4], ["/etc/hosts", "/usr"]), control.Begin([], b"", [], []),
        control.Stand(1, [53, 80, 443], 2), control.Leased(1, 2, b"k" * 16, {"allow": ["a.example:443"], "deny": []}),
        control.Leased(1, 3, b"k" * 16, {"allow": ["*"]}, 4, {"allow": ["a.example"], "methods": ["GET"]}),
        control.Over(3), control.Gone((1 << 63) - 1), control.Unfetch(1, 9),
        control.FetchOrder(1, 9, {"url": "https://a.example/", "method": "GET", "headers": [["a", "b"]]}),
        control.Listening(1), control.Unask(3), control.AskAnswer(3, 0, "Blocked by rule"),
        control.Ask(7, 3, {"name": "a.example", "port": 443}),
        control.FetchAnswer(9, {"failed": "dns", "message": "no", "url": "", "sent": False}),
        control.Decided(0.5, 7, 1, "a.example", "198.18.0.1", 443, "allowed", "a.example", "", 10, 20),
        control.Decided(1e9, 7, 2, "", "", 0, "denied", "", "no rule", 0, 0)))

    def seeds(self) -> Seeds:
        return [(data, [(0, 1), (1, 2), (2, len(data))]) for data in self.starts]

    def feed(self, data: bytes) -> bool:
        try:
            message = control.decode(data)
        except PeerError:
            return False
        values = {name: getattr(message, name) for name in names_of(type(message))}
        for name, value in values.items():
            assert type(value).__name__ == str(type(message).__annotations__[name]).partition("[")[0]
            assert type(value) is not int or 0 <= value < 1 << 63
            assert type(value) is not str or (len(value) <= control.MAX_TEXT and value.isprintable())
            assert type(value) is not float or isfinite(value)
            assert type(value) is not list or len(value) <= 64
        assert not isinstance(message, control.Decided) or message.verdict in control.VERDICTS
        again = control.decode(control.encode(message))
        assert type(again) is type(message)
        assert repr({name: getattr(again, name) for name in values}) == repr(values)  # some have no repr of their own
        return True


class Fetches:
    """
    What a client asks of `fetch`: its policy in both forms, and headers; and what the broker answers, or asks a person
    in its turn. One map has all.
    """

    tokens = (*(bytes([tag]) for tag in (0x80, 0x90, 0xa0, 0xc0, 0xc2, 0xc3, 0xff, 0x7f)), b"\xcf" + b"\xff" * 8,
              b"\xcb\x7f\xf0" + bytes(6), b"\xa1*", b"\xa3-1s", b"\xa410MB", b"\xa51e400", b"\xa2\xd9\xa1",
              b"\xc4\x01x",
              *(encode({key: 1})[HEADER + 1:-1] for key in KEYS))
    starts = tuple(encode(each)[HEADER:] for each in (
        {"allowed_domains": ["a.example", "*.b.example"], "blocked_domains": [], "deny_private_ips": False,
         "allowed_methods": ["GET"], "allowed_schemes": ["https"], "max_request_body": "1M", "connect_timeout": "5s",
         "max_redirects": 3, "max_requests_per_minute": 60},
        {"allow": ["*", "GET https://a.example/v1/*"], "deny": ["*.x.example"], "ask": [], "ports": [80, 443],
         "addresses": ["10.0.0.0/8"], "limits": {"connections": 5, "response": "50M", "total": "30s"}},
        {"status": 200, "headers": [["a", "b"], ["a", "c"]], "history": ["http://a.example/"], "url": "u",
         "address": ""},
        {"failed": "dns", "message": "no", "url": "", "sent": False},
        {"name": "a.example", "address": "", "port": 80, "protocol": "http", "method": "GET", "path": "/", "rule": "*",
         "seconds": 300.0}))

    def seeds(self) -> Seeds:
        return [(data, [(at, at + size) for at in range(len(data) - 4) for size in (1, 4)]) for data in self.starts]

    def feed(self, data: bytes) -> bool:
        try:
            table = decode(data)
        except PeerError:
            return False
        taken = False
        for read in (parse_policy, parse_short_form):
            reason = "too large"
            try:
                policy = read(fetches.policy(table, "policy"))
                assert parse_policy(policy_map(policy)) == policy
                taken = True
            except PolicyError as error:
                reason = error.reason
            except BadRequest:
                pass
            assert reason
        try:
            answer = fetches.check_answer(table)
            assert "failed" in answer or 100 <= answer["status"] <= 999
            taken = True
        except PeerError:
            pass
        try:
            ask = egress_asks.check_ask(table)
            assert ask == egress_asks.check_ask(ask)
            assert all(each.isprintable() for each in ask.values() if isinstance(each, str))
            taken = True
        except PeerError:
            pass
        for check, key in ((egress_asks.message, "message"), (fetches.headers, "headers"), (fetches.url, "url"),
                           (fetches.body, "body")):
            try:
                check(table.get(key), key)
            except BadRequest:
                pass
        return taken


class FirstLines:
    """The first line of a connection: the same whatever way it is cut, little of it kept, and each request recognised."""

    tokens = (b"\r\n", b"\n", b" ", b"\t", b"HTTP/1.1", b" HTTP/", b"GET ", b"PRI * HTTP/2.0", b"://", b"http://a", b"PROXY ",
              b"\0", b"\xff", b"x" * 70, b"/", b"")

    def __init__(self) -> None:
        self._cut = Cut()

    def seeds(self) -> Seeds:
        texts = (b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n get http://a.org/\r\n",
                 b"SSH-2.0-x\r\n", b"EHLO a.org\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n")
        return [(text, words(text, b" :\n/")) for text in texts]

    def feed(self, data: bytes) -> bool:
        whole = self._read([data])
        assert whole == self._read(self._cut(data)) == self._read([data[at:at + 1] for at in range(len(data))])
        try:
            Heads._look(parse_head(data[:data.index(b"\r\n\r\n") + 4]))
        except (HeadError, ValueError):
            return whole is True
        assert whole
        return True

    @staticmethod
    def _read(pieces: Iterable[bytes]) -> bool | None:
        line = FirstLine()
        for piece in pieces:
            found = line.feed(piece)
            assert len(line._target) + len(line._last) <= 45
            if found is not None:
                return found
        return None


class Masked:
    """What a host gives back: the same whatever way it is cut, without the value, and nothing kept without bound."""

    value, placeholder = b"a=&%\\b3D", b"leeward-x"
    tokens = (b"a=&%\\b3D", b"%61", b"=61", b"\\u0061", b"\\x3d", b"&#61", b"&#x3D;", b"&amp;", b"&equals;", b"&percnt;",
              b"\\\\", b"=\r\n", b"\\n", b"\n", b"%25", b"&#0000000", b"&", b"=", b"%", b"\\", b"YT0m",
              base64.b64encode(value), b"a=&%", b"")

    def __init__(self) -> None:
        self._cut = Cut()
        self._masks = Masks([self.value])
        self._instead = self._masks.instead([self.placeholder])

    def seeds(self) -> Seeds:
        texts = (self.value, b"%61&#61;\\u0026%25\\\\b3D", b"<" + base64.b64encode(b"u:" + self.value) + b">",
                 b"a=3D&amp;%\\x5cb\r\n3D", b"&#097&#x3d&&percnt;&bsol;b=33=\r\nD")
        return [(text, [(at, at + 1) for at in range(len(text))]) for text in texts]

    def feed(self, data: bytes) -> bool:
        whole = self._read([data])
        assert whole == self._read(self._cut(data))
        assert self.value not in whole
        return whole != data

    def _read(self, pieces: Iterable[bytes]) -> bytes:
        stream, said = MaskedStream(self._masks, self._instead), b""
        for piece in pieces:
            said += stream.feed(piece)
            assert len(stream._data) <= (LONGEST + 4) * 2 * len(self.value)
        return said + stream.end()


TARGETS: dict[str, Callable[[], ClientHello | Heads | Queries | Policies | Controls | Fetches | FirstLines | Masked]] = {
    "client hello": ClientHello, "first lines": FirstLines, "request heads": Heads, "masked streams": Masked,
    "queries": Queries, "policies": Policies,
    "egress control": Controls, "fetches": Fetches}

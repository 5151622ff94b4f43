"""
Hostile bytes for what the page, REST and WebSocket of approvals decode: bodies and messages, forms, heads.

Runs in:   as decoders.py, which has these targets among its own; needs the extra `web`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Seeds = list[tuple[bytes, list[tuple[int, int]]]]


def pieces(data: bytes, parts: bytes) -> list[tuple[int, int]]:
    """Where the pieces of a text are that these bytes part."""
    cuts = [at for at, byte in enumerate(data) if byte in parts]
    return [(start + 1, end) for start, end in zip([-1, *cuts], [*cuts, len(data)], strict=True)]


class Bodies:
    """A body and a message are an object or one error; what a route takes of them has its type."""

    tokens = (b"null", b"true", b"0", b"-1", b"1e999", b"NaN", b"9007199254740993", b"1.5", b'""', b'"allow"', b"{}",
              b"[]", b"[1]", b'"\\ud800"', b'"\\u0000"', b'"\xff"', b"[" * 500, b'{"a":' * 300, b"\xef\xbb\xbf",
              b"", b'"id"',
              b"}")
    texts = (b'{"type": "approve", "id": 7, "always": true, "csrf": "abc"}',
             b'{"approved": true, "ids": [1, 2, 3], "category": "git", "upto": 12}',
             b'{"category": "filesystem", "action": "write", "path": "a/b", "content": "x\\n", "reason": "because"}')

    def __init__(self) -> None:
        from leeward.apps.approvals.web import bodies, websocket
        from leeward.apps.approvals.web import routes as fields
        from leeward.apps.approvals.web.application import ROUTES
        from leeward.apps.approvals.web.problems import WebProblem

        self._bodies, self._message, self._problem = bodies, websocket.message_fields, WebProblem
        self._routes = ROUTES
        self._checks = ((fields.text(), str), (fields.number(), (int, float)), (fields.whole(), int),
                        (fields.SWITCH, bool), (fields.COMMAND, (str, list)), (fields.PROJECT, str),
                        (fields.OBJECT, dict), (fields.CATEGORY, str))

    def seeds(self) -> Seeds:
        return [(text, pieces(text, b'{}[],: "')) for text in self.texts]

    def feed(self, data: bytes) -> bool:
        try:
            found = self._bodies.json_fields(data)
        except self._problem as problem:
            if 400 != problem.status:
                raise
            return False
        assert isinstance(found, dict)
        try:
            assert found == self._message(data.decode())
        except self._problem:
            assert len(data) > 65536
        for name, value in found.items():
            for check, kind in self._checks:
                read = self._or_none(lambda check=check, name=name, value=value: check.read(value, name))
                assert read is None or isinstance(read, kind), (kind, read)
        for route in self._routes:
            for by_sandbox in (False, True):
                values = self._or_none(lambda route=route, by_sandbox=by_sandbox: route.values(found, by_sandbox))
                assert values is None or set(values) <= set(route.fields)
        return True

    def _or_none(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._problem as problem:
            if 400 != problem.status:
                raise
            return None


class Forms:
    """A form of a page is fields, or one error."""

    tokens = (b"&", b"=", b"%", b"%00", b"%ff", b"%u0041", b"+", b";", b"&" * 2000, b"csrf", b"a=1&" * 1500,
              b"\xff", b"",
              b"\0")

    def __init__(self) -> None:
        from leeward.apps.approvals.web.bodies import form_fields
        from leeward.apps.approvals.web.problems import WebProblem

        self._read, self._problem = form_fields, WebProblem

    def seeds(self) -> Seeds:
        texts = (b"csrf=abc&answer=approve&hunk-0=1&hunk-12=1",
                 b"csrf=abc&rule=network%28*.example.org%29&effect=allow")
        return [(text, pieces(text, b"&=%")) for text in texts]

    def feed(self, data: bytes) -> bool:
        try:
            found = self._read(data)
        except self._problem as problem:
            if 400 != problem.status:
                raise
            return False
        assert all(isinstance(each, str) for pair in found.items() for each in pair)
        for text in (text for pair in found.items() for text in pair):
            text.encode()
        return True


class WebHeads:
    """The head of a call by TCP: nobody gets a credential but by the session's cookie, on a page of ours, or a token."""

    tokens = (b"host", b"127.0.0.1:3700", b"localhost:3700", b"cookie", b"leeward_3700=", b"origin",
              b"http://127.0.0.1:3700", b"null", b"authorization", b"Bearer ", b"bearer\t", b"sec-fetch-site",
              b"same-origin", b"cross-site", b"\xff",
              b"", b";", b"=", b",", b"\0", b"x" * 300, b"x" * 20000, b'"', b"POST", b"GET", b"WS")

    def __init__(self) -> None:
        from leeward.apps.approvals.web.gate import SCOPE_KEY, PageAccess, WebGate

        access = PageAccess()
        self._key, self._cookie = SCOPE_KEY, (access.log_in(access.login_token()) or "").encode()
        self._token = access.program_token().encode()
        self._admitted: list[dict[str, Any]] = []

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            self._admitted.append(scope)

        self._gate = WebGate(app, access)  # type: ignore[arg-type]
        self._statuses: list[int] = []

    def seeds(self) -> Seeds:
        own = b"POST\nhost\n127.0.0.1:3700\norigin\nhttp://127.0.0.1:3700\n"
        texts = (own + b"cookie\nleeward_3700=" + self._cookie + b"\nsec-fetch-site\nsame-origin",
                 own + b"authorization\nBearer " + self._token,
                 b"WS\nhost\nlocalhost:3700\norigin\nhttp://localhost:3700\ncookie\na=b; leeward_3700=" + self._cookie)
        return [(text, pieces(text, b"\n=: ;")) for text in texts]

    def feed(self, data: bytes) -> bool:
        method, *lines = data.split(b"\n")
        headers = [(name.lower(), value) for name, value in zip(lines[::2], lines[1::2], strict=False)]
        kind = "websocket" if b"WS" == method else "http"
        scope = {"type": kind, "method": method.decode("latin-1"), "path": "/", "query_string": b"", "headers": headers,
                 "server": ("127.0.0.1", 3700), "client": ("127.0.0.1", 5)}
        self._admitted.clear()
        self._statuses.clear()
        call = self._gate(scope, self._receive, self._send)
        try:
            call.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waits")
        assert len(self._admitted) + len(self._statuses) == 1
        if not self._admitted or self._key not in self._admitted[0]:
            assert not self._statuses or self._statuses[0] in (403, 431, 1008)
            return False
        given = dict(headers)
        assert given[b"host"].split(b":")[0].lower() in (b"127.0.0.1", b"localhost")
        if self._token in given.get(b"authorization", b""):
            return True
        assert any(self._cookie in value for name, value in headers if b"cookie" == name)
        if method not in (b"GET", b"HEAD", b"OPTIONS"):
            assert b"http://" + given[b"host"].lower() == given[b"origin"].lower()
        return True

    async def _receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] in ("http.response.start", "websocket.close"):
            self._statuses.append(message.get("status") or message["code"])


class Frames:
    """What a sandbox's bridge writes: requests, the same whatever way it is cut, or one error."""

    tokens = (b"\0\0\0\0", b"\0\0\0\x01", b"\xff\xff\xff\xff", b"\0\x40\0\0", b"[", b"]", b"{}", b"null", b"0",
              b"-1", b"1.5", b"9007199254740993", b"1e999", b'"GET"', b'"get"', b'"/"', b'"x"', b'"/\\n"', b'"\\ud800"',
              b"\xff", b"[" * 300, b"9" * 5000)

    def __init__(self) -> None:
        from leeward.apps.approvals.bridge.bridge import BridgeFrames, BridgeRequest
        from leeward.errors import PeerError

        self._reader, self._kind, self._error = BridgeFrames, BridgeRequest, PeerError

    def seeds(self) -> Seeds:
        import json

        rows = ([1, "GET", "/api/status", None], [2, "POST", "/api/requests", {"category": "network", "host": "a"}],
                [1 << 50, "DELETE", "/api/rules?x=%20", {"rule": "exec(ls)"}])
        frames = [len(data).to_bytes(4, "big") + data for data in (json.dumps(row).encode() for row in rows)]
        whole = b"".join(frames)
        return [(data, [(0, 4), *pieces(data, b"[],: ")]) for data in (*frames, whole)]

    def _read(self, parts: list[bytes]) -> tuple[list[Any], bool]:
        reader, found = self._reader(), list[Any]()
        try:
            for part in parts:
                found += reader.feed(part)
        except self._error:
            return found, False
        return found, True

    def feed(self, data: bytes) -> bool:
        found, is_whole = self._read([data])
        assert self._read([data[at:at + 7] for at in range(0, len(data), 7)])[1] == is_whole
        for request in found:
            assert isinstance(request, self._kind)
            assert 0 < request.number < 1 << 53
            assert request.method in ("GET", "POST", "PUT", "DELETE")
            assert request.path.isascii()
            assert request.path.startswith("/")
        return is_whole and bool(found)


TARGETS: dict[str, Callable[[], Bodies | Forms | WebHeads | Frames]] = {
    "web bodies": Bodies, "web forms": Forms, "web heads": WebHeads, "bridge frames": Frames}

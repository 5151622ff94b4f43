"""The names by which the server is reached, and where it may listen."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("extra-serve")


def answer(headers, path="/", names=("lw.example:7443", "192.0.2.1", "FD00::1", "::")):
    """The status that the gate answers; 200 if it lets a request pass."""
    import asyncio

    from leeward.apps.serve.gate import HostGate

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        raise AssertionError

    sent = []

    async def send(message):
        sent.append(message.get("status"))

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(name.encode(), value.encode()) for name, value in headers]}
    asyncio.run(HostGate(app, names, ["https://page.example"])(scope, receive, send))
    return sent[0]


@pytest.mark.parametrize(("status", "hosts"), [
    (200, ["localhost", "localhost:1", "127.0.0.1:8080", "[::1]:80", "3000-abc.localhost:8", "lw.example", "LW.example:443",
           "49983-abc.lw.example", "192.0.2.1", "lw.example.", "[fd00::1]:80"]),
    (421, ["", "evil.example", "localhost.evil.example", "xlocalhost", "a.127.0.0.1", "a.192.0.2.1", "[::1]x", "192.0.2.2",
           "localhost:80@evil.example", "localhost:x", "localhost:1/x", "localhost:1:2", "localhost#x", "x@localhost",
           "[::1]:x"])])
def test_only_its_own_names_are_taken(status, hosts):
    for host in hosts:
        assert status == answer([("host", host)]), host


def test_a_request_has_one_host():
    assert 421 == answer([])
    assert 421 == answer([("host", "localhost"), ("host", "localhost")])


def test_only_pages_that_were_named_may_call():
    assert 200 == answer([("host", "localhost"), ("origin", "https://page.example")])
    for origin in ("null", "http://localhost", "https://page.example.evil", ""):
        assert 403 == answer([("host", "localhost"), ("origin", origin)])


def test_heads_and_addresses_are_bounded():
    assert 431 == answer([("host", "localhost"), ("x", "y" * 20_000)])
    assert 414 == answer([("host", "localhost")], "/" + "x" * 9000)


@pytest.mark.parametrize(("options", "says"), [
    ({"faces": ()}, "faces are"), ({"faces": ("x",)}, "faces are"), ({"listen": "x"}, "--listen takes"),
    ({"listen": "1.2.3.4:x"}, "--listen takes"), ({"listen": "1.2.3.4:99999"}, "--listen takes"),
    ({"listen": "0.0.0.0:1"}, "readable on the way"), ({"listen": "[::]:1"}, "readable on the way"),
    ({"listen": "0.0.0.0:1", "tls_cert": "a"}, "need each other"),
    ({"is_open": True, "listen": "0.0.0.0:1"}, "--open is for"),
    ({"is_open": True, "listen": "0.0.0.0:1", "tls_cert": "a", "tls_key": "b"}, "--open is for"),
    ({"faces": ("leeward",), "nodes": ["unix:/a"]}, "it is for one daemon"),
    ({"socket": "https://lw.example"}, "is on its machine"), ({}, "there is no token")])
def test_what_would_be_unsafe_is_refused(tmp_path, options, says):
    from leeward.apps.serve.door import DoorOptions
    from leeward.apps.serve.serving import DoorCommand, checked
    from leeward.apps.serve.tokens import TokenFile
    from leeward.errors import BadRequest

    door = DoorOptions(options.pop("socket", None), options.pop("is_open", False), nodes=options.pop("nodes", None))
    with pytest.raises(BadRequest, match=says):
        checked(DoorCommand(**{"faces": ("run-code",), **options}, door=door), TokenFile(str(tmp_path / "none")))


def test_what_is_safe_is_taken(tmp_path):
    from leeward.apps.serve.door import DoorOptions
    from leeward.apps.serve.serving import DoorCommand, checked
    from leeward.apps.serve.tokens import TokenFile

    file = TokenFile(str(tmp_path / "tokens"))
    assert ("127.0.0.1", 1) == checked(DoorCommand(("e2b",), "127.0.0.1:1", door=DoorOptions(is_open=True)), file)
    file.create("one")
    assert ("::1", 2) == checked(DoorCommand(("e2b",), "[::1]:2"), file)
    assert ("0.0.0.0", 3) == checked(DoorCommand(("e2b",), "0.0.0.0:3", behind_proxy=True), file)
    assert ("::", 3) == checked(DoorCommand(("e2b",), "[::]:3", tls_cert="a", tls_key="b"), file)

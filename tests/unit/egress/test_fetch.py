"""`fetch` against hosts on loopback, by names of the tests' own resolver."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from kit.egress_hosts import Host, hosting, resolver, trusting
from leeward.egress import dialling
from leeward.egress.fetch import TEXTS, Fetcher, FetchFailure, FetchRequest, FetchResponse
from leeward.egress.tenancy import Tenancy
from leeward.spec.egress_policy import NETWORK, Policy, parse_policy
from leeward.wire.egress_control import Decided

T = TypeVar("T")
LOCAL = {"addresses": ["127.0.0.1"]}
HERE = resolver(example_org="127.0.0.1", other_org="127.0.0.1")


def ok(head: bytes, body: bytes) -> bytes:
    """The request's target and body, as an answer."""
    content = head.split()[1] + b" " + body
    return b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: %d\r\n\r\n%s" % (len(content),
                                                                                                       content)


def redirect(location: str, status: int = 302) -> bytes:
    """An answer that leads elsewhere."""
    return f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nSet-Cookie: s=1\r\nContent-Length: 0\r\n\r\n".encode()


def policy(*ports: int, **more: Any) -> Policy:
    """One that allows example.org on loopback, at these ports."""
    return parse_policy({"allow": ["example.org", "*.example.org"], "ports": list(ports), **LOCAL, **more})


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own."""
    return asyncio.run(coroutine)


def fetcher_of(allowed: Policy, **more: Any) -> Fetcher:
    """One whose sandbox has no other connections."""
    return Fetcher(allowed, Tenancy(1, NETWORK, bytes(32), lambda _: None), **more)


def fetched(url: str, allowed: Policy, resolve: Any = HERE, **more: Any) -> FetchResponse:
    """A fetch to hosts that need not be there."""
    return run(fetcher_of(allowed, resolve=resolve).fetch(FetchRequest(url, **more)))


def refused(url: str, allowed: Policy, resolve: Any = HERE, **more: Any) -> str:
    """The error of one, of which no host has got anything."""
    with pytest.raises(FetchFailure) as caught:
        fetched(url, allowed, resolve, **more)
    assert not caught.value.sent
    assert str(caught.value).startswith(TEXTS[caught.value.cause])
    return str(caught.value)


def test_a_request_and_its_response() -> None:
    """Status, fields of which several have one name, body, URL; the target goes as it was written."""
    async def do() -> tuple[FetchResponse, Host, int]:
        async with hosting(ok) as host:
            fetcher = fetcher_of(policy(host.port), resolve=HERE)
            url = f"http://Example.ORG.:{host.port}/a/../b?c=%7e#d"
            return await fetcher.fetch(FetchRequest(url, "POST", (("X-One", "1"),), b"body")), host, host.port

    found, host, port = run(do())

    assert (found.status, found.body, found.history) == (200, b"/a/../b?c=%7e body", ())
    assert (found.url, found.address) == (f"http://example.org:{port}/a/../b?c=%7e", "127.0.0.1")
    assert [value for name, value in found.fields if name.lower() == "set-cookie"] == ["a=1", "b=2"]
    lines = host.heads[0].lower().split(b"\r\n")
    assert f"host: example.org:{port}".encode() in lines
    assert {b"x-one: 1", b"accept-encoding: identity", b"content-length: 4", b"connection: close"} <= set(lines)
    assert sum(line.startswith(b"host:") for line in lines) == 1


def test_tls_is_verified_by_the_name() -> None:
    """Of the certificate, not by the address that is dialled; another name, or nobody's authority, is an error."""
    async def do() -> tuple[FetchResponse, list[str]]:
        async with hosting(ok, tls=True) as host:
            allowed = parse_policy({"allow": ["example.org", "other.org"], "ports": [host.port], **LOCAL})
            found = await fetcher_of(allowed, resolve=HERE, trust=trusting()).fetch(FetchRequest(f"https://example.org:{host.port}/"))
            errors = []
            for name, trust in (("other.org", trusting()), ("example.org", None)):
                with pytest.raises(FetchFailure) as caught:
                    await fetcher_of(allowed, resolve=HERE, trust=trust).fetch(FetchRequest(f"https://{name}:{host.port}/"))
                errors.append(str(caught.value))
            assert len(host.heads) == 1
            return found, errors

    found, errors = run(do())

    assert found.status == 200
    assert all(error.startswith("HTTP error: ") and "TLS: the host's certificate: " in error for error in errors)


@pytest.mark.parametrize(("url", "table", "text"), [
    ("http://example.org/", {}, "domain not in allowlist: example.org:80"),
    ("http://evilexample.org/", {"allow": ["example.org"]}, "domain not in allowlist: evilexample.org:80"),
    ("http://example.org/", {"allow": ["*"], "deny": ["example.org"]}, "domain is blocked: example.org:80"),
    ("http://example.org/", {"ask": ["*"]}, "domain not in allowlist: example.org, the rule '*' asks"),
    ("http://example.org/", {"allow": ["*"]}, "private IP blocked: example.org leads to 127.0.0.1, loopback"),
    ("http://127.1/", {"allow": ["*"]}, "private IP blocked: 127.0.0.1:80 is loopback"),
    ("http://[::ffff:7f00:1]/", {"allow": ["*"]}, "private IP blocked: 127.0.0.1:80"),
    ("http://169.254.169.254/latest/", {"allow": ["*"], "addresses": ["169.254.0.0/16"]},
     "private IP blocked: 169.254"),
    ("http://example.org:81/", {"allow": ["*"]}, "port not allowed: example.org:81"),
    ("http://example.org/", {"allow": ["*"], "schemes": ["https"]}, "scheme not allowed: http"),
    ("ftp://example.org/", {"allow": ["*"]}, "scheme not allowed: ftp"),
    ("file:///etc/passwd", {"allow": ["*"]}, "scheme not allowed: file"),
    ("http://example.org/", {"allow": ["POST *"]}, "method not allowed: GET"),
    ("http://example.org/x", {"allow": ["http://*/v1/*"]}, "path not allowed: /x"),
    ("http://nowhere.org/", {"allow": ["*"]}, "DNS resolution failed: nowhere.org: Name or service not known"),
    ("http://a@example.org/", {"allow": ["*"]}, "invalid URL: user information"),
    ("http://exa mple.org/", {"allow": ["*"]}, "invalid URL: "), ("example.org", {"allow": ["*"]}, "invalid URL: "),
    ("http://example.org/", {"allow": ["*"], "limits": {"request": 3}}, "request body too large: 4 bytes"),
])
def test_a_malformed_fetch_is_refused(url: str, table: dict[str, Any], text: str) -> None:
    """Before anything is sent; each error begins as documented."""
    allowed = parse_policy(table)
    assert refused(url, allowed, body=b"body" if "request" in text else b"").startswith(text)


@pytest.mark.parametrize(("more", "text"), [
    ({"method": "CONNECT"}, "method not allowed"), ({"method": "GET /x"}, "method not allowed"),
    ({"fields": (("Host", "a"),)}, "HTTP error: the field 'Host' can't be set"),
    ({"fields": (("transfer-encoding", "chunked"),)}, "HTTP error: the field"),
    ({"fields": (("A b", "a"),)}, "HTTP error: the field"), ({"fields": (("A", "b\r\nC: d"),)},
                                                             "HTTP error: the field"),
    ({"fields": (("A", "\u00e9"),)}, "HTTP error: the field"), ({"fields": (("A", "b"),) * 65},
                                                                "HTTP error: 65 fields"),
])
def test_requests_that_are_none(more: dict[str, Any], text: str) -> None:
    """Fields of the connection, and line feeds in values."""
    assert refused("http://example.org/", NETWORK, **more).startswith(text)


def test_the_address_that_was_checked_is_dialled() -> None:
    """The resolver is asked once. A name that leads elsewhere the next time is decided anew, and refused."""
    async def do() -> list[str]:
        async with hosting(ok) as host:
            allowed = parse_policy({"allow": ["example.org"], "ports": [host.port], "addresses": ["127.0.0.2"]})
            turning = fetcher_of(allowed, resolve=resolver(example_org=["127.0.0.1", "127.0.0.2"]))
            said = []
            for _ in range(2):
                try:
                    said.append((await turning.fetch(FetchRequest(f"http://example.org:{host.port}/"))).address)
                except FetchFailure as error:
                    said.append(error.cause)
            assert not host.heads
            return said

    assert run(do()) == ["private", "http"]  # nobody listens at 127.0.0.2: it was dialled, and 127.0.0.1 wasn't


def test_every_address_of_an_answer_is_decided() -> None:
    """Those that are refused aren't dialled, the others are."""
    async def do() -> tuple[FetchResponse, list[str]]:
        rows: list[Decided] = []
        async with hosting(ok) as host:
            allowed = policy(host.port)
            fetcher = Fetcher(allowed, Tenancy(1, allowed, bytes(32), rows.append),
                              resolve=resolver(example_org="10.0.0.1 ::ffff:127.0.0.1 127.0.0.1 ::1"))
            return await fetcher.fetch(FetchRequest(f"http://example.org:{host.port}/")), [
                f"{row.verdict} {row.address}" for row in rows]

    found, rows = run(do())

    assert found.address in ("127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1")
    assert rows == [f"allowed {found.address}", f"closed {found.address}"]


def test_a_sandboxs_own_connections_count() -> None:
    """Beside fetches: both are in the same limit of a minute."""
    async def do() -> str:
        allowed = policy(80, limits={"per_minute": 1})
        tenancy = Tenancy(1, allowed, bytes(32), lambda _: None)
        assert not tenancy.over_rate()
        with pytest.raises(FetchFailure) as caught:
            await Fetcher(allowed, tenancy, resolve=HERE).fetch(FetchRequest("http://example.org/"))
        return str(caught.value)

    assert run(do()) == "rate limit exceeded: 1 in a minute"


@pytest.mark.parametrize(("status", "method", "then", "body"), [
    (301, "POST", b"GET", b""), (302, "POST", b"GET", b""), (303, "PUT", b"GET", b""), (303, "HEAD", b"HEAD", b""),
    (307, "POST", b"POST", b"abc"), (308, "PUT", b"PUT", b"abc"), (302, "PUT", b"PUT", b"abc"),
])
def test_redirects_are_followed(status: int, method: str, then: bytes, body: bytes) -> None:
    """With the method and body that each of them means; credentials stay with their host, and no cookie is kept."""
    def answer(head: bytes, _: bytes) -> bytes:
        if head.split()[1] == b"/a":
            return redirect("../b?c", status)
        return b"HTTP/1.1 204 X\r\n\r\n"

    async def do() -> tuple[FetchResponse, Host]:
        async with hosting(answer) as host:
            request = FetchRequest(f"http://example.org:{host.port}/a", method, (("Authorization", "x"),),
                                   body and b"abc")
            return await fetcher_of(policy(host.port), resolve=HERE).fetch(request), host

    found, host = run(do())

    assert (found.status, found.url[-4:], found.history) == (204, "/b?c", (found.url[:-4] + "/a",))
    assert (host.heads[1].split()[0], host.bodies[1]) == (then, body)
    assert b"authorization: x" in host.heads[1].lower()
    assert b"cookie" not in host.heads[1].lower()


def test_credentials_are_dropped_across_hosts() -> None:
    """Whatever field they are in: another host gets only fields that are known to hold none."""
    async def do() -> Host:
        async with hosting(ok) as second, hosting(lambda *_: redirect(f"http://other.org:{second.port}/")) as first:
            allowed = parse_policy({"allow": ["*"], "ports": [first.port, second.port], **LOCAL})
            await fetcher_of(allowed, resolve=HERE).fetch(FetchRequest(f"http://example.org:{first.port}/", fields=(
                ("Authorization", "secret"), ("Cookie", "secret"), ("X-Api-Key", "secret"), ("Accept", "text/plain"))))
            assert first.heads[0].count(b"secret") == 3
            return second

    second = run(do())
    assert b"secret" not in second.heads[0]
    assert b"text/plain" in second.heads[0]


@pytest.mark.parametrize(("location", "text"), [
    ("http://127.0.0.1:1/", "redirect to private IP: 127.0.0.1:1"), ("http://inside.org/",
                                                                     "redirect to private IP: inside"),
    ("http://[::1]/", "redirect to private IP"), ("//0x7f.1/", "redirect to private IP"),
    ("http://blocked.org/", "domain is blocked: blocked.org:80"), ("https://public.org:444/", "port not allowed"),
    ("ftp://public.org/", "scheme not allowed: ftp"), ("file:///etc/passwd", "scheme not allowed"),
    ("http://a@public.org/", "invalid URL"), ("http://[/", "invalid URL"), ("/a\\b", "invalid URL"),
    ("http://nowhere.org/", "DNS resolution failed"),
])
def test_redirects_are_decided_anew(location: str, text: str) -> None:
    """As a request of their own."""
    async def do() -> str:
        async with hosting(lambda *_: redirect(location)) as host:
            allowed = parse_policy({"allow": [f"example.org:{host.port}", "*", "*:1"], "deny": ["blocked.org"],
                "addresses": ["127.0.0.9"]})
            fetcher = fetcher_of(allowed, resolve=resolver(example_org="127.0.0.1", inside_org="10.0.0.1",
                                                        public_org="1.1.1.1"))
            with pytest.raises(FetchFailure) as caught:
                await fetcher.fetch(FetchRequest(f"http://example.org:{host.port}/"))
            assert str(caught.value).startswith("private IP blocked: ")  # 127.0.0.1 isn't named
            allowed = parse_policy({"allow": [f"example.org:{host.port}", f"127.0.0.1:{host.port}", "*", "*:1"],
                                    "deny": ["blocked.org"]})
            fetcher = fetcher_of(allowed, resolve=resolver(example_org="127.0.0.1", inside_org="10.0.0.1",
                                                        public_org="1.1.1.1"))
            with pytest.raises(FetchFailure) as caught:
                await fetcher.fetch(FetchRequest(f"http://example.org:{host.port}/"))
            return str(caught.value)

    assert run(do()).startswith(text)


def test_redirects_have_a_limit() -> None:
    """As many as the policy says, and one that stays a redirect is an error."""
    async def do(most: int) -> tuple[str, int]:
        async with hosting(lambda *_: redirect("/again")) as host:
            with pytest.raises(FetchFailure) as caught:
                await fetcher_of(policy(host.port, limits={"redirects": most}), resolve=HERE).fetch(
                    FetchRequest(f"http://example.org:{host.port}/"))
            assert caught.value.sent
            return str(caught.value), len(host.heads)

    assert run(do(0)) == ("too many redirects (limit: 0)", 1)
    assert run(do(3)) == ("too many redirects (limit: 3)", 4)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n01234567890", b"HTTP/1.1 200 OK\r\n\r\n01234567890",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n012345\r\n5\r\n67890\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n01234567890",
])
def test_responses_have_a_limit(answer: bytes) -> None:
    """By their length, and as they come."""
    async def do() -> str:
        async with hosting(lambda *_: answer) as host:
            with pytest.raises(FetchFailure) as caught:
                await fetcher_of(policy(host.port, limits={"response": 10}), resolve=HERE).fetch(
                    FetchRequest(f"http://example.org:{host.port}/"))
            return str(caught.value)

    assert run(do()) == "response body too large: more than 10 bytes"


def test_a_compressed_body_stays_compressed() -> None:
    """A bomb is as large as its bytes on the wire."""
    bomb = gzip.compress(b"\0" * (10 << 20))
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb), bomb)

    async def do() -> FetchResponse:
        async with hosting(lambda *_: answer) as host:
            return await fetcher_of(policy(host.port), resolve=HERE).fetch(FetchRequest(f"http://example.org:{host.port}/"))

    assert run(do()).body == bomb


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
                                    b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 40000])
def test_hosts_that_break_the_protocol(answer: bytes) -> None:
    """One error, whatever they send."""
    async def do() -> str:
        async with hosting(lambda *_: answer) as host:
            with pytest.raises(FetchFailure) as caught:
                await fetcher_of(policy(host.port), resolve=HERE).fetch(FetchRequest(f"http://example.org:{host.port}/"))
            assert caught.value.sent
            return caught.value.cause

    assert run(do()) == "http"


def test_rates_have_a_limit() -> None:
    """Of requests in a minute, redirects among them, and at once."""
    now = [0.0]

    async def do() -> list[str]:
        async with hosting(lambda head, body: redirect("/b") if head.split()[1] == b"/a" else ok(head, body)) as host:
            fetcher = fetcher_of(policy(host.port, limits={"per_minute": 3, "connections": 1}), resolve=HERE,
                              clock=lambda: now[0])
            said = []
            for target, passed in (("a", 0.0), ("b", 59.0), ("b", 0.9), ("b", 0.2)):
                now[0] += passed
                try:
                    said.append(str((await fetcher.fetch(FetchRequest(f"http://example.org:{host.port}/{target}"))).status))
                except FetchFailure as error:
                    said.append(str(error))
            now[0] += 100
            both = await asyncio.gather(*(fetcher.fetch(FetchRequest(f"http://example.org:{host.port}/b"))
                                          for _ in range(2)),
                                        return_exceptions=True)
            return [*said, *(str(each) for each in both if isinstance(each, FetchFailure))]

    assert run(do()) == ["200", "200", "rate limit exceeded: 3 requests a minute are the most", "200",
                         "rate limit exceeded: 1 requests at once are the most"]


def test_a_host_that_never_answers() -> None:
    """The time of the whole request is bounded, and its connection closed."""
    async def do() -> str:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            ended.set()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(FetchFailure) as caught:
                await fetcher_of(policy(port, limits={"total": 0.05}), resolve=HERE).fetch(FetchRequest(f"http://example.org:{port}/"))
            await ended.wait()
            assert caught.value.sent
            return str(caught.value)

    assert run(do()).startswith("request timeout: ")


def test_a_connection_that_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is bounded; the next address is tried."""
    async def never(address: object, port: int) -> socket.socket:
        tried.append(str(address))
        await asyncio.Event().wait()
        raise AssertionError

    tried: list[str] = []
    monkeypatch.setattr(dialling, "_connect", never)
    monkeypatch.setattr(dialling, "STAGGER_S", 0.001)
    slow = parse_policy({"allow": ["*"], "limits": {"connect": 0.2}})
    assert refused("http://example.org/", slow, resolver(example_org="1.1.1.1 1.0.0.1")).startswith(
        "connection timeout: example.org, 0.2 s")
    assert tried == ["1.1.1.1", "1.0.0.1"]


def test_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is set for other programs isn't used."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    async def do() -> int:
        async with hosting(ok) as host:
            return (await fetcher_of(policy(host.port), resolve=HERE).fetch(FetchRequest(f"http://example.org:{host.port}/"))).status

    assert run(do()) == 200

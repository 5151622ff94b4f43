"""
`fetch`: one HTTP request by a policy, its redirects followed, for sandboxes without a network.

Runs in:   the broker, on its loop. Needs httpx, of the extra `egress`.
Trust:     neither the job, which chose the request, nor the host that answers, nor the name server between.
Holds:     a name is resolved once for each hop, each of its addresses is decided, and the connection goes to the one
           that was allowed; a redirect is a request of its own. Nothing is kept between hops, and nothing is taken from
           the environment: no cookie, no connection, no proxy, no .netrc.

The body comes as it was sent: `identity` is asked for, and what a host compresses all the same stays so, its
Content-Encoding beside it. So a limit on bytes is one on memory as well.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urljoin

import httpx

from leeward.egress.addresses import Url, parse_url
from leeward.egress.policy import ALLOW, ASK, CAUSES, DENY, Decision, Request, decide
from leeward.errors import LeewardError
from leeward.spec.egress import Policy
from leeward.spec.hosts import Address, InvalidHost, plain

Resolve = Callable[[str], Awaitable[tuple[Address, ...]]]

#: What each error begins with, by its cause; those of a decision among them.
TEXTS = {
    **CAUSES,
    "disabled": "networking disabled: configure fetch_policy to enable",
    "dns": "DNS resolution failed",
    "request": "request body too large",
    "response": "response body too large",
    "redirects": "too many redirects",
    "redirect-private": "redirect to private IP",
    "rate": "rate limit exceeded",
    "connect": "connection timeout",
    "total": "request timeout",
    "url": "invalid URL",
    "http": "HTTP error",
}

#: Addresses of one name that are tried, and characters of a field that a request can have, at most.
_MAX_TRIED, _MAX_FIELD, _MAX_FIELDS = 4, 16384, 64

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")

#: Fields of the connection, which the request is written with.
_OURS = frozenset(("host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te",
                   "trailer", "upgrade", "expect", "proxy-authorization", "http2-settings"))

#: Fields that go along to another host. A credential can be in any other one.
_HARMLESS = frozenset(("accept", "accept-encoding", "accept-language", "cache-control", "content-encoding",
                       "content-language", "content-type", "if-modified-since", "if-none-match", "range", "user-agent"))

_REDIRECTS = frozenset((301, 302, 303, 307, 308))


class FetchFailure(LeewardError):
    """
    No response: the policy refuses it, a limit was hit, or the host can't be reached.

    Attributes:
        cause: a key of TEXTS.
        url: of the hop that failed.
    """

    def __init__(self, cause: str, detail: str = "", url: str = "") -> None:
        self.cause, self.url = cause, url
        text = TEXTS[cause]
        super().__init__(detail if detail.startswith(text) else f"{text}: {detail}" if detail else text)


@dataclass(frozen=True, slots=True)
class Fetch:
    """
    A request.

    Attributes:
        url: with http or https.
        method: in capitals.
        fields: name and value each; several of one name are kept.
        body: bytes of it.
    """

    url: str
    method: str = "GET"
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    A response.

    Attributes:
        status: of the last hop.
        fields: name and value each, in order, several of one name kept.
        body: as it was sent.
        url: of the last hop, in its one form.
        history: the URLs before it.
        address: that the last hop's connection went to.
    """

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes
    url: str
    history: tuple[str, ...]
    address: str


async def system_addresses(name: str) -> tuple[Address, ...]:
    """
    The addresses of *name* by the host's resolver.

    Raises:
        OSError: it has none, or the resolver doesn't answer.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    # A zone, as in fe80::1%eth0, is of addresses that are refused in any case.
    return tuple(dict.fromkeys(plain(ip_address(str(each[4][0]).partition("%")[0])) for each in found))


class Fetcher:
    """
    Fetches of one sandbox, with its limits.

    Args:
        policy: what may be fetched; None is nothing.
        resolve: the addresses of a name; an OSError or none says that it has none.
        trust: by which hosts' certificates are verified; None is the machine's roots.
        record: gets each decision.
        clock: seconds.
    """

    def __init__(self, policy: Policy | None, *, resolve: Resolve = system_addresses,
                 trust: ssl.SSLContext | None = None, record: Callable[[Request, Decision], None] | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._resolve, self._record, self._clock = policy, resolve, record, clock
        self._trust = trust
        self._started: deque[float] = deque()
        self._running = 0

    async def fetch(self, request: Fetch) -> Fetched:
        """
        Send *request*, follow redirects, and return the last response.

        Raises:
            FetchFailure: its text begins as TEXTS has it.
        """
        policy = self._policy
        if policy is None:
            raise FetchFailure("disabled")
        url = _url(request.url)
        fields = _checked(request)
        if len(request.body) > policy.limits.request:
            raise FetchFailure("request", f"{len(request.body)} bytes, {policy.limits.request} are the most", url.text)
        with self._counted(policy):
            try:
                async with asyncio.timeout(policy.limits.total):
                    return await self._hops(policy, url, replace(request, fields=fields))
            except TimeoutError:
                raise FetchFailure("total", f"no whole response in {policy.limits.total:g} s", url.text) from None

    @contextmanager
    def _counted(self, policy: Policy) -> Iterator[None]:
        """
        One of those that run at once.
        """
        if self._running >= policy.limits.connections:
            raise FetchFailure("rate", f"{self._running} requests at once are the most")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _count(self, policy: Policy, url: Url) -> None:
        """
        One of those of this minute; each hop is one.
        """
        now = self._clock()
        while self._started and self._started[0] <= now - 60:
            self._started.popleft()
        if len(self._started) >= policy.limits.per_minute:
            raise FetchFailure("rate", f"{policy.limits.per_minute} requests a minute are the most", url.text)
        self._started.append(now)

    async def _hops(self, policy: Policy, url: Url, request: Fetch) -> Fetched:
        history: list[str] = []
        while True:
            self._count(policy, url)
            response = await self._hop(policy, url, request, tuple(history))
            location = [value for name, value in response.fields if name.lower() == "location"]
            if response.status not in _REDIRECTS or not location:
                return response
            if len(history) >= policy.limits.redirects:
                raise FetchFailure("redirects", f"too many redirects (limit: {policy.limits.redirects})", url.text)
            history.append(url.text)
            following = _url(_joined(url, location[0]))
            request = _redirected(request, response.status, url, following)
            url = following

    async def _hop(self, policy: Policy, url: Url, request: Fetch, history: tuple[str, ...]) -> Fetched:
        addresses = await self._addresses(policy, url, request.method, bool(history))
        failure: FetchFailure | None = None
        for address in addresses[:_MAX_TRIED]:
            try:
                return await self._send(policy, url, address, request, history)
            except httpx.ConnectTimeout:
                failure = FetchFailure("connect", f"{url.authority} ({address}), {policy.limits.connect:g} s", url.text)
            except httpx.ConnectError as error:
                failure = FetchFailure("http", f"{url.authority} ({address}): {error!s:.200}", url.text)
            except (httpx.TimeoutException, httpx.HTTPError) as error:
                cause = "total" if isinstance(error, httpx.TimeoutException) else "http"
                raise FetchFailure(cause, f"{url.authority} ({address}): {error!s:.200}", url.text) from None
        raise failure or FetchFailure("dns", url.host.text, url.text)

    async def _addresses(self, policy: Policy, url: Url, method: str, redirected: bool) -> list[Address]:
        """
        Those addresses of the URL's host that the policy allows.
        """
        wanted = Request(url.host.name, url.host.address, url.port, url.scheme, method, url.target)
        refusal: Decision | None = self._decided(policy, wanted)
        if refusal is not None and refusal.verdict in (DENY, ASK):
            raise _refused(refusal, url, redirected)
        if url.host.address is not None:
            return [url.host.address]
        try:
            found = await self._resolve(url.host.name)
        except OSError as error:
            raise FetchFailure("dns", f"{url.host.name}: {error.strerror or error!s:.100}", url.text) from None
        if not found:
            raise FetchFailure("dns", f"{url.host.name} has no address", url.text)
        allowed = []
        for address in map(plain, found):
            decision = self._decided(policy, replace(wanted, address=address))
            if decision.verdict == ALLOW:
                allowed.append(address)
            else:
                refusal = decision
        if not allowed and refusal is not None:
            raise _refused(refusal, url, redirected)
        return allowed

    def _decided(self, policy: Policy, request: Request) -> Decision:
        decision = decide(policy, request)
        if self._record is not None:
            self._record(request, decision)
        return decision

    async def _send(self, policy: Policy, url: Url, address: Address, request: Fetch,
                    history: tuple[str, ...]) -> Fetched:
        """
        One request over a connection of its own to *address*.
        """
        if self._trust is None and url.scheme == "https":
            self._trust = ssl.create_default_context()
        limits = policy.limits
        place = f"[{address}]" if address.version == 6 else str(address)
        transport = httpx.AsyncHTTPTransport(verify=self._trust or False, http1=True, http2=False, trust_env=False)
        sent = httpx.Request(
            request.method, f"{url.scheme}://{place}:{url.port}/",
            headers=[("Host", url.authority), *request.fields], content=request.body or None,
            extensions={"target": url.target.encode(),  # as it was decided; httpx would change dots in it
                        "sni_hostname": url.host.text,  # and the name that the certificate has to have
                        "timeout": {"connect": limits.connect, "read": limits.total, "write": limits.total,
                                    "pool": limits.total}})
        async with transport:
            response = await transport.handle_async_request(sent)
            try:
                body = await _body(response, request.method, limits.response, url)
            finally:
                await response.aclose()
        fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)
        return Fetched(response.status_code, fields, body, url.text, history, str(address))


async def _body(response: httpx.Response, method: str, most: int, url: Url) -> bytes:
    length = response.headers.get("content-length", "")
    too_large = FetchFailure("response", f"more than {most} bytes", url.text)
    if method != "HEAD" and length.isdecimal() and len(length) <= 18 and int(length) > most:
        raise too_large
    body = bytearray()
    async for piece in response.aiter_raw():
        if len(body) + len(piece) > most:
            raise too_large
        body += piece
    return bytes(body)


def _refused(decision: Decision, url: Url, redirected: bool) -> FetchFailure:
    if decision.verdict == ASK:
        return FetchFailure("unlisted", f"{url.authority}, the rule {decision.rule!r} asks, and nobody can be asked",
                          url.text)
    if redirected and decision.cause == "private":
        return FetchFailure("redirect-private", decision.reason.partition(": ")[2], url.text)
    return FetchFailure(decision.cause, decision.reason, url.text)


def _url(text: str) -> Url:
    try:
        url = parse_url(text)
    except InvalidHost as error:
        scheme, sign, _ = text.partition("://")
        if sign and scheme.isalnum() and scheme.lower() not in ("http", "https"):
            raise FetchFailure("scheme", f"{scheme:.20}", text[:500]) from None
        raise FetchFailure("url", str(error), text[:500]) from None
    if url.scheme not in ("http", "https"):
        raise FetchFailure("scheme", f"{url.scheme:.20}", url.text)
    if url.user:
        raise FetchFailure("url", "user information; send a field Authorization", url.text)
    return url


def _checked(request: Fetch) -> tuple[tuple[str, str], ...]:
    """
    The fields of a request, with those that it lacks.
    """
    if not _TOKEN.fullmatch(request.method) or request.method in ("CONNECT", "TRACE"):
        raise FetchFailure("method", f"{request.method!r:.40}", request.url[:500])
    if len(request.fields) > _MAX_FIELDS:
        raise FetchFailure("http", f"{len(request.fields)} fields, {_MAX_FIELDS} are the most", request.url[:500])
    for name, value in request.fields:
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise FetchFailure("http", f"the field {name!r:.60} can't be set", request.url[:500])
        if len(value) > _MAX_FIELD or not all(letter == "\t" or " " <= letter <= "~" for letter in value):
            raise FetchFailure("http", f"the field {name!r:.60} has a value that none can have", request.url[:500])
    own = {name.lower() for name, _ in request.fields}
    return (*request.fields, *((name, value) for name, value in (("Accept", "*/*"), ("Accept-Encoding", "identity"),
                                                                 ("User-Agent", "leeward"), ("Connection", "close"))
                               if name.lower() not in own))


def _joined(url: Url, location: str) -> str:
    """
    Where a redirect leads to.
    """
    if any(not "!" <= letter for letter in location) or "\\" in location:
        raise FetchFailure("url", "a redirect to a text with spaces, control characters or backslashes", url.text)
    # latin-1 is how the bytes were read; in UTF-8 or not, they are escaped as they are.
    escaped = "".join(letter if letter <= "~" else f"%{ord(letter):02X}" for letter in location)
    try:
        return urljoin(url.text, escaped)
    except ValueError:
        raise FetchFailure("url", "a redirect to no URL", url.text) from None


def _redirected(request: Fetch, status: int, before: Url, after: Url) -> Fetch:
    """
    The request that follows a redirect.
    """
    fields, method, body = request.fields, request.method, request.body
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        fields = tuple(each for each in fields if not each[0].lower().startswith("content-"))
    if (before.scheme, before.host, before.port) != (after.scheme, after.host, after.port):
        fields = tuple(each for each in fields if each[0].lower() in _HARMLESS | {"connection"})
    return Fetch(after.text, method, fields, body)

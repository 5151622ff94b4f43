"""
`fetch`: one HTTP request by a policy, its redirects followed, for clients of sandboxes; each a task of its sandbox's
lease, its body in a memory file. Needs h11.

Trust:     neither the client, which chose the request, nor the host that answers, nor the name server between.
Holds:     a name is resolved once for each hop, each of its addresses is decided, and the connection goes to one that
           was allowed; a redirect is a request of its own. Nothing is kept between hops, and nothing is taken from
           the environment: no cookie, no connection, no proxy, no .netrc.
Bound:     as many fetches at once as the policy allows connections; the daemon bounds the fetches of a user.

The body is passed on as it was sent: the request asks for `identity`, and a body that the host compresses all the same
stays compressed, with its Content-Encoding. So a limit on bytes also bounds memory. A compressed body of a secret's
host is refused, as for programs.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import h11

from leeward.egress.addresses import Url, parse_url
from leeward.egress.dialling import Lookup, dial
from leeward.egress.faults import fault, of_connection
from leeward.egress.heads import Head
from leeward.egress.pipes import ROOM, SEARCHED, Pipe, TlsPipe
from leeward.egress.policy import CAUSES, Decision, Request
from leeward.egress.tenancy import ANSWERED, NotAllowed, Tenancy
from leeward.errors import LeewardError, PeerError
from leeward.spec.egress_policy import Policy, parse_policy
from leeward.spec.hosts import Address, InvalidHost
from leeward.wire import egress_control as control
from leeward.wire.egress_control import MAX_MESSAGE, FetchAnswer

if TYPE_CHECKING:
    from leeward.egress.injection import Injection
    from leeward.egress.tenancy import Tenancy


#: The beginning of each error's text, by its cause; includes the causes of decisions.
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

#: Characters of a field's value, and fields of a request, at most.
_MAX_FIELD, _MAX_FIELDS = 16384, 64

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")

#: Fields about the connection. The broker writes them itself, so a client can't set them.
_OURS = frozenset(("host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te",
                   "trailer", "upgrade", "expect", "proxy-authorization", "http2-settings"))

#: Fields that are sent to another host after a redirect. Any other one may contain a credential.
_HARMLESS = frozenset(("accept", "accept-encoding", "accept-language", "cache-control", "content-encoding",
                       "content-language", "content-type", "if-modified-since", "if-none-match", "range", "user-agent"))

_REDIRECTS = frozenset((301, 302, 303, 307, 308))


class FetchFailure(LeewardError):
    """A fetch has no response, for a cause of TEXTS, at the hop *url*; *sent*: a part of a request may have been sent."""

    def __init__(self, cause: str, detail: str = "", url: str = "", *, sent: bool = False) -> None:
        self.cause, self.url, self.sent = cause, url, sent
        text = TEXTS[cause]
        super().__init__(detail if detail.startswith(text) else f"{text}: {detail}" if detail else text)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    url: str  # with http or https
    method: str = "GET"  # in capitals
    fields: tuple[tuple[str, str], ...] = ()  # name and value each; several of one name are kept
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    status: int  # of the last hop
    fields: tuple[tuple[str, str], ...]  # name and value each, in order, several of one name kept
    body: bytes  # as it was sent, even compressed
    url: str  # of the last hop, in its one form
    history: tuple[str, ...]  # the URLs of the hops before the last one, in order
    address: str  # the IP address to which the last hop's connection was made


@dataclass(slots=True)
class _Progress:
    """Whether a fetch has begun to send a request."""

    sent: bool = False


class Fetcher:
    """
    Fetches of one sandbox by *policy*, counted with the connections of *budget* and recorded there.

    *trust* verifies hosts if the sandbox has no sealing; None for the machine's roots.
    """

    def __init__(self, policy: Policy, budget: Tenancy, *, resolve: Lookup, trust: ssl.SSLContext | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._resolve, self._budget, self._clock = policy, resolve, budget, clock
        self._sealing = budget.sealing
        self._trust = trust if self._sealing is None else self._sealing.trust
        self._started: deque[float] = deque()
        self._running = 0

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Send *request*, follow redirects, and return the last response; else FetchFailure."""
        policy = self._policy
        url = _url(request.url)
        fields = _checked(request)
        if len(request.body) > policy.limits.request:
            raise FetchFailure("request", f"{len(request.body)} bytes, {policy.limits.request} are the most", url.text)
        progress = _Progress()
        with self._counted(policy):
            try:
                async with asyncio.timeout(policy.limits.total) as clock:
                    return await self._hops(policy, url, replace(request, fields=fields), clock, progress)
            except TimeoutError:
                raise FetchFailure("total", f"no whole response in {policy.limits.total:g} s", url.text,
                                   sent=progress.sent) from None
            except FetchFailure as failure:
                failure.sent = progress.sent
                raise

    @contextmanager
    def _counted(self, policy: Policy) -> Iterator[None]:
        """Count a fetch, while it runs, among those that run at once. Raises FetchFailure if too many run."""
        if self._running >= policy.limits.connections:
            raise FetchFailure("rate", f"{self._running} requests at once are the most")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _count(self, policy: Policy, url: Url) -> None:
        """Count one hop among the requests of this minute. Raises FetchFailure if there were too many."""
        now = self._clock()
        while self._started and self._started[0] <= now - 60:
            self._started.popleft()
        if len(self._started) >= policy.limits.per_minute:
            raise FetchFailure("rate", f"{policy.limits.per_minute} requests a minute are the most", url.text)
        if why := self._budget.over_rate():
            raise FetchFailure("rate", why, url.text)
        self._started.append(now)

    async def _hops(self, policy: Policy, url: Url, request: FetchRequest, clock: asyncio.Timeout,
                    progress: _Progress) -> FetchResponse:
        history: list[str] = []
        while True:
            self._count(policy, url)
            response = await self._hop(policy, url, request, tuple(history), clock, progress)
            location = [value for name, value in response.fields if name.lower() == "location"]
            if response.status not in _REDIRECTS or not location:
                return response
            if len(history) >= policy.limits.redirects:
                raise FetchFailure("redirects", f"too many redirects (limit: {policy.limits.redirects})", url.text)
            history.append(url.text)
            following = _url(_joined(url, location[0]))
            request = _redirected(request, response.status, url, following)
            url = following

    async def _approval(self, policy: Policy, request: Request, clock: asyncio.Timeout) -> bool:
        """As `Tenancy.approval`. The time limit of the whole fetch, *clock*, stands still during the wait."""
        until, begun = clock.when(), asyncio.get_running_loop().time()
        clock.reschedule(None)
        try:
            return await self._budget.approval(policy, request)
        finally:
            if until is not None:
                clock.reschedule(until + asyncio.get_running_loop().time() - begun)

    async def _hop(self, policy: Policy, url: Url, request: FetchRequest, history: tuple[str, ...],
                   clock: asyncio.Timeout, progress: _Progress) -> FetchResponse:
        wanted = Request(url.host.name, url.host.address, url.port, url.scheme, request.method, url.target)
        attempt = self._budget.begin(url.host.name, url.host.address, url.port)
        try:
            granted = await self._approval(policy, wanted, clock)
            sock, reached, decision = await dial(policy, wanted, self._resolve, granted=granted)
        except NotAllowed as refused:
            attempt.refused(refused)
            raise _not_dialled(refused, policy, url, bool(history)) from None
        pipe, address = Pipe(sock), reached.address
        assert address is not None
        try:
            attempt.allowed(decision, address, granted)
            server: Pipe = pipe
            if url.scheme == "https":
                if self._trust is None:  # takes some 50 ms; the loop serves others meanwhile
                    self._trust = await asyncio.to_thread(ssl.create_default_context)
                server = TlsPipe(pipe, self._trust, url.host.text)
                await server.shake_hands(policy.limits.connect)
            put = await self._injection(policy, url, request)
            progress.sent = True
            return await _exchange(server, policy, url, request, put, history, address)
        except TimeoutError:
            raise
        except (OSError, PeerError, h11.ProtocolError) as error:
            late = isinstance(error, NotAllowed) and error.status == 504  # the TLS handshake took too long
            raise FetchFailure("connect" if late else "http", f"{url.authority} ({address}): {_why(error)}",
                               url.text) from None
        finally:
            pipe.close()
            attempt.closed(pipe.written, pipe.read)

    async def _injection(self, policy: Policy, url: Url, request: FetchRequest) -> Injection | None:
        """The injection of secrets into *request*; None if there are none for its host."""
        if self._sealing is None or url.scheme != "https":
            return None
        fields = tuple((name.lower().encode(), value.encode()) for name, value in request.fields)
        head = Head(request.method, "origin", url.target, url.host, url.port, fields, len(request.body), keeps=False,
                    scheme=url.scheme)
        return await self._sealing.injection(policy, head, policy.limits.connect)


def _why(error: OSError | PeerError | h11.ProtocolError) -> str:
    if isinstance(error, h11.RemoteProtocolError):
        return fault("response-protocol")
    if isinstance(error, h11.ProtocolError):
        return fault("request-fields")
    return of_connection(error) if isinstance(error, OSError) else str(error)


def _written(url: Url, request: FetchRequest, put: Injection | None) -> tuple[h11.Request, bytes]:
    # The target is sent exactly as the policy has decided about it; a library that takes URLs would change its dots.
    target, body = url.target, request.body
    fields = list(request.fields)
    if put is not None:
        target = put.head.target
        fields = [(name.decode(), value.decode()) for name, value in put.head.fields if name != b"transfer-encoding"]
        body = body if put.body is None else put.body.whole(body)
    length = [("Content-Length", str(len(body)))] if body else []
    return h11.Request(method=request.method, target=target,
                       headers=[("Host", url.authority), *fields, *length]), body


async def _exchange(server: Pipe, policy: Policy, url: Url, request: FetchRequest, put: Injection | None,
                    history: tuple[str, ...], address: Address) -> FetchResponse:
    http = h11.Connection(h11.CLIENT)
    head, sent = _written(url, request, put)
    await server.send(http.send(head) or b"")
    if sent:
        await server.send(http.send(h11.Data(data=sent)) or b"")
    await server.send(http.send(h11.EndOfMessage()) or b"")
    too_large = FetchFailure("response", f"more than {policy.limits.response} bytes", url.text)
    response: h11.Response | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await server.receive(ROOM if put is None else SEARCHED))
        elif isinstance(event, h11.Response):
            given = [value for name, value in event.headers if name == b"content-length"]
            if request.method != "HEAD" and given and int(given[0]) > policy.limits.response:
                raise too_large
            found = event if put is None else put.response(event)
            assert isinstance(found, h11.Response)
            response = found
        elif isinstance(event, h11.Data) or (isinstance(event, h11.EndOfMessage) and response is not None):
            piece = _piece(event, put)
            if len(body) + len(piece) > policy.limits.response:
                raise too_large
            body += piece
            if isinstance(event, h11.EndOfMessage) and response is not None:
                break
        elif not isinstance(event, h11.InformationalResponse):
            raise PeerError(fault("response-none"))
    assert response is not None
    fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw_items())
    return FetchResponse(response.status_code, fields, bytes(body), url.text, history, str(address))


def _piece(event: h11.Data | h11.EndOfMessage, put: Injection | None) -> bytes:
    if put is None:
        return bytes(event.data) if isinstance(event, h11.Data) else b""
    data = put.response(event) if isinstance(event, h11.Data) else put.rest()
    return bytes(data.data) if isinstance(data, h11.Data) else b""


def _not_dialled(refused: NotAllowed, policy: Policy, url: Url, redirected: bool) -> FetchFailure:
    if not refused.failed:
        return _refused(refused.decision, url, redirected)
    reason = str(refused)
    if reason.startswith(TEXTS["connect"]):
        return FetchFailure("connect", f"{url.authority}, {policy.limits.connect:g} s", url.text)
    return FetchFailure("dns" if reason.startswith(TEXTS["dns"]) else "http", reason, url.text)


def _refused(decision: Decision, url: Url, redirected: bool) -> FetchFailure:
    if decision.cause == ANSWERED:
        return FetchFailure("unlisted", f"{url.authority}, the rule {decision.rule!r} asks: {decision.reason}",
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


def _checked(request: FetchRequest) -> tuple[tuple[str, str], ...]:
    """Check a request's method and fields. Returns its fields, and those that the broker adds where the client has none."""
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
    """Return the URL to which a redirect leads, as a text. *location* is the value of its Location field."""
    if any(not letter >= "!" for letter in location) or "\\" in location:
        raise FetchFailure("url", "a redirect to a text with spaces, control characters or backslashes", url.text)
    # The bytes of the field were read as latin-1. Each byte beyond ASCII is escaped, whatever the encoding is.
    escaped = "".join(letter if letter <= "~" else f"%{ord(letter):02X}" for letter in location)
    try:
        return urljoin(url.text, escaped)
    except ValueError:
        raise FetchFailure("url", "a redirect to no URL", url.text) from None


def _redirected(request: FetchRequest, status: int, before: Url, after: Url) -> FetchRequest:
    fields, method, body = request.fields, request.method, request.body
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        fields = tuple(each for each in fields if not each[0].lower().startswith("content-"))
    if (before.scheme, before.host, before.port) != (after.scheme, after.host, after.port):
        fields = tuple(each for each in fields if each[0].lower() in _HARMLESS | {"connection"})
    return FetchRequest(after.text, method, fields, body)


#: Bytes of an answer beside the response's fields and URLs, at most.
_AROUND = 1024


class Fetching:
    """The fetches of one lease, by the client's *narrower* policy or, for {}, that of the lease."""

    def __init__(self, tenancy: Tenancy, narrower: dict[str, object], lookup: Lookup) -> None:
        self._tenancy = tenancy
        policy = parse_policy(narrower) if narrower else tenancy.policy
        self._fetcher = Fetcher(policy, tenancy, resolve=lookup)
        self._most = policy.limits.request
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, message: control.FetchOrder, fds: Sequence[int], tell: Callable[[FetchAnswer], None]) -> None:
        """Begin a fetch. *tell* is called once, with its answer."""
        full = self._tenancy.full()  # checked now, before this fetch counts itself
        task = asyncio.get_running_loop().create_task(self._fetch(message, fds, tell, full))
        self._tasks[message.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))
        task.add_done_callback(lambda _: _close(fds))
        self._tenancy.start(task, None)

    def stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def _fetch(self, message: control.FetchOrder, fds: Sequence[int], tell: Callable[[FetchAnswer], None],
                     full: str) -> None:
        try:
            answer = failure("rate", f"{TEXTS['rate']}: {full}", sent=False) if full else await self._answer(message, fds)
        except asyncio.CancelledError:
            tell(FetchAnswer(message.number, failure("http", f"{TEXTS['http']}: its sandbox is over, or has another policy")))
            raise
        except Exception as error:
            tell(FetchAnswer(message.number, failure("http", f"{TEXTS['http']}: a bug of the broker's: "
                                                         f"{type(error).__name__}")))
            raise
        tell(FetchAnswer(message.number, answer))

    async def _answer(self, message: control.FetchOrder, fds: Sequence[int]) -> dict[str, object]:
        about: Any = message.about
        body = _read(fds[1], self._most + 1) if len(fds) > 1 else b""
        try:
            fields = tuple((name, value) for name, value in about["headers"])
            got = await self._fetcher.fetch(FetchRequest(about["url"], about["method"], fields, body))
            if sum(len(name) + len(value) + 16 for name, value in got.fields) + sum(
                    len(each) + 16 for each in (*got.history, got.url)) > MAX_MESSAGE - _AROUND:
                raise FetchFailure("http", "a response with a head that is too large", got.url, sent=True)
            _write(fds[0], got.body)
        except FetchFailure as error:
            return failure(error.cause, str(error), error.url, sent=error.sent)
        except OSError as error:
            return failure("http", f"{TEXTS['http']}: no room for the response: {error.strerror}")
        return {"status": got.status, "headers": [list(each) for each in got.fields], "url": got.url,
                "history": list(got.history), "address": got.address}


def failure(cause: str, message: str, url: str = "", *, sent: bool = True) -> dict[str, object]:
    """Return the fields of the answer to a fetch that failed; *sent* says whether a request may have been sent."""
    return {"failed": cause, "message": message[:4096], "url": url[:4096], "sent": sent}


def _read(fd: int, most: int) -> bytes:
    found = bytearray()
    while len(found) < most and (piece := os.pread(fd, min(1 << 20, most - len(found)), len(found))):
        found += piece
    return bytes(found)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest):]


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)

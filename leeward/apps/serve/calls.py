"""
One call: its body within bounds, its tenant's quota, its answer or stream, and its end when the client goes.

Holds:     a handler runs in a task that is cancelled when the client closes its connection, so that nothing works for
           nobody. A stream's generator is closed then, before the call's end.
Trust:     none in a body. Any bytes give a value or ServeProblem.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leeward.apps.serve.problems import ServeProblem, bad, busy, problem_of, too_large, unknown_token
from leeward.apps.serve.tokens import ServeTenant
from leeward.base.strict_json import json_object
from leeward.base.token_bucket import TokenBucket
from leeward.errors import told_with_place
from leeward.spec.bounded_log import WINDOW_S, LogBound

T = TypeVar("T")

_KINDS: Mapping[type, str] = {str: "text", float: "a number", int: "a whole number", bool: "true or false", dict: "an object",
                              list: "a list"}

#: Bytes of all bodies of a tenant together: so many times those of one.
BODIES = 4
#: Bytes of a body of JSON, at most; seconds in which a piece of a body has to come, and bytes that come in one at least.
MOST_JSON, PIECE_S, LEAST_RATE = 1 << 20, 30.0, 500
#: The most bytes of a stream of input.
ENDLESS = 1 << 40
#: Bytes of a message that may hold up other calls.
SMALL = 16 << 10
#: Values in JSON, at most.
MOST_VALUES = 50_000
#: A string in JSON. Its end may be missing, so that none of its quotes begins another search.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
#: What a client may name its call: the answer says it again, and the log has it.
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
#: Seconds before the answer to a call that comes too fast: a flood costs the server, and so the others, little then.
PAUSE_S = 0.5

#: The key of a scope for a CountedConnection, where connections aren't a proxy's.
CONNECTION = "leeward.connection"

#: Lines of the log about refused calls of one tenant in a WINDOW_S, at most.
MOST_REFUSED = 200

#: A line of JSON for each call, and each end of a sandbox, if somebody wants it.
CALLS = logging.getLogger("leeward.serve.calls")
_log = logging.getLogger("leeward.serve")


#: Of the calls of each tenant that come too fast or are too many, and of those of nobody.
_refused = LogBound(MOST_REFUSED)


def tell(**row: object) -> None:
    """Log a line, with its time."""
    if CALLS.isEnabledFor(logging.INFO):
        CALLS.info(json.dumps({"time": round(time.time(), 3), **row}))


class ClientGone(Exception):
    """The client has closed its connection; nobody waits for an answer."""


@dataclass(slots=True)
class AnswerStream:
    """An answer whose pieces are sent as they come; its head with the first one if that *is_prompt*, else before."""

    pieces: AsyncGenerator[bytes, None]
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_prompt: bool = False


@dataclass(slots=True)
class Use:
    """What a tenant has under way, and has had."""

    streams: int = 0
    jobs: int = 0
    connections: int = 0
    sandboxes: int = 0  # when the daemon was last asked
    held: int = 0  # bytes of bodies
    waiting: int = 0  # those of jobs over the wire that run or wait
    opening: int = 0  # sandboxes that the daemon is being asked for, and open sessions
    snapshots: int = 0  # that the daemon is being asked for
    watchers: int = 0  # folders that are looked at again and again
    pace: TokenBucket = field(default_factory=lambda: TokenBucket(0.0, 0.0))  # of calls; each has the quota's figures
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)  # of the calls
    working: asyncio.Lock = field(default_factory=asyncio.Lock)  # has who works in the tenant's turn
    rests: float = 0.0  # until this time.perf_counter()
    is_revoked: bool = False
    calls: Counter[int] = field(default_factory=Counter)  # by status
    seconds: float = 0.0
    received: int = 0


async def paced(use: Use, tenant: ServeTenant) -> None:
    """ServeProblem, after PAUSE_S, if a tenant's calls come too fast."""
    if not _spent(use, tenant):
        await asyncio.sleep(PAUSE_S)
        raise busy(f"{tenant.quota.rate} calls a second are allowed")


async def in_pace(use: Use, tenant: ServeTenant) -> None:
    """Wait until a tenant may make one more call."""
    while not _spent(use, tenant):
        await asyncio.sleep(use.pace.wait(time.monotonic()))


def _spent(use: Use, tenant: ServeTenant) -> bool:
    """Whether a tenant may make a call now, which is counted then."""
    use.pace.most = use.pace.rate = tenant.quota.rate
    return use.pace.take(time.monotonic())


async def in_turn(use: Use, work: Callable[..., T], *given: Any) -> T:
    """
    The result of *work*, which holds up the loop: a tenant's one at a time, each after a rest as long as the last one, in
    which others' calls go on.
    """
    async with use.working:
        await asyncio.sleep(max(0.0, use.rests - time.perf_counter()))
        began = time.perf_counter()
        try:
            return work(*given)
        finally:
            now = time.perf_counter()
            use.rests = now + (now - began)


@contextmanager
def admitted(use: Use, tenant: ServeTenant) -> Iterator[None]:
    """Count a call of a tenant while the block runs; ServeProblem if it has too many."""
    if use.streams >= tenant.quota.streams:
        raise busy(f"{tenant.quota.streams} calls are under way, as many as are allowed at once")
    task = asyncio.current_task()
    assert task is not None
    use.streams += 1
    use.tasks.add(task)
    try:
        yield
    finally:
        use.streams -= 1
        use.tasks.discard(task)


async def pieces_of(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """
    The pieces of a body as they come; ServeProblem if it has more than *most* bytes, or comes too slowly: no piece within
    PIECE_S, or all of it so much later than LEAST_RATE bytes a second. A stream of input may go on for days.
    """
    said = request.headers.get("content-length", "0")
    if not said.isascii() or not said.isdigit() or int(said[:20]) > most:
        raise too_large(most)
    size, more, waited = 0, True, 0.0  # seconds for the client, and not those that its reader took
    while more:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PIECE_S + (0.0 if most == ENDLESS else min(0.0, size / LEAST_RATE - waited))):
                message = await request.receive()
            waited += time.monotonic() - began
        except TimeoutError:
            raise ServeProblem(408, f"the body came too slowly: {LEAST_RATE} bytes a second are the least") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > most:
            raise too_large(most)
        if piece:
            yield piece


def check_values(body: bytes) -> None:
    """ServeProblem if *body*, as JSON, has more than MOST_VALUES values: each takes time and memory beyond its bytes."""
    if len(body) > MOST_VALUES:
        # A value and its name have four quotes. Strings are looked for where they aren't many.
        if body.count(b'"') - body.count(b'\\"') <= 4 * MOST_VALUES:
            rest = _STRING.sub(b"", body)
            if sum(map(rest.count, (b",", b"[", b"{"))) <= MOST_VALUES:
                return
        raise ServeProblem(413, f"a body has {MOST_VALUES} values at most here")


def json_of(body: bytes) -> dict[str, Any]:
    """The JSON object in *body*; {} for an empty one. ServeProblem for anything else."""
    check_values(body)
    try:
        return json_object(body) if body else {}
    except ValueError:
        raise bad("a body is one object of JSON in UTF-8") from None


def taken(fields: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    """A field of a body, or *default* where it is missing or null; ServeProblem for one of another kind."""
    value = fields.get(name)
    if value is None:
        return default
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)  # type: ignore[return-value]  # T is float
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise bad(f"{name} has to be {_KINDS[kind]}")
    return value


def number_of(text: str, name: str, least: int, most: int) -> int:
    """A number of a path or a query; ServeProblem unless it is a few digits, and from *least* to *most*."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not least <= int(text) <= most:
        raise bad(f"{name} has to be a number, from {least} to {most}")
    return int(text)


def texts(fields: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field that is an object of texts; ServeProblem if it is anything else."""
    found = taken(fields, name, dict, {})
    if not all(isinstance(value, str) for value in found.values()):
        raise bad(f"{name} has to be an object of texts")
    return found


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of *work*, which is cancelled when the client closes its connection: ClientGone."""
    # As asyncio.timeout does it, in this task: with one task for the work and one that waits for both a call is slower.
    task, gone = asyncio.current_task(), False
    assert task is not None
    before = task.cancelling()

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone or task.cancelling() > before + 1:  # somebody else has cancelled it, too
            raise
        raise ClientGone from None
    finally:
        watching.cancel()
        if gone:
            task.uncancel()


@dataclass(slots=True)
class ServeCall:
    """A call of a tenant's."""

    request: Request
    tenant: ServeTenant
    use: Use
    held: int = 0  # bytes of its body, until its end
    jobs: int = 0  # that it counts as, until its end

    @property
    def headers(self) -> Headers:
        return self.request.headers

    async def pieces(self, most: int) -> AsyncGenerator[bytes, None]:
        """The pieces of the body, which are kept until the call's end; ServeProblem if the tenant sends too much at once."""
        async for piece in pieces_of(self.request, min(most, self.tenant.quota.body)):
            self.use.received += len(piece)
            self.hold(len(piece))
            yield piece

    def hold(self, size: int) -> None:
        """Count bytes until the call's end, or some less; ServeProblem if the tenant sends too much at once."""
        self.held += size
        self.use.held += size
        if size > 0 and self.use.held > BODIES * self.tenant.quota.body:
            raise busy("too much is being sent at once")

    async def body(self, most: int) -> bytes:
        return b"".join([piece async for piece in self.pieces(most)])

    async def fields(self, most: int = MOST_JSON) -> dict[str, Any]:
        """The body's JSON object."""
        body = await self.body(most)
        return json_of(body) if len(body) <= SMALL else await in_turn(self.use, json_of, body)

    async def listed(self, most: int = MOST_JSON) -> list[Any]:
        """The body's JSON list."""
        return taken(await in_turn(self.use, json_of, b'{"rows":' + await self.body(most) + b"}"), "rows", list, [])

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """As the function of this name. After the body was read."""
        return await unless_gone(self.request.receive, work)


#: Who calls: None if the request shows no valid token.
Knows = Callable[[Request], Awaitable[tuple[ServeTenant, Use] | None]]
Handler = Callable[[ServeCall], Awaitable[ASGIApp | AnswerStream]]
#: The answer of a face to a call that is refused.
Form = Callable[[ServeProblem], Response]


@dataclass(slots=True)
class CallTold:
    """What the log says of a call: who has made it, its own id, and the status of the answer, 0 until it begins."""

    id: str
    tenant: str = ""
    use: Use | None = None
    status: int = 0


class CountedConnection(Protocol):
    """A connection in a request's scope, by the name CONNECTION. It is the first tenant's who calls over it."""

    use: Use | None


@contextmanager
def call_told(name: str, identity: str = "") -> Iterator[CallTold]:
    """Count a call, and write its line if somebody wants it, when the block is left."""
    begun, told = time.monotonic(), CallTold(identity if _REQUEST_ID.fullmatch(identity) else "")
    try:
        yield told
    finally:
        seconds = time.monotonic() - begun
        if told.use is not None:
            told.use.calls[told.status] += 1
            told.use.seconds += seconds
        left = _refused.left(told.tenant) if told.use is None or told.status == 429 else MOST_REFUSED
        if left > 0:
            tell(tenant=told.tenant, call=name, status=told.status, seconds=round(seconds, 6),
                 **({"id": told.id} if told.id else {}), **({"left_out": f"others for {WINDOW_S:g} s"} if left == 1 else {}))


def routed(methods: str, path: str, knows: Knows, form: Form, handler: Handler) -> Route:
    """A route, whose *methods* are words."""
    return Route(path, ServeEndpoint(f"{methods} {path}", knows, form, handler), methods=methods.split())


class ServeEndpoint:
    """
    The ASGI application of one route.

    Args:
        name: of the route, for the log.
        knows: tells who calls.
        form: makes the answer if the call is refused.
        handler: makes the answer.
    """

    def __init__(self, name: str, knows: Knows, form: Form, handler: Handler) -> None:
        self._name, self._knows, self._form, self._handler = name, knows, form, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with call_told(self._name, Headers(scope=scope).get("x-request-id", "")) as told:
            await self._answer(scope, receive, send, told)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, told: CallTold) -> None:
        request = Request(scope, receive)

        async def send_once(message: Message) -> None:
            told.status = message.get("status", told.status)
            if told.id and "status" in message:
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", told.id.encode())]
            await send(message)

        try:
            known = await self._knows(request)
            if known is None:
                raise unknown_token()
            told.tenant, told.use = known[0].name, known[1]
            _seat(scope.get(CONNECTION), *known)
            await paced(known[1], known[0])
            with admitted(known[1], known[0]):
                call = ServeCall(request, *known)
                try:
                    answer = await self._handler(call)
                    if isinstance(answer, AnswerStream):
                        await unless_gone(receive, _sent(answer, send_once))
                    else:
                        await answer(scope, receive, send_once)
                finally:
                    call.use.held -= call.held
                    call.use.jobs -= call.jobs
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if told.use is None or not told.use.is_revoked:
                raise
            if not told.status:
                await self._refuse(unknown_token(), scope, receive, send_once)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                _log.error("%s failed: %s", self._name, told_with_place(error))
            if not told.status:  # else the server closes the connection, since the answer has no end
                await self._refuse(problem, scope, receive, send_once)

    async def _refuse(self, problem: ServeProblem, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._form(problem)
        answer.headers.update(problem.headers)
        # Of a body that wasn't read the rest may come: it isn't the next request.
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)


def _seat(connection: CountedConnection | None, tenant: ServeTenant, use: Use) -> None:
    """Count a connection, if it isn't counted; ServeProblem if the tenant has too many."""
    if connection is not None and connection.use is None:
        count_connection(tenant, use)
        connection.use = use


def count_connection(tenant: ServeTenant, use: Use) -> None:
    """ServeProblem if the tenant has too many."""
    if use.connections >= tenant.quota.connections:
        raise busy(f"{tenant.quota.connections} connections are open, as many as are allowed at once")
    use.connections += 1


async def _sent(stream: AnswerStream, send: Send) -> None:
    async with aclosing(stream.pieces) as pieces:
        headers = [(name.encode(), value.encode()) for name, value in {
            "content-type": stream.kind, "cache-control": "no-store", "x-accel-buffering": "no", **stream.headers}.items()]
        first = await anext(pieces, b"") if stream.is_prompt else b""
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

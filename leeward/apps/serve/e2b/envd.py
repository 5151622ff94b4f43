"""
Port 49983 of a sandbox: its files and processes.

Trust:     a request shows the sandbox's own token, made of its id by the server's key; or a signature of a path by it, for
           links to files. Without either it learns nothing, not even whether there is such a sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import posixpath
import tempfile
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from io import BytesIO
from typing import IO, Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from leeward.apps.serve.calls import AnswerStream, Handler, ServeCall, Use, routed
from leeward.apps.serve.door import Door, token_of
from leeward.apps.serve.e2b import connect_rpc, filesystem
from leeward.apps.serve.e2b.boxes import OWN_PORTS, Boxes, OpenBox, is_id
from leeward.apps.serve.e2b.connect_rpc import Method, Row, keepalive_of, seconds_of
from leeward.apps.serve.e2b.processes import FollowedProcess, said_by
from leeward.apps.serve.problems import GONE, ServeProblem, bad, missing, too_large, unknown_token
from leeward.apps.serve.tokens import ServeTenant
from leeward.errors import DaemonError, SandboxOver

#: Files of one form; bytes of one piece of an answer; bytes of an upload in memory, the rest is in a file: at most.
MOST_FORM, PIECE, IN_MEMORY = 100, 1 << 18, 1 << 20
#: Seconds to wait for the end of a process that was killed: after that it isn't listed.
KILLED_S = 5.0
#: Sandboxes that are looked at without a rest for the one that has signed a link, and its seconds: some tenth of the time.
SEARCHED, REST_S = 64, 0.005


def routes(door: Door, boxes: Boxes) -> list[BaseRoute]:
    face = EnvdFace(door, boxes)
    found: list[BaseRoute] = [
        routed("POST", method.path, face.knows, connect_rpc.refused, face.in_box(method.answer))
        for method in (*face.methods(), *filesystem.METHODS)]
    return [*found, routed("GET", "/health", face.knows, refused, face.in_box(face.health)),
            routed("GET", "/files", face.knows_file, refused, face.in_box(face.read)),
            routed("POST", "/files", face.knows_file, refused, face.in_box(face.write))]


class OtherPorts:
    """Answers what is meant for a port of a sandbox that isn't one of E2B's own two, before any route is looked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity, port = place_of(Request(scope)) if scope["type"] == "http" else ("", "")
        if identity and port not in ("", *map(str, OWN_PORTS)):
            row = {"sandboxId": identity, "code": 501, "message": "ports aren't offered here: `leeward serve e2b ports`"}
            await JSONResponse(row, 501)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def refused(problem: ServeProblem) -> Response:
    return JSONResponse({"code": problem.status, "message": problem.message}, problem.status)


def place_of(request: Request) -> tuple[str, str]:
    """The id of the sandbox and the port that a request names: by headers, or by the first label of its Host."""
    headers = request.headers
    if "e2b-sandbox-id" in headers:
        return headers["e2b-sandbox-id"], headers.get("e2b-sandbox-port", "")
    label, _, _ = headers.get("host", "").partition(".")
    port, dash, identity = label.partition("-")
    return (identity, port) if dash and port.isdecimal() and is_id(identity) else ("", "")


class EnvdFace:
    def __init__(self, door: Door, boxes: Boxes) -> None:
        self._door, self._boxes = door, boxes
        self._searching = asyncio.Lock()

    # --- who calls ------------------------------------------------------------------

    async def knows(self, request: Request) -> tuple[ServeTenant, Use] | None:
        """Who calls, by the sandbox's token, or one of its tenant's. `state.box` is the sandbox from then on."""
        identity, _ = place_of(request)
        self._door.tokens.fresh()
        shown = request.headers.get("x-access-token") or request.headers.get("e2b-traffic-access-token") or ""
        if identity and any(self._door.tokens.is_derived(purpose, identity, shown) for purpose in ("envd", "traffic")):
            return await self.of_box(request, identity, None)
        known = self._door.with_token(token_of(request)) if "x-api-key" in request.headers else None
        return None if known is None or not identity else await self.of_box(request, identity, known[0])

    async def of_box(self, request: Request, identity: str, tenant: ServeTenant | None) -> tuple[ServeTenant, Use]:
        try:
            box = await self._boxes.find(tenant, identity)
        except ServeProblem as problem:
            raise ServeProblem(502, GONE) if problem.status == 404 else problem from None
        request.state.box = box
        owner = self._boxes.tenant_of(box)
        return owner, self._door.use_of(owner)

    async def knows_file(self, request: Request) -> tuple[ServeTenant, Use] | None:
        """As `knows`, or by the signature of a path, for which a link needs no header."""
        query = request.query_params
        if "signature" not in query:
            return await self.knows(request)
        identity, _ = place_of(request)
        until, path, user = query.get("signature_expiration", ""), query.get("path", ""), query.get("username", "")
        if until and not (until.isascii() and until.isdigit() and int(until[:20]) >= time.time()):
            raise ServeProblem(401, "signature is already expired")
        what = "read" if request.method == "GET" else "write"
        self._door.tokens.fresh()

        def is_by(sandbox: str) -> bool:
            signed = signature(path, what, user, self._door.tokens.derived("envd", sandbox), until)
            return hmac.compare_digest(signed.encode(), query["signature"].encode("utf-8", "replace"))

        # Of a user with a colon a part could be the path's: a link to read `a:write:b` would be one to write `a`.
        if ":" in user:
            raise unknown_token()
        found = await self._signer(is_by) if not identity else identity if is_by(identity) else ""
        if not found:
            raise unknown_token()
        return await self.of_box(request, found, None)

    async def _signer(self, is_by: Callable[[str], bool]) -> str:
        """The sandbox that has signed a link which names none; "" if none has. Anybody may ask: so one search at a time."""
        async with self._searching:
            for number, each in enumerate(await self._boxes.ids(), 1):
                if is_by(each):
                    return each
                if not number % SEARCHED:
                    await asyncio.sleep(REST_S)
        return ""

    def in_box(self, handler: Callable[[ServeCall, OpenBox], Awaitable[Response | AnswerStream]]) -> Handler:
        """*handler* with the sandbox of the call; one that has ended is answered as E2B's proxy does."""
        async def handled(call: ServeCall) -> Response | AnswerStream:
            box: OpenBox = call.request.state.box
            try:
                return await handler(call, box)
            except SandboxOver as error:
                self._boxes.over(box, error.reason)
                raise ServeProblem(502, GONE) from None
            except DaemonError:
                if not self._boxes.has(box):  # another call has forgotten it meanwhile, perhaps since it has ended
                    await self.of_box(call.request, box.id, call.tenant)
                raise

        return handled

    # --- files ----------------------------------------------------------------------

    async def health(self, call: ServeCall, box: OpenBox) -> Response:
        if (await box.box.info()).get("asleep"):
            raise ServeProblem(502, GONE)  # a question doesn't wake it
        return Response(status_code=204)

    async def read(self, call: ServeCall, box: OpenBox) -> AnswerStream:
        path = await box.path(call.request.query_params.get("path", ""))
        about = await box.box.files.stat(path)
        if not about.is_file:
            raise bad("this is a folder" if about.is_folder else "this isn't a file")

        async def pieces(piece: bytes) -> AsyncGenerator[bytes, None]:
            at = 0
            while piece:
                yield piece
                at += len(piece)
                piece = await box.box.files.read(path, offset=at, size=PIECE, limit=PIECE) if len(piece) == PIECE else b""

        # The error of the first one is the answer.
        return AnswerStream(pieces(await box.box.files.read(path, size=PIECE, limit=PIECE)), "application/octet-stream")

    async def write(self, call: ServeCall, box: OpenBox) -> Response:
        if any(name.startswith("x-metadata-") for name in call.headers):
            raise ServeProblem(501, "metadata of files isn't offered here")
        query, most = call.request.query_params, call.tenant.quota.body
        kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
        body = call.pieces(most)
        if call.headers.get("content-encoding", "identity") == "gzip":
            body = _unpacked(call, body, most)
        if kind == "multipart/form-data":
            form = await form_of(call, body, MOST_FORM)
            try:
                # What a page gives as text has no name, and is in UTF-8.
                files = [each if isinstance(each, UploadFile) else UploadFile(BytesIO(each.encode()))
                         for name, each in form.multi_items() if isinstance(each, UploadFile) or name == "file"]
                if "path" in query and len(files) != 1:
                    raise bad("with `path` one file is expected")
                return JSONResponse([await self._written(box, query.get("path") or each.filename or "", each.file)
                                     for each in files])
            finally:
                await form.close()
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
            async with aclosing(body):
                async for piece in body:
                    file.write(piece)
            file.seek(0)
            return JSONResponse([await self._written(box, query.get("path", ""), file)])

    async def _written(self, box: OpenBox, path: str, file: IO[bytes]) -> Row:
        found = await box.path(path)
        # As bytes where it is small: a file is read in a thread.
        content = file.read(IN_MEMORY + 1)
        if len(content) > IN_MEMORY:
            file.seek(0)
            await box.box.files.write(found, file)
        else:
            await box.box.files.write(found, content)
        return {"name": posixpath.basename(found), "path": found, "type": "file"}

    # --- processes ------------------------------------------------------------------

    def methods(self) -> list[Method]:
        return [Method("process", "List", self._list), Method("process", "Start", self._start, streams=True),
                Method("process", "Connect", self._connect, streams=True), Method("process", "Update", self._update),
                Method("process", "SendInput", self._send_input), Method("process", "CloseStdin", self._close_stdin),
                Method("process", "StreamInput", self._stream_input, takes_stream=True),
                Method("process", "SendSignal", self._send_signal)]

    async def _list(self, call: ServeCall, box: OpenBox, message: Any) -> Row:
        return {"processes": await box.processes.rows()}

    async def _start(self, call: ServeCall, box: OpenBox, message: Any) -> AsyncIterator[Row]:
        asked = message.process
        if not asked.cmd:
            raise bad("a command is missing")
        config: Row = {"cmd": asked.cmd, "args": list(asked.args), "envs": dict(asked.envs),
                       **({"cwd": asked.cwd} if asked.HasField("cwd") else {})}
        argv, is_terminal = [asked.cmd, *asked.args], message.HasField("pty")
        cwd = await box.path(asked.cwd or ".")
        # A shell believes PWD, if it is the folder: the home is a link.
        options: Any = {"env": {"PWD": cwd, **asked.envs}, "cwd": cwd}
        if is_terminal:
            size = message.pty.size
            process = await box.box.terminal(argv, (size.rows or 24, size.cols or 80), **options)
        else:
            has_input = message.stdin or not message.HasField("stdin")
            process = await box.box.start(argv, stdin=None if has_input else b"", **options)
        lasts = seconds_of(call, "connect-timeout-ms", 0.001)
        served = await box.processes.add(process, config, message.tag, is_terminal, lasts)
        async for row in self._followed(call, box, served):
            yield row

    async def _connect(self, call: ServeCall, box: OpenBox, message: Any) -> AsyncIterator[Row]:
        async for row in self._followed(call, box, await self._selected(box, message.process)):
            yield row

    async def _followed(self, call: ServeCall, box: OpenBox, served: FollowedProcess) -> AsyncIterator[Row]:
        with served.listening() as listener:
            box.processes.begin(served)
            yield {"event": {"start": {"pid": served.pid}}}
            async for event in said_by(served, listener, keepalive_of(call)):
                yield {"event": event}

    async def _selected(self, box: OpenBox, selector: Any) -> FollowedProcess:
        return await box.processes.find(selector.pid, selector.tag)

    async def _update(self, call: ServeCall, box: OpenBox, message: Any) -> Row:
        served = await self._selected(box, message.process)
        if message.HasField("pty"):
            await served.process.resize(message.pty.size.rows or 24, message.pty.size.cols or 80)
        return {}

    async def _send_input(self, call: ServeCall, box: OpenBox, message: Any) -> Row:
        await _typed(await self._selected(box, message.process), message.input)
        return {}

    async def _stream_input(self, call: ServeCall, box: OpenBox, messages: AsyncIterator[Any]) -> Row:
        served: FollowedProcess | None = None
        async for message in messages:
            if message.HasField("start"):
                served = await self._selected(box, message.start.process)
            elif message.HasField("data"):
                if served is None:
                    raise bad("the first message names the process")
                await _typed(served, message.data.input)
        return {}

    async def _close_stdin(self, call: ServeCall, box: OpenBox, message: Any) -> Row:
        await (await self._selected(box, message.process)).process.close_stdin()
        return {}

    async def _send_signal(self, call: ServeCall, box: OpenBox, message: Any) -> Row:
        served = await self._selected(box, message.process)
        if message.signal == 9:
            await served.process.kill()
            await asyncio.wait({box.processes.begin(served)}, timeout=KILLED_S)
        elif message.signal != 15:
            raise bad("signals here are SIGTERM and SIGKILL")
        elif not await served.process.signal(15):
            raise missing("the process has ended")
        return {}


async def _typed(served: FollowedProcess, given: Any) -> None:
    try:
        await served.process.write(given.pty if given.HasField("pty") else given.stdin)
    except BrokenPipeError:
        raise ServeProblem(409, "the process reads no more") from None


def signature(path: str, what: str, user: str, token: str, until: str) -> str:
    """E2B's signature of a link to a file."""
    text = ":".join([path, what, user, token, *([until] if until else [])])
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()).decode().rstrip("=")


async def form_of(call: ServeCall, body: AsyncGenerator[bytes, None], files: int) -> FormData:
    """A body that is a form, with so many *files* at most; ServeProblem if it is none. The caller closes it."""
    try:
        return await MultiPartParser(call.headers, body, max_files=files, max_fields=MOST_FORM).parse()
    except (MultiPartException, KeyError):  # without its kind
        raise bad("this isn't a form with files") from None


async def _unpacked(call: ServeCall, body: AsyncGenerator[bytes, None], most: int) -> AsyncGenerator[bytes, None]:
    """A body without its gzip; ServeProblem if it has more than *most* bytes then."""
    unpacker, size = zlib.decompressobj(31), 0
    async with aclosing(body):
        async for piece in body:
            held = piece
            while held:
                try:
                    data = unpacker.decompress(held, PIECE)
                except zlib.error:
                    raise bad("this isn't gzip") from None
                held = unpacker.unconsumed_tail
                size += len(data)
                if size > most:
                    raise too_large(most)
                call.hold(len(data))
                if data:
                    yield data
                await asyncio.sleep(0)  # a bomb unpacks for long: others have their turn
    if not unpacker.eof:
        raise bad("a body that was cut off")

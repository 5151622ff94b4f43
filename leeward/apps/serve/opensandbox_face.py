"""
OpenSandbox's API: sandboxes, and the commands and files in them.

Keeps:     nothing. The output of a command in the background and the state of a shell's session are files in the sandbox,
           so another server, or one that starts anew, goes on with them.
Trust:     none in a request's bytes. An image is a name for a profile: none is fetched. What runs in a sandbox is asked for
           with the sandbox's own token, or its tenant's; its paths and lines are used by processes in it.
Source:    github.com/opensandbox-group/OpenSandbox, specs; docs/serve.md
"""

from __future__ import annotations

import asyncio
import codecs
import json
import posixpath
import re
import secrets
import shlex
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute

from leeward.apps.serve.calls import (
    MOST_JSON,
    AnswerStream,
    Handler,
    ServeCall,
    Use,
    in_turn,
    json_of,
    number_of,
    routed,
    taken,
    texts,
)
from leeward.apps.serve.door import Door
from leeward.apps.serve.e2b.boxes import OpenBox, own_metadata, profile_of, template_of, with_own, woken
from leeward.apps.serve.e2b.control import ControlFace, begun, filter_of, seconds_of, state_of, when
from leeward.apps.serve.e2b.envd import KILLED_S, MOST_FORM, EnvdFace, form_of
from leeward.apps.serve.e2b.filesystem import below, rows_of
from leeward.apps.serve.opensandbox_network import NetworkFace, asked
from leeward.apps.serve.problems import ServeProblem, bad, missing, not_offered, too_large
from leeward.apps.serve.tokens import ServeTenant
from leeward.apps.serve.volumes import wanted
from leeward.client.aio_process import AsyncProcess
from leeward.client.file_calls import FileInfo
from leeward.client.sandbox_calls import Chunk
from leeward.errors import DaemonError
from leeward.spec.outcome import Outcome, Result

#: The headers with a tenant's token, and with a sandbox's.
KEY, ACCESS = "open-sandbox-api-key", "X-EXECD-ACCESS-TOKEN"
#: Where a sandbox's own routes are, below its id, and the ports by which the SDK asks for them and for the network's.
INSIDE, EXECD, EGRESS = "/opensandbox", 44772, 18080
#: The image that stands for the server's profile; others are profiles that a token may choose.
OWN_IMAGE = "opensandbox/code-interpreter"
#: The program that a sandbox has to begin with: it does nothing.
ENTRY = ["tail", "-f", "/dev/null"]
#: What isn't offered, of a request for a sandbox.
_ABSENT = ("snapshotId", "credentialProxy", "lifecycle", "platform", "extensions")
#: Characters of a line that is sent before its end; lines of a log; bytes of lines that are read, or of a file that is
#: replaced in, before and after; paths of a call.
MOST_LINE, MOST_LINES, MOST_TEXT, MOST_PATHS = 1 << 16, 10_000, 8 << 20, 1000
#: Lines that are sent without a turn for other calls.
_AT_ONCE = 256
#: Seconds in which a command may end so that its events are sent in one piece, and chunks of its output until then: each
#: piece costs a client about as much as all else.
_EARLY_S, _MOST_EARLY = 0.005, 16

#: Runs a command with its output in a file.
_BEHIND = 'exec >"$1" 2>&1; shift; exec "$@"'
#: Runs a line where the last one of its session ended: in that folder, with its exported variables and its functions. Of
#: lines that run at the same time each finds a whole state; one that outlives its session leaves none.
_IN_SESSION = """. "$1" 2>/dev/null; [ -z "$3" ] || cd -- "$3" || exit
trap 'if [ -e "'"$1"'" ]; then { export -p; declare -f; printf "cd -- %q\\n" "$PWD"; } >"'"$1.$$"'" &&
command -p mv -f -- "'"$1.$$"'" "'"$1"'"; fi' EXIT
eval "$2"
"""
_SESSION = re.compile(r"[0-9a-f]{16}", re.ASCII)
_TYPES = {"file": "file", "folder": "directory", "link": "symlink"}

Row = dict[str, Any]
InBox = Callable[[ServeCall, OpenBox], Awaitable[Response | AnswerStream]]


def routes(door: Door) -> list[BaseRoute]:
    control = ControlFace(door, door.boxes)
    face, inside = OpenSandboxFace(door, control), ExecdFace(door)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "", face.create), ("GET", "", face.list), ("GET", "/{id}", face.get), ("DELETE", "/{id}", control.kill),
        ("POST", "/{id}/renew-expiration", face.renew), ("POST", "/{id}/pause", accepted(control.put_to_sleep)),
        ("POST", "/{id}/resume", accepted(face.resume)), ("PATCH", "/{id}/metadata", face.describe),
        ("GET", "/{id}/endpoints/{port}", face.endpoint)]
    return [*(routed(methods, f"/v1/sandboxes{path}", face.knows, refused, handler) for methods, path, handler in table),
            routed("GET POST PUT PATCH DELETE", "/v1/{rest:path}", face.knows, refused, absent),
            *(routed(methods, f"{INSIDE}/{{id}}{path}", inside.knows, refused, inside.in_box(inside_handler))
              for methods, path, inside_handler in inside.table())]


def refused(problem: ServeProblem) -> Response:
    return JSONResponse({"code": str(problem.status), "message": problem.message}, problem.status)


def accepted(handler: Callable[[ServeCall], Awaitable[object]]) -> Handler:
    async def handled(call: ServeCall) -> Response:
        await handler(call)
        return Response(status_code=202)

    return handled


class OpenSandboxFace:
    def __init__(self, door: Door, control: ControlFace) -> None:
        self._door, self._boxes, self._control = door, door.boxes, control

    async def knows(self, request: HTTPConnection) -> tuple[ServeTenant, Use] | None:
        return self._door.with_token(request.headers.get(KEY, ""))

    async def create(self, call: ServeCall) -> Response:
        fields, quota = await call.fields(), call.tenant.quota
        for name in _ABSENT:
            if fields.get(name):
                raise not_offered(name)
        if taken(fields, "entrypoint", list, ENTRY) != ENTRY:
            raise ServeProblem(501, f"a sandbox begins with {' '.join(ENTRY)} here: start others by commands")
        image = taken(taken(fields, "image", dict, {}), "uri", str, "")
        lasts = taken(fields, "timeout", float, float(quota.lifetime))
        if not 0 < lasts <= quota.lifetime:
            raise bad(f"timeout has to be seconds, {quota.lifetime} at most")
        network, marks = asked(call.tenant, fields)
        box = await self._boxes.open(
            call.tenant, call.use, image, texts(fields, "metadata"), call.headers.get("idempotency-key", ""), marks,
            profile=profile_of(image.partition(":")[0], call.tenant, self._door.options.box_profile, "image", (OWN_IMAGE,)),
            is_private=taken(fields, "secureAccess", bool, False), env=texts(fields, "env"), lifetime=lasts, idle=lasts,
            volumes=wanted(call.tenant, fields), **network)
        return JSONResponse(_described(await self._boxes.info(box)), 202)

    async def get(self, call: ServeCall) -> Response:
        return JSONResponse(_described(await self._boxes.info(await self._control.found(call))))

    async def list(self, call: ServeCall) -> Response:
        query = call.request.query_params
        wanted = dict(filter_of(query.get("metadata", "")))
        page, size = _number(query, "page", 1, 1 << 31), _number(query, "pageSize", 20, 200)
        rows = [row for row in map(_described, reversed(await self._boxes.rows(call.tenant)))
                if wanted.items() <= row["metadata"].items()
                and row["status"]["state"] in (query.getlist("state") or [row["status"]["state"]])]
        pages = -(-len(rows) // size)
        return JSONResponse({"items": rows[(page - 1) * size:page * size], "pagination": {
            "page": page, "pageSize": size, "totalItems": len(rows), "totalPages": pages, "hasNextPage": page < pages}})

    async def renew(self, call: ServeCall) -> Response:
        box, fields = await self._control.found(call), await call.fields()
        left = seconds_of(taken(fields, "expiresAt", str, ""), "expiresAt") - time.time()
        if not 0 < left <= call.tenant.quota.lifetime:
            raise bad(f"expiresAt has to be a time to come, {call.tenant.quota.lifetime} seconds from now at most")
        await self._control.extend(box, left)
        return JSONResponse({"expiresAt": _described(await self._boxes.info(box))["expiresAt"]})

    async def describe(self, call: ServeCall) -> Response:
        """Change metadata: a name whose value is null goes."""
        box, fields = await self._control.found(call), await call.fields()
        fresh = texts({"metadata": {name: value for name, value in fields.items() if value is not None}}, "metadata")

        def changed(metadata: Mapping[str, str]) -> tuple[dict[str, str], None]:
            own = {name: value for name, value in own_metadata(metadata).items() if name not in fields}
            return with_own(metadata, own | fresh), None

        return JSONResponse(_described(await self._boxes.change(box, changed)))

    async def resume(self, call: ServeCall) -> None:
        """A pause and its end leave `expiresAt` as it is."""
        box = await self._control.found(call)
        await self._boxes.info(box)
        await woken(box)

    async def endpoint(self, call: ServeCall) -> Response:
        """Where a port of the sandbox is reached."""
        box, port = await self._control.found(call), _number(call.request.path_params, "port", 0, 65535)
        tokens, here = self._door.tokens, f"{call.headers['host']}{INSIDE}/{box.id}"
        if port in (EXECD, EGRESS):
            where = here if port == EXECD else f"{here}/egress"
            return JSONResponse({"endpoint": where, "headers": {ACCESS: tokens.derived("envd", box.id)}})
        shown = {"e2b-traffic-access-token": tokens.derived("traffic", box.id)} if box.is_private else {}
        return JSONResponse({"endpoint": f"{port}-{box.id}.{self._door.options.domain}", "headers": shown})


def _described(row: Mapping[str, Any]) -> Row:
    """A row of the daemon's as OpenSandbox's lists have it."""
    return {"id": row["sandbox"], "image": {"uri": template_of(row["metadata"])}, "status": {
        "state": state_of(row).capitalize()}, "metadata": own_metadata(row["metadata"]), "entrypoint": ENTRY,
        "createdAt": when(begun(row)), "expiresAt": when(round(time.time() + float(row["left"])))}


def _number(given: Mapping[str, Any], name: str, default: int, most: int = 1 << 31, least: int = 1) -> int:
    return number_of(given.get(name, str(default)), name, least, most)


class ExecdFace:
    def __init__(self, door: Door) -> None:
        self._door, self._envd, self._network = door, EnvdFace(door, door.boxes), NetworkFace(door.boxes)

    def table(self) -> list[tuple[str, str, InBox]]:
        return [
            ("GET", "/ping", self._ping), ("GET", "/metrics", _metrics),
            ("POST", "/command", _run), ("DELETE", "/command", _interrupt), ("GET", "/command/status/{command}", _status),
            ("GET", "/command/{command}/logs", _logs), ("POST", "/session", _new_session),
            ("POST", "/session/{session}/run", _run_in_session), ("DELETE", "/session/{session}", _end_session),
            ("GET", "/files/info", _infos), ("DELETE", "/files", _remove), ("POST", "/files/permissions", _permit),
            ("POST", "/files/mv", _move), ("GET", "/files/search", _search), ("POST", "/files/replace", _replace),
            ("POST", "/files/upload", _upload), ("GET", "/files/download", self._download),
            ("GET", "/directories/list", _list), ("POST", "/directories", _permit), ("DELETE", "/directories", _remove),
            ("GET", "/egress/policy", self._network.get), ("PATCH", "/egress/policy", self._network.patch),
            ("DELETE", "/egress/policy", self._network.delete), ("GET POST PUT PATCH DELETE", "/{rest:path}", absent)]

    async def knows(self, request: Request) -> tuple[ServeTenant, Use] | None:
        identity, shown = request.path_params["id"], request.headers.get(ACCESS, "")
        self._door.tokens.fresh()
        if self._door.tokens.is_derived("envd", identity, shown):
            return await self._envd.of_box(request, identity, None)
        known = self._door.with_token(request.headers.get(KEY, ""))
        return None if known is None else await self._envd.of_box(request, identity, known[0])

    def in_box(self, handler: InBox) -> Handler:
        return self._envd.in_box(handler)

    async def _ping(self, call: ServeCall, box: OpenBox) -> Response:
        await self._envd.health(call, box)
        return Response(status_code=200)

    async def _download(self, call: ServeCall, box: OpenBox) -> Response | AnswerStream:
        """A file, or lines of it."""
        query = call.request.query_params
        if "offset" not in query and "limit" not in query:
            return await self._envd.read(call, box)
        first, count = _number(query, "offset", 1), _number(query, "limit", 1 << 31)
        text = await _lines(call, box, await box.path(query.get("path", "")), first, count)
        return Response(text.removesuffix(b"\n"), media_type="text/plain")


async def _lines(call: ServeCall, box: OpenBox, path: str, first: int, count: int) -> bytes:
    return await box.box.files.read(path, lines=(first, first + count - 1), limit=_held(call))


def _held(call: ServeCall, copies: int = 1) -> int:
    """The bytes of a text that a call may have in memory, so often; ServeProblem if its tenant's calls have too much."""
    most = min(MOST_TEXT, call.tenant.quota.body)
    call.hold(copies * most)
    return most


async def absent(call: ServeCall, box: OpenBox | None = None) -> Response:
    raise not_offered()


async def _metrics(call: ServeCall, box: OpenBox) -> Response:
    row, mib = await box.box.info(), 1 << 20
    return JSONResponse({"cpu_count": 1, "cpu_used_pct": min(100.0, round(100 * row["cpu_time"] / max(row["age"], 0.001), 2)),
                         "mem_total_mib": row["memory_limit"] / mib, "mem_used_mib": row["memory"] / mib,
                         "timestamp": _now()})


async def _run(call: ServeCall, box: OpenBox) -> AnswerStream:
    fields = await call.fields()
    if fields.get("uid") is not None or fields.get("gid") is not None:
        raise ServeProblem(501, "a sandbox has one user")
    argv = ["bash", "-c", taken(fields, "command", str, "")]
    cwd = await box.path(taken(fields, "cwd", str, "") or ".")
    seconds, envs = _seconds(fields), texts(fields, "envs")
    if taken(fields, "background", bool, False):
        process = await _started(box, ["sh", "-c", _BEHIND, "sh", f"/tmp/.opensandbox-{secrets.token_hex(8)}", *argv], cwd,
                                 seconds, envs)
        return _streamed(process, is_behind=True)
    return _streamed(await _started(box, argv, cwd, seconds, envs))


def _seconds(fields: Mapping[str, Any]) -> float:
    """Those of a command; 0 for no bound."""
    milliseconds = taken(fields, "timeout", float, 0.0)
    if not 0 <= milliseconds < 1 << 53:
        raise bad("timeout has to be milliseconds")
    return milliseconds / 1000


async def _started(box: OpenBox, argv: list[str], cwd: str, seconds: float, envs: Mapping[str, str]) -> AsyncProcess:
    options: Any = {"timeout": seconds} if seconds > 0 else {}
    return await box.box.start(argv, cwd=cwd, env={"PWD": cwd, **envs}, stdin=b"", **options)


def _streamed(process: AsyncProcess, is_behind: bool = False) -> AnswerStream:
    return AnswerStream(_followed(process, is_behind), "text/event-stream", is_prompt=True)


async def _followed(process: AsyncProcess, is_behind: bool) -> AsyncGenerator[bytes, None]:
    """The events of a command until its end, at which it is killed if that is its caller's; only the first *is_behind*."""
    lines, begun, is_over = {"stdout": _OutputLines(), "stderr": _OutputLines()}, time.monotonic(), is_behind
    said, early = _event("init", text=str(process.number)), list[Chunk]()
    try:
        while not is_behind and len(early) < _MOST_EARLY and (left := begun + _EARLY_S - time.monotonic()) > 0:
            if not (chunks := await process.read(left)):
                break
            early += chunks
        result = None if is_behind else await process.wait(0)
        if result is None:
            yield said
            said = b""
        if is_behind:
            return
        async for chunk in _chunks(early, process):
            events = (_event(chunk.stream, text=line) for line in lines[chunk.stream].taken(chunk.data))
            while some := b"".join(islice(events, _AT_ONCE)):
                said += some
                if result is None or len(said) > MOST_LINE:
                    yield said
                    said = b""
                await asyncio.sleep(0)
        for stream, rest in lines.items():
            said += b"".join(_event(stream, text=line) for line in rest.taken(b"", final=True))
        result = result or await process.wait()
        is_over = True
        assert result is not None
        yield said + _end(result, begun)
    finally:
        if not is_over:
            with suppress(DaemonError):  # it has ended, with its sandbox perhaps
                await process.kill()


async def _chunks(early: list[Chunk], process: AsyncProcess) -> AsyncGenerator[Chunk, None]:
    for chunk in early:
        yield chunk
    async for chunk in process:
        yield chunk


class _OutputLines:
    """Whole lines of a stream, without their ends."""

    def __init__(self) -> None:
        self._decoder, self._rest = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def taken(self, data: bytes, final: bool = False) -> Iterator[str]:
        *whole, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        yield from whole
        if self._rest and (final or len(self._rest) > MOST_LINE):
            yield self._rest
            self._rest = ""


def _event(kind: str, **fields: object) -> bytes:
    return b"data: " + json.dumps({"type": kind, "timestamp": _now(), **fields}).encode() + b"\n\n"


def _end(result: Result, begun: float) -> bytes:
    if result.outcome is Outcome.FINISHED and result.exit_code == 0:
        return _event("execution_complete", execution_time=round((time.monotonic() - begun) * 1000))
    return _event("error", error={"ename": "CommandExecError", "evalue": str(result.exit_code),
                                  "traceback": [result.hint or f"exit status {result.exit_code}"]})


def _now() -> int:
    return int(time.time() * 1000)


async def _row(call: ServeCall, box: OpenBox) -> Mapping[str, Any]:
    """The daemon's row of the command that a call names."""
    number = call.request.path_params["command"]
    for row in await box.box.processes():
        if str(row["process"]) == number:
            return row
    raise missing("there is no such command")


def _behind(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The file with the output of a command in the background, "" for another one; and the command's words."""
    argv = list(row.get("argv") or ())
    return (argv[4], argv[5:]) if argv[2:3] == [_BEHIND] and len(argv) > 5 else ("", argv)


async def _status(call: ServeCall, box: OpenBox) -> Response:
    row = await _row(call, box)
    over, (_, argv) = bool(row["over"]), _behind(row)
    return JSONResponse({
        "id": str(row["process"]), "content": shlex.join(argv), "running": not over,
        "exit_code": row.get("exit_code") if over else None, "started_at": when(time.time() - float(row["age"]))})


async def _logs(call: ServeCall, box: OpenBox) -> Response:
    """The whole lines of a command in the background, those behind the one with the number `cursor`, from 0."""
    row = await _row(call, box)
    (path, _), query = _behind(row), call.request.query_params
    if not path:
        raise bad("this command wasn't run in the background")
    first = _number(query, "cursor", 0, least=0) + 1 if "cursor" in query else 0
    try:
        text = await _lines(call, box, path, first + 1, MOST_LINES)
    except FileNotFoundError:
        text = b""
    if not row["over"]:
        text = text[:text.rfind(b"\n") + 1]
    count = text.count(b"\n") + (bool(text) and not text.endswith(b"\n"))
    last = {"EXECD-COMMANDS-TAIL-CURSOR": str(first + count - 1)} if first + count else {}
    return PlainTextResponse(text.decode("utf-8", "replace"), headers=last)


async def _interrupt(call: ServeCall, box: OpenBox) -> Response:
    process = await box.box.process(_number(call.request.query_params, "id", 0))
    await process.kill()
    await process.wait(KILLED_S)  # then its status says that it is over
    return Response(status_code=200)


async def _new_session(call: ServeCall, box: OpenBox) -> Response:
    session, cwd = secrets.token_hex(8), await box.path(taken(await call.fields(), "cwd", str, "") or ".")
    await box.box.files.write(_state(session), f"cd -- {shlex.quote(cwd)}\n")
    return JSONResponse({"session_id": session})


def _state(session: str) -> str:
    if not _SESSION.fullmatch(session):
        raise missing("there is no such session")
    return f"/tmp/.opensandbox-{session}"


async def _run_in_session(call: ServeCall, box: OpenBox) -> AnswerStream:
    fields, state = await call.fields(), _state(call.request.path_params["session"])
    if not await box.box.files.exists(state):
        raise missing("there is no such session")
    cwd, line = taken(fields, "cwd", str, ""), taken(fields, "command", str, "")
    argv = ["bash", "-c", _IN_SESSION, "bash", state, line, await box.path(cwd) if cwd else ""]
    process = await _started(box, argv, await box.path("."), _seconds(fields), {})
    return _streamed(process)


async def _end_session(call: ServeCall, box: OpenBox) -> Response:
    await box.box.files.remove(_state(call.request.path_params["session"]))
    return Response(status_code=200)


def _file(path: str, info: FileInfo) -> Row:
    at = when(info.mtime)
    return {"path": path, "type": _TYPES.get(info.kind, "other"), "size": info.size, "mode": int(f"{info.mode & 0o7777:o}"),
            "owner": "user", "group": "user", "modified_at": at, "created_at": at}


async def _paths(call: ServeCall, box: OpenBox) -> list[str]:
    paths = call.request.query_params.getlist("path")
    if len(paths) > MOST_PATHS:
        raise bad(f"a call names {MOST_PATHS} paths at most")
    return [await box.path(path) for path in paths or [""]]


async def _infos(call: ServeCall, box: OpenBox) -> Response:
    return JSONResponse({path: _file(path, await box.box.files.stat(path, follow=False)) for path in await _paths(call, box)})


async def _remove(call: ServeCall, box: OpenBox) -> Response:
    for path in await _paths(call, box):
        await box.box.files.remove(path, recursive=call.request.url.path.endswith("/directories"), missing_ok=True)
    return Response(status_code=200)


def _mode(fields: Mapping[str, Any]) -> int | None:
    """Permission bits, which are written as a number whose digits are octal; ServeProblem for another owner."""
    if fields.get("owner") or fields.get("group"):
        raise ServeProblem(501, "a sandbox has one user, and files no other owner")
    digits = taken(fields, "mode", int, 0)
    if not 0 <= digits <= 7777 or set(str(digits)) & {"8", "9"}:
        raise bad("mode has to be octal digits, such as 755")
    return int(str(digits), 8) or None


async def _each(call: ServeCall, box: OpenBox) -> list[tuple[str, Row]]:
    """The rows of a body that has them by path."""
    fields = await call.fields()
    if len(fields) > MOST_PATHS or not all(isinstance(row, dict) for row in fields.values()):
        raise bad(f"a body here has objects by path, {MOST_PATHS} at most")
    return [(await box.path(path), row) for path, row in fields.items()]


async def _permit(call: ServeCall, box: OpenBox) -> Response:
    """Make folders, or not, and give them and files their permissions."""
    for path, row in await _each(call, box):
        mode = _mode(row)
        if call.request.url.path.endswith("/directories"):
            await box.box.files.mkdir(path, exist_ok=True)
        done = await box.box.run(["chmod", f"{mode:o}", "--", path]) if mode is not None else None
        if done is not None and not done.ok:
            raise bad(done.stderr.decode("utf-8", "replace").strip()[:500])
    return Response(status_code=200)


async def _move(call: ServeCall, box: OpenBox) -> Response:
    rows = await call.listed()
    if len(rows) > MOST_PATHS or not all(isinstance(row, dict) for row in rows):
        raise bad(f"a body here is a list of objects, {MOST_PATHS} at most")
    for row in rows:
        await box.box.files.move(await box.path(taken(row, "src", str, "")), await box.path(taken(row, "dest", str, "")))
    return Response(status_code=200)


async def _search(call: ServeCall, box: OpenBox) -> Response:
    query = call.request.query_params
    found = await box.box.files.glob(query.get("pattern", "**"), path=await box.path(query.get("path", "")), limit=MOST_PATHS)
    if found.more:
        raise bad(f"more than {MOST_PATHS} files match")
    rows = []
    for path in found:
        with suppress(FileNotFoundError):  # it has gone meanwhile
            rows.append((path, await box.box.files.stat(path, follow=False)))
    return JSONResponse([_file(path, info) for path, info in rows if not info.is_folder])


async def _list(call: ServeCall, box: OpenBox) -> Response:
    query = call.request.query_params
    found = await below(call.use, box, await box.path(query.get("path", "")), _number(query, "depth", 1, least=0))

    def written(some: list[tuple[str, FileInfo]]) -> list[str]:
        return [json.dumps(_file(path, info)) for path, info in some]

    return Response(f"[{','.join(await rows_of(call.use, found, written))}]", media_type="application/json")


async def _replace(call: ServeCall, box: OpenBox) -> Response:
    counts, rows, most = {}, await _each(call, box), _held(call, 2)
    for path, row in rows:
        old, new = (taken(row, name, str, "").encode() for name in ("old", "new"))
        if not old:
            raise bad("old is missing")
        content = await box.box.files.read(path, limit=most)
        count = content.count(old)
        if len(content) + count * (len(new) - len(old)) > most:
            raise too_large(most)
        counts[path] = {"replacedCount": count}
        if count:
            await box.box.files.write(path, content.replace(old, new))
    return JSONResponse(counts) if call.request.query_params.get("verbose") == "true" else Response(status_code=200)


async def _upload(call: ServeCall, box: OpenBox) -> Response:
    """Files of a form, each behind its description."""
    form = await form_of(call, call.pieces(call.tenant.quota.body), 2 * MOST_FORM)
    try:
        about: Row | None = None
        for name, part in form.multi_items():
            if name == "metadata":
                text = await part.read(MOST_JSON) if isinstance(part, UploadFile) else part.encode()
                about = await in_turn(call.use, json_of, text)
            elif name == "file" and about is not None:
                path, mode = await box.path(taken(about, "path", str, "")), _mode(about)
                await box.box.files.mkdir(posixpath.dirname(path), exist_ok=True)
                await box.box.files.write(path, part.file if isinstance(part, UploadFile) else part.encode(), mode=mode)
                about = None
            else:
                raise bad("a form here has `metadata` before each `file`")
    finally:
        await form.close()
    return Response(status_code=200)

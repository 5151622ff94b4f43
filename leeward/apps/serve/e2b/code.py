"""
Port 49999 of a sandbox: code in kernels, whose output and results are sent line by line as they come.

Holds:     when a client goes while its code runs, the code is interrupted, and the kernel keeps its state.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute

from leeward.apps.serve.calls import AnswerStream, ServeCall, routed, taken, texts
from leeward.apps.serve.door import Door
from leeward.apps.serve.e2b.boxes import WORKSPACE, Boxes, Context, OpenBox
from leeward.apps.serve.e2b.envd import EnvdFace
from leeward.apps.serve.problems import ServeProblem, busy, missing
from leeward.client.aio_process import AsyncKernel
from leeward.errors import DaemonError, SandboxOver, SessionOver
from leeward.spec.outcome import Outcome, Result

#: Seconds that one request's code may take: as the clients' own default.
CODE_S = 300.0
#: Seconds after which what was written isn't the traceback of an error, which has a line of its own: that comes with the
#: end. Whether what was shown is the value of the last expression is known by what follows alone.
_HELD_S = 1.0
#: Seconds that code has to end when it is interrupted.
_INTERRUPT_S = 5.0
#: Contexts of a sandbox, bytes of code: at most.
MOST_CONTEXTS, MOST_CODE = 16, 16 << 20
#: The context of requests that name none, whose kernel is a sandbox's first; what others' names begin with.
DEFAULT, _NAMED = "default", "context-"
_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)

#: E2B's names of forms.
_FORMS = {"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
          "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
          "application/javascript": "javascript"}

Row = dict[str, Any]
Line = Row | Result | DaemonError


def routes(door: Door, boxes: Boxes) -> list[BaseRoute]:
    face, known = CodeFace(door, boxes), EnvdFace(door, boxes)
    table = (("POST", "/execute", face.execute), ("POST", "/contexts", face.create), ("GET", "/contexts", face.list),
             ("DELETE", "/contexts/{id}", face.remove), ("POST", "/contexts/{id}/restart", face.restart))
    return [routed(method, path, known.knows, refused, known.in_box(handler))
            for method, path, handler in table]


def refused(problem: ServeProblem) -> Response:
    if problem.status == 502:
        return JSONResponse({"code": 502, "message": problem.message}, 502)
    return PlainTextResponse(problem.message, problem.status)


class CodeFace:
    def __init__(self, door: Door, boxes: Boxes) -> None:
        self._door, self._boxes = door, boxes

    async def _context(self, box: OpenBox, identity: str) -> Context:
        """
        A context that is there; the default one is made when it is first asked for. One of a sandbox that an earlier
        server has opened is known by its kernel's number.
        """
        number = "1" if identity == DEFAULT else identity.removeprefix(_NAMED)
        if identity in box.contexts:
            return box.contexts[identity]
        async with box.making:
            if identity not in box.contexts:
                kernel = AsyncKernel(box.box, int(number)) if _NUMBER.fullmatch(number) else None
                if kernel is None or not box.is_attached or not await _is_there(kernel):
                    if identity != DEFAULT:
                        raise missing("there is no such context")
                    kernel = await box.box.kernel()
                box.contexts[identity] = Context(kernel, WORKSPACE)
            return box.contexts[identity]

    async def create(self, call: ServeCall, box: OpenBox) -> Response:
        fields = await call.fields()
        _check_language(fields)
        if len(box.contexts) >= MOST_CONTEXTS:
            raise busy(f"{MOST_CONTEXTS} contexts are open, as many as are allowed at once")
        cwd = await box.path(taken(fields, "cwd", str, "."))
        await self._context(box, DEFAULT)  # the default one's kernel is the first
        context = Context(await box.box.kernel(), cwd)
        identity = f"{_NAMED}{context.kernel.number}"
        box.contexts[identity] = context
        await _enter(context)
        return JSONResponse(_row(identity, context))

    async def list(self, call: ServeCall, box: OpenBox) -> Response:
        return JSONResponse([_row(identity, context) for identity, context in box.contexts.items()])

    async def remove(self, call: ServeCall, box: OpenBox) -> Response:
        context = box.contexts.pop(call.request.path_params["id"], None)
        if context is None:
            raise missing("there is no such context")
        await context.kernel.close()
        return Response(status_code=204)

    async def restart(self, call: ServeCall, box: OpenBox) -> Response:
        context = await self._context(box, call.request.path_params["id"])
        await context.kernel.reset()
        await _enter(context)
        return Response(status_code=204)

    async def execute(self, call: ServeCall, box: OpenBox) -> AnswerStream:
        fields = await call.fields(MOST_CODE)
        _check_language(fields)
        code, env = taken(fields, "code", str, ""), texts(fields, "env_vars")
        context = await self._context(box, taken(fields, "context_id", str, "") or DEFAULT)
        return AnswerStream(_lines(context, code, env), "application/x-ndjson")


def _check_language(fields: Mapping[str, Any]) -> None:
    if (taken(fields, "language", str, "") or "python") not in ("python", "python3"):
        raise ServeProblem(501, "languages here are python")


def _row(identity: str, context: Context) -> Row:
    return {"id": identity, "language": "python", "cwd": context.cwd}


async def _is_there(kernel: AsyncKernel) -> bool:
    """Whether the sandbox has this kernel; one whose process has ended is begun anew."""
    try:
        await kernel.execute("", display=False)
    except SessionOver:
        try:
            await kernel.reset()
        except SessionOver:
            return False
    return True


async def _enter(context: Context) -> None:
    if context.cwd != WORKSPACE:
        await context.kernel.execute(f"import os; os.chdir({context.cwd!r}); del os", display=False)


async def _lines(context: Context, code: str, env: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
    """Run code, and say what it says, line by line."""
    context.count += 1
    yield _line({"type": "number_of_executions", "execution_count": context.count})
    queue: asyncio.Queue[Line] = asyncio.Queue()
    task = asyncio.ensure_future(_run(context, code, env, queue))
    held: Row | None = None
    try:
        while True:
            try:
                async with asyncio.timeout(_HELD_S if held and held["type"] == "stderr" else None):
                    item = await queue.get()
            except TimeoutError:
                if held:
                    yield _line(held)
                held = None
                continue
            if isinstance(item, dict):
                if held:
                    yield _line(held)
                held = item if item["type"] in ("result", "stderr") else None
                if held is None:
                    yield _line(item)
                continue
            error = _error_of(item)
            if held and held["type"] == "result":
                yield _line({**held, "is_main_result": isinstance(item, Result) and item.value is not None})
            elif held:
                text = held["text"].removesuffix(error["traceback"] if error else "")
                if text:
                    yield _line({**held, "text": text})
            if error is not None:
                yield _line(error)
            return
    finally:
        if not task.done():
            await asyncio.shield(_stop(context, task))


async def _stop(context: Context, task: asyncio.Task[None]) -> None:
    """Interrupt code for which nobody waits any more; one that doesn't end loses its kernel's state."""
    try:
        await context.kernel.interrupt()
        await asyncio.wait({task}, timeout=_INTERRUPT_S)
        if not task.done():
            await context.kernel.reset()
    except DaemonError:
        pass  # the sandbox has ended
    task.cancel()
    await asyncio.wait({task})


async def _run(context: Context, code: str, env: Mapping[str, str], queue: asyncio.Queue[Line]) -> None:
    def said(stream: str) -> Any:
        return lambda data: queue.put_nowait({"type": stream, "text": data.decode("utf-8", "replace"),
                                              "timestamp": time.time_ns()})

    try:
        result = await context.kernel.execute(
            code, env=env, timeout=CODE_S, on_stdout=said("stdout"), on_stderr=said("stderr"),
            on_result=lambda shown: queue.put_nowait(_shown(shown)))
    except SessionOver as error:
        await context.kernel.reset()
        await _enter(context)
        queue.put_nowait(error)
    except DaemonError as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(result)


def _error_of(end: Result | DaemonError) -> Row | None:
    """The line about code that has failed; None if it hasn't."""
    if isinstance(end, SandboxOver):
        name, value = "SandboxOver", "the sandbox has ended"
    elif isinstance(end, DaemonError):
        name, value = "KernelEnded", "the kernel had ended, and its state is lost; a new one is there for the next request"
    elif end.error is not None and end.outcome is Outcome.RAISED:
        return {"type": "error", "name": end.error.type, "value": end.error.message, "traceback": end.error.traceback}
    elif end.outcome is Outcome.FINISHED and not end.exit_code:
        return None
    elif end.outcome is Outcome.FINISHED:
        name, value = "SystemExit", str(end.exit_code)
    else:
        name, value = str(end.outcome), end.hint or "the code was ended, and the kernel's state is lost"
    return {"type": "error", "name": name, "value": value, "traceback": ""}


def _shown(forms: Mapping[str, str | bytes]) -> Row:
    """One object that the code has shown."""
    row: Row = {"type": "result", "is_main_result": False, "extra": {}}
    for kind, content in forms.items():
        text: Any = base64.b64encode(content).decode() if isinstance(content, bytes) else content
        if kind == "application/json" and isinstance(content, str):
            try:
                text = json.loads(content)
            except (ValueError, RecursionError):
                pass
        if kind in _FORMS:
            row[_FORMS[kind]] = text
        else:
            row["extra"][kind] = text
    return row


def _line(row: Row) -> bytes:
    return json.dumps(row).encode() + b"\n"

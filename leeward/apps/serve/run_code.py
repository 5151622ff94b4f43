"""
`/run_code` and `/run_jupyter` of SandboxFusion, which trainers call: a program, and how it ended.

Verdicts:  what the program did is `Success` or `Failed`. What the server couldn't do is `SandboxError`, which clients
           repeat, or the status 504, where a wait was in vain.
Source:    github.com/bytedance/SandboxFusion, sandbox/server/online_judge_api.py and its client 0.3.7; docs/serve.md
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import json
import posixpath
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from leeward.apps.serve.calls import AnswerStream, ServeCall, Use, in_turn, routed, taken
from leeward.apps.serve.door import Door
from leeward.apps.serve.problems import ServeProblem, problem_of
from leeward.apps.serve.repeats import Repeats
from leeward.apps.serve.run_languages import LANGUAGES, RunLanguage, offered
from leeward.apps.serve.turns import late
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import Busy, DaemonError, NoAnswer, QueueTimeout, RequestRejected
from leeward.spec.outcome import Outcome, Result

#: Seconds that a program may take where the request has none, or for `cell_timeout` has 0.
RUN_S, CELLS_S = 10.0, 45.0
#: Cells of a notebook; files of a request and of an answer: at most.
MOST_CELLS, MOST_FILES = 256, 256
#: Lines of a traceback, at most; the last one has the rest.
MOST_LINES = 1000
#: Bytes of a request, which is read as a whole; of an answer; of an answer in one piece: at most.
MOST_REQUEST, MOST_ANSWER, PIECE = 16 << 20, 16 << 20, 3 << 15
#: Seconds that a sandbox or a job may take beside the program's own time.
_BESIDE_S = 10.0

Row = dict[str, Any]


def routes(door: Door) -> list[BaseRoute]:
    face = RunCodeFace(door)
    return [routed("POST", path, door.knows, refused, handler)
            for path, handler in (("/run_code", face.run_code), ("/run_jupyter", face.run_jupyter))]


def refused(problem: ServeProblem) -> Response:
    return JSONResponse({"detail": problem.message}, problem.status)


class RunCodeFace:
    def __init__(self, door: Door) -> None:
        self._door, self._offered = door, offered()
        self._repeats = Repeats(lambda row: row["status"] == "SandboxError")
        door.regularly.append(self._repeats.forget)

    async def run_code(self, call: ServeCall) -> Response | AnswerStream:
        return await self._judged(call, self._run, {"compile_result": None, "run_result": None})

    async def run_jupyter(self, call: ServeCall) -> Response | AnswerStream:
        return await self._judged(call, self._cells, {"driver": None, "cells": []})

    async def _judged(self, call: ServeCall, run: Any, empty: Row) -> Response | AnswerStream:
        """The answer of *run* to a request, for which it waits here; *empty* is what one has without an answer."""
        self._door.check_jobs(call)
        fields = await call.fields(MOST_REQUEST)

        async def turned() -> Row:
            async with self._door.turn(call):
                found: Row = await run(call, fields)
                return found

        try:
            row = await call.unless_gone(self._repeats.once(call, fields, turned))
        except (Busy, QueueTimeout, NoAnswer):  # it waited in the daemon
            raise late() from None
        except (RequestRejected, DaemonError) as error:
            row = {"status": "SandboxError", "message": problem_of(error).message}
        return answer(call.use, {"message": "", **empty, "executor_pod_name": None, "files": {}, **row})

    # --- a program ------------------------------------------------------------------

    async def _run(self, call: ServeCall, fields: Row) -> Row:
        language = taken(fields, "language", str, "")
        code, stdin = taken(fields, "code", str, None), taken(fields, "stdin", str, "")
        if code is None:
            raise ServeProblem(422, "code is missing")
        if language not in self._offered:
            return {"status": "SandboxError", "message": f"this language isn't offered; {', '.join(self._offered)} are"}
        files, wanted = files_of(fields), wanted_of(fields)
        memory = memory_of(call, fields)
        run_s = seconds_of(fields, "run_timeout", RUN_S)
        args = [str(each) for each in taken(fields, "args", list, [])]
        if language not in ("python", "pytest"):
            compile_s = seconds_of(fields, "compile_timeout", RUN_S)
            return await self._program(LANGUAGES[language], code, stdin, args, files, wanted, memory, compile_s, run_s)
        what: Row = {"code": code} if language == "python" else {"module": "pytest"}
        if language == "pytest":
            files["test_main.py"], args = code.encode(), ["-q", "test_main.py", *args]
        result = await self._door.nodes.execute(
            idempotent=bool(call.headers.get("idempotency-key")), **what, stdin=stdin, args=args, files=files,
            collect=[_exactly(name) for name in wanted], timeout=run_s,
            overflow="cut", environment=self._door.options.environment or None, profile=self._door.options.profile or None,
            deadline=run_s + _BESIDE_S, memory=memory)
        return {**verdict(result), "run_result": ran(result), "files": result.files}

    async def _program(self, language: RunLanguage, code: str, stdin: str, args: list[str], files: dict[str, bytes],
                       wanted: list[str], memory: int | None, compile_s: float, run_s: float) -> Row:
        async with self._sandbox(memory) as box:
            for name, content in {**files, language.file: code.encode()}.items():
                await box.files.write(name, content)
            env = dict(language.env)
            row: Row = {}
            if language.compile:
                made = await box.run(language.compile, timeout=compile_s, env=env)
                row = {"compile_result": ran(made)}
                if not made.ok:
                    return {**row, **verdict(made)}
            result = await box.run([*language.run, *args], stdin=stdin, timeout=run_s, env=env)
            return {**row, **verdict(result), "run_result": ran(result), "files": await fetched(box, wanted)}

    def _sandbox(self, memory: int | None) -> AbstractAsyncContextManager[AsyncSandbox]:
        options = self._door.options
        return self._door.nodes.for_a_while(profile=options.box_profile, memory=memory,
                                            environment=options.environment or None)

    # --- cells ----------------------------------------------------------------------

    async def _cells(self, call: ServeCall, fields: Row) -> Row:
        cells = taken(fields, "cells", list, [])
        if len(cells) > MOST_CELLS or not all(isinstance(cell, str) for cell in cells):
            raise ServeProblem(422, f"cells has to be a list of texts, {MOST_CELLS} at most")
        if taken(fields, "kernel", str, "python3") != "python3":
            raise ServeProblem(422, "the kernel here is python3")
        files, wanted = files_of(fields), wanted_of(fields)
        total = seconds_of(fields, "total_timeout", CELLS_S)
        each = seconds_of(fields, "cell_timeout", 0.0, least=0.0) or total
        loop = asyncio.get_running_loop()
        rows, size, late_, began = list[Row](), 0, False, loop.time()
        async with self._sandbox(memory_of(call, fields)) as box:
            for name, content in files.items():
                await box.files.write(name, content)
            kernel = await box.kernel()
            began = loop.time()
            for cell in cells:
                left = began + total - loop.time()
                if left <= 0:
                    late_ = True
                    break
                result = await kernel.execute(cell, timeout=min(each, left))
                rows.append(cell_row(result))
                size += size_of(result)
                if size > MOST_ANSWER:
                    raise ServeProblem(422, f"the cells say more than {MOST_ANSWER} bytes")
                if result.outcome in (Outcome.TIMED_OUT, Outcome.SIGNALLED, Outcome.OUT_OF_MEMORY, Outcome.INTERNAL):
                    late_ = result.outcome is Outcome.TIMED_OUT
                    break  # the state is lost
            found = await fetched(box, wanted)
        failed = late_ or len(rows) < len(cells)
        driver = {"status": "TimeLimitExceeded" if late_ else "Finished", "execution_time": loop.time() - began,
                  "return_code": None if late_ else int(failed), "stdout": "", "stderr": ""}
        return {"status": "Failed" if failed else "Success", "driver": driver, "cells": rows, "files": found}


# --- requests -------------------------------------------------------------------


def seconds_of(fields: Mapping[str, Any], name: str, default: float, least: float = 0.001) -> float:
    """A field that is seconds; ServeProblem for what isn't, or is too little or endless."""
    found = taken(fields, name, float, default)
    if not least <= found <= 86_400:
        raise ServeProblem(422, f"{name} has to be seconds, from {least:g} to 86400")
    return found


def memory_of(call: ServeCall, fields: Mapping[str, Any]) -> int | None:
    """The bytes of a sandbox: those of the request, no more than the tenant's; None for what the daemon gives."""
    asked = taken(fields, "memory_limit_MB", float, -1.0)
    wanted = [int(min(asked, 1e9) * (1 << 20))] if asked > 0 else []
    return min([*wanted, *([call.tenant.quota.memory] if call.tenant.quota.memory else [])], default=None)


def path_of(name: object) -> str:
    """A file's path in /workspace; ServeProblem if it leads elsewhere."""
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 1024:
        raise ServeProblem(422, "a file's path is text, at most 1024 characters")
    found = posixpath.normpath(posixpath.join("/workspace", name))
    if not found.startswith("/workspace/"):
        raise ServeProblem(422, "a file's path has to be in the working folder, /workspace")
    return found.removeprefix("/workspace/")


def files_of(fields: Mapping[str, Any]) -> dict[str, bytes]:
    found = dict[str, bytes]()
    given = taken(fields, "files", dict, {})
    if len(given) > MOST_FILES:
        raise ServeProblem(422, f"files has {MOST_FILES} entries at most")
    for name, content in given.items():
        if content is None:
            continue
        try:
            found[path_of(name)] = base64.b64decode(content, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ServeProblem(422, "the content of a file has to be base64") from None
    return found


def wanted_of(fields: Mapping[str, Any]) -> list[str]:
    given = taken(fields, "fetch_files", list, [])
    if len(given) > MOST_FILES:
        raise ServeProblem(422, f"fetch_files has {MOST_FILES} entries at most")
    return [path_of(name) for name in given]


def _exactly(name: str) -> str:
    """A pattern that matches this name alone."""
    return re.sub(r"([*?\[{}])", r"[\1]", name)


# --- answers --------------------------------------------------------------------


def verdict(result: Result) -> Row:
    if result.outcome is Outcome.INTERNAL:
        return {"status": "SandboxError", "message": "the worker was lost"}
    return {"status": "Success" if result.ok else "Failed", "message": result.hint}


def ran(result: Result) -> Row:
    """How a command ended."""
    late_, lost = result.outcome is Outcome.TIMED_OUT, result.outcome is Outcome.INTERNAL
    return {"status": "TimeLimitExceeded" if late_ else "Error" if lost else "Finished", "execution_time": result.duration,
            "cpu_time": result.cpu_time, "return_code": None if late_ or lost else result.exit_code,
            "stdout": said(result.stdout), "stderr": said(result.stderr)}


def cell_row(result: Result) -> Row:
    error = result.error
    errors = [] if error is None else [
        {"ename": error.type, "evalue": error.message, "traceback": lines_of(error.traceback)}]
    shown = [{kind: encoded(data) if isinstance(data, bytes) else data for kind, data in each.items()}
             for each in result.results]
    return {"stdout": said(result.stdout), "stderr": said(result.stderr), "display": shown, "error": errors}


def lines_of(text: str) -> list[str]:
    """The lines of a text, no more than MOST_LINES: each takes time and memory beyond its characters."""
    lines = text.splitlines()
    return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES - 1], "\n".join(lines[MOST_LINES - 1:])]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def size_of(result: Result) -> int:
    """The bytes that a cell has said and shown."""
    said = len(result.stdout) + len(result.stderr) + sum(len(data) for each in result.results for data in each.values())
    return said + (len(result.error.message) + len(result.error.traceback) if result.error else 0)


async def fetched(box: AsyncSandbox, wanted: list[str]) -> dict[str, bytes]:
    """The files that are there; as of the server that this face is like, no word about the others."""
    found, left = dict[str, bytes](), MOST_ANSWER
    for name in wanted:
        try:
            found[name] = await box.files.read(name, size=left + 1)
        except OSError:
            continue
        left -= len(found[name])
        if left < 0:
            raise too_many_files()
    return found


def too_many_files() -> ServeProblem:
    return ServeProblem(422, f"the files to fetch have more than {MOST_ANSWER} bytes together")


class Said(bytes):
    """Output, which is text in an answer."""


def said(output: bytes) -> str | Said:
    """Text; what is much is made one piece by piece, when it is sent."""
    return Said(output) if len(output) > PIECE else output.decode("utf-8", "replace")


def answer(use: Use, row: Row) -> Response | AnswerStream:
    """A row as JSON, its files in base64; in pieces if it is large, so that no other call waits for one of them."""
    files: Mapping[str, bytes] = row["files"]
    if sum(map(len, files.values())) > MOST_ANSWER:
        raise too_many_files()
    if "cells" not in row:
        with suppress(TypeError):  # there are bytes in it
            return JSONResponse(row)
    parts = json_pieces(row)
    begin = taken_of(parts)
    if len(begin) <= PIECE:
        return Response(begin, media_type="application/json")

    async def pieces() -> AsyncGenerator[bytes, None]:
        piece = begin
        while piece:
            yield piece
            piece = await in_turn(use, taken_of, parts)

    return AnswerStream(pieces(), "application/json")


def taken_of(parts: Iterator[str]) -> bytes:
    """The next ones of *parts*, PIECE of them or little more."""
    found, size = list[str](), 0
    while size <= PIECE and (part := next(parts, "")):
        found.append(part)
        size += len(part)
    return "".join(found).encode()


def json_pieces(value: object) -> Iterator[str]:
    """A value as JSON, each piece of which is made quickly; bytes in it are base64, but for what was said."""
    if isinstance(value, Mapping):
        for number, (name, each) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(name)}: "
            yield from json_pieces(each)
        yield "}" if value else "{}"
    elif isinstance(value, list) and len(value) > 0:
        for number, each in enumerate(value):
            yield ", " if number else "["
            yield from json_pieces(each)
        yield "]"
    elif isinstance(value, (bytes, str)) and len(value) > PIECE:
        text = codecs.getincrementaldecoder("utf-8")("replace")
        yield '"'
        for at in range(0, len(value), PIECE):
            piece = value[at:at + PIECE]
            yield (json.dumps(piece)[1:-1] if isinstance(piece, str) else encoded(piece) if not isinstance(value, Said)
                   else json.dumps(text.decode(piece))[1:-1])
        yield f'{json.dumps(text.decode(b"", final=True))[1:-1]}"'
    else:
        yield f'"{encoded(value)}"' if isinstance(value, bytes) else json.dumps(value)

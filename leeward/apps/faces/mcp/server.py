"""
The protocol's server, by its own SDK: the answers, and `leeward mcp` on standard input and output.

Trust:     none in the messages. The SDK passes over a line that is no message, and refuses a wrong request.

Theory of operation. The event loop reads, writes and answers; the calls of tools, which wait for the daemon, run in
threads, at most CALLS at once. Further ones are refused. A call holds its place until its thread is done, cancelled or
not. The sandbox is closed where the end is seen first: at the end of the input, on a signal, or after a failed write;
that ends the calls.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import posixpath
import signal
from collections.abc import AsyncIterator
from typing import Any, TextIO
from urllib.parse import quote, unquote, urlsplit

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from leeward.apps.faces.mcp.tools import TOOLS, SandboxTools, ToolCall, WrongArguments
from leeward.client.mounts import WORKDIR
from leeward.errors import LeewardError, told

#: Calls that run at once, at most. With one cancellation each, and three threads more, these are fewer than the 40
#: threads that anyio has.
CALLS = 16
#: Characters of one message, at most. The SDK has no such bound.
MAX_MESSAGE = 16 << 20

#: Seconds between two tellings of progress, to clients that ask for them.
PROGRESS_S = 1.0

#: Error codes: CALLS run already; there is no such resource.
BUSY, NOT_FOUND = -32000, -32002

#: Values of a completion, at most: the protocol's bound.
MOST_VALUES = 100

#: Files of a sandbox as resources: sandbox://NAME/PATH, the name only where a caller has several sandboxes.
SCHEME = "sandbox"

Context = ServerRequestContext[Any]


class BoundedLines(anyio.AsyncFile[str]):
    """Lines of *file*, cut after MAX_MESSAGE characters. At their end the sandbox is closed before the SDK gives up calls."""

    def __init__(self, file: TextIO, tools: SandboxTools) -> None:
        super().__init__(file)
        self._file, self._tools = file, tools

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._next, abandon_on_cancel=True):
            yield line
        await anyio.to_thread.run_sync(self._tools.close)

    def _next(self) -> str:
        line = rest = self._file.readline(MAX_MESSAGE)
        while rest and not rest.endswith("\n"):
            rest = self._file.readline(MAX_MESSAGE)
        return line


class ToolServer:
    """Answers requests about *tools*, whose calls run in *threads*. *name* is the sandbox's."""

    def __init__(self, tools: SandboxTools, name: str = "", threads: anyio.CapacityLimiter | None = None) -> None:
        self.tools, self._name, self._threads = tools, name, threads
        self._places = anyio.CapacityLimiter(CALLS)

    async def list(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in TOOLS])

    async def call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Run a call, and end it if it is cancelled; MCPError for a wrong one, or if CALLS run already."""
        try:
            call = ToolCall(params.name, params.arguments or {})
        except WrongArguments as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        try:
            self._places.acquire_on_behalf_of_nowait(call)
        except anyio.WouldBlock:
            raise MCPError(BUSY, f"{CALLS} calls run already") from None
        try:
            text, failed = await self._result(context, call)
        finally:
            self._places.release_on_behalf_of(call)
        shown = [(types.ImageContent(type="image", data=encoded(content), mime_type=kind) if kind.startswith("image/") else
                  types.AudioContent(type="audio", data=encoded(content), mime_type=kind)) for kind, content in call.images]
        files = [] if call.file is None else [types.EmbeddedResource(
            type="resource", resource=self._contents(self._uri(call.file[0]), *call.file))]
        return types.CallToolResult(content=[types.TextContent(type="text", text=text), *shown, *files], is_error=failed)

    def _uri(self, path: str) -> str:
        return f"{SCHEME}://{self._name}{quote(posixpath.join(WORKDIR, path))}"

    async def _result(self, context: Context, call: ToolCall) -> tuple[str, bool]:
        found: list[tuple[str, bool]] = []
        over = anyio.Event()

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                found.append(await anyio.to_thread.run_sync(self.tools.run, call, limiter=self._threads))
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                await _told_until(over, context)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(call.cancel, limiter=self._threads)
                raise
        return found[0]

    async def resources(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """The files of the sandbox's work folder."""
        rows = await self._asked(self.tools.resources)
        return types.ListResourcesResult(resources=[types.Resource(
            name=row.name, uri=self._uri(row.name), size=row.size, mime_type=_type_of(row.name)) for row in rows])

    async def templates(self, _context: Context,
                        _params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return templates_of("")

    async def resource(self, _context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """A file's content; MCPError if there is none."""
        _, path = place_of(params.uri)
        content = await self._asked(self.tools.resource, path)
        return types.ReadResourceResult(contents=[self._contents(params.uri, path, content)])

    @staticmethod
    def _contents(uri: str, path: str, content: bytes) -> types.TextResourceContents | types.BlobResourceContents:
        kind = _type_of(path)
        try:
            return types.TextResourceContents(uri=uri, mime_type=kind or "text/plain", text=content.decode())
        except UnicodeDecodeError:
            return types.BlobResourceContents(uri=uri, mime_type=kind or "application/octet-stream", blob=encoded(content))

    async def complete(self, _context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Paths that begin as the argument of the template of files does; nothing for another one."""
        begins = params.argument.value
        if params.argument.name != "path" or not isinstance(params.ref, types.ResourceTemplateReference):
            return types.CompleteResult(completion=types.Completion(values=[]))
        found = await self._asked(self.tools.names, "/" + begins.lstrip("/"))
        given = [name.lstrip("/") if not begins.startswith("/") else name for name in found]
        return types.CompleteResult(completion=types.Completion(
            values=given[:MOST_VALUES], has_more=len(given) > MOST_VALUES))

    async def _asked(self, what: Any, *given: str) -> Any:
        try:
            return await anyio.to_thread.run_sync(what, *given, limiter=self._threads)
        except (LeewardError, OSError, ValueError) as error:
            raise MCPError(NOT_FOUND, told(self.tools.told_as(error))) from None


async def _told_until(over: anyio.Event, context: Context) -> None:
    """Wait for the end of a call, and tell the client each second that it goes on."""
    begun = anyio.current_time()
    while not over.is_set():
        with anyio.move_on_after(PROGRESS_S):
            await over.wait()
        if not over.is_set():
            seconds = anyio.current_time() - begun
            await context.session.report_progress(seconds, None, f"running for {seconds:.0f} s")


def templates_of(name: str) -> types.ListResourceTemplatesResult:
    """What the URIs of a sandbox's files are; *name* is its name, or stands for it."""
    return types.ListResourceTemplatesResult(resource_templates=[types.ResourceTemplate(
        name="file", uri_template=f"{SCHEME}://{name}/{{+path}}", description="A file of the sandbox.")])


def place_of(uri: str) -> tuple[str, str]:
    """The sandbox's name and the path in a resource's URI; MCPError for another one."""
    try:
        found = urlsplit(uri)
        name, path = unquote(found.netloc, errors="strict"), unquote(found.path, errors="strict")
    except ValueError:
        raise MCPError(NOT_FOUND, "this is no resource of a sandbox's") from None
    if found.scheme != SCHEME or not path or found.query or found.fragment or "\0" in path:
        raise MCPError(NOT_FOUND, "this is no resource of a sandbox's")
    return name, path


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _type_of(name: str) -> str | None:
    return mimetypes.guess_type(name)[0]


def server_of(answers: Any, version: str) -> Server[Any]:
    """The SDK's server with the answers of a ToolServer, or of what has these methods, too."""
    return Server("leeward", version=version, on_list_tools=answers.list, on_call_tool=answers.call,
                  on_list_resources=answers.resources, on_list_resource_templates=answers.templates,
                  on_read_resource=answers.resource, on_completion=answers.complete)


async def serve(tools: SandboxTools, version: str) -> None:
    """
    Serve the client at standard input and output until the end of the input, or a signal that ends the process.

    A thread that reads may be left: the process must be ended by `os._exit`. Raises OSError, perhaps in an
    ExceptionGroup, if the input can't be read or the client takes no answers.
    """
    # Never closed: that would wait for the thread that reads.
    stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    server = server_of(ToolServer(tools), version)
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signals, tools)
        async with stdio_server(BoundedLines(stdin, tools)) as (messages, replies):
            await server.run(messages, replies, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _end_on_signals(tools: SandboxTools) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP, signal.SIGINT) as numbers:
        async for number in numbers:
            await anyio.to_thread.run_sync(tools.close)
            # Threads may still wait for the client, to read or to write.
            os._exit(128 + number)

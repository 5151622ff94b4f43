"""
The server of `leeward mcp`, by the protocol's own SDK, on standard input and output.

Trust:     none in the messages. The SDK passes over a line that is no message, and refuses a wrong request.

Theory of operation. The event loop reads, writes and answers; the calls of tools, which wait for the daemon, run in
threads, at most CALLS at once. Further ones are refused. A call holds its place until its thread is done, cancelled or
not. The sandbox is closed where the end is seen first: at the end of the input, on a signal, or after a failed write;
that ends the calls.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any, TextIO

import anyio
import anyio.to_thread
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from leeward.apps.faces.mcp.tools import TOOLS, SandboxTools, ToolCall, WrongArguments

#: Calls that run at once, at most. With one cancellation each, and three threads more, these are fewer than the 40
#: threads that anyio has.
CALLS = 16
#: Characters of one message, at most. The SDK has no such bound.
MAX_MESSAGE = 16 << 20

#: Error code: CALLS run already.
BUSY = -32000


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
    """Answers requests about *tools*."""

    def __init__(self, tools: SandboxTools) -> None:
        self._tools = tools
        self._places = anyio.CapacityLimiter(CALLS)

    async def list(self, _context: ServerRequestContext[Any], _params: PaginatedRequestParams | None,
                   ) -> ListToolsResult:
        return ListToolsResult(tools=[Tool.model_validate(tool) for tool in TOOLS])

    async def call(self, _context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        """Run a call, and end it if it is cancelled; MCPError for a wrong one, or if CALLS run already."""
        try:
            call = ToolCall(params.name, params.arguments or {})
        except WrongArguments as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        try:
            self._places.acquire_on_behalf_of_nowait(call)
        except anyio.WouldBlock:
            raise MCPError(BUSY, f"{CALLS} calls run already") from None
        try:
            text, failed = await self._result(call)
        finally:
            self._places.release_on_behalf_of(call)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    async def _result(self, call: ToolCall) -> tuple[str, bool]:
        found: list[tuple[str, bool]] = []
        over = anyio.Event()

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                found.append(await anyio.to_thread.run_sync(self._tools.run, call))
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                await over.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(call.cancel)
                raise
        return found[0]


async def serve(tools: SandboxTools, version: str) -> None:
    """
    Serve the client at standard input and output until the end of the input, or a signal that ends the process.

    A thread that reads may be left: the process must be ended by `os._exit`. Raises OSError, perhaps in an
    ExceptionGroup, if the input can't be read or the client takes no answers.
    """
    # Never closed: that would wait for the thread that reads.
    stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    answers = ToolServer(tools)
    server = Server("leeward", version=version, on_list_tools=answers.list, on_call_tool=answers.call)
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

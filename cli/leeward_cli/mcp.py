"""
`leeward mcp`: a server of the Model Context Protocol, which gives an agent a sandbox as tools.

Runs in:   the CLI, as a child of an agent outside.

Theory of operation. The main thread reads messages, one a line, and answers all of them but calls of tools. A call has
a thread of its own, at most CALLS at once; further ones are refused. An answer is written whole, under a lock. At the
end of the input the sandbox is closed, which ends the calls, and their answers are written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import BinaryIO

import click

from leeward.agents import mcp
from leeward.agents.mcp_tools import TOOLS, SandboxTools, ToolCall, WrongArguments
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError
from leeward_cli.messages import complain, write

#: Calls that run at once, at most.
CALLS = 16

_HELP = """\
Serve the Model Context Protocol on standard input and output: an agent outside gets a sandbox as its tools.

    claude mcp add leeward -- leeward mcp

The sandbox is opened by the first call, and closed with the server. Nothing else of the agent is confined."""


@click.command("mcp", help=_HELP)
@click.option("--workdir", metavar="FOLDER", help="The folder that the sandbox has as /workspace, and can write to.")
@click.option("--overlay", is_flag=True, help="With --workdir: keep changes in the sandbox.")
@click.option("--profile", metavar="NAME", default="", help="The sandbox's profile.")
@click.option("--memory", metavar="SIZE", default="", help="Memory for everything in the sandbox, such as 2G.")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0, 86400, min_open=True), default=120,
              help="The longest time of a command or of Python code; 120 by default.")
@click.option("--egress", metavar="NAME", default="", help="A policy of the operator's, by which hosts are reached.")
@click.option("--socket", metavar="PATH", help="The daemon's socket.")
def command(workdir: str | None, overlay: bool, profile: str, memory: str, timeout: float, egress: str,
            socket: str | None) -> int:
    if overlay and workdir is None:
        raise click.UsageError("--overlay needs --workdir")
    folder = None if workdir is None else os.path.abspath(workdir)
    options = {name: value for name, value in (("profile", profile), ("memory", memory), ("egress", egress)) if value}

    def made() -> Sandbox:
        return Sandbox(socket=socket, workdir=folder, overlay=overlay, metadata={"mcp": str(os.getpid())},
                       **options)  # type: ignore[arg-type]

    server = McpServer(SandboxTools(made, timeout))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with open(0, "rb", closefd=False) as stdin:
            server.serve(stdin)
    finally:
        server.close()
    return 0


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _ignore_errors(end: Callable[[], object]) -> None:
    with contextlib.suppress(DaemonError):
        end()


class McpServer:
    """
    The server of one client.
    """

    def __init__(self, tools: SandboxTools) -> None:
        self._tools = tools
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._calls: dict[mcp.Id, tuple[ToolCall, threading.Thread]] = {}

    def serve(self, stdin: BinaryIO) -> None:
        """
        Answer messages until the end of *stdin*.
        """
        while line := stdin.readline(mcp.MAX_MESSAGE + 1):
            if len(line) > mcp.MAX_MESSAGE and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = stdin.readline(mcp.MAX_MESSAGE)
                self._write(mcp.error_of(None, mcp.PARSE_ERROR, f"more than {mcp.MAX_MESSAGE} bytes"))
                continue
            if not line.strip():
                continue
            try:
                message = mcp.parse_message(line)
                answer = None if message is None else self._answer(message)
            except mcp.MalformedMessage as error:
                answer = mcp.error_of(error.id, error.code, str(error))
            if answer is not None:
                self._write(answer)

    def close(self) -> None:
        """
        Close the sandbox, and wait for the calls.
        """
        self._tools.close()
        with self._lock:
            threads = [thread for _, thread in self._calls.values()]
        for thread in threads:
            thread.join()

    def _answer(self, message: mcp.McpMessage) -> bytes | None:
        """
        The answer to *message*; None if it has none, or gets it later.

        Raises:
            MalformedMessage: a request of an unknown method, or with wrong parameters.
        """
        if message.id is None:
            if "notifications/cancelled" == message.method:
                self._cancel(message.params.get("requestId"))
            return None
        if "initialize" == message.method:
            from leeward import __version__

            return mcp.result_of(message.id, {
                "protocolVersion": mcp.revision_of(message.params.get("protocolVersion")),
                "capabilities": {"tools": {}}, "serverInfo": {"name": "leeward", "version": __version__}})
        if "ping" == message.method:
            return mcp.result_of(message.id, {})
        if "tools/list" == message.method:
            return mcp.result_of(message.id, {"tools": list(TOOLS)})
        if "tools/call" == message.method:
            return self._start(message.id, message)
        raise mcp.MalformedMessage(mcp.NO_METHOD, f"there is no method {message.method!a:.100}", message.id)

    def _start(self, id: mcp.Id, message: mcp.McpMessage) -> bytes | None:
        try:
            call = ToolCall(message.params.get("name"), message.params.get("arguments", {}))
        except WrongArguments as error:
            raise mcp.MalformedMessage(mcp.INVALID_PARAMS, str(error), id) from None
        thread = threading.Thread(target=self._run, args=(id, call), daemon=True)
        with self._lock:
            if id in self._calls:
                raise mcp.MalformedMessage(mcp.INVALID_REQUEST, "a call with this id runs", id)
            if len(self._calls) >= CALLS:
                return mcp.error_of(id, mcp.BUSY, f"{CALLS} calls run already")
            self._calls[id] = call, thread
        thread.start()
        return None

    def _run(self, id: mcp.Id, call: ToolCall) -> None:
        try:
            text, failed = self._tools.run(call)
        except Exception as error:  # any: each request is answered
            text, failed = f"a mistake in leeward: {error!r:.500}", True
        with self._lock:
            del self._calls[id]
        if not call.cancelled:
            self._write(mcp.result_of(id, {"content": [{"type": "text", "text": text}], "isError": failed}))

    def _cancel(self, id: object) -> None:
        with self._lock:
            found = self._calls.get(id) if isinstance(id, str | int) else None
        end = None if found is None else found[0].cancel()
        if end is not None:
            # Not in this thread, which reads the next messages meanwhile.
            threading.Thread(target=_ignore_errors, args=(end,), daemon=True).start()

    def _write(self, line: bytes) -> None:
        with self._writing:
            try:
                write(1, line)
            except OSError as error:
                complain(f"the client takes no answers: {error.strerror}")
                self._tools.close()
                os._exit(1)

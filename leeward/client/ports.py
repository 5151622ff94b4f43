"""Servers in sandboxes on ports of the host, for blocking programs: aio_ports.py in a thread with an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from leeward.base.closing import Closing
from leeward.client.aio_ports import AsyncPublished
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import DaemonError

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox


class Published(Closing):
    """
    A server in a sandbox on a port of 127.0.0.1, by `Sandbox.publish`; a context that closes it.

    Attributes:
        port: on the host.
        error: why the port was closed, unless `close` did that.
    """

    def __init__(self, sandbox: str, where: str, inside: int, port: int) -> None:
        self._about = sandbox, where, inside, port
        self.port = port
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="leeward-port", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self.error is not None:
            raise self.error

    @classmethod
    def open(cls, sandbox: Sandbox, inside: int, port: int = 0) -> Published:
        return cls(sandbox.id, sandbox._connections.socket, inside, port)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (DaemonError, OSError) as error:
            self.error = error
        finally:
            self._ended.set()
            self._begun.set()

    async def _serve(self) -> None:
        sandbox, where, inside, port = self._about
        box = await AsyncSandbox.attach(sandbox, socket=where)
        try:
            async with await AsyncPublished.open(box, inside, port) as published:
                self.port, self._loop = published.port, asyncio.get_running_loop()
                self._begun.set()
                ways = {asyncio.create_task(published.wait()), asyncio.create_task(self._stop.wait())}
                done, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for task in rest:
                    task.cancel()
                for task in done:
                    task.result()
        finally:
            await box.detach()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the port is closed within *timeout* seconds, or without bound; raises `error`, such as SandboxOver."""
        ended = self._ended.wait(timeout)
        if self.error is not None:
            raise self.error
        return ended

    def close(self) -> None:
        """Close the port, and the connections."""
        if self._loop is not None and not self._ended.is_set():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # it has ended just now
        self._thread.join()

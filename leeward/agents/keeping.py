"""
Keeps an agent's sandbox from ending by its idle time or its lifetime while the program that has opened it is there.

Runs in:   the caller's program, in a thread.

Theory of operation. While the agent's process runs, a request waits for its end, and a waiting request counts as use.
The request of a stopped program (SIGSTOP) goes on waiting, for WAIT_S at most. If this program dies, even by kill -9,
the daemon ends the sandbox, which its connection holds.
"""

from __future__ import annotations

import contextlib
import threading

from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, ProcessOver

#: Seconds between requests while no process is there to wait for.
_LOOK_S = 2.0
#: The most seconds that one request waits.
WAIT_S = 900.0


class SandboxHold:
    """Keeps the open sandbox *box* from ending by its idle time, until `stop`."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._process = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, process: int) -> None:
        """Wait for the process with the number *process*; 0 for none."""
        self._process = process

    def stop(self) -> None:
        self._over.set()

    def _keep(self) -> None:
        with contextlib.suppress(DaemonError):  # the sandbox has ended, which its user's next call reports
            lifetime = float(self._box.info()["left"])
            wait = max(1.0, min(WAIT_S, lifetime / 4))
            while not self._over.is_set():
                process = self._process
                if process:
                    with contextlib.suppress(ProcessOver):
                        self._box.ask("process_wait", {"process": process, "wait": wait})
                    if self._process == process:
                        self._process = 0
                self._box.extend(lifetime=max(1.0, lifetime - 1.0))
                if not self._process:
                    self._over.wait(_LOOK_S)

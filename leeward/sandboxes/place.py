"""
The interface by which a live sandbox uses its runner, `leeward.run.live.LiveRunner`.

Runs in:   the daemon; declarations alone, so that tests can use another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.protocols import Protocol
from leeward.run.verdict import Stop


class Child(Protocol):
    """
    A process in a live sandbox.

    Attributes:
        pid: inside the sandbox, -1 before it runs.
        stdin: the daemon's end of the pipe to its stdin, which doesn't block, or -1.
        ends: when it has to be over, as the reactor tells the time; infinite unless somebody sets it.
        ended_by_watchdog: why the watchdog ended the process while the event loop stood still; None if it didn't.
    """

    ends: float
    ended_by_watchdog: Stop | None

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> int: ...
    def close_stdin(self) -> None: ...
    def signal(self, n: int) -> bool: ...
    def resize(self, rows: int, columns: int) -> bool: ...
    def kill(self) -> None: ...
    def spent(self) -> float: ...
    def denied(self) -> Mapping[str, int]: ...
    def pause(self, stream: int) -> None: ...
    def resume(self, stream: int) -> None: ...

"""
The interface by which a live sandbox uses its runner, `leeward.run.live.LiveRunner`.

Runs in:   the daemon; declarations alone, so that tests can use another implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Usage
from leeward.protocols import Protocol
from leeward.run.report import Report
from leeward.run.verdict import Stop
from leeward.sandboxes.files import FileProcess
from leeward.sandboxes.kernel import BranchedProcess, KernelLease, KernelProcess
from leeward.spec.job import Job
from leeward.spec.limits import Limits


class ProgramExit(Protocol):
    """How a process ended: `leeward.run.launch.Exit`."""

    @property
    def status(self) -> int | None: ...
    @property
    def refused(self) -> int: ...
    @property
    def layer(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def cpu_time(self) -> float: ...
    @property
    def denied(self) -> Mapping[str, int]: ...


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


class PorterAsked(Protocol):
    """An order that a porter was given: the interface of `leeward.run.porter.PorterOrder`."""

    def cancel(self) -> None: ...


class PorterBegun(PorterAsked, Protocol):
    """A porter that may have been begun before its order."""

    def give(self, order: Mapping[str, Any], fds: Sequence[int]) -> None: ...


class SandboxPlace(Protocol):
    """The interface of `leeward.run.live.LiveRunner`, as far as live sandboxes use it."""

    @property
    def number(self) -> int: ...
    variables: Mapping[str, str]

    @property
    def processes(self) -> Mapping[int, Any]: ...
    def start(self, what: Any, *, stdin: Any, on_output: Callable[[int, bytes], None],
              on_exit: Callable[[Any], None]) -> Child: ...
    def execute(self, job: Job, done: Callable[[Report], None]) -> KernelProcess: ...
    def kernel(self, limits: Limits, opened: Callable[[KernelLease], None],
               lost: Callable[[str], None]) -> KernelProcess: ...
    def branch(self, of: Any, limits: Limits, opened: Callable[[KernelLease], None],
               lost: Callable[[str], None]) -> BranchedProcess: ...
    def calls(self, begins: bytes, most: int, opened: Callable[[FileProcess], None],
              lost: Callable[[str], None]) -> KernelProcess: ...
    def carry(self, order: Mapping[str, Any], fds: Sequence[int],
              answered: Callable[[Mapping[str, Any] | LeewardError, list[int]], None],
              seconds: float) -> PorterAsked: ...
    def stir(self) -> None: ...
    def usage(self) -> Usage: ...
    def memory(self) -> int: ...
    def end(self, why: str) -> None: ...

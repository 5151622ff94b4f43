"""
Daemons whose event loop can be made to stand still: a client's `ping` blocks it.

`standing_still` gives such a daemon to a test; `prepare` fills its points.

Runs in:   the tests, and the daemon of theirs that is a test build (daemon_build.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit import points
from kit.live_daemon import LiveDaemon, descendants


@contextlib.contextmanager
def standing_still(folder: Path, *options: str, **asked: Any) -> Iterator[LiveDaemon]:
    """Start such a daemon; *asked* are the arguments of `prepare`."""
    with LiveDaemon(folder, *options, build={__name__: asked}) as daemon:
        yield daemon


def resident(init: int) -> int:
    """Bytes of memory that the processes of *init*'s sandbox have; 0 when they have ended."""
    total = 0
    for pid in (init, *descendants(init)):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * resource.getpagesize()


def prepare(*, seconds: float | None = None, enough: int = 0, idle: bool = False, cgroup: str | None = None,
            watchdog: bool = True, rights: bool = False, drain: float | None = None, guarded: bool = True) -> None:
    """
    Args:
        seconds: the time that a ping sleeps in the loop's thread. A ping is refused as busy until something runs that
            has a deadline. Two lines of the log report the beginning and the end of the sleep.
        enough: bytes that what runs has to have, or to have lost by its end, before the sleep is over; *seconds* is
            then the most.
        idle: a ping sleeps although nothing runs.
        cgroup: the cgroup driver, where it isn't to be chosen.
        watchdog: False is a daemon without the watchdog's thread, for a control.
        rights: clients may pass descriptors, as on a kernel without SO_PASSRIGHTS.
        drain: seconds that running jobs have when the daemon ends.
        guarded: False is a daemon that receives and closes clients' descriptors in the loop's thread, for a control.
    """
    # Imports of the daemon's modules make their points; none of them is imported in the tests for this.
    from leeward.base.dataclass import replace
    from leeward.daemon import main  # noqa: F401
    from leeward.daemon.pool.watchdog import deadlines
    from leeward.daemon.run.live_process import LiveProcess
    from leeward.errors import Busy

    watchdogs: list[Any] = []
    started, ping = points.original("watchdog.start"), points.original("daemon.ping")
    settings = points.original("daemon.settings")

    def start(made: Any) -> None:
        watchdogs.append(made)
        if watchdog:
            started(made)

    def has_begun(target: Any) -> bool:
        """A process of a live sandbox has a deadline from when it is ordered. Its number comes by the loop."""
        return not isinstance(target, LiveProcess) or target.host_pid >= 0

    def running() -> list[Any]:
        return [each.target for made in watchdogs for worker in made._workers()
                for each in deadlines(worker.leasing.execution) if each.ends < math.inf and has_begun(each.target)]

    def sleep() -> None:
        until, inits = time.monotonic() + (seconds or 0.0), [target.pid for target in running()] if enough else []
        while inits and time.monotonic() < until and 0 < sum(map(resident, inits)) < enough:
            time.sleep(0.01)  # nothing tells how much a process has
        if not inits:
            time.sleep(seconds or 0.0)

    def stall(operations: Any, request: Any) -> Any:
        if not (idle or running()):
            raise Busy("nothing runs yet")
        # Time itself is tested: for so long the loop has to stand still, whatever happens.
        for event, pause in (("standstill begins", sleep), ("standstill is over", lambda: None)):
            print(json.dumps({"event": event}), file=sys.stderr, flush=True)
            pause()
        return ping(operations, request)

    points.fill("watchdog.start", start)
    if seconds is not None:
        points.fill("daemon.ping", stall)
    if drain is not None:
        points.fill("daemon.drain", lambda: drain)
    if cgroup is not None:
        points.fill("daemon.settings", lambda config: replace(settings(config), cgroup=cgroup))
    if rights:
        points.fill("listener.refuse-descriptors", lambda listener: False)
    if not guarded:
        points.fill("connection.guarded", lambda sock: False)

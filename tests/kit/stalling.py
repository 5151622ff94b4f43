"""
A test build of the daemon whose event loop can be made to stand still: a client's `ping` blocks it.

    LEEWARD_STALL='{"seconds": 5.0}' python -m kit.stalling daemon run ...

`standing_still` gives such a daemon to a test. What is asked for by LEEWARD_STALL, as JSON:

    seconds     for so long a ping sleeps in the loop's thread, once something runs that has a deadline: before, it is
                refused as busy. It is told by a line of log when that begins and when it is over
    idle        True: also while nothing runs
    cgroup      the cgroup driver, where it isn't to be chosen
    watchdog    False: without the watchdog's thread, for a control
    rights      True: clients may pass descriptors, as on a kernel without SO_PASSRIGHTS
    drain       seconds that running jobs have when it ends
    guarded     False: what clients sent is received and closed in the loop's thread, for a control

Runs in:   a process of its own, as the daemon of tests. The product has no switch for any of it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from kit import features, live_daemon


@contextlib.contextmanager
def standing_still(folder: Path, *options: str, **asked: Any) -> Iterator[live_daemon.LiveDaemon]:
    """
    A daemon of this kind that serves.
    """
    path = os.pathsep.join((live_daemon.PLACES, str(features.ROOT / "tests")))
    program = [sys.executable, "-P", "-m", "kit.stalling"]
    with mock.patch.object(live_daemon, "PROGRAM", program):
        made = live_daemon.LiveDaemon(folder, *options, env={"PYTHONPATH": path, "LEEWARD_STALL": json.dumps(asked)})
    with made as daemon:
        yield daemon


def _prepare(asked: dict[str, Any]) -> None:
    from leeward.daemon import early
    from leeward.daemon import main as daemon_main
    from leeward.daemon.serving import listener, operations
    from leeward.dataclass import replace
    from leeward.errors import Busy
    from leeward.loop import closing
    from leeward.pool.watchdog import Watchdog, deadlines
    from leeward.run.process import LiveProcess
    from leeward.wire.requests import Ping

    answers: Any = operations._ANSWERS
    ping, settings = answers[Ping], early.settings

    watchdogs: list[Any] = []
    made = Watchdog.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        watchdogs.append(self)

    def runs() -> bool:
        return any(each.ends < math.inf and has_begun(each.target) for watchdog in watchdogs
                   for worker in watchdog._workers() for each in deadlines(worker.tenant))

    def has_begun(target: Any) -> bool:
        """
        A process of a live sandbox has a deadline from when it is ordered. Its number comes by the loop.
        """
        return not isinstance(target, LiveProcess) or target.host_pid >= 0

    def stall(self: Any, request: Any) -> Any:
        if not (asked.get("idle") or runs()):
            raise Busy("nothing runs yet")
        for event, seconds in (("standstill begins", asked["seconds"]), ("standstill is over", 0.0)):
            print(json.dumps({"event": event}), file=sys.stderr, flush=True)
            time.sleep(seconds)
        return ping(self, request)

    Watchdog.__init__ = noted  # type: ignore[method-assign]  # of this process
    if "seconds" in asked:
        answers[Ping] = stall
    daemon_main.DRAIN_S = asked.get("drain", daemon_main.DRAIN_S)
    if "cgroup" in asked:
        early.settings = lambda config: replace(settings(config), cgroup=asked["cgroup"])
    if asked.get("rights"):
        listener.refuse_descriptors = lambda listener: False
    if not asked.get("guarded", True):
        closing.guarded = lambda sock: False
    if not asked.get("watchdog", True):
        Watchdog.start = lambda self: None  # type: ignore[method-assign]  # of this process


if __name__ == "__main__":
    from leeward_cli.main import main

    _prepare(json.loads(os.environ.pop("LEEWARD_STALL", "{}")))
    raise SystemExit(main())

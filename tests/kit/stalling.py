"""
A test build of the daemon whose event loop can be made to stand still: a client's `ping` blocks it.

    LEEWARD_STALL='{"seconds": 4.0}' python -m kit.stalling daemon run ...

`standing_still` gives such a daemon to a test. What is asked for by LEEWARD_STALL, as JSON:

    seconds     for so long a ping sleeps in the loop's thread
    cgroup      the cgroup driver, where it isn't to be chosen
    watchdog    False: without the watchdog's thread, for a control
    rights      True: clients may pass descriptors, as on a kernel without SO_PASSRIGHTS
    guarded     False: what clients sent is received and closed in the loop's thread, for a control

Runs in:   a process of its own, as the daemon of tests. The product has no switch for any of it.
"""

from __future__ import annotations

import contextlib
import json
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
    from leeward.daemon.serving import listener, operations
    from leeward.dataclass import replace
    from leeward.loop import closing
    from leeward.pool.watchdog import Watchdog
    from leeward.wire.requests import Ping

    answers: Any = operations._ANSWERS
    ping, settings = answers[Ping], early.settings

    def stall(self: Any, request: Any) -> Any:
        time.sleep(asked.get("seconds", 0.0))
        return ping(self, request)

    answers[Ping] = stall
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

"""
The end of `leeward agent`: its exit statuses, the signals that end it, and the clean-up after starts that were killed.

Runs in:   the CLI. No click here: `start` does without.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from leeward_cli.interrupts import AskedToEnd
from leeward_cli.job import complain

if TYPE_CHECKING:
    from leeward.agents.instances import InstanceRegistry

#: Exit status where there was no agent, and where its time was up.
FAILED, TIMED_OUT = 1, 124


def registry() -> InstanceRegistry:
    """
    The running agents of this user. What others have left that were killed is undone first.
    """
    from leeward.agents.instances import InstanceRegistry
    from leeward.agents.places import state_home
    from leeward.agents.running import reap

    found = InstanceRegistry(state_home(os.environ))
    for name in reap(found, complain):
        complain(f"{name} had not ended by itself; what it left is gone")
    for line in found.complaints():
        complain(line)
    return found


def settle_home() -> None:
    """
    Without HOME, or with a relative one, it is what the system's list of users says, as for shells.
    """
    if not os.environ.get("HOME", "").startswith("/"):
        os.environ.pop("HOME", None)
        os.environ["HOME"] = os.path.expanduser("~")


@contextmanager
def ending_by_signals() -> Iterator[Callable[[], None]]:
    """
    Signals that ask for our end are `AskedToEnd` in the block; after a call of what this gives they are ignored.
    """
    def end(number: int, _frame: FrameType | None) -> None:
        raise AskedToEnd(number)

    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            before[number] = signal.signal(number, end)

    def ignore() -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)

    try:
        yield ignore
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

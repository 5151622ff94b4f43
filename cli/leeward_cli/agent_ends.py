"""The end of `leeward agent`: exit statuses, signals, the clean-up after starts that were killed. Doesn't import click."""

from __future__ import annotations

import os

# Not `signal`, which builds enumerations: 1 ms.
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from leeward.base.user_folders import home_folder
from leeward.errors import BadRequest
from leeward_cli.interrupts import EndRequested
from leeward_cli.messages import complain

# Imported in functions: what not every start needs; 17 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.apps.agents.instances import InstanceRegistry

#: Exit statuses: no agent was started; the agent's time limit was reached.
FAILED, TIMED_OUT = 1, 124


def registry() -> InstanceRegistry:
    """The registry of this user's agents, after a clean-up after starts that were killed."""
    from leeward.apps.agents.instances import InstanceRegistry
    from leeward.apps.agents.running import reap
    from leeward.apps.agents.settings_paths import state_home

    found = InstanceRegistry(state_home(os.environ))
    for name in reap(found, complain):
        complain(f"{name} was killed before; what it had left behind was removed")
    for line in found.complaints():
        complain(line)
    return found


def set_home() -> None:
    """
    Set HOME from the system's list of users, as shells do, if it is missing or relative. BadRequest if HOME is another
    user's, as `su -p` and some settings of sudo leave it: that user's settings would be obeyed, and the state of agents
    made there.
    """
    if not os.environ.get("HOME", "").startswith("/"):
        os.environ.pop("HOME", None)
        os.environ["HOME"] = home_folder(os.environ)
    home = os.environ["HOME"]
    try:
        owner = os.stat(home).st_uid
    except OSError:
        return
    if owner not in (0, os.geteuid()):
        raise BadRequest(f"HOME is {home!a:.200}, which belongs to user {owner}: set it to your own home folder, as"
                         " `sudo -H` and `su -` do")


@contextmanager
def ending_by_signals(*numbers: int) -> Iterator[Callable[[], None]]:
    """
    A context in which *numbers*, by default all signals that ask this process to end, raise `EndRequested`, unless they
    are ignored, as by nohup. Its value is a function: once it was called, the signals are ignored.
    """
    def end(number: int, _frame: FrameType | None) -> None:
        raise EndRequested(number)

    before: dict[int, Any] = {}
    for number in numbers or (SIGINT, SIGTERM, SIGHUP, SIGQUIT):
        if getsignal(number) != SIG_IGN:
            before[number] = signal(number, end)

    def ignore() -> None:
        for one in before:
            signal(one, SIG_IGN)

    try:
        yield ignore
    finally:
        for one, handler in before.items():
            signal(one, handler)

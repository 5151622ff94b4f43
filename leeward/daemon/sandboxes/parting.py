"""
The end of a held sandbox whose program has gone: its processes end at once; it itself stays for KEPT_S where its copies
of folders have changes, so that a person can still look at them and apply them.

Theory of operation. A copy is asked for its changes by a porter when no process is left, or after SETTLE_S. Where it
can't be asked, it counts as changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward._native.memfd import memory_file
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.daemon.sandboxes.registry import State
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.errors import LeewardError

#: Seconds for which a changed copy stays, unless sandboxes may be idle for less.
KEPT_S = 600.0
#: Seconds in which processes end, those between two looks, and those that a search for changes may take.
SETTLE_S, _LOOK_S, _SEARCH_S = 5.0, 0.01, 60.0


class Parting:
    """Ends the processes of *sandbox*; *decided* is called once, unless the sandbox is over: whether a copy has changes."""

    costs = "session"

    def __init__(self, reactor: Reactor, sandbox: LiveSandbox, mounts: Mounts, decided: Callable[[bool], None]) -> None:
        self._reactor, self._sandbox, self._mounts, self._decided = reactor, sandbox, mounts, decided
        self._waiting = [folder.target for folder in mounts.folders if folder.overlay]
        self._until = reactor.now() + SETTLE_S
        sandbox.end_processes()
        self._look()

    def _look(self) -> None:
        if self._sandbox.state is not State.OPEN:
            return
        if self._sandbox.present and self._reactor.now() < self._until:
            self._reactor.after(_LOOK_S, self._look)
        elif not self._waiting:
            self._decided(False)
        else:
            self._ask(self._waiting.pop())

    def _ask(self, target: str) -> None:
        try:
            found = memory_file("leeward_results")
            try:
                self._sandbox.carry({"order": "diff", "number": self._mounts.number(target)},
                                    [self._mounts.layer(target), found], partial(self._answered, found), _SEARCH_S)
            except BaseException:
                os.close(found)
                raise
        except (LeewardError, OSError):
            self._decide(True)

    def _decide(self, has_changes: bool) -> None:
        if self._sandbox.state is State.OPEN:
            self._decided(has_changes)

    def _answered(self, found: int, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        os.close(found)
        if isinstance(what, LeewardError) or what["rows"]:
            self._decide(True)
        else:
            self._look()

    def broken(self, _error: Exception) -> None:
        self._decide(True)

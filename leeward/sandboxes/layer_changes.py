"""
Changes of an overlay's layers, which are made while nothing runs in the sandbox.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. A layer can't be changed below a mounted overlay, so the porter unmounts the overlay, changes the
layer and mounts it again. Meanwhile no process may be in the sandbox. The change is refused while a process runs that a
client has started, a kernel included. Background processes that commands have left are ended, and so is the process for
file calls; the sandbox starts none until the porter has answered. The system's kernel decides in the end: it doesn't
unmount an overlay that is in use. If a porter ends without an answer during a change, the layer's state is unknown, and
the sandbox is ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.errors import Busy, LeewardError, RequestRejected
from leeward.loop.reactor import Reactor
from leeward.run.porter import PorterRefusal
from leeward.run.verdict import bug
from leeward.sandboxes.mounting import Mounts

if TYPE_CHECKING:
    from leeward.sandboxes.sandbox import LiveSandbox

#: Copies of one overlay.
MOST_KEPT = 8
#: Seconds that a copy or a change may take; that killed processes have to end; and between two checks of the latter.
COPY_S, _QUIET_S, _LOOK_S = 60.0, 1.0, 0.005

Answered = Callable[[Mapping[str, Any] | LeewardError], None]


def keep(sandbox: LiveSandbox, mounts: Mounts, target: str, name: str, most: int, answered: Answered) -> str:
    """
    Copy the upper folder of the overlay at *target*. Processes may go on meanwhile. The copy is called *name* or, if
    that is empty, by the first number that is free.

    Args:
        most: bytes of memory that the sandbox may have.
        answered: is called once, unless this raises.

    Returns:
        The name.

    Raises:
        BadRequest: no overlay is at *target*.
        RequestRejected: the overlay has MOST_KEPT copies.
        Busy: another copy or change is under way.
        LeewardError: the porter can't be started.
    """
    layer, names = mounts.layer(target), mounts.names(target)
    mounts.check_still()
    name = name or next(str(number) for number in range(1, MOST_KEPT + 2) if str(number) not in names)
    if name not in names and len(names) >= MOST_KEPT:
        raise RequestRejected(f"{target!r:.80} has {len(names)} checkpoints, all that it may have; one with the name"
                              " of an old one takes its place")

    def carried(what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        mounts.changing = False
        _close(fds)
        if not isinstance(what, LeewardError) and name not in names:
            names.append(name)
        answered(what)

    sandbox.carry({"order": "keep", "number": mounts.number(target), "name": name, "most": most // 2}, [layer], carried,
                  COPY_S)
    mounts.changing = True
    return name


class LayerChange:
    """
    Does *order* with the overlay at *target* once the sandbox's leftover processes have ended.

    Args:
        answered: is called once, not from inside this call.

    Raises:
        BadRequest: no overlay is at *target*.
        RequestRejected: processes run that clients have started.
        Busy: another change, or a copy, is under way.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, sandbox: LiveSandbox, mounts: Mounts, target: str, order: Mapping[str, Any],
                 answered: Answered) -> None:
        mounts.layer(target)
        if sandbox.running:
            raise RequestRejected(f"{sandbox.running} processes and kernels run in the sandbox: end them first")
        mounts.check_still()
        self._reactor, self._sandbox, self._mounts, self._target = reactor, sandbox, mounts, target
        self._order = {**order, "number": mounts.number(target), "target": target}
        self._answered: Answered | None = answered
        sandbox.hold()
        mounts.changing = True
        self._until = reactor.now() + _QUIET_S
        reactor.after(0.0, self._look)

    def _look(self) -> None:
        present = self._sandbox.present
        if present and self._reactor.now() < self._until:
            self._reactor.after(_LOOK_S, self._look)
        elif present:
            self._finish(RequestRejected(f"{present} processes of the sandbox don't end"))
        else:
            try:
                self._sandbox.carry(self._order, [self._mounts.layer(self._target)], self._done, COPY_S)
            except LeewardError as error:
                self._finish(error)

    def _done(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        _close(fds)
        if isinstance(what, PorterRefusal):
            self._finish(RequestRejected(str(what)))
            return
        if isinstance(what, LeewardError):
            self._sandbox.lost(f"its overlay was being changed: {what}")
        self._finish(what)

    def _finish(self, what: Mapping[str, Any] | LeewardError) -> None:
        answered, self._answered = self._answered, None
        self._mounts.changing = False
        self._sandbox.release()
        if answered is not None:
            answered(what)

    def broken(self, error: Exception) -> None:
        """Called by the barrier: a callback of this object has raised *error*. Ends the sandbox, and answers the request."""
        if self._answered is not None:
            self._sandbox.lost(bug(error))
            self._finish(Busy(bug(error)))


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)

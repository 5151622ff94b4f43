"""
A connection's requests about a sandbox's folders: which paths of overlays have changed, their content, going back to an
earlier state, and hiding names.

Runs in:   the daemon, on the reactor's one thread. A porter in the sandbox carries them out; the daemon opens nothing
there. Trust:     none in a client, nor in the content of the memory files: they go to the client unchanged.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward._native.memfd import memory_file
from leeward.daemon.serving.parcel import SEALS, Parcel
from leeward.daemon.serving.sandbox_calls import FileTicket, SandboxCall
from leeward.errors import BadRequest, Busy, LeewardError, Refused, RequestRejected, SandboxOver
from leeward.run.porter import PorterRefusal
from leeward.run.report import Arena
from leeward.run.verdict import bug
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.layer_changes import LayerChange, keep
from leeward.sandboxes.mounting import Mounts, hide_names
from leeward.sandboxes.registry import RegistryEntry
from leeward.wire.answers import encode_ok
from leeward.wire.sandbox_requests import (
    OverlayCheckpoint,
    OverlayDiff,
    OverlayDiscard,
    OverlayRead,
    OverlayRestore,
    SandboxHide,
)

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight

#: Seconds that a walk, and one piece of a file, may take.
DIFF_S, READ_S = 60.0, 20.0
#: Seconds in which the end of a sandbox is known after that of a process in it, and between two looks.
SETTLE_S, _LOOK_S = 1.0, 0.01

OverlayChange = OverlayCheckpoint | OverlayRestore | OverlayDiscard | SandboxHide


class OverlayCall(FileTicket):
    """A request that reads an overlay, as a ticket. It counts as use of the sandbox."""

    def __init__(self, desk: Desk, owner: Flight, request: OverlayDiff | OverlayRead,
                 entry: RegistryEntry[Held]) -> None:
        super().__init__(desk, entry)
        self._owner, self._request = owner, request
        layer, number = _mounts(entry).layer(request.target), _mounts(entry).number(request.target)
        order: dict[str, Any] = {"order": "diff", "number": number}
        if isinstance(request, OverlayRead):
            order = {"order": "read", "number": number, "path": request.path, "offset": request.offset}
        if entry.sandbox.sandbox.held:  # it would find a mixture of two states
            raise Busy("an overlay of the sandbox is being changed")
        try:
            self._fd = memory_file("leeward_results")
            asked = entry.sandbox.sandbox.carry(order, [layer, self._fd], self._answered,
                                                READ_S if isinstance(request, OverlayRead) else DIFF_S)
        except (LeewardError, OSError) as error:
            self._drop()
            raise Busy(f"the overlay can't be looked at now: {error}") from None
        self._take_back = asked.cancel
        desk.busy(entry)
        owner.wait(request.id, self)

    def _answered(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if isinstance(what, LeewardError):
            PorterFailure(self._desk, self._entry, what, self._refuse)
            return
        if not self._end():
            self._drop()
            return
        fd = self._take_file()
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        size = os.fstat(fd).st_size
        arena = Arena(fd, size)
        if not size:
            arena.close()
        answer = {"size": size, **({"arenas": [size]} if size else {})}
        self._owner.deliver(self._request.id, Parcel(memoryview(encode_ok(self._request.id, answer)),
                                                     [arena] if size else [], weight=1 if size else 0))

    def _refuse(self, why: Refused) -> None:
        self._drop()
        if self._end():
            self._owner.refuse(self._request.id, why)


class PorterFailure:
    """
    Tells why a porter hasn't done its order. Of one that has ended without an answer this is told when the daemon knows
    whether the sandbox has ended, of which it hears a moment later.

    Args:
        error: the porter's.
        tell: is called once, perhaps from inside this call.
    """

    costs = "connection"

    def __init__(self, desk: Desk, entry: RegistryEntry[Held], error: LeewardError,
                 tell: Callable[[Refused], None]) -> None:
        self._desk, self._entry, self._error, self._tell = desk, entry, error, tell
        self._until = desk.reactor.now() + (0.0 if isinstance(error, PorterRefusal) else SETTLE_S)
        self._look()

    def _look(self) -> None:
        why = _why(self._desk, self._entry, self._error)
        if isinstance(why, SandboxOver) or self._desk.reactor.now() >= self._until:
            self._tell(why)
        else:
            self._desk.reactor.after(_LOOK_S, self._look)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has failed."""
        self._tell(Busy(bug(error)))


def change_overlay(desk: Desk, owner: Flight, request: OverlayChange, entry: RegistryEntry[Held]) -> None:
    """
    Make or restore a checkpoint of an overlay, discard changes, or hide names. A running operation is completed even if
    its connection ends, because a partial result would be worse.

    Raises:
        BadRequest, Refused: it can't be done.
    """
    sandbox, mounts, reactor = entry.sandbox.sandbox, _mounts(entry), desk.reactor
    call: SandboxCall | None = None
    fields: dict[str, Any] = {}

    def answered(what: Mapping[str, Any] | LeewardError) -> None:
        if isinstance(what, LeewardError) and not isinstance(what, Refused):
            PorterFailure(desk, entry, what, answered)
        elif call is None or not call.end():
            return
        elif isinstance(what, Refused):
            owner.refuse(request.id, what)
        else:
            owner.answer(request.id, fields)

    try:
        if isinstance(request, SandboxHide):
            hide_names(sandbox, mounts, request.hide, answered)
        elif isinstance(request, OverlayCheckpoint):
            fields["name"] = keep(sandbox, mounts, request.target, request.name, sandbox.facts.limits.memory, answered)
        elif isinstance(request, OverlayRestore):
            if request.name not in mounts.kept.get(request.target, ()):
                mounts.layer(request.target)
                raise RequestRejected(f"{request.target!r:.80} has no checkpoint {request.name!r}")
            LayerChange(reactor, sandbox, mounts, request.target,
                       {"order": "restore", "name": request.name, "most": sandbox.facts.limits.memory // 2}, answered)
        else:
            LayerChange(reactor, sandbox, mounts, request.target,
                       {"order": "discard", "paths": list(request.paths)}, answered)
    except (BadRequest, Refused):
        raise
    except LeewardError as error:
        raise Busy(f"the folders of the sandbox can't be changed now: {error}") from None
    call = SandboxCall(desk, entry, _nothing)
    owner.wait(request.id, call)


def _mounts(entry: RegistryEntry[Held]) -> Mounts:
    mounts = entry.sandbox.mounts
    return Mounts((), [], (0, 0), [], 0, []) if mounts is None else mounts


def _why(desk: Desk, entry: RegistryEntry[Held], error: LeewardError) -> Refused:
    try:
        desk.get(entry.name, entry.user)
    except SandboxOver as over:
        return over
    return RequestRejected(str(error))


def _nothing() -> None:
    return

"""The requests of one connection about snapshots, which belong to its user, as sandboxes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import replace
from leeward.daemon.run.dumping import Dump, KernelState
from leeward.daemon.sandboxes import importing
from leeward.daemon.sandboxes.live_sandboxes import SandboxEntry
from leeward.daemon.sandboxes.registry import State
from leeward.daemon.serving.sandbox_calls import SandboxCall
from leeward.errors import Refused, SnapshotFailed
from leeward.wire import sandbox_requests as wire
from leeward.wire.sandbox_fields import MAX_WRITE

if TYPE_CHECKING:
    from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes
    from leeward.daemon.serving.flight import Flight

class SnapshotCall(SandboxCall):
    """The request for a snapshot. If it is withdrawn the kernel goes on, and there is no snapshot."""

    def __init__(self, desk: LiveSandboxes, flight: Flight, request: wire.KernelSnapshot, entry: SandboxEntry) -> None:
        self._flight, self._number, self._snapshots = flight, request.id, desk.snapshots
        sandbox = entry.sandbox.sandbox
        dump = Dump(desk.reactor, partial(self._snapshots.new_file, flight.user), self._done)
        self._began = self._snapshots.begin(flight.user)
        super().__init__(desk, entry, dump.give_up)
        flight.wait(request.id, self)
        try:
            sandbox.snapshot(request.kernel, dump)
        except BaseException:
            self.end()
            flight.drop(request.id)
            raise

    def end(self) -> bool:
        """As every call; its dump counts no more."""
        if not super().end():
            return False
        self._snapshots.end(self._flight.user, self._began)
        return True

    def _done(self, made: KernelState | SnapshotFailed) -> None:
        if isinstance(made, SnapshotFailed):
            if self.end():
                _refuse(self._desk, self._flight, self._number, self._entry, made)
            return
        image = importing.image_of(self._entry.sandbox.sandbox.terms.view)
        snapshot = self._snapshots.add(self._flight.user, replace(made, image=image))
        if self.end():
            self._flight.answer(self._number, snapshot.info())


def take(desk: LiveSandboxes, flight: Flight, request: wire.KernelSnapshot, entry: SandboxEntry) -> None:
    """Take a snapshot; the answer comes later."""
    SnapshotCall(desk, flight, request, entry)


def open_kernel(desk: LiveSandboxes, flight: Flight, request: wire.KernelOpen, entry: SandboxEntry,
                opened: Callable[[int], Mapping[str, Any]]) -> None:
    """Open a kernel that begins with a snapshot; *opened* makes the answer of its number."""
    sandbox = entry.sandbox.sandbox
    state = desk.snapshots.get(request.snapshot, flight.user).state
    importing.check_image(state, sandbox.terms.view)
    number = 0

    def told(why: str) -> None:
        if not call.end():
            return
        if not why:
            flight.answer(request.id, opened(number))
            return
        desk.reactor.soon(partial(sandbox.forget_kernel, number))
        _refuse(desk, flight, request.id, entry, SnapshotFailed(why))

    call = _waits(desk, flight, request, entry, lambda: sandbox.forget_kernel(number))
    number = _begun(flight, request, call, lambda: sandbox.open_kernel(state, told, same=request.same_random))


def roll_back(desk: LiveSandboxes, flight: Flight, request: wire.KernelRollback, entry: SandboxEntry) -> None:
    """Give a kernel the state of a snapshot."""
    snapshots = desk.snapshots
    importing.check_image(snapshots.get(request.snapshot, flight.user).state, entry.sandbox.sandbox.terms.view)

    def told(why: str) -> None:
        if not call.end():
            return
        if why:
            _refuse(desk, flight, request.id, entry, SnapshotFailed(why))
        else:
            flight.answer(request.id, {})

    call = _waits(desk, flight, request, entry, lambda: None)
    _begun(flight, request, call, lambda: entry.sandbox.sandbox.roll_back(
        request.kernel, lambda: snapshots.get(request.snapshot, flight.user).state, told, same=request.same_random))


def _refuse(desk: LiveSandboxes, flight: Flight, number: int, entry: SandboxEntry, why: Refused) -> None:
    """Refuse request *number*; where the sandbox has gone, by that."""
    if entry.sandbox.sandbox.state is State.OVER:
        try:
            desk.get(entry.name, flight.user)
        except Refused as over:
            why = over
    flight.refuse(number, why)


def _waits(desk: LiveSandboxes, flight: Flight, request: wire.SandboxRequest, entry: SandboxEntry,
           taken_back: Callable[[], None]) -> SandboxCall:
    call = SandboxCall(desk, entry, taken_back)
    flight.wait(request.id, call)
    return call


def _begun(flight: Flight, request: wire.SandboxRequest, call: SandboxCall, begin: Callable[[], Any]) -> Any:
    try:
        return begin()
    except BaseException:
        call.end()
        flight.drop(request.id)
        raise


def rows(desk: LiveSandboxes, user: int) -> Mapping[str, Any]:
    """The answer to a `snapshot_list`."""
    return {"snapshots": [each.row() for each in desk.snapshots.of(user)]}


def info(desk: LiveSandboxes, request: wire.SnapshotInfo, user: int) -> Mapping[str, Any]:
    """The answer to a `snapshot_info`."""
    return desk.snapshots.get(request.snapshot, user).info()


def remove(desk: LiveSandboxes, request: wire.SnapshotRemove, user: int) -> Mapping[str, Any]:
    """Remove a snapshot, and return the answer."""
    desk.snapshots.remove(request.snapshot, user)
    return {}


def export(desk: LiveSandboxes, request: wire.SnapshotExport, user: int) -> Mapping[str, Any]:
    """The answer to a `snapshot_export`."""
    snapshot = desk.snapshots.get(request.snapshot, user)
    image = {"image": snapshot.state.image} if snapshot.state.image else {}
    return {"key": {**importing.key(), **image}, "sizes": list(snapshot.sizes)}


def read(desk: LiveSandboxes, request: wire.SnapshotRead, user: int) -> Mapping[str, Any]:
    """The answer to a `snapshot_read`: bytes of the state, then of its zygote's memory; none behind them."""
    return {"data": desk.snapshots.get(request.snapshot, user).bytes_at(request.offset, MAX_WRITE)}


def begin_import(desk: LiveSandboxes, request: wire.SnapshotImport, user: int) -> Mapping[str, Any]:
    """Begin to take a snapshot's bytes, and return the answer."""
    importing.check(request.key)
    return {"snapshot": desk.snapshots.begin_import(
        user, importing.Arriving(request.sizes, request.facts, request.made, request.key.get("image", "")))}


def write(desk: LiveSandboxes, request: wire.SnapshotWrite, user: int) -> Mapping[str, Any]:
    """Take the next bytes of a snapshot, and return the answer."""
    return {"left": desk.snapshots.add_bytes(request.snapshot, user, request.data)}

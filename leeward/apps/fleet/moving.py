"""A kernel that goes from one node to another: its state is read piece by piece from one daemon, and written to the other."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from leeward.client.conversation import checked
from leeward.client.snapshot_files import facts_of
from leeward.errors import DaemonError
from leeward.wire.sandbox_replies import imported, piece, snapshot_facts, snapshot_needs

if TYPE_CHECKING:
    from leeward.apps.fleet.aio_open import Connections


async def moved_state(source: Connections, target: Connections, sandbox: str, kernel: int) -> str:
    """
    Take the state of a kernel of *sandbox* to the daemon of *target*; returns the snapshot's id there. SnapshotFailed, with
    the name of what is different there, or of what can't be taken; then nothing is left there.
    """
    facts = checked(snapshot_facts, (await source.call("kernel_snapshot", {"sandbox": sandbox, "kernel": kernel}))[0])
    taken = {"snapshot": facts["snapshot"]}
    try:
        key, sizes = checked(snapshot_needs, (await source.call("snapshot_export", taken))[0])
        told = facts_of(facts["python"], facts["packages"], facts["lost"])
        head = {"key": key, "sizes": sizes, "made": facts["made"], "facts": told}
        name = checked(imported, (await target.call("snapshot_import", head))[0])
        try:
            at = 0
            while at < sum(sizes):
                data = checked(piece, (await source.call("snapshot_read", {**taken, "offset": at}))[0])
                await target.call("snapshot_write", {"snapshot": name, "data": data})
                at += len(data)
        except BaseException:
            await removed(target, name)
            raise
    finally:
        await removed(source, facts["snapshot"])  # that node may be lost by now: what was read is whole
    return name


async def removed(place: Connections, snapshot: str) -> None:
    """Remove a snapshot that isn't needed any more, if that can be done."""
    with suppress(DaemonError):  # it goes by itself when nobody has used it for long, or has gone
        await place.call("snapshot_remove", {"snapshot": snapshot})

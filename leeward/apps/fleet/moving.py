"""A kernel that goes from one node to another: its state is read piece by piece from one daemon, and written to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.client.conversation import checked
from leeward.client.snapshot_files import facts_of
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
            await target.call("snapshot_remove", {"snapshot": name})
            raise
    finally:
        await source.call("snapshot_remove", taken)
    return name

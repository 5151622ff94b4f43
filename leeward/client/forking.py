# Made by ./dev generate
"""Copies of a live sandbox, with its files and kernels, for blocking programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leeward.client.process import Kernel
from leeward.errors import DaemonError

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox
    from leeward.client.snapshot import Snapshot

class SandboxCopy(NamedTuple):
    """A copy of a sandbox, and the copies of the kernels that were asked for, in their order."""

    sandbox: Sandbox
    kernels: list[Kernel]


Copies = list[SandboxCopy]


def forks(box: Sandbox, count: int, kernels: list[Kernel], *, same_random: bool) -> Copies:
    """As `Sandbox.fork`."""
    snapshots: list[Snapshot] = []
    made: Copies = []
    try:
        for kernel in kernels:
            snapshots += [kernel.snapshot()]
        for _ in range(count):
            copy = SandboxCopy(box.unopened_copy(), [])
            made.append(copy)
            copy.sandbox.copy_files(box)
            for snapshot in snapshots:
                copy.kernels.append(copy.sandbox.kernel(snapshot=snapshot, same_random=same_random))
    except BaseException:
        for copy in made:
            copy.sandbox.close()
        raise
    finally:
        for snapshot in snapshots:
            try:
                snapshot.remove()
            except DaemonError:
                pass  # it goes when it isn't used
    return made

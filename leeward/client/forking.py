# Made by ./dev generate
"""Copies of a live sandbox, with its files and kernels, for blocking programs."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, NamedTuple

from leeward.client.process import Kernel
from leeward.errors import DaemonError

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox
    from leeward.client.snapshot import Snapshot

#: The folders whose files a sandbox has for itself.
_FOLDERS = ("/workspace", "/tmp", "/dev/shm")


class SandboxCopy(NamedTuple):
    """A copy of a sandbox, and the copies of the kernels that were asked for, in their order."""

    sandbox: Sandbox
    kernels: list[Kernel]


Copies = list[SandboxCopy]


def forks(box: Sandbox, count: int, kernels: list[Kernel], *, same_random: bool) -> Copies:
    """As `Sandbox.fork`."""
    if (box.info()).get("image"):  # of its profile; its whole root can have changed
        raise ValueError("a sandbox with an image can't be forked")
    snapshots: list[Snapshot] = []
    made: Copies = []
    try:
        for kernel in kernels:
            snapshots += [kernel.snapshot()]
        with tempfile.TemporaryDirectory(prefix="leeward-fork-") as folder:  # which only this user can read
            for number, each in enumerate(_FOLDERS):
                box.files.export_tar(each, f"{folder}/{number}.tar")
            for _ in range(count):
                copy = SandboxCopy(box.unopened_copy(), [])
                made.append(copy)
                for number, each in enumerate(_FOLDERS):
                    copy.sandbox.files.import_tar(f"{folder}/{number}.tar", each)
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

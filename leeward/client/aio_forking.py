"""Copies of a live sandbox, with its files and kernels, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leeward.client.aio_process import AsyncKernel
from leeward.errors import DaemonError

if TYPE_CHECKING:
    from leeward.client.aio_sandbox import AsyncSandbox
    from leeward.client.aio_snapshot import AsyncSnapshot

class AsyncSandboxCopy(NamedTuple):
    """A copy of a sandbox, and the copies of the kernels that were asked for, in their order."""

    sandbox: AsyncSandbox
    kernels: list[AsyncKernel]


Copies = list[AsyncSandboxCopy]


async def forks(box: AsyncSandbox, count: int, kernels: list[AsyncKernel], *, same_random: bool) -> Copies:
    """As `AsyncSandbox.fork`."""
    snapshots: list[AsyncSnapshot] = []
    made: Copies = []
    try:
        for kernel in kernels:
            snapshots += [await kernel.snapshot()]
        for _ in range(count):
            copy = AsyncSandboxCopy(box.unopened_copy(), [])
            made.append(copy)
            await copy.sandbox.copy_files(box)
            for snapshot in snapshots:
                copy.kernels.append(await copy.sandbox.kernel(snapshot=snapshot, same_random=same_random))
    except BaseException:
        for copy in made:
            await copy.sandbox.close()
        raise
    finally:
        for snapshot in snapshots:
            try:
                await snapshot.remove()
            except DaemonError:
                pass  # it goes when it isn't used
    return made

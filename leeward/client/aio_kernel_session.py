"""A session that has snapshots, for asyncio: the kernel of a sandbox, which ends with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from leeward.client.aio_session import AsyncSession
from leeward.client.options import TurnOptions
from leeward.errors import SandboxOver, SessionOver

if TYPE_CHECKING:
    from leeward.client.aio_process import AsyncKernel
    from leeward.client.aio_sandbox import AsyncSandbox
    from leeward.client.aio_snapshot import AsyncSnapshot
    from leeward.spec.outcome import Result


class AsyncKernelSession(AsyncSession):
    """What a client opens by `session` with `snapshots`. AsyncSession describes the calls, AsyncKernel what it does."""

    def __init__(self, kernel: AsyncKernel) -> None:
        self._kernel, self._is_closed = kernel, False

    @classmethod
    async def opened(cls, box: AsyncSandbox) -> AsyncKernelSession:
        try:
            return cls(await box.kernel())
        except BaseException:
            await box.close()
            raise

    async def execute(self, code: str | bytes, *, deadline: float | None = None,
                      **options: Unpack[TurnOptions]) -> Result:
        with _told():
            return await self._kernel._sandbox._execute(self._kernel.number, code, {"display": False, **options}, deadline)

    # blocking: def interrupt(self) -> None:
    async def interrupt(self) -> bool:  # asyncio
        with _told():
            # blocking: self._kernel.interrupt()
            return await self._kernel.interrupt()  # asyncio

    async def reset(self, deadline: float | None = None) -> None:
        box = self._kernel._sandbox
        try:
            await box.ask("kernel_reset", {"kernel": self._kernel.number}, deadline)
        except SandboxOver as over:  # an ordinary one gets a fresh process as well
            if self._is_closed:
                raise SessionOver(str(over)) from None
            fresh = await self.opened(box.unopened_copy())
            self._kernel = fresh._kernel
            await box.close()

    async def snapshot(self) -> AsyncSnapshot:
        with _told():
            return await self._kernel.snapshot()

    async def rollback(self, snapshot: AsyncSnapshot | str, *, same_random: bool = False) -> None:
        with _told():
            await self._kernel.rollback(snapshot, same_random=same_random)

    async def close(self) -> None:
        self._is_closed = True
        await self._kernel._sandbox.close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Make the sandbox's end the session's."""
    try:
        yield
    except SandboxOver as over:
        lost = SessionOver(str(over))
        lost.may_have_run = over.may_have_run
        raise lost from None

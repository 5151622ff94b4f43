# Made by ./dev generate
"""A session that has snapshots, for blocking programs: the kernel of a sandbox, which ends with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from leeward.client.options import TurnOptions
from leeward.client.session import Session
from leeward.errors import SandboxOver, SessionOver

if TYPE_CHECKING:
    from leeward.client.process import Kernel
    from leeward.client.sandbox import Sandbox
    from leeward.client.snapshot import Snapshot
    from leeward.spec.outcome import Result


class KernelSession(Session):
    """What a client opens by `session` with `snapshots`. Session describes the calls, Kernel what it does."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._is_closed = kernel, False

    @classmethod
    def opened(cls, box: Sandbox) -> KernelSession:
        try:
            return cls(box.kernel())
        except BaseException:
            box.close()
            raise

    def execute(self, code: str | bytes, *, deadline: float | None = None,
                **options: Unpack[TurnOptions]) -> Result:
        with _told():
            return self._kernel._sandbox._execute(self._kernel.number, code, {"display": False, **options}, deadline)

    def interrupt(self) -> None:
        with _told():
            self._kernel.interrupt()

    def reset(self, deadline: float | None = None) -> None:
        box = self._kernel._sandbox
        try:
            box.ask("kernel_reset", {"kernel": self._kernel.number}, deadline)
        except SandboxOver as over:  # an ordinary one gets a fresh process as well
            if self._is_closed:
                raise SessionOver(str(over)) from None
            fresh = self.opened(box.unopened_copy())
            self._kernel = fresh._kernel
            box.close()

    def snapshot(self) -> Snapshot:
        with _told():
            return self._kernel.snapshot()

    def rollback(self, snapshot: Snapshot | str, *, same_random: bool = False) -> None:
        with _told():
            self._kernel.rollback(snapshot, same_random=same_random)

    def close(self) -> None:
        self._is_closed = True
        self._kernel._sandbox.close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Make the sandbox's end the session's."""
    try:
        yield
    except SandboxOver as over:
        lost = SessionOver(str(over))
        lost.may_have_run = over.may_have_run
        raise lost from None

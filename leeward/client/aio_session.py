"""A session of the asyncio client: on the client's own connection, beside its other calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from leeward.client.conversation import answered
from leeward.client.options import NO_SNAPSHOTS, TurnOptions, arrivals_of, arrived, awaited_by, turn_fields
from leeward.client.results import result_of
from leeward.errors import DaemonError, NoAnswer, SnapshotFailed, quoted
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.client.aio_connection import AsyncConnection
    from leeward.client.aio_snapshot import AsyncSnapshot
    from leeward.wire.replies import Reply

#: Seconds that the daemon may take to end a session.
_CLOSE_S = 5.0


class AsyncSession:
    """
    A process in the sandbox that keeps its state between jobs, opened by AsyncClient.session. Session describes the
    calls and their errors. Tasks may share a session; their jobs run one after the other, in the order of the calls.
    Cancelling a task that waits for `execute` ends the job, and the session's state is lost; `interrupt` keeps it.
    """

    def __init__(self, connection: AsyncConnection, path: str, number: int) -> None:
        self._connection, self._path, self._number = connection, path, number
        self._turn = asyncio.Lock()

    async def execute(self, code: str | bytes, *, deadline: float | None = None,
                      **options: Unpack[TurnOptions]) -> Result:
        """
        Run code in the session's process, and wait for its result. Takes the options of Session.execute. The wait for
        its turn counts for the *deadline*, in seconds; when that passes while the job runs, the session's state is
        lost.
        """
        fields, arrivals = turn_fields(self._number, code, options), arrivals_of(options)
        served = awaited_by(options, arrivals)
        sent = False
        try:
            async with asyncio.timeout(deadline), self._turn:
                sent = True
                answer = await self._connection.turn("execute", fields, served)
        except TimeoutError:
            late = NoAnswer(f"no answer from {quoted(self._path)} before the deadline")
            late.may_have_run = sent
            raise late from None
        return arrived(result_of(*answered(answer)), arrivals)

    async def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running job; returns whether one was running."""
        reply = await self._asked("interrupt", None)
        return bool(reply.ok and reply.ok.get("interrupted"))

    async def reset(self, deadline: float | None = None) -> None:
        """Replace the process by a fresh one; the state is lost. A task that waits for a job gets Cancelled."""
        await self._asked("session_reset", deadline)

    async def snapshot(self) -> AsyncSnapshot:
        """The session's state, as by `AsyncKernel.snapshot`; SnapshotFailed also if it was opened without `snapshots`."""
        raise SnapshotFailed(NO_SNAPSHOTS)

    async def rollback(self, snapshot: AsyncSnapshot | str, *, same_random: bool = False) -> None:
        """Set the session back, as by `AsyncKernel.rollback`; SnapshotFailed also if it was opened without `snapshots`."""
        raise SnapshotFailed(NO_SNAPSHOTS)

    async def close(self) -> None:
        """End the session. A task that waits for a job of it gets Cancelled."""
        try:
            await self._asked("session_close", _CLOSE_S)
        except DaemonError:
            pass  # the session has ended, or ends when its connection is closed

    async def _asked(self, op: str, seconds: float | None) -> Reply:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._connection.call(op, {"session": self._number})
        except TimeoutError:
            raise NoAnswer(f"no answer from {quoted(self._path)} before the deadline") from None
        return answered(answer)[0]

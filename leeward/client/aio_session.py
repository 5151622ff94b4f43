"""A session of the asyncio client: on the client's own connection, beside its other calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from leeward.client.conversation import refusal
from leeward.client.options import TurnOptions, awaited_by, turn_fields
from leeward.client.results import result_of
from leeward.errors import DaemonError, NoAnswer, quoted
from leeward.outcome import Result

if TYPE_CHECKING:
    from leeward.client.aio_functions import AwaitedFunctions
    from leeward.client.conversation import Answer
    from leeward.wire.replies import Reply

    Call = Callable[[str, Mapping[str, Any]], Awaitable[Answer]]
    Turn = Callable[[str, Mapping[str, Any], AwaitedFunctions | None], Awaitable[Answer]]

#: Seconds that the daemon may take to end a session.
_CLOSE_S = 5.0


class AsyncSession:
    """
    A process in the sandbox that keeps its state between jobs, opened by AsyncClient.session. Session describes the
    calls and their errors. Tasks may share a session; their jobs run one after the other, in the order of the calls.
    Cancelling a task that waits for `execute` ends the job, and the session's state is lost; `interrupt` keeps it.
    """

    def __init__(self, call: Call, run: Turn, path: str, number: int) -> None:
        self._call, self._run, self._path, self._number = call, run, path, number
        self._turn = asyncio.Lock()

    async def execute(self, code: str | bytes, *, deadline: float | None = None,
                      **options: Unpack[TurnOptions]) -> Result:
        """
        Run code in the session's process, and wait for its result. Takes the options of Session.execute.

        The wait for its turn counts for the *deadline*. When it passes while the job runs, the session's state is lost.
        """
        fields, served = turn_fields(self._number, code, options), awaited_by(options)
        sent = False
        try:
            async with asyncio.timeout(deadline), self._turn:
                sent = True
                reply, descriptors = await self._run("execute", fields, served)
        except TimeoutError:
            late = NoAnswer(f"no answer from {quoted(self._path)} before the deadline")
            late.may_have_run = sent
            raise late from None
        if reply.ok is None:
            raise refusal(reply)
        return result_of(reply, descriptors)

    async def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running job; returns whether one was running."""
        reply = await _asked(self._call, self._path, None, "interrupt", {"session": self._number})
        return bool(reply.ok and reply.ok.get("interrupted"))

    async def reset(self, deadline: float | None = None) -> None:
        """Replace the process by a fresh one; the state is lost. A task that waits for a job gets Cancelled."""
        await _asked(self._call, self._path, deadline, "session_reset", {"session": self._number})

    async def close(self) -> None:
        """End the session. A task that waits for a job of it gets Cancelled."""
        try:
            await _asked(self._call, self._path, _CLOSE_S, "session_close", {"session": self._number})
        except DaemonError:
            pass  # the session has ended, or ends when its connection is closed


async def _asked(call: Call, path: str, seconds: float | None, op: str, fields: Mapping[str, Any]) -> Reply:
    try:
        async with asyncio.timeout(seconds):
            reply, _ = await call(op, fields)
    except TimeoutError:
        raise NoAnswer(f"no answer from {quoted(path)} before the deadline") from None
    if reply.ok is None:
        raise refusal(reply)
    return reply

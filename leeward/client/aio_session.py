"""
A session, for the asyncio client: over the client's own connection, beside its other calls.

Runs in:   anybody's program, in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from leeward.client.conversation import refusal
from leeward.client.options import TurnOptions, turn_fields
from leeward.client.results import result_of
from leeward.client.session import session_number
from leeward.errors import DaemonError, NoAnswer
from leeward.outcome import Result
from leeward.wire.replies import Reply

Answer = tuple[Reply, list[int]]
Call = Callable[[str, Mapping[str, Any]], Awaitable[Answer]]

#: Seconds that the daemon may take to end a session.
_CLOSE_S = 5.0


class AsyncSession:
    """
    Made by AsyncClient.session; see Session for what each call does.

    Cancelling a task that waits for `execute` ends the job, and the session's state with it: `interrupt` is the
    milder way.
    """

    def __init__(self, call: Call, path: str, number: int) -> None:
        self._call, self._path, self._number = call, path, number

    @classmethod
    async def open(cls, call: Call, path: str, fields: Mapping[str, Any]) -> AsyncSession:
        """
        A new session over the connection that *call* belongs to.
        """
        return cls(call, path, session_number(await _asked(call, path, None, "session_open", fields)))

    async def execute(self, code: str | bytes, *, deadline: float | None = None,
                      **options: Unpack[TurnOptions]) -> Result:
        """
        Run *code* where the jobs before it ran, and wait for its result. One job at a time; a second one is `Busy`.
        """
        fields = turn_fields(self._number, code, **options)
        try:
            async with asyncio.timeout(deadline):
                reply, descriptors = await self._call("execute", fields)
        except TimeoutError:
            raise NoAnswer(f"no answer from {self._path!a} before the deadline") from None
        if reply.ok is None:
            raise refusal(reply)
        return result_of(reply, descriptors)

    async def interrupt(self) -> bool:
        """
        Raise KeyboardInterrupt in the job that runs; was there one?
        """
        reply = await _asked(self._call, self._path, None, "interrupt", {"session": self._number})
        return bool(reply.ok and reply.ok.get("interrupted"))

    async def reset(self, deadline: float | None = None) -> None:
        """
        Go on with a fresh process. A job that runs ends as Cancelled.
        """
        await _asked(self._call, self._path, deadline, "session_reset", {"session": self._number})

    async def close(self) -> None:
        """
        End the session.
        """
        try:
            await _asked(self._call, self._path, _CLOSE_S, "session_close", {"session": self._number})
        except DaemonError:
            pass  # it is over, or ends with its connection


async def _asked(call: Call, path: str, seconds: float | None, op: str, fields: Mapping[str, Any]) -> Reply:
    try:
        async with asyncio.timeout(seconds):
            reply, _ = await call(op, fields)
    except TimeoutError:
        raise NoAnswer(f"no answer from {path!a} before the deadline") from None
    if reply.ok is None:
        raise refusal(reply)
    return reply

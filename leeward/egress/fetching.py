"""
The fetches that the daemon asks for: each a task of its sandbox's lease, its body in a memory file.

Runs in:   the broker, on its loop.
Owns:      the descriptors that came with a request, until its answer.
Bound:     as many fetches at once as the policy allows connections; the daemon bounds the fetches of a user.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from leeward.egress.dialling import Lookup
from leeward.egress.fetch import TEXTS, Fetcher, FetchFailure, FetchRequest
from leeward.egress.tenancy import Tenancy
from leeward.spec.egress import Policy, parse_policy
from leeward.wire import egress_control as control
from leeward.wire.egress_control import MAX_MESSAGE, FetchAnswer

#: Bytes of an answer beside the response's fields and URLs, at most.
_AROUND = 1024


class NobodysConnection:
    """Takes the place of a client's pipe, which a fetch doesn't have."""

    def reset_at_end(self) -> None: ...
    def close(self, *, reset: bool = False) -> None: ...


class Fetching:
    """
    The fetches of one lease.

    Args:
        narrower: the client's policy, as `parse_policy` reads it; {} for that of the lease.
    """

    def __init__(self, tenancy: Tenancy, narrower: dict[str, object], lookup: Lookup) -> None:
        self._tenancy = tenancy
        policy: Policy = parse_policy(narrower) if narrower else tenancy.policy
        self._fetcher = Fetcher(policy, resolve=lookup, budget=tenancy, sealing=tenancy.sealing)
        self._most = policy.limits.request
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, message: control.FetchOrder, fds: Sequence[int], tell: Callable[[FetchAnswer], None]) -> None:
        """Begin a fetch. *tell* is called once, with its answer."""
        full = self._tenancy.full()  # checked now, before this fetch counts itself
        task = asyncio.get_running_loop().create_task(self._fetch(message, fds, tell, full))
        self._tasks[message.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))
        task.add_done_callback(lambda _: _close(fds))
        self._tenancy.start(task, NobodysConnection())

    def stop(self, number: int) -> None:
        """Cancel a fetch."""
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def _fetch(self, message: control.FetchOrder, fds: Sequence[int], tell: Callable[[FetchAnswer], None],
                     full: str) -> None:
        try:
            answer = failure("rate", f"{TEXTS['rate']}: {full}", sent=False) if full else await self._answer(message, fds)
        except asyncio.CancelledError:
            tell(FetchAnswer(message.number, failure("http", f"{TEXTS['http']}: the sandbox is over")))
            raise
        except Exception as error:
            tell(FetchAnswer(message.number, failure("http", f"{TEXTS['http']}: a bug of the broker's: "
                                                         f"{type(error).__name__}")))
            raise
        tell(FetchAnswer(message.number, answer))

    async def _answer(self, message: control.FetchOrder, fds: Sequence[int]) -> dict[str, object]:
        about: Any = message.about
        body = _read(fds[1], self._most + 1) if len(fds) > 1 else b""
        try:
            fields = tuple((name, value) for name, value in about["headers"])
            got = await self._fetcher.fetch(FetchRequest(about["url"], about["method"], fields, body))
            if sum(len(name) + len(value) + 16 for name, value in got.fields) + sum(
                    len(each) + 16 for each in (*got.history, got.url)) > MAX_MESSAGE - _AROUND:
                raise FetchFailure("http", "a response with a head that is too large", got.url, sent=True)
            _write(fds[0], got.body)
        except FetchFailure as error:
            return failure(error.cause, str(error), error.url, sent=error.sent)
        except OSError as error:
            return failure("http", f"{TEXTS['http']}: no room for the response: {error.strerror}")
        return {"status": got.status, "headers": [list(each) for each in got.fields], "url": got.url,
                "history": list(got.history), "address": got.address}


def failure(cause: str, message: str, url: str = "", *, sent: bool = True) -> dict[str, object]:
    """Return the fields of the answer to a fetch that failed; *sent* says whether a request may have been sent."""
    return {"failed": cause, "message": message[:4096], "url": url[:4096], "sent": sent}


def _read(fd: int, most: int) -> bytes:
    found = bytearray()
    while len(found) < most and (piece := os.pread(fd, min(1 << 20, most - len(found)), len(found))):
        found += piece
    return bytes(found)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest):]


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)

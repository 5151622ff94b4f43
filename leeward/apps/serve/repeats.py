"""
Answers to calls with an Idempotency-Key, for a client that calls again because it didn't get the first one.

Holds:     a key is one tenant's, and one body's: with another body it is refused. Who calls again while the first call is
           under way waits for that, which goes on when its client goes; what fails isn't kept, so that it may be tried again.
Bounds:    KEEP_S, and of each tenant MOST answers of MOST_BYTES together; the oldest are forgotten. A body counts for its
           tenant until the call that it began has ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from leeward.apps.serve.calls import ServeCall
from leeward.apps.serve.problems import ServeProblem, bad

Row = dict[str, Any]

#: Seconds for which an answer is kept; answers and their bytes, of each tenant; characters of a key: at most.
KEEP_S, MOST, MOST_BYTES, MOST_KEY = 600.0, 64, 16 << 20, 255


@dataclass(slots=True)
class _Repeat:
    body: bytes  # its hash
    task: asyncio.Task[Row]
    ended: float = float("inf")  # time.monotonic()
    size: int = 0


class Repeats:
    """
    The keys of all tenants.

    Args:
        failed: whether an answer is one to try again.
    """

    def __init__(self, failed: Callable[[Row], bool]) -> None:
        self._failed = failed
        self._kept: defaultdict[str, OrderedDict[str, _Repeat]] = defaultdict(OrderedDict)  # by tenant

    async def once(self, call: ServeCall, fields: Row, work: Callable[[], Coroutine[Any, Any, Row]]) -> Row:
        """The result of *work*, or what it was when the tenant has called with the same key before."""
        key = call.headers.get("idempotency-key", "")
        if not key:
            return await work()
        if len(key) > MOST_KEY:
            raise bad(f"an Idempotency-Key has {MOST_KEY} characters at most")
        body = hashlib.sha256(json.dumps([call.request.url.path, fields], sort_keys=True).encode()).digest()
        kept = self._kept[call.tenant.id]
        self._forget_old(kept)
        found = kept.get(key)
        if found is None:
            found = kept[key] = _Repeat(body, asyncio.ensure_future(work()))
            call.use.tasks.add(found.task)  # a revoked token ends it
            held, call.held = call.held, 0
            found.task.add_done_callback(lambda task: self._ended(call, key, held, task))
        elif found.body != body:
            raise ServeProblem(422, "this Idempotency-Key was used for another request")
        return await asyncio.shield(found.task)

    async def forget(self) -> None:
        """Forget what is too old, also of tenants who don't call any more."""
        for tenant, kept in list(self._kept.items()):
            self._forget_old(kept)
            if not kept:
                del self._kept[tenant]

    def _ended(self, call: ServeCall, key: str, held: int, task: asyncio.Task[Row]) -> None:
        call.use.tasks.discard(task)
        call.use.held -= held
        kept = self._kept[call.tenant.id]
        found = kept.get(key)
        if found is None or found.task is not task:
            return
        if task.cancelled() or task.exception() is not None or self._failed(task.result()):
            del kept[key]
        else:
            found.ended, found.size = time.monotonic(), _size(task.result())
            self._forget_old(kept)

    def _forget_old(self, kept: OrderedDict[str, _Repeat]) -> None:
        size, least = 0, time.monotonic() - KEEP_S
        for number, (key, each) in enumerate(reversed(list(kept.items()))):
            size += each.size
            if each.task.done() and (each.ended < least or number >= MOST or size > MOST_BYTES):
                del kept[key]


def _size(value: object) -> int:
    """The bytes of memory that an answer has."""
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(sys.getsizeof(name) + _size(each) for name, each in value.items())
    return sys.getsizeof(value) + (sum(map(_size, value)) if isinstance(value, list) else 0)

"""
Notifies viewers, and calls that wait, of new requests and decisions.

Threads:   the queue calls it in the thread that decided; viewers and waiting calls are on an event loop, to which each
           message is passed.
Holds:     no viewer delays others. A viewer with more than MOST_WAITING messages that it hasn't taken is dropped, and
           has to connect again.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.web.blocking_calls import in_thread_of
from leeward.apps.approvals.web.json_objects import request_row, rules_row
from leeward.client.characters import text_of_piece
from leeward.errors import Busy

#: At most: messages that a viewer hasn't taken; viewers; waiting calls of one caller.
MOST_WAITING, MOST_VIEWERS, MOST_WAITERS = 512, 64, 128

#: Bytes of a command's output in one message.
MOST_OUTPUT = 8192

#: Streams that have begun a character of which the rest hasn't come, at most.
MOST_BEGUN = 256


class LiveViewer:
    """
    The queue of messages for one WebSocket, on the event loop on which it was made. It is `dropped` if it doesn't take
    its messages, or its loop is closed.
    """

    def __init__(self) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        self._messages: deque[str] = deque()
        self.dropped = False

    def put(self, message: str, may_miss: bool = False) -> None:
        """Queue a message, from any thread; one that *may_miss* is left out if half of MOST_WAITING messages wait."""
        try:
            self._loop.call_soon_threadsafe(self._put, message, may_miss)
        except RuntimeError:
            self.dropped = True  # its loop is closed

    def _put(self, message: str, may_miss: bool) -> None:
        if may_miss and len(self._messages) >= MOST_WAITING // 2:
            return
        if len(self._messages) >= MOST_WAITING:
            self.dropped = True
            self._messages.clear()
        if not self.dropped:
            self._messages.append(message)
        self._ready.set()

    async def take(self) -> list[str]:
        """Wait for messages, and take all that are there; [] if the viewer was dropped."""
        await self._ready.wait()
        self._ready.clear()
        found = list(self._messages)
        self._messages.clear()
        return found


class LiveFeed:
    """All viewers, and all calls that wait for a request."""

    def __init__(self, queue: ApprovalQueue) -> None:
        self._queue, self._lock = queue, threading.Lock()
        self._viewers: set[LiveViewer] = set()
        self._waiters: defaultdict[int, list[_Waiter]] = defaultdict(list)
        self._waiting: defaultdict[str, int] = defaultdict(int)
        self._begun: OrderedDict[tuple[int, str], bytes] = OrderedDict()  # by command and stream, a begun character
        self._end = queue.subscribe(self._request_changed)

    def close(self) -> None:
        self._end()

    def _request_changed(self, request: ApprovalRequest) -> None:
        kind = "request" if request.status == "pending" else "resolve"
        with self._lock:
            waiters, watched = list(self._waiters.get(request.id, ())), bool(self._viewers)
        for waiter in waiters:
            waiter.tell(request)
        if watched:
            self.send({"type": kind, "request": request_row(request, whole=False)})

    def send(self, message: dict[str, Any], may_miss: bool = False) -> None:
        """Send a message to each viewer. From any thread."""
        text = json.dumps(message)
        with self._lock:
            for viewer in self._viewers:
                viewer.put(text, may_miss)

    def output(self, number: int, stream: str, data: bytes) -> None:
        """Send output of a command to each viewer. A slow viewer misses some of it."""
        with self._lock:
            watched, begun = bool(self._viewers), self._begun.pop((number, stream), b"")
        for at in range(0, len(data) if watched else 0, MOST_OUTPUT):
            text, begun = text_of_piece(begun, data[at:at + MOST_OUTPUT])
            self.send({"type": "output", "id": number, "stream": stream, "data": text}, True)
        if begun and watched:
            with self._lock:
                self._begun[number, stream] = begun
                while len(self._begun) > MOST_BEGUN:
                    self._begun.popitem(last=False)

    def rules_changed(self) -> None:
        self.send({"type": "rules", "rules": rules_row(self._queue.rules())})

    def shut_down(self, reason: str) -> None:
        """Send `shutdown` to each viewer, after which its connection ends."""
        self.send({"type": "shutdown", "reason": reason})

    def look(self) -> LiveViewer:
        """Add a viewer, which `leave` removes; Busy if there are MOST_VIEWERS."""
        with self._lock:
            if len(self._viewers) >= MOST_VIEWERS:
                raise Busy(f"there are {MOST_VIEWERS} viewers already")
            viewer = LiveViewer()
            self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: LiveViewer) -> None:
        with self._lock:
            self._viewers.discard(viewer)

    async def wait(self, number: int, timeout: float, is_done: Callable[[ApprovalRequest], bool],
                   caller: str = "") -> ApprovalRequest | None:
        """
        Wait until the pure function *is_done* is true of a request, *timeout* seconds at most; returns the request,
        None if there is none. Busy if MOST_WAITERS calls of *caller* (a sandbox's id; "" for the operator) wait
        already.
        """
        if self._waiting[caller] >= MOST_WAITERS:
            raise Busy(f"{MOST_WAITERS} calls wait already", 1.0)
        waiter, end = _Waiter(), time.monotonic() + timeout
        self._waiting[caller] += 1
        with self._lock:
            self._waiters[number].append(waiter)
        try:
            request = await in_thread_of(caller, self._queue.get, number)
            while request is not None and not is_done(request) and (left := end - time.monotonic()) > 0:
                if request.status == "pending" and request.expires is not None:
                    left = min(left, max(0.001, request.expires - time.time()))
                request = await waiter.next(left) or await self._again(request, caller)
            return request
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]
            with self._lock:
                self._waiters[number].remove(waiter)
                if not self._waiters[number]:
                    del self._waiters[number]

    async def _again(self, request: ApprovalRequest, caller: str) -> ApprovalRequest | None:
        if request.expires is not None and request.expires <= time.time():
            await in_thread_of(caller, self._queue.expire)
        return await in_thread_of(caller, self._queue.get, request.id)


class _Waiter:
    def __init__(self) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        self._last: ApprovalRequest | None = None

    def tell(self, request: ApprovalRequest) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, request)
        except RuntimeError:
            pass  # its loop is closed, so no call waits

    def _set(self, request: ApprovalRequest) -> None:
        self._last = request
        self._ready.set()

    async def next(self, timeout: float) -> ApprovalRequest | None:
        """The request of the next notice; None after *timeout* seconds without one."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            return None
        self._ready.clear()
        return self._last

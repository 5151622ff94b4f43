"""
The service's end of a sandbox's bridge: requests come out of the sandbox as frames, and answers go in.

Trust:     none in any byte. A frame that is no request ends this bridge. A request belongs to the sandbox whose pipe it
           came from, whatever the frame has. Frames beyond a sandbox's rate stay in its pipe and delay no other one.
Threads:   two for each bridge: one reads, the other one writes answers and a heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from leeward.apps.approvals.requester import METHODS, MOST_FRAME, MOST_PATH, SILENCE_S
from leeward.client.process import Process
from leeward.errors import LeewardError, PeerError, told

#: For one bridge: requests that aren't answered yet, the bytes of their bodies, requests a second, answers that wait to
#: be written, and the bytes of these answers.
MOST_UNDER_WAY, MOST_BODIES, EACH_SECOND, MOST_ANSWERS, MOST_WAITING = 64, 16 << 20, 50.0, 256, 32 << 20


@dataclass(frozen=True, slots=True)
class BridgeRequest:
    """A request of a process in the sandbox."""

    number: int  # the bridge's, which the answer repeats
    method: str
    path: str  # of a route, with its query; ASCII
    body: bytes  # JSON; b"" for none, and of a GET, which may wait for minutes


#: Answers a request: a future of the status of HTTP and the JSON value.
Answering = Callable[[BridgeRequest], "Future[tuple[int, Any]]"]


class BridgeFrames:
    """A decoder of frames from a stream of bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[BridgeRequest]:
        """The requests that *data* completes; PeerError if the stream has something else."""
        self._held += data
        while len(self._held) >= 4:
            size = struct.unpack_from("!I", self._held)[0]
            if not 0 < size <= MOST_FRAME:
                raise PeerError(f"a frame of {size} bytes")
            if len(self._held) < 4 + size:
                return
            frame = bytes(self._held[4:4 + size])
            del self._held[:4 + size]
            yield parse_frame(frame)


def parse_frame(frame: bytes) -> BridgeRequest:
    """The request in a frame; PeerError if there is none."""
    try:
        said = json.loads(frame)
    except (ValueError, RecursionError):
        raise PeerError("a frame that is no JSON") from None
    match said:
        case [int(number), str(method), str(path), body] if type(number) is int:
            if not 0 < number < 1 << 53 or method not in METHODS:
                raise PeerError("a request without number or method")
            if not path.startswith("/") or len(path) > MOST_PATH or not path.isascii() or not path.isprintable():
                raise PeerError("a request without a path")
            try:
                has_none = body is None or method == "GET"
                return BridgeRequest(number, method, path, b"" if has_none else json.dumps(body).encode())
            except (ValueError, RecursionError):
                raise PeerError("a body that JSON can't have") from None
    raise PeerError("a frame that is no request")


def written_frame(said: Any) -> bytes:
    """*said* as a frame; an answer of more than MOST_FRAME bytes is replaced by the status 507."""
    data = json.dumps(said).encode()
    if len(data) > MOST_FRAME:
        data = json.dumps([said[0], 507, {"detail": f"the answer has more than {MOST_FRAME} bytes"}]).encode()
    return struct.pack("!I", len(data)) + data


class BridgeEnd:
    """
    Reads a bridge's requests, has them answered, and writes the answers. An exception of an answer's future is one with
    500; *until* is when the service's time is over, in seconds of `time.monotonic`. `fault` says why the bridge has
    ended.
    """

    def __init__(self, process: Process, answering: Answering, until: float | None) -> None:
        self._process, self._answering, self._until = process, answering, until
        self._answers: queue.Queue[bytes] = queue.Queue(MOST_ANSWERS)
        self._waiting, self._lock = 0, threading.Lock()
        self._under_way, self._bodies, self._room = 0, 0, threading.Condition()
        self._over, self._greeted = threading.Event(), threading.Event()
        self.fault = ""
        self._threads = [threading.Thread(target=run, name=f"bridge-{name}", daemon=True)
                         for name, run in (("read", self._read), ("write", self._write))]
        for thread in self._threads:
            thread.start()

    @property
    def number(self) -> int:
        """The number of its process in the sandbox."""
        return self._process.number

    @property
    def is_alive(self) -> bool:
        return not self._over.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait until the bridge's socket listens, *timeout* seconds at most; returns whether it does."""
        return self._greeted.wait(timeout)

    def close(self, why: str = "it was closed") -> None:
        """End this bridge and its process in the sandbox."""
        if not self._over.is_set():
            self.fault = why
            self._over.set()
            with contextlib.suppress(queue.Full):  # a full queue has no writer that waits for it
                self._answers.put_nowait(b"")
        try:
            self._process.kill()
        except LeewardError:
            pass  # the process or its sandbox has ended

    def join(self, timeout: float) -> None:
        """Wait for both threads, *timeout* seconds each."""
        for thread in self._threads:
            thread.join(timeout)

    def _read(self) -> None:
        reader, allowed, since = BridgeFrames(), EACH_SECOND, time.monotonic()
        try:
            while not self._over.is_set():
                found = self._process.read(5.0)
                if not found and self._process.wait(0) is not None:
                    return self.close("its process has ended")
                for chunk in found:
                    if chunk.stream != "stdout":
                        continue
                    for request in reader.feed(chunk.data):
                        now = time.monotonic()
                        allowed, since = min(EACH_SECOND, allowed + (now - since) * EACH_SECOND), now
                        pause = max(0.0, (1 - allowed) / EACH_SECOND)
                        if self._over.is_set() or (pause and self._over.wait(pause)):
                            return None
                        allowed -= 1
                        self._take(request)
        except PeerError as error:
            self.close(f"it broke the protocol: {error}")
        except Exception as error:  # it costs this bridge
            self.close(told(error) or type(error).__name__)
        return None

    def _take(self, request: BridgeRequest) -> None:
        self._greeted.set()
        number, size = request.number, len(request.body)
        with self._room:
            while self._under_way >= MOST_UNDER_WAY or (self._bodies and self._bodies + size > MOST_BODIES):
                self._room.wait(1.0)
                if self._over.is_set():
                    return
            self._under_way += 1
            self._bodies += size
        future = self._answering(request)
        future.add_done_callback(lambda done: self._answered(number, size, done))

    def _answered(self, number: int, size: int, done: Future[tuple[int, Any]]) -> None:
        with self._room:
            self._under_way -= 1
            self._bodies -= size
            self._room.notify()
        if self._over.is_set():
            return
        if done.cancelled() or done.exception() is not None:
            status, body = 500, {"detail": "the service has failed to answer"}
        else:
            status, body = done.result()
        frame = written_frame([number, status, body])
        with self._lock:
            self._waiting += len(frame)
            is_full = self._waiting > MOST_WAITING
        try:
            if is_full:
                raise queue.Full
            self._answers.put_nowait(frame)
        except queue.Full:
            self.fault = "it doesn't take its answers"
            self._over.set()
            # `close` waits for the daemon, and this is the service's event loop.
            threading.Thread(target=self.close, name="bridge-close", daemon=True).start()

    def _write(self) -> None:
        try:
            while not self._over.is_set():
                left = None if self._until is None else max(0.0, self._until - time.monotonic())
                self._process.write(written_frame([0, left]))
                end = time.monotonic() + SILENCE_S / 5
                while (rest := end - time.monotonic()) > 0 and not self._over.is_set():
                    try:
                        frame = self._answers.get(timeout=min(rest, 1.0))
                    except queue.Empty:
                        continue
                    if not frame:
                        return  # the bridge was closed
                    self._process.write(frame)
                    with self._lock:
                        self._waiting -= len(frame)
        except Exception as error:  # it costs this bridge
            self.close(told(error) or type(error).__name__)

"""
The client's functions in a job: each call is written to the reply pipe, and its answer is read from the job pipe.

Trust:     none in the job, which can change all of this and then breaks only its own calls. The daemon counts and
           bounds the bytes that come out, whoever has written them.

Theory of operation. One thread, the *carrier*, writes calls and reads answers. It starts with the first call, and ends
before the reply is written to the same pipe. So an interrupt, which is raised in the main thread, can't cut off a
frame. A caller puts the call into a queue, wakes the carrier by a pipe, and waits for a lock that belongs to the call;
in an event loop it gets a future instead. Calls beyond the bound on open calls wait in the queue. A signal handler may
use this queue, too.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import os
import select
import signal
import sys
from _queue import Empty, SimpleQueue
from collections.abc import Callable
from typing import Any

from leeward.inside import tracebacks
from leeward.wire import function_frames as wire
from leeward.wire import job_frames as frames

tracebacks.ends.append(globals())

#: Seconds that the carrier may take to end where a signal handler waits for it.
LATE_S = 0.2

#: Signals that report a fault of the thread itself to faulthandler; they stay unblocked.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}

_OVER = "the job that was given this function is over"


class FunctionError(RuntimeError):
    """Raised for a client's function's exception that isn't a builtin of Python, under that exception's name."""


class _Waiting:
    __slots__ = ("_answered", "_lock", "body", "done", "error", "place", "raised")

    def __init__(self, place: int, body: bytes) -> None:
        self.place, self.body = place, body
        self.done = self.raised = False
        self.error: str | None = None
        self._answered: Callable[[], object] | None = None
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def finish(self, body: bytes, *, raised: bool = False, error: str | None = None) -> None:
        self.body, self.raised, self.error, self.done = body, raised, error, True
        self._lock.release()
        if self._answered is not None:
            self._answered()

    def result(self) -> Any:
        """Wait for the answer. Raises the function's exception."""
        with self._lock:  # released for the next caller
            pass
        if self.error is not None:
            raise RuntimeError(self.error)
        value = wire.unpack(self.body)
        if self.raised:
            raise _exception(*value)
        return value

    def future(self, loop: Any) -> Any:
        future = loop.create_future()

        def resolve() -> None:
            if future.done():  # cancelled, or answered twice
                return
            try:
                future.set_result(self.result())
            except StopIteration:  # a future can't have this exception
                future.set_exception(RuntimeError("the function raised StopIteration"))
            except Exception as error:
                future.set_exception(error)

        def answered() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(resolve)

        self._answered = answered
        if self.done:
            answered()
        return future


def _exception(kind: str, text: str) -> Exception:
    """An exception of Python's own by its name, or one with that name."""
    known: Any = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # UnicodeDecodeError, say, needs more arguments
            return known(text)
    made: type[FunctionError] = type(kind if kind.isidentifier() else FunctionError.__name__, (FunctionError,),
                                     {"__module__": "builtins"})
    return made(text)


class Function:
    """
    A function of the client's: call it, and it waits for the answer. In an event loop's thread the call gives a future;
    `wait` waits there, too.
    """

    def __init__(self, channel: FunctionChannel, place: int, name: str) -> None:
        self._channel, self._place = channel, place
        self.__name__ = self.__qualname__ = name

    def __call__(self, /, *args: object, **named: object) -> Any:
        call = self._channel.ask(self._place, wire.pack_arguments(args, named))
        events = sys.modules.get("asyncio.events")
        loop = None if events is None else events._get_running_loop()
        return call.result() if loop is None else call.future(loop)

    def wait(self, /, *args: object, **named: object) -> Any:
        """Call the function, and wait for the answer, also in an event loop's thread."""
        return self._channel.ask(self._place, wire.pack_arguments(args, named)).result()

    def tell(self, *args: object) -> None:
        """Call the function, and wait for nothing; what can't be sent isn't."""
        with contextlib.suppress(Exception):
            self._channel.ask(self._place, wire.pack_arguments(args, {}))

    def __repr__(self) -> str:
        return f"<function {self.__name__} of the client>"


class FunctionChannel:
    def __init__(self, names: list[str], job_fd: int, reply_fd: int) -> None:
        self.functions = {name: Function(self, place, name) for place, name in enumerate(names)}
        self._job, self._reply, self._process = job_fd, reply_fd, os.getpid()
        self._queue: SimpleQueue[_Waiting] = SimpleQueue()
        self._open: dict[int, _Waiting] = {}
        self._parts: dict[int, list[bytes]] = {}
        self._last = 0
        self._carrying = _thread.allocate_lock()  # held by the carrier while it runs, then by `close`
        self._started = False
        self._wake = self._woken = -1  # only the carrier sets these
        self._over = ""       # the reason why no more calls are made
        self._closed = False  # no more calls are made, and there is no carrier

    def take_shown(self) -> Callable[..., None] | None:
        """The function that is told what the code shows, which no code gets; None if there is none."""
        shown = self.functions.pop(wire.SHOWN, None)
        return None if shown is None else shown.tell

    def ask(self, place: int, body: bytes) -> _Waiting:
        """Make a call. RuntimeError if this is another process, or no thread starts."""
        if os.getpid() != self._process:
            raise RuntimeError("a client's function can only be called in the job's own process")
        call = _Waiting(place, body)
        if not (self._started or self._over):
            self._start()
        self._queue.put(call)
        if self._closed:  # perhaps since a moment ago
            self._fail_queued()
        else:
            self._rouse()
        return call

    def _start(self) -> None:
        _thread.start_new_thread(self._serve, ())  # a second one, after an interrupt here or by a race, ends at once
        self._started = True

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so the carrier is awake; or closed by the job; or not yet open
            os.write(self._wake, b"\0")

    def close(self, seconds: float = -1) -> bool:
        """
        End the channel before the job's reply, in *seconds*, or without a bound if -1. Calls that still wait get a
        RuntimeError. Returns whether the carrier has ended. A signal handler may call it with a bound.
        """
        if self._closed or os.getpid() != self._process:
            return True
        self._over = self._over or _OVER
        self._rouse()
        if not self._carrying.acquire(timeout=seconds):
            return False
        self._closed = True
        self._fail_all()
        ends, self._wake, self._woken = (self._wake, self._woken), -1, -1
        for fd in ends:
            with contextlib.suppress(OSError):  # the descriptor was never open, or the job has closed it
                os.close(fd)
        return True

    # --- the carrier --------------------------------------------------------------

    def _serve(self) -> None:
        if not self._carrying.acquire(blocking=False):
            return
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - _FAULTS)  # they are the main thread's
            woken, wake = os.pipe()
            os.set_blocking(wake, False)
            self._woken, self._wake = woken, wake
            poll = select.poll()
            poll.register(self._job, select.POLLIN)
            poll.register(woken, select.POLLIN)
            while not self._over:  # checked after each wake-up, and before the first one
                self._send()
                ready = {fd for fd, _ in poll.poll()}
                if woken in ready:
                    os.read(woken, wire.PIECE)
                if self._job in ready:
                    self._receive()
        except BaseException as error:  # for instance, the job has closed our descriptors
            self._over = self._over or f"no function can be called any more: {type(error).__name__}: {error}"
            self._closed = True
            self._fail_all()
        finally:
            self._carrying.release()

    def _send(self) -> None:
        while len(self._open) < wire.MAX_OPEN:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if self._last >= wire.MAX_CALLS:
                call.finish(b"", error=f"a job can make {wire.MAX_CALLS} calls")
                continue
            self._last += 1
            self._open[self._last] = call
            data = memoryview(wire.call_frame(self._last, call.place, call.body))
            while data:
                data = data[os.write(self._reply, data):]

    def _receive(self) -> None:
        """Read one piece of an answer, which is in the pipe as a whole."""
        size = frames.HEADER.unpack(self._read(frames.HEADER.size))[0]
        number, flags, part = wire.read_piece(self._read(size))
        parts = self._parts.setdefault(number, [])
        parts.append(part)
        if not flags & wire.MORE:
            del self._parts[number]
            call = self._open.pop(number, None)
            if call is not None:
                call.finish(b"".join(parts), raised=bool(flags & wire.RAISED))

    def _read(self, size: int) -> bytes:
        data = os.read(self._job, size)
        if len(data) != size:
            raise EOFError("the daemon has closed the pipe")
        return data

    def _fail_all(self) -> None:
        while self._open:
            self._open.popitem()[1].finish(b"", error=self._over)
        self._fail_queued()

    def _fail_queued(self) -> None:
        while True:
            try:
                self._queue.get_nowait().finish(b"", error=self._over)
            except Empty:
                return


def wanted(fields: dict[str, Any], job_fd: int, reply_fd: int) -> FunctionChannel | None:
    """The channel of a job with these *fields*, if it was given functions."""
    names = fields["functions"]
    return FunctionChannel(names, job_fd, reply_fd) if names else None

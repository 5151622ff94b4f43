"""
The event loop of a kernel: its cells run in it, and their tasks go on between them.

Runs in:   a job with `display`. asyncio is imported by the job, or for its first top-level `await`.

Theory of operation. A cell with a top-level `await` is one task. A cell without runs beside the loop, which is set as
the thread's running loop all the same, so that `create_task` works as in a notebook. There `asyncio.run` and
`run_until_complete` work as well, which a notebook refuses: `asyncio.events` hides a running loop that doesn't turn
from the code that would start another one. Between two cells the loop turns until the next frame comes.

An interrupt cancels the task of the cell. It is raised as KeyboardInterrupt where the task itself computes, or where
anything else has kept the loop from turning between two nudges, which follow an interrupt. The first one alone may come in
the same moment, where the process had no processor.
"""

from __future__ import annotations

import _thread
import sys
import types
from collections.abc import Coroutine, Sequence
from typing import Any

from leeward.inside import imports, tracebacks

# Imported in functions: asyncio, 40 ms of processor time.

_IS_COROUTINE = 0x80  # inspect.CO_COROUTINE

#: asyncio and the loop of this process, from its first use on.
_asyncio: Any = None
_loop: Any = None

#: The task of the cell that awaits now.
_task: Any = None

#: The thread in which a cell that doesn't await runs in the loop; 0 if none does.
_beside = 0

#: An interrupt came: the task will be cancelled when the loop turns; and it was.
_wanted = _cancelled = False

#: A nudge has come since.
_nudged = False

_hooked = False

tracebacks.ends.append(globals())


def run(parts: Sequence[types.CodeType], namespace: dict[str, Any], *, goes_on: bool) -> Any:
    """
    Run the *parts* of a cell; return the value of the last one. Tasks can go on after this cell if the process
    *goes_on*.
    """
    if any(part.co_flags & _IS_COROUTINE for part in parts):
        return _awaited(_in_task(parts, namespace))
    if not goes_on:
        return _in_order(parts, namespace)
    global _beside, _hooked
    _beside = _thread.get_ident()
    try:
        if not _hooked:
            _hooked = True
            imports.after("asyncio", _join)
        elif "asyncio" in sys.modules:
            _join(sys.modules["asyncio"])
        return _in_order(parts, namespace)
    finally:
        _beside = 0
        if _loop is not None:
            _asyncio._set_running_loop(None)


def _in_order(parts: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
    value = None
    for part in parts:
        value = eval(part, namespace)  # what leeward is for; the locks are on
    return value


async def _in_task(parts: Sequence[types.CodeType], namespace: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """The value or the exception of a cell, as a value, so that the traceback has no frame of the loop."""
    value = None
    try:
        for part in parts:
            value = eval(part, namespace)  # what leeward is for; the locks are on
            if part.co_flags & _IS_COROUTINE:
                value = await value
        return value, None
    except BaseException as error:  # a job may raise anything
        return None, error


def _ready() -> Any:
    global _asyncio, _loop
    if _asyncio is None:
        import asyncio

        _asyncio = asyncio
        _hide(asyncio)
    if _loop is None or _loop.is_closed():
        _loop = _asyncio.SelectorEventLoop()
    _asyncio.set_event_loop(_loop)  # `asyncio.run` of a cell leaves none
    return _loop


def _join(asyncio: Any) -> None:
    """Make the loop the running one of the cell that runs now. Without a free descriptor it has none."""
    if _beside != _thread.get_ident():
        return
    try:
        asyncio._set_running_loop(_ready())
    except OSError:
        return


def _hide(asyncio: Any) -> None:
    """Let a cell that doesn't await run loops: `asyncio.get_running_loop` stays as it is."""
    def get() -> Any:
        running = asyncio._get_running_loop()
        return None if running is not None and running is _loop and not running.is_running() else running

    def put(loop: Any) -> None:
        asyncio._set_running_loop(_loop if loop is None and _beside == _thread.get_ident() else loop)

    asyncio.events._get_running_loop, asyncio.events._set_running_loop = get, put


def _awaited(coroutine: Coroutine[Any, Any, tuple[Any, BaseException | None]]) -> Any:
    global _task, _wanted, _cancelled
    loop = _ready()
    _wanted = _cancelled = False
    _task = task = loop.create_task(coroutine)
    try:
        try:
            value, error = loop.run_until_complete(task)
        except BaseException:  # an interrupt of code that isn't the cell's, or a task has left the interpreter
            task.cancel()
            loop.run_until_complete(task)
            raise
    finally:
        _task = None
    if error is None:
        return value
    if _cancelled and isinstance(error, _asyncio.CancelledError):
        raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
    raise error


def took_interrupt() -> bool:
    """Whether the cell that awaits will be cancelled for an interrupt; otherwise KeyboardInterrupt is to be raised."""
    global _wanted, _nudged
    if _task is None or _wanted or _asyncio.current_task(_loop) is _task:
        return False
    _wanted, _nudged = True, False
    _loop.call_soon_threadsafe(_cancel, _task)
    return True


def _cancel(task: Any) -> None:
    global _wanted, _cancelled
    _wanted, _cancelled = False, True
    task.cancel()


def nudged(number: int, frame: types.FrameType | None) -> None:
    """
    Handle a SIGURG that follows an interrupt: a call which was about to block when SIGINT came ends, and so does code
    that has kept the loop from turning since the one before.
    """
    global _nudged
    if _task is not None and _wanted:
        if _nudged:
            raise KeyboardInterrupt
        _nudged = True


def has_loop() -> bool:
    """Whether tasks may go on after a cell."""
    return _loop is not None and not _loop.is_closed()


def turn_until_readable(fd: int) -> None:
    """Let the tasks go on until *fd* can be read, or until one of them leaves the interpreter, whose exception is raised."""
    if _loop is None or _loop.is_closed():
        return
    _asyncio._set_running_loop(None)  # an interrupt may have left it
    _loop.add_reader(fd, _loop.stop)
    try:
        _loop.run_forever()
    finally:
        _loop.remove_reader(fd)


def separate(*, lost: bool = False) -> None:
    """
    In a branch: give the loop descriptors of its own. The threads of its executor weren't forked. *lost*: in the copy of
    a state, which has no sockets for which the loop could wait.
    """
    if _loop is None or _loop.is_closed():
        return
    shared, own = _loop._selector, _loop._ssock.fileno()
    _loop._selector = type(shared)()
    for key in list(shared.get_map().values()):
        if key.fd != own:
            try:
                _loop._selector.register(key.fileobj, key.events, key.data)
            except OSError:
                if not lost:
                    raise
    shared.close()
    _loop._ssock.close()
    _loop._csock.close()
    _loop._internal_fds -= 1
    _loop._make_self_pipe()
    _loop._default_executor = None
    if _loop._signal_handlers:
        import signal  # of few jobs

        signal.set_wakeup_fd(_loop._csock.fileno())

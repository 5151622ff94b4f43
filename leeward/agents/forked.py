"""
An answer that a copy of this process works out, while this process does something else.

Runs in:   the caller's program, which has no other thread yet, and a copy of it, made by fork(2), which answers by a
           pipe and ends.
Stands if: the copy ends, however it does, without a whole answer, or can't be made: then there is none.
"""

from __future__ import annotations

import marshal
import os

TYPE_CHECKING = False  # see wire/frames.py; the copy is made before `typing` is imported
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

#: Bytes that are read at once.
_READ = 1 << 16
#: SIGKILL, without `signal`, which builds enumerations.
_KILL = 9


class ForkedAnswer:
    """
    Begins to work.

    Args:
        work: is called in the copy. What it returns is the answer, of types that marshal writes and not None.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._child, self._pipe = 0, -1
        try:
            pipe, end = os.pipe()
        except OSError:
            return
        ours = os.getpid()
        try:
            self._child = os.fork()
            if not self._child:
                os.close(pipe)
                _answer(work, end)
            self._pipe = pipe
        except OSError:
            os.close(pipe)
        finally:
            if os.getpid() != ours:
                os._exit(1)  # whatever was raised: the copy never goes on with what its original does
            os.close(end)

    @property
    def copy(self) -> int:
        """The copy's process id, until its answer was taken; 0 without one."""
        return self._child

    def take(self) -> Any:
        """Wait for the answer, once; None where there is none."""
        if not self._child:
            return None
        data = b""
        while piece := os.read(self._pipe, _READ):
            data += piece
        return None if self._reap() else marshal.loads(data)

    def close(self) -> None:
        """End the copy, if it works on."""
        if self._child:
            try:
                os.kill(self._child, _KILL)  # not reaped yet, so it is this one
            except ProcessLookupError:
                pass
            self._reap()

    def _reap(self) -> int:
        """The copy's status; -1 where nobody knows it, since our parent has had SIGCHLD ignored."""
        child, self._child = self._child, 0
        os.close(self._pipe)
        try:
            return os.waitpid(child, 0)[1]
        except ChildProcessError:
            return -1


def _answer(work: Callable[[], Any], end: int) -> NoReturn:
    data = memoryview(marshal.dumps(work()))
    while data:
        data = data[os.write(end, data):]
    os._exit(0)

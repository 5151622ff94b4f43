"""
A job's frame on its way into the job pipe.

Runs in:   the daemon.
"""

from __future__ import annotations

import os

from leeward.run.output import unread
from leeward.run.runner import Runner


class Errand:
    """
    The frame of one job of *runner*.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._unsent = memoryview(b"")

    def set_out(self, frame: bytes, unsent: int | None = None) -> None:
        """
        Send *frame*, or only its last *unsent* bytes.
        """
        self._unsent = memoryview(frame)[0 if unsent is None else len(frame) - unsent:]

    def go_on(self) -> bool:
        """
        Write as much as the pipe takes. Returns whether all of it is written.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._runner.job, self._unsent):]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass  # it has ended; the reason follows with its end
        return True

    @property
    def unsent(self) -> int:
        """
        Bytes that the pipe hasn't taken.
        """
        return len(self._unsent)

    @property
    def left(self) -> int:
        """
        Bytes of it that the runner hasn't read, as far as the daemon can tell; 0 for none.
        """
        return len(self._unsent) or unread(self._runner.job)

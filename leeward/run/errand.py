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
    Writes the frame of one job to the job pipe of *runner*.
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
        Write as much of the frame as the pipe takes. Returns whether nothing is left to write.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._runner.job, self._unsent):]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass  # the runner has ended; the report of its end gives the reason
        return True

    @property
    def unsent(self) -> int:
        """
        The number of bytes of the frame that the pipe hasn't taken.
        """
        return len(self._unsent)

    @property
    def left(self) -> int:
        """
        The number of bytes of the frame that the runner hasn't read, as far as the daemon can tell.
        """
        return len(self._unsent) or unread(self._runner.job)

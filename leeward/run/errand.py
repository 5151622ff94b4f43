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
    Of one job of *runner*.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._unsent = memoryview(b"")

    def set_out(self, frame: bytes, unsent: int | None = None) -> None:
        """
        Bring *frame*, or only its last *unsent* bytes.
        """
        self._unsent = memoryview(frame)[0 if unsent is None else len(frame) - unsent:]

    def go_on(self) -> bool:
        """
        Write as much as the pipe takes; is there nothing more to be written?
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._runner.job, self._unsent):]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass  # it died; its end, when it is seen, tells why
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
        Bytes of it that the runner hasn't read, as far as can be seen: 0 for none.
        """
        return len(self._unsent) or unread(self._runner.job)

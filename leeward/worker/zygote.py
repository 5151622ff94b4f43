"""
The zygote, seen from the daemon: ask it for keepers, notice its death. `hatch` starts it.

Runs in:   the daemon.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence

from leeward.errors import LeewardError, PeerError
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control, records
from leeward.worker.hatch import Hatched
from leeward.worker.reactor import READ, Reactor

#: Bytes that are read of a last word at a time.
_MOST_WORDS = 4096


class Zygote:
    """
    One zygote process, which warms up. It is ready some time after it was given the workers' plan.

    Args:
        hatched: the process; this owns it from now on.
        ready: called once it serves.
        said: called with what it, or a keeper, had to say on stderr.
        made: called with (message, keeper's pidfd) for each keeper; owns the pidfd.
        failed: called with each Failed.
        gone: called once when it is no more.
    """

    def __init__(self, reactor: Reactor, hatched: Hatched, *,
                 ready: Callable[[], None],
                 made: Callable[[control.Made, int], None],
                 failed: Callable[[control.Failed], None],
                 said: Callable[[str], None],
                 gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._ready, self._made, self._failed, self._said, self._gone = ready, made, failed, said, gone
        self.process, self._channel = hatched.process, hatched.channel
        self._channel.socket.setblocking(False)
        reactor.watch(self._channel.fileno(), READ, self._on_message)
        assert self.process.stdout is not None
        self._words = self.process.stdout.fileno()
        os.set_blocking(self._words, False)
        reactor.watch(self._words, READ, self._on_words)

    def give(self, plan: WorkerPlan) -> None:
        """
        Say what keepers and runners have to do. It takes orders then.

        Raises:
            OSError: it is gone.
        """
        self._channel.send_raw(records.pack(plan))

    @property
    def pid(self) -> int:
        return self.process.pid

    def make_keeper(self, message: control.MakeKeeper, fds: Sequence[int]) -> None:
        """
        Ask for a keeper. The descriptors stay the caller's.

        Raises:
            LeewardError: it is gone, or so far behind that it must be.
        """
        try:
            self._channel.send(message, fds)
        except OSError as error:
            raise LeewardError(f"zygote {self.pid} takes no orders: {error.strerror}") from error

    def _on_message(self, _events: int) -> None:
        try:
            received = self._channel.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        if received is None:
            self.close()
            self._gone()
            return
        message, fds = received
        if isinstance(message, control.Made):
            self._made(message, fds[0])
        elif isinstance(message, control.Failed):
            self._failed(message)
        elif isinstance(message, control.Ready):
            self._ready()

    def _on_words(self, _events: int) -> None:
        """
        What it, or one of its keepers, wrote to stderr: only ever a last word.
        """
        with contextlib.suppress(BlockingIOError):
            text = os.read(self._words, _MOST_WORDS)
            if text:
                self._said(text.decode("utf-8", "replace").rstrip())
                return
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self.process.stdout is not None:
            self._reactor.forget(self._words)
            self.process.stdout.close()
            self.process.stdout = None

    def close(self) -> None:
        """
        Let it go: it ends when its channel closes. Keepers live on.
        """
        self._stop_listening()
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()

    def end(self, seconds: float = 0.5) -> None:
        """
        Close and reap it; kill it if it doesn't go by itself.
        """
        self.close()
        if not self._goes(seconds):
            self.process.kill()
        self.process.wait()

    def _goes(self, seconds: float) -> bool:
        """
        Does it end within *seconds*? Popen.wait with a time would look, sleep, and look again.
        """
        if self.process.poll() is not None:
            return True
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # no descriptor is left: then nobody can wait so long
            return False
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(pidfd)

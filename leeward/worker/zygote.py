"""
The zygote, seen from the daemon: start it, ask it for keepers, notice its death.

Runs in:   the daemon.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import _cffi_backend
import msgpack

import leeward
from leeward.errors import LeewardError, PeerError
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.wire import control, records
from leeward.worker.reactor import READ, Reactor

#: Bytes that are read of a last word at a time.
_MOST_WORDS = 4096

#: What the zygote's interpreter is told to run. Its source comes by standard input, so
#: that no path of the host stands in the command line that every job can read.
_BOOTSTRAP = "import os;exec(os.read(0,65536))"

#: What the bootstrap's source ends with. The tests of single locks put another entry here;
#: the product has no way to leave one out.
ENTRY = "from leeward.crossing import zygote\nzygote.main({control})\n"


def import_path() -> tuple[str, ...]:
    """
    The folders from which the zygote imports leeward and what it needs.
    """
    needed = (leeward, msgpack)
    folders = [str(Path(module.__file__).resolve().parent.parent) for module in needed if module.__file__]
    folders.append(str(Path(_cffi_backend.__file__).resolve().parent))
    return tuple(dict.fromkeys(folders))


class Zygote:
    """
    One zygote process, which warms up. It is ready some time after it was given the workers' plan.

    Args:
        ready: called once it serves.
        said: called with what it, or a keeper, had to say on stderr.
        made: called with (message, keeper's pidfd) for each keeper; owns the pidfd.
        failed: called with each Failed.
        gone: called once when it is no more.
    """

    def __init__(self, reactor: Reactor, plan: ZygotePlan, *,
                 ready: Callable[[], None],
                 made: Callable[[control.Made, int], None],
                 failed: Callable[[control.Failed], None],
                 said: Callable[[str], None],
                 gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._ready, self._made, self._failed, self._said, self._gone = ready, made, failed, said, gone
        here, there = Channel.pair()
        try:
            self.process = _exec(plan, there.fileno())
        finally:
            there.close()
        self._channel = here
        here.send_raw(records.pack(plan))
        here.socket.setblocking(False)
        reactor.watch(here.fileno(), READ, self._on_message)
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
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _exec(plan: ZygotePlan, control_fd: int) -> subprocess.Popen[bytes]:
    flags = ["-S"] if plan.bare else []
    source = (
        "import sys\n"
        f"sys.path[:0] = {list(plan.import_path)!r}\n"
        "os.dup2(os.open('/dev/null', os.O_RDONLY), 0)\n"
    ) + ENTRY.format(control=control_fd)
    process = subprocess.Popen(
        [plan.executable, *flags, "-c", _BOOTSTRAP],
        # Pipes, all three: sys.stdin, stdout and stderr of every job are made here, at the start
        # of the interpreter, and one made on /dev/null would take a job's pipes for seekable.
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
        env=dict(plan.environment), pass_fds=[control_fd], close_fds=True,
        start_new_session=True,  # a Ctrl-C at the daemon's terminal is the daemon's to decide on
    )
    assert process.stdin is not None
    process.stdin.write(source.encode(sys.getfilesystemencoding()))
    process.stdin.close()
    process.stdin = None
    return process



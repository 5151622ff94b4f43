"""
Where the values of secrets come from: the broker reads each one from a descriptor that the daemon opens.

Runs in:   the daemon, on the reactor's thread. No call blocks.
Stands if: the daemon's memory is read later on: it never had the value of a file or a command. A value of the daemon's
           environment is only there, where the operator has put it.
Bound:     a command has COMMAND_S. Its error output is dropped, since it may contain the secret.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, Reactor
from leeward.pool.zygotes import EventLog
from leeward.wire.egress_control import Sealed
from leeward.worker.orphans import STARTED

# Imported in functions: what not every start needs; 2 ms of processor time for all of it.

if TYPE_CHECKING:  # a daemon without policies doesn't import these
    import subprocess

    from leeward.spec.egress import Secret
    from leeward.spec.egress_tls import Seal

#: Seconds that a command has to print a value.
COMMAND_S = 30.0


#: Bytes that a value can have; the broker takes no more than `egress.values.MOST` of them.
_MOST = 32768

#: The marker after a value, which is written only if the command has succeeded.
_SHELL = "(eval \"$1\") && printf '\\0'"


class OpenSeal:
    """
    The seal of a pool, as the broker gets it.

    Attributes:
        number: its number for the broker; 0 before it was sent.
    """

    def __init__(self, reactor: Reactor, log: EventLog, seal: Seal, secrets: tuple[Secret, ...]) -> None:
        self._reactor, self._log, self._seal, self._secrets = reactor, log, seal, secrets
        self.number = 0

    def message(self) -> Sealed:
        """Return the message for the broker, without the descriptors."""
        return Sealed(self.number, self._seal.bundle, self._seal.trusted, [each.name for each in self._secrets])

    @contextmanager
    def opened(self) -> Iterator[list[int]]:
        """Open a descriptor for each secret, until the context ends. If a source fails, its descriptor is at end of file."""
        fds: list[int] = []
        try:
            for secret in self._secrets:
                fds.append(self._open(secret))  # noqa: PERF401 - each is closed, if the next one fails
            yield fds
        finally:
            in_any_case(*(partial(os.close, fd) for fd in fds))

    def _open(self, secret: Secret) -> int:
        kind, _, rest = secret.source.partition(":")
        out, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if kind == "env":
                value = os.environb.get(rest.encode(), b"")
                if 0 < len(value) < _MOST:
                    os.write(into, value + b"\0")
            elif kind == "file":
                self._copy(rest, into)
            else:
                self._run(secret.name, rest, into)
        except OSError as error:
            self._log.warning("a secret can't be had", secret=secret.name, error=str(error.strerror))
        finally:
            os.close(into)
        return out

    @staticmethod
    def _copy(path: str, into: int) -> None:
        """Copy by splice(2), so that the bytes don't come into this process."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                while os.splice(fd, into, _MOST, flags=os.SPLICE_F_NONBLOCK):
                    pass
                os.write(into, b"\0")
        finally:
            os.close(fd)

    def _run(self, name: str, command: str, into: int) -> None:
        import subprocess

        os.set_blocking(into, True)
        process = subprocess.Popen(["/bin/sh", "-c", _SHELL, "sh", command], stdin=subprocess.DEVNULL, stdout=into,
                                   stderr=subprocess.DEVNULL, cwd="/", start_new_session=True)
        STARTED.add(process.pid)
        try:
            _Command(self._reactor, self._log, name, process)
        except OSError:
            process.kill()
            process.wait()
            raise


class _Command:
    """A command that runs, until it has ended and was collected."""

    def __init__(self, reactor: Reactor, log: EventLog, name: str, process: subprocess.Popen[bytes]) -> None:
        self._reactor, self._log, self._name, self._process = reactor, log, name, process
        self._pidfd = os.pidfd_open(process.pid)
        self._timer = reactor.after(COMMAND_S, self._late)
        reactor.watch(self._pidfd, READ, self._ended)

    def _ended(self, _events: int) -> None:
        self._timer.cancel()
        self._reactor.forget(self._pidfd)
        os.close(self._pidfd)
        if self._process.wait():
            self._log.warning("the command of a secret has failed", secret=self._name, status=self._process.returncode)

    def _late(self) -> None:
        self._log.warning("the command of a secret took too long", secret=self._name, seconds=COMMAND_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

"""os, signal, select and fcntl, as the product's modules see them: over the simulated kernel."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from typing import Any

from .kernel import IN, Kernel, Memory, Pidfd, Plain


class Os:
    """The module os, for descriptors of ours."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def read(self, fd: int, size: int) -> bytes:
        data: bytes = self._kernel.file(fd).read(size)
        return data

    def write(self, fd: int, data: bytes | memoryview) -> int:
        count: int = self._kernel.file(fd).write(data)
        return count

    def writev(self, fd: int, pieces: Sequence[bytes | memoryview]) -> int:
        return self.write(fd, b"".join(pieces))

    def close(self, fd: int) -> None:
        self._kernel.close(fd)

    def open(self, path: str, flags: int) -> int:
        return self._kernel.open(Plain())

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._kernel.file(fd).content)

    def pidfd_open(self, pid: int) -> int:
        process = self._kernel.processes.get(pid)
        if process is None or process.dead:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        return self._kernel.open(Pidfd(lambda: process.dead, process.signalled))

    def pipe2(self, flags: int) -> tuple[int, int]:
        read, write = self._kernel.pipe()
        return self._kernel.open(read), self._kernel.open(write)

    def ftruncate(self, fd: int, size: int) -> None:
        self._kernel.file(fd)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._kernel.file(fd)
        return len(data)

    def splice(self, source: int, target: int, size: int, **_: Any) -> int:
        data: bytes = self._kernel.file(source).read(size)
        file = self._kernel.file(target)
        return len(data) if isinstance(file, Memory) else int(file.write(data))


class Signal:
    """The module signal."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def pidfd_send_signal(self, pidfd: int, number: int) -> None:
        file: Pidfd = self._kernel.file(pidfd)
        if file.dead():
            raise ProcessLookupError(errno.ESRCH, "no such process")
        file.signalled(number)


class Select:
    """The module select, for one look at descriptors."""

    POLLIN = IN

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def poll(self) -> Poll:
        return Poll(self._kernel)


class Poll:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._fds: list[int] = []

    def register(self, fd: int, _events: int) -> None:
        self._fds.append(fd)

    def poll(self, _patience: float) -> list[tuple[int, int]]:
        return [(fd, events) for fd in self._fds if (events := self._kernel.file(fd).events())]


class Fcntl:
    """The module fcntl: seals and sizes of pipes, which nobody looks at here."""

    def __getattr__(self, name: str) -> int:
        return 0

    def fcntl(self, fd: int, *_: int) -> int:
        return 0

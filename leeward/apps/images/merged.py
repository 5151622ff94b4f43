"""The layers of an image as the one folder that they make together, below what a sandbox has changed of it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from leeward.apps.images.unpacking import OPAQUE
from leeward.base.closing import on_failure
from leeward.client.changes import beneath, digest_of

_LOOK = os.O_PATH | os.O_NOFOLLOW


class MergedLayers:
    """The folders *paths*, the lowest first, as `changes` asks for a folder of the host. No link in them is followed."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._tops: list[int] = []
        with on_failure(self.close):
            for path in reversed(paths):
                self._tops.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def close(self) -> None:
        while self._tops:
            os.close(self._tops.pop())

    def look(self, path: bytes) -> os.stat_result | None:
        with self._opened(path) as fd:
            return None if fd < 0 else os.fstat(fd)

    def link(self, path: bytes) -> bytes:
        with self._opened(path) as fd:
            return os.readlink(b"", dir_fd=fd)

    def digest(self, path: bytes) -> bytes | None:
        with self._opened(path) as look:
            try:
                fd = os.open(f"/proc/self/fd/{look}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:  # of an ordinary user's store, and of mode 000
                return None
            try:
                return digest_of(fd)
            finally:
                os.close(fd)

    def below(self, path: bytes) -> list[bytes]:
        """Everything in the folder *path*, at any depth."""
        found, todo = list[bytes](), [path]
        while todo:
            folder = todo.pop()
            names = set[bytes]()
            for top, _ in self._places(folder):
                with contextlib.suppress(OSError), beneath(top, folder) as fd:
                    names |= set(map(os.fsencode, os.listdir(fd)))
            for inner in (folder + b"/" + name for name in sorted(names)):
                if (about := self.look(inner)) is not None:
                    found.append(inner)
                    todo += [inner] if stat.S_ISDIR(about.st_mode) else []
        return found

    @contextlib.contextmanager
    def _opened(self, path: bytes) -> Iterator[int]:
        """A descriptor by which *path* can be looked at; -1 if it isn't there."""
        top = next((top for top, _ in self._places(path)), -1)
        if top < 0:
            yield -1
            return
        with beneath(top, path, _LOOK) as fd:
            yield fd

    def _places(self, path: bytes) -> Iterator[tuple[int, os.stat_result]]:
        """The layers that have *path*, the uppermost first: all that are seen of a folder, one of anything else."""
        parts = path.split(b"/")
        for top in self._tops:
            covers = False
            for number in range(1, len(parts) + 1):
                try:
                    with beneath(top, b"/".join(parts[:number]), _LOOK) as fd:
                        about = os.fstat(fd)
                        if not stat.S_ISDIR(about.st_mode):
                            if number == len(parts) and not (stat.S_ISCHR(about.st_mode) and about.st_rdev == 0):
                                yield top, about
                            return  # a file, a link, or the mark that there is nothing
                        covers |= _is_opaque(fd)
                except FileNotFoundError:
                    break
            else:
                yield top, about
            if covers:
                return


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(f"/proc/self/fd/{folder}", OPAQUE) == b"y"
    except OSError:
        return False

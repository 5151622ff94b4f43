"""
A bound on the size of a folder of the host, while a sandbox writes there.

Trust:     none in the writer. A folder that can't be read, or is deeper than a path can be, counts as too large.
Leaves:    bytes that are written between two checks aren't bounded. Checks are 0.2 s apart, or five times as long as a
           check takes, whichever is longer.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable

#: The pause between two checks is at least _PAUSE_S seconds, and at least _SHARE times as long as a check takes.
_PAUSE_S, _SHARE = 0.2, 5
#: The bound on files and folders, since each costs space in the file system and time in each check.
MOST_ENTRIES = 1_000_000


def size_of(path: str, most: int) -> int:
    """The bytes of all files below *path*; above *most* if there are more, or too many names, or it can't be read."""
    total, names, waiting = 0, 0, [path]
    while waiting and total <= most:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    about = entry.stat(follow_symlinks=False)
                    names += 1
                    if stat.S_ISDIR(about.st_mode):
                        waiting.append(entry.path)
                    else:
                        total += max(about.st_size, about.st_blocks * 512)
        except (FileNotFoundError, NotADirectoryError):
            continue  # the folder was removed or replaced meanwhile
        except OSError:
            return most + 1
        if names > MOST_ENTRIES:
            return most + 1
    return total


class SizeWatch:
    """
    A context in which a thread calls *stop*, once, when the folder has more than *most* bytes; then it is `over`. Each
    look's size is *told*.
    """

    def __init__(self, path: str, most: int, stop: Callable[[], object], told: Callable[[int], object] = int) -> None:
        self.over = False
        self._path, self._most, self._stop, self._told = path, most, stop, told
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="leeward-size", daemon=True)

    def _look(self) -> None:
        pause = _PAUSE_S
        while not self._ended.wait(pause):
            began = time.monotonic()
            size = size_of(self._path, self._most)
            self._told(size)
            if size > self._most:
                self.over = True
                self._stop()
                return
            pause = max(_PAUSE_S, _SHARE * (time.monotonic() - began))

    def __enter__(self) -> SizeWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

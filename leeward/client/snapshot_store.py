"""
A user's snapshots on disk: files in one folder, each named by the hash of its content, bounded in bytes and by age.

Trust: the folder and its files are their user's alone (0700, 0600). A file with another content than its name says isn't
loaded, and the daemon checks what its head says.

Theory of operation. A snapshot is written beside the others under a name that isn't a hash, and gets its name at the end,
behind a lock on the folder: so several programs may use it at once. A file's time of change is when it was last kept or
loaded. Those that nobody has used for long are removed when another one is kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from leeward.base.closing import OwnedFd
from leeward.base.file_locks import locked
from leeward.client.sandbox_calls import Rows
from leeward.client.snapshot import Snapshot
from leeward.client.snapshot_files import DIGEST_SIZE, WRITTEN, SnapshotReader, told_of
from leeward.errors import SnapshotFailed
from leeward.spec import stored
from leeward.spec.sizes import size_text

Names = list[str]

_DAY_S = 86400.0
#: What a file that isn't whole begins with, and the seconds after which it counts as left behind.
_PART, _LEFT_S = ".part-", _DAY_S


class SnapshotStore:
    """
    The snapshots that this user keeps on disk.

    Attributes:
        folder: where they are; it is made when the first one is kept.
        most: bytes that they may take together.
        days: after which one that wasn't kept or loaded again is removed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, most: int = 20 << 30, days: float = 30.0) -> None:
        self.folder = os.fspath(folder or stored.default_folder(os.environ, os.geteuid(), "snapshots"))
        self.most, self.days = most, days

    def keep(self, snapshot: Snapshot) -> str:
        """
        Write *snapshot* into the folder, and return its name there; the same one if it is kept already. SnapshotFailed if the
        folder isn't this user's alone, or has too many bytes.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._check()
        self.prune()
        part = os.path.join(self.folder, f"{_PART}{os.getpid()}-{os.urandom(8).hex()}")
        try:
            snapshot.save(part)
            with open(part, "rb") as file:
                file.seek(-DIGEST_SIZE, os.SEEK_END)
                name = file.read().hex()
            with OwnedFd(locked(self.folder, os.O_RDONLY | os.O_DIRECTORY, wait=True)):
                size = os.stat(part).st_size
                there = sum(row["size"] for row in self.list() if row["snapshot"] != name)
                if there + size > self.most:
                    raise SnapshotFailed(f"a snapshot of {size_text(size)} would make {size_text(there + size)} of yours in"
                                         f" {self.folder}, and {size_text(self.most)} are the most: remove one")
                os.replace(part, self._path(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        return name

    def load(self, name: str, socket: str | os.PathLike[str] | None = None) -> Snapshot:
        """The snapshot *name*, taken into the daemon's memory; SnapshotFailed as `Snapshot.load`, and if there is none."""
        path = self._found(name)
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - DIGEST_SIZE))
            if file.read().hex() != name:
                raise SnapshotFailed(f"{path!r} was changed: its content isn't that of its name")
        snapshot = Snapshot.load(path, socket)
        os.utime(path)
        return snapshot

    def list(self) -> Rows:
        """
        The snapshots, those used longest ago first: a dict each with `snapshot` (its name), `size` (bytes of the file),
        `made` and `used`, in seconds since the epoch.
        """
        rows = []
        for name in self._names():
            with contextlib.suppress(OSError):  # another program has removed it
                about = os.stat(self._path(name))
                with open(self._path(name), "rb") as file, contextlib.suppress(SnapshotFailed):
                    made = SnapshotReader(file).head["made"]
                    rows.append({"snapshot": name, "size": about.st_size, "made": made, "used": about.st_mtime})
        return sorted(rows, key=lambda row: row["used"])

    def info(self, name: str) -> dict[str, Any]:
        """What a snapshot is: its row of `list`, with `python`, `packages`, `lost` and `key`, what must be equal here."""
        path = self._found(name)
        about = os.stat(path)
        with open(path, "rb") as file:
            head = SnapshotReader(file).head
        return {"snapshot": name, "size": about.st_size, "made": head["made"], "used": about.st_mtime,
                **told_of(head["facts"]), "key": head["key"]}

    def remove(self, name: str) -> None:
        """Remove a snapshot; SnapshotFailed if there is none of that name."""
        os.unlink(self._found(name))

    def prune(self, days: float | None = None) -> Names:
        """Remove those that nobody has used for *days*, `self.days` by default, and what was left behind; their names."""
        gone = []
        before = time.time() - (self.days if days is None else days) * _DAY_S
        for entry in self._entries():
            limit = before if is_kept(entry) else time.time() - _LEFT_S if entry.startswith((_PART, WRITTEN)) else 0.0
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._path(entry), follow_symlinks=False).st_mtime < limit:
                    os.unlink(self._path(entry))
                    gone += [entry] if is_kept(entry) else []
        return sorted(gone)

    def _found(self, name: str) -> str:
        path = self._path(name)
        if not is_kept(name) or not os.path.isfile(path):
            raise SnapshotFailed(f"you keep no snapshot {name:.80}: it never was, or was removed, or unused for too long")
        self._check()
        return path

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _entries(self) -> Names:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _names(self) -> Names:
        return [name for name in self._entries() if is_kept(name)]

    def _check(self) -> None:
        about = os.stat(self.folder)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise SnapshotFailed(f"{self.folder!r} isn't yours alone: snapshots have what a kernel could read;"
                                 " `chmod 700` it, or use another folder")



def is_kept(name: str) -> bool:
    """Whether this is the name of a snapshot on disk, and not the id of one of the daemon's."""
    return bool(re.fullmatch(r"[0-9a-f]{64}", name))

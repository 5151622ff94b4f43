"""The client's side of a live sandbox's overlays: lists the changes, and applies them to the host."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgpack

from leeward.base.dataclass import replace
from leeward.client.applying import Applying, chosen, finish_interrupted
from leeward.client.arena import map_arena
from leeward.client.changes import Changes, FolderChange, HostFolder, UpperRow, changes, entries
from leeward.client.conversation import checked
from leeward.client.host_paths import end_sparse, write_sparse
from leeward.errors import BadReply, RequestRejected, Stale
from leeward.wire.sandbox_replies import answer

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox

#: Bytes of a file that one request returns at most; see crossing/walk.py.
_PIECE = 16 << 20
#: Files that are read together, bytes of one, and of their paths: a request for each would take 3 ms for each.
_TOGETHER, _SMALL, _NAMES = 500, 64 << 10, 32 << 10
_NUMBERS = ("device", "inode", "since")


class UpperLayer:
    """What the sandbox *box* has written to its overlay at *target*: of a folder of the host, or "/" for an image's root."""

    def __init__(self, box: Sandbox, target: str) -> None:
        self._box, self.target = box, target

    def rows(self) -> list[UpperRow]:
        """The entries of the overlay's upper layer, without a comparison with the host."""
        return entries(self.fetch("overlay_diff", {}))

    def read(self, path: bytes, into: int, most: int) -> None:
        """Write the file to *into*: *most* bytes, and one more if it is larger, since processes may append all the time."""
        offset = 0
        while offset <= most:
            data = self.fetch("overlay_read", {"path": path, "offset": offset})
            write_sparse(into, memoryview(data)[:most + 1 - offset])
            offset += len(data)
            if len(data) < _PIECE:
                break
        end_sparse(into)

    def fetch(self, op: str, fields: Mapping[str, Any]) -> bytes | memoryview:
        reply, descriptors = self._box._connections.call(op, {"sandbox": self._box.id, "target": self.target, **fields})
        try:
            if len(reply.arenas) != len(descriptors) or len(descriptors) > 1:
                raise BadReply("the daemon sent something else than one memory file")
            return map_arena(descriptors[0], reply.arenas[0]) if descriptors else b""
        finally:
            for fd in descriptors:
                os.close(fd)

    def checkpoint(self, name: str) -> str:
        made = self._ask("overlay_checkpoint", {"name": name} if name else {}).get("name")
        if type(made) is not str:
            raise BadReply("the daemon names no checkpoint")
        return made

    def restore(self, name: str) -> None:
        self._ask("overlay_restore", {"name": name})

    def discard(self, paths: Iterable[str] | None) -> Changes:
        found = chosen(self.diff(), paths)
        wanted = [] if paths is None else sorted({os.fsencode(posixpath.normpath(path)) for path in paths})
        if paths is None or wanted:
            self._ask("overlay_discard", {"paths": wanted})
        kept = {os.fsdecode(path) for path in wanted}
        return [change for change in found if paths is None or any(
            change.path == path or change.path.startswith(path + "/") for path in kept)]

    def diff(self) -> Changes:
        """The changes; of an image's root, with whose layers nothing is compared, all is modified that isn't deleted."""
        from leeward.spec.profiles.image import COVERED  # here, since it imports all profiles

        return [FolderChange(os.fsdecode(row.path), "deleted" if row.type == "gone" else "modified", row.type, row.mode,
                             row.size) for row in self.rows() if "/" + os.fsdecode(row.path) not in COVERED]

    def _ask(self, op: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return checked(answer, self._box.ask(op, {"target": self.target, **fields}))


class Overlay(UpperLayer):
    """The overlay at *target* of the sandbox *box*, "" for the only one; RequestRejected if there is none, or several."""

    def __init__(self, box: Sandbox, target: str) -> None:
        self._row = self._find(box, target)
        super().__init__(box, self._row["target"])

    @staticmethod
    def _find(box: Sandbox, target: str) -> Mapping[str, Any]:
        info = box.info()
        rows = info.get("mounts", [])
        try:
            rows = [row for row in rows if row["overlay"]]
            found = [row for row in rows if not target or row["target"] == target]
            if len(found) == 1:
                if type(found[0]["path"]) is not str or any(type(found[0][name]) is not int for name in _NUMBERS):
                    raise TypeError
                row: Mapping[str, Any] = found[0]
                return row
        except (KeyError, TypeError):
            raise BadReply("the daemon sent invalid rows of mounts") from None
        if found:
            raise RequestRejected(f"the sandbox has {len(found)} overlays: which target?")
        if info.get("image") and target in ("", "/"):
            raise RequestRejected("the sandbox has no copy of a folder: what it has changed of its image's root is shown by"
                                  " `leeward image diff`, and becomes an image by `leeward image commit`")
        raise RequestRejected(f"{target!r} is no overlay of this sandbox's" if target else
                              "the sandbox has no copy of a folder: open it with workdir= and overlay=True to see what"
                              " it changes there; with compare=True the program that opens it sees what changes in the"
                              " folder itself")

    def diff(self) -> Changes:
        with closing(HostFolder(self._row)) as host:
            return changes(self.rows(), host)

    def apply(self, paths: Iterable[str] | None, seen: Changes | None = None) -> Changes:
        finish_interrupted()
        with closing(HostFolder(self._row)) as host:
            found = chosen(changes(self.rows(), host) if seen is None else seen, paths)
            self._applying(host, found).apply(found, seen=seen is not None)
            return found

    def conflicts(self, seen: Changes) -> dict[str, Stale | RequestRejected]:
        with closing(HostFolder(self._row)) as host:
            return self._applying(host).conflicts(seen)

    def _applying(self, host: HostFolder, wanted: Sequence[FolderChange] = ()) -> Applying:
        return Applying(host, UpperContents(self, _sizes(wanted)).read, self._box._applied.setdefault(self.target, {}))

    def save(self, wanted: Changes, folder: str) -> list[Stale | RequestRejected]:
        """
        Write what `apply` would to a new folder, as `files`, and the paths that it would delete, each before a NUL, as
        `deleted`. Returns why some changes can't be saved.
        """
        files = os.path.join(folder, "files")
        os.mkdir(folder, 0o700)
        os.mkdir(files, 0o700)
        with open(os.path.join(folder, "deleted"), "xb") as file:
            file.writelines(os.fsencode(change.path) + b"\0" for change in wanted if change.kind == "deleted")
        made = dict[str, FolderChange]()
        for change in wanted:
            above = posixpath.dirname(change.path)
            while change.kind != "deleted" and above:
                made.setdefault(above, FolderChange(above, "created", "folder", 0o755))
                above = posixpath.dirname(above)
            if change.kind != "deleted":
                made[change.path] = replace(change, kind="created")
        about = os.stat(files)
        row = {"path": files, "device": about.st_dev, "inode": about.st_ino, "since": 0}
        with closing(HostFolder(row)) as host:
            found = [made[path] for path in sorted(made)]
            applying = Applying(host, UpperContents(self, _sizes(found)).read, {})
            left = applying.conflicts(found, seen=False)
            applying.apply([change for change in found if change.path not in left])
            return list(left.values())

    def is_over(self, folder: int) -> bool:
        """Whether the descriptor *folder* leads to the host's folder below this overlay."""
        about = os.fstat(folder)
        return (about.st_dev, about.st_ino) == (self._row["device"], self._row["inode"])

    @property
    def since(self) -> int:
        """The time when the sandbox was opened, in nanoseconds by the clock of file systems."""
        return int(self._row["since"])

    def content(self, path: str, most: int) -> bytes:
        """The present content of a file in the sandbox; RequestRejected if it has more than *most* bytes."""
        held, size = list[bytes](), 0
        while True:
            data = self.fetch("overlay_read", {"path": os.fsencode(path), "offset": size})
            size += len(data)
            if size > most:
                raise RequestRejected(f"{path!r:.120} has more than {most} bytes")
            held.append(bytes(data))
            if len(data) < _PIECE:
                return b"".join(held)

    def host_content(self, path: str, most: int) -> bytes:
        """As `content`, of the file on the host."""
        with closing(HostFolder(self._row)) as host:
            return host.content(os.fsencode(path), most)


def with_states(box: Sandbox, target: str) -> UpperLayer:
    """The overlay whose states are kept: as for `Overlay`, and "/", or "" without folders, for the root of an image."""
    info = {} if target else box.info()
    return UpperLayer(box, "/") if target == "/" or (info.get("image") and not info.get("mounts")) else Overlay(box, target)


def _sizes(wanted: Sequence[FolderChange]) -> list[tuple[bytes, int]]:
    return [(os.fsencode(change.path), change.size) for change in wanted if change.writes_content]


class UpperContents:
    """The contents of *files*, paths and sizes, which are read in this order: of small files many with one request."""

    def __init__(self, layer: UpperLayer, files: Sequence[tuple[bytes, int]]) -> None:
        self._layer, self._files = layer, files
        self._places = {path: number for number, (path, _) in enumerate(self._files)}
        self._ahead = dict[bytes, bytes]()

    def read(self, path: bytes, into: int, most: int) -> None:
        """As `Applying` reads."""
        if path not in self._ahead:
            self._ahead = self._together(path)
        if path in self._ahead:
            write_sparse(into, memoryview(self._ahead.pop(path))[:most + 1])
            end_sparse(into)
        else:
            self._layer.read(path, into, most)

    def _together(self, path: bytes) -> dict[bytes, bytes]:
        """The contents of the file *path* and the small ones after it; none where it is large, or alone."""
        start, names, room = self._places.get(path, len(self._files)), list[bytes](), _NAMES
        for name, size in self._files[start:start + _TOGETHER]:
            room -= len(name) + 8
            if size > _SMALL or room < 0:
                break
            names.append(name)
        if len(names) < 2:
            return {}
        try:
            data = self._layer.fetch("overlay_read", {"path": path, "paths": names[1:]})
            unpacker = msgpack.Unpacker(max_buffer_size=2 * _PIECE)
            unpacker.feed(data)
            found = dict(zip(names, unpacker, strict=False))
        except RequestRejected:  # one of them has gone; which, is found when each is read by itself
            self._files = []
            return {}
        except (ValueError, msgpack.UnpackException):
            raise BadReply("the daemon's files are no MessagePack") from None
        if not all(isinstance(content, bytes) for content in found.values()):
            raise BadReply("the daemon's files are no bytes")
        return found

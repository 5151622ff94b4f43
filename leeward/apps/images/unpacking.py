"""
Unpacks one layer into a folder, and writes nowhere else.

Trust:     none in the layer. Headers come from `tarfile`; every file is written here: its parent is opened as in a root
           of its own (openat2), and what has its name is removed, never followed. Links are made as they are, for
           they are followed only in a sandbox whose root this is.
Makes:     for each whiteout of the layer one of the kernel's overlays, for each opaque mark the attribute of an
           overlay that is mounted in a user namespace.
Leaves:    owners (all files belong to this process), set-id bits, extended attributes and devices, which are counted.
Source:    OCI image-spec, layer.md; overlayfs.rst of the kernel; tar(5)
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tarfile
from dataclasses import dataclass, field

from leeward._native.beneath import open_in_root
from leeward.apps.images.streams import PIECE, BadImage, ImageBounds, Plain, as_archive, members
from leeward.errors import quoted

OPAQUE = "user.overlay.opaque"
#: The names by which layers mark what is missing, and folders whose lower ones are covered.
WHITEOUT, OPAQUE_MARK = b".wh.", b".wh..wh..opq"

_ZEROS = bytes(PIECE)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_MOST_PATH, _MOST_NAME, _MOST_NS = 4095, 255, (1 << 33) * 10**9
#: Bytes of the paths of a layer's folders together, at most: they are kept until its end.
_MOST_FOLDERS = 256 << 20
#: Bytes that a name takes on a disk, and a block of a file or folder, as file systems have them.
_ENTRY, _BLOCK = 512, 4096
#: The kinds of members that aren't made, by what they are called in a report.
_LEFT_OUT = {tarfile.CHRTYPE: "devices", tarfile.BLKTYPE: "devices"}


@dataclass(slots=True)
class Unpacked:
    """
    Attributes:
        names: the members, and folders that are implied.
        size: bytes that they take on a disk.
        implied: folders that no member made, but one below them.
        left_out: what was dropped, with its number.
    """

    names: int = 0
    size: int = 0
    implied: set[bytes] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=dict)


def unpack(plain: Plain, folder: int, bounds: ImageBounds) -> Unpacked:
    """
    Unpack the layer *plain*, to its end, into the empty folder *folder*; BadImage if it is broken, hostile or beyond
    *bounds*, with a part of it written.
    """
    layer = _Layer(plain, folder, bounds)
    try:
        with as_archive("a layer"):
            for member in members(plain):
                layer.add(member)
            if plain.last.strip(b"\0"):  # where tarfile ends without a word
                raise BadImage("a layer has a header that is broken")
            plain.drain()
            layer.finish()
    except OSError as error:
        raise _refused(error) from None
    finally:
        layer.close()
    return layer.done


def _refused(error: OSError) -> Exception:
    """The reason of a refusal that comes from names in a layer; the error itself where the disk has no room, or fails."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return error
    return BadImage(f"a layer can't be unpacked: {error.strerror}: {quoted(error.filename or '')[:200]}")


class _Layer:
    def __init__(self, plain: Plain, folder: int, bounds: ImageBounds) -> None:
        self._plain, self._folder, self._bounds = plain, folder, bounds
        self.done = Unpacked()
        self._kept = 0  # bytes of the paths of folders
        self._folders: dict[bytes, tuple[int, int]] = {}  # modes and times, which are set last
        self._parent: tuple[bytes, int] | None = None  # the last parent that was opened

    def close(self) -> None:
        parent, self._parent = self._parent, None
        if parent is not None:
            os.close(parent[1])

    def add(self, member: tarfile.TarInfo) -> None:
        self._count(_BLOCK if member.isdir() else member.size if member.isreg() else 0)
        path = self._path(member.name)
        if any(name.startswith("SCHILY.xattr.") for name in member.pax_headers):
            self._leave_out("extended attributes")
        if not path:
            if member.isdir():
                self._note(b"", _mode(member), _time(member))
            return
        above, _, name = path.rpartition(b"/")
        if above.startswith(WHITEOUT) or b"/" + WHITEOUT in above:
            self._leave_out("names in folders that begin with .wh.")
            return
        if name.startswith(WHITEOUT):
            self._white_out(above, name)
            return
        if member.type in _LEFT_OUT:
            self._leave_out(_LEFT_OUT[member.type])
            return
        if member.mode & 0o6000 and not member.issym():
            self._leave_out("set-id bits")
        at = self._open(above)
        if member.isdir():
            self._make_folder(at, name, path, member)
        elif member.issparse():
            raise BadImage(f"{quoted(path)[:200]} is stored as a sparse file, which no layer of an image is")
        elif member.isreg():
            self._make_file(at, name, member)
        elif member.issym():
            self._clear(at, name)
            os.symlink(_target(member.linkname), name, dir_fd=at)
            os.utime(name, ns=(_time(member),) * 2, dir_fd=at, follow_symlinks=False)
        elif member.islnk():
            self._make_link(at, name, self._path(member.linkname))
        elif member.isfifo():
            self._clear(at, name)
            os.mkfifo(name, _mode(member) & 0o777, dir_fd=at)
        else:
            raise BadImage(f"{quoted(path)[:200]} is of the unknown type {member.type!r}")

    def _count(self, size: int) -> None:
        """Count a name with so many bytes, which isn't made yet."""
        self.done.names += 1
        self.done.size += _ENTRY + max(0, size + -size % _BLOCK)
        if self.done.names > self._bounds.names:
            raise BadImage(f"the image has more names than the {self._bounds.names} that it may still have")
        if self.done.size > self._bounds.size:
            raise self._bounds.too_large

    def _note(self, path: bytes, mode: int, time: int) -> None:
        """Keep what a folder gets at the end."""
        self._kept += len(path) if path not in self._folders else 0
        if self._kept > _MOST_FOLDERS:
            raise BadImage(f"the paths of the layer's folders have more than {_MOST_FOLDERS} bytes together")
        self._folders[path] = mode, time

    def finish(self) -> None:
        """Set the modes and times of the folders, the inner ones first."""
        self.close()
        for path in sorted(self._folders, key=lambda path: path.count(b"/") + bool(path), reverse=True):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # replaced; or in a closed one
                at = open_in_root(self._folder, path or b".", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    mode, time = self._folders[path]
                    os.chmod(f"/proc/self/fd/{at}", mode)
                    os.utime(f"/proc/self/fd/{at}", ns=(time, time))
                finally:
                    os.close(at)

    # --- names ----------------------------------------------------------------------

    def _path(self, name: str) -> bytes:
        """*name* as a relative path without empty names and `.`; BadImage for what leads out, or is too long."""
        path = name.encode("utf-8", "surrogateescape")
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if b"\0" in path or b".." in parts:
            raise BadImage(f"{quoted(path)[:200]} is no path in a layer")
        if len(path) > _MOST_PATH or any(len(part) > _MOST_NAME for part in parts) or len(parts) > self._bounds.depth:
            raise BadImage(f"{quoted(path)[:200]} is longer than a path can be, or deeper than {self._bounds.depth} folders")
        return b"/".join(parts)

    def _open(self, path: bytes) -> int:
        """The folder *path* of the layer, as a process in it would find it; what is missing of it is made."""
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        self.close()
        try:
            at = open_in_root(self._folder, path or b".", _FOLDER)
        except FileNotFoundError:
            at = self._imply(path)
        self._parent = path, at
        return at

    def _imply(self, path: bytes) -> int:
        """Make the folder *path*, above which some exist."""
        at = open_in_root(self._folder, b".", _FOLDER)
        parts = path.split(b"/")
        for number, part in enumerate(parts, 1):
            above, here = at, b"/".join(parts[:number])
            try:
                try:
                    at = open_in_root(self._folder, here, _FOLDER)
                except FileNotFoundError:
                    self._count(_BLOCK)
                    os.mkdir(part, 0o700, dir_fd=above)  # EEXIST: a link that leads nowhere
                    self._note(here, 0o755, 0)
                    self.done.implied.add(here)
                    at = open_in_root(self._folder, here, _FOLDER)
            finally:
                os.close(above)
        return at

    def _clear(self, at: int, name: bytes) -> bool:
        """Remove what has this *name*. Returns whether it was a whiteout."""
        try:
            mode = os.lstat(name, dir_fd=at).st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            self._parent = (b"\0", at)  # no path: the next member opens its parent again, which may be another one
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=at)  # follows no link
        else:
            os.unlink(name, dir_fd=at)
        return stat.S_ISCHR(mode)

    # --- kinds ----------------------------------------------------------------------

    def _make_folder(self, at: int, name: bytes, path: bytes, member: tarfile.TarInfo) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=at)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode):
                covers = self._clear(at, name)
                os.mkdir(name, 0o700, dir_fd=at)
                if covers:
                    self._cover(at, name)
        self._note(path, _mode(member), _time(member))
        self.done.implied.discard(path)

    def _make_file(self, at: int, name: bytes, member: tarfile.TarInfo) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(name, flags, 0o600, dir_fd=at)
        except FileExistsError:
            self._clear(at, name)
            file = os.open(name, flags, 0o600, dir_fd=at)
        try:
            left, hole = member.size, False
            while left:
                piece = self._plain.piece(min(left, PIECE))
                if not piece:
                    raise BadImage("an archive ends early")
                left -= len(piece)
                hole = len(piece) >= 4096 and piece == _ZEROS[:len(piece)]
                if hole:  # else a file of zeros takes room
                    os.lseek(file, len(piece), os.SEEK_CUR)
                else:
                    os.write(file, piece)
            if hole:
                os.ftruncate(file, member.size)
            os.fchmod(file, _mode(member) & 0o777)
            os.utime(file, ns=(_time(member),) * 2)
        finally:
            os.close(file)

    def _make_link(self, at: int, name: bytes, target: bytes) -> None:
        above, _, source = target.rpartition(b"/")
        missing = BadImage(f"{quoted(name)[:200]} is a hard link to {quoted(target)[:200]}, and this layer has no such"
                           " file")
        try:
            there = open_in_root(self._folder, above or b".", _FOLDER)
        except OSError:
            raise missing from None
        try:
            try:
                about = os.lstat(source, dir_fd=there)
            except OSError:
                raise missing from None
            if not (stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
                raise missing
            try:
                if os.path.samestat(os.lstat(name, dir_fd=at), about):
                    return
            except FileNotFoundError:
                pass
            self._clear(at, name)
            os.link(source, name, src_dir_fd=there, dst_dir_fd=at, follow_symlinks=False)
        finally:
            os.close(there)

    def _white_out(self, above: bytes, mark: bytes) -> None:
        if mark == OPAQUE_MARK:
            at = self._open(above)
            os.setxattr(f"/proc/self/fd/{at}", OPAQUE, b"y")
            return
        name = mark.removeprefix(WHITEOUT)
        if name in (b"", b".", b".."):
            raise BadImage(f"{quoted(mark)} stands for no file")
        if name.startswith(WHITEOUT):
            self._leave_out("marks of other storage drivers")
            return
        at = self._open(above)
        try:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=at)
        except FileExistsError:  # what this layer has itself stays
            if stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode):
                self._cover(at, name)

    def _cover(self, at: int, name: bytes) -> None:
        """Let the folder *name* cover those of lower layers."""
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            os.setxattr(f"/proc/self/fd/{folder}", OPAQUE, b"y")
        finally:
            os.close(folder)

    def _leave_out(self, what: str) -> None:
        self.done.left_out[what] = self.done.left_out.get(what, 0) + 1


def _mode(member: tarfile.TarInfo) -> int:
    return member.mode & 0o1777


def _time(member: tarfile.TarInfo) -> int:
    """Nanoseconds since 1970, as a file system can have them."""
    return max(0, min(int(member.mtime * 10**9), _MOST_NS))


def _target(text: str) -> bytes:
    target = text.encode("utf-8", "surrogateescape")
    if not target or b"\0" in target or len(target) > _MOST_PATH:
        raise BadImage("a link leads to no path")
    return target

"""
cpio archives of the form "newc", as the kernel takes them for its first root.

Runs in:   the host.
Source:    Documentation/driver-api/early-userspace/buffer-format.rst

Owners are root and times 0, whoever writes it: no privilege is needed, and the same files are the same bytes.
Archives may follow one another, so what differs from run to run is a small second one.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field


@dataclass(slots=True)
class Archive:
    """An archive in the making."""

    _parts: list[bytes] = field(default_factory=list)
    _inode: int = 0

    def folder(self, name: str) -> None:
        self._add(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._add(name, stat.S_IFREG | mode, content)

    def link(self, name: str, to: str) -> None:
        self._add(name, stat.S_IFLNK | 0o777, to.encode())

    def device(self, name: str, major: int, minor: int) -> None:
        """A character device."""
        self._add(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def whole(self) -> bytes:
        """The whole, with its end."""
        self._add("TRAILER!!!", 0)
        return b"".join(self._parts)

    def _add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        # inode, mode, uid, gid, links, time, size, the device it is on, the device it is, length of the name, checksum
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % value for value in fields) + path
        self._parts += [_padded(head), _padded(content)]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)

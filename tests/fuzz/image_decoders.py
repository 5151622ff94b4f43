"""
Hostile bytes for what `leeward image` decodes: the archive of a layer, which is unpacked, and documents of a layout.

Runs in:   as decoders.py, which has these targets among its own. Each input gets a folder of its own in /dev/shm.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable

from leeward.apps.images import sources, unpacking
from leeward.apps.images.streams import BadImage, ImageBounds, Plain
from leeward.errors import BadRequest, Unsupported

Seeds = list[tuple[bytes, list[tuple[int, int]]]]
_BOUNDS = ImageBounds(size=1 << 16, names=32, depth=8)
_BLOCK, _SUM, _MAGIC = 512, 148, 257
#: The fields of a header: name, mode, size, time, type, link, prefix.
_FIELDS = (0, 100), (100, 108), (124, 136), (136, 148), (156, 157), (157, 257), (345, 500)


class Layers:
    """Whatever the archive says, files come into being in its folder alone, or there is one error."""

    tokens = (b"../x", b"/", b"..", b".wh.a", b".wh..wh..opq", b".wh..", b"a/b", b"\0" * 12, b"\x80" + b"\xff" * 11,
              b"77777777777\0", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"L", b"K", b"x", b"g", b"S", b"Z",
              b"30 path=../../x\n", b"\xff", b"\0" * 512, b"20 size=-5\n", b"24 GNU.sparse.major=1\n")

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="leeward-fuzz-", dir="/dev/shm")  # removed with this object
        self._place = self._held.name
        self._outside = os.path.join(self._place, "outside")
        os.mkdir(self._outside)

    def seeds(self) -> Seeds:
        out = io.BytesIO()
        with tarfile.open(mode="w", fileobj=out, format=tarfile.PAX_FORMAT) as archive:
            for name, kind, to in (("a", tarfile.DIRTYPE, ""), ("a/b", tarfile.REGTYPE, ""),
                                   ("l", tarfile.SYMTYPE, self._outside), ("l/x", tarfile.REGTYPE, ""),
                                   ("h", tarfile.LNKTYPE, "a/b"), (".wh.a", tarfile.REGTYPE, ""),
                                   ("n" * 120 + "/" + "n" * 60, tarfile.REGTYPE, ""), ("p", tarfile.FIFOTYPE, "")):
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = kind, to, 0o755
                info.size = 5 if kind == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(b"12345"))
        whole = out.getvalue().rstrip(b"\0") + bytes(1024)
        whole = whole + bytes(-len(whole) % _BLOCK)
        seeds = [b"".join((whole[:3 * _BLOCK], bytes(1024))), whole.replace(b"l/x", b"a/c")]
        return [(data, [(block + first, block + last) for block in range(0, len(data), _BLOCK)
                        if data[block + _MAGIC:block + _MAGIC + 5] == b"ustar" for first, last in _FIELDS]) for data in seeds]

    @staticmethod
    def _summed(data: bytes) -> bytes:
        """With right sums, without which nothing else in a header is looked at."""
        made = bytearray(data)
        for block in range(0, len(made) - _BLOCK + 1, _BLOCK):
            if made[block + _MAGIC:block + _MAGIC + 5] == b"ustar":
                made[block + _SUM:block + _SUM + 8] = b" " * 8
                made[block + _SUM:block + _SUM + 8] = b"%06o\0 " % sum(made[block:block + _BLOCK])
        return bytes(made)

    def feed(self, data: bytes) -> bool:
        folder = os.path.join(self._place, "root")
        os.mkdir(folder)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            done = unpacking.unpack(Plain(io.BytesIO(self._summed(data)), _BOUNDS), at, _BOUNDS)
        except (BadImage, Unsupported):
            return False
        finally:
            os.close(at)
            assert [] == os.listdir(self._outside)
            assert ["outside", "root"] == sorted(os.listdir(self._place))
            for above, names, _ in os.walk(folder):
                for name in names:
                    if not os.path.islink(os.path.join(above, name)):
                        os.chmod(os.path.join(above, name), 0o700)
            os.chmod(folder, 0o700)
            shutil.rmtree(folder)
        assert done.names <= _BOUNDS.names
        assert done.size <= _BOUNDS.size
        return True


class Documents:
    """An index, a manifest or a configuration gives an image, or one of two errors."""

    tokens = (b"null", b"true", b"0", b"-1", b"1e999", b'""', b'"sha256:"', b'"sha256:' + b"0" * 64 + b'"', b"{}", b"[]",
              b"[1]", b"[" * 500, b'"\\ud800"', b'"\\u0000"', b'"../../etc/passwd"', b'"/etc/passwd"', b"\xff", b"")

    class _Files:
        def __init__(self, data: bytes) -> None:
            self._data = data

        def open(self, name: str) -> io.BytesIO:
            assert ".." not in name.split("/")
            assert not name.startswith("/")
            return io.BytesIO(self._data)

        def size(self, name: str) -> int:
            return len(self._data)

    def seeds(self) -> Seeds:
        texts = (b'[{"Config": "c", "RepoTags": ["a:1"], "Layers": ["l"]}]',
                 b'{"architecture": "amd64", "config": {"Env": ["A=1"], "User": "a", "WorkingDir": "/", "Cmd": ["x"]},'
                 b' "rootfs": {"diff_ids": ["sha256:' + b"0" * 64 + b'"]}, "layers": [{"digest": "x", "mediaType": "y"}],'
                 b' "manifests": [{"digest": "sha256:' + b"0" * 64 + b'", "platform": {"os": "linux"}}]}')
        return [(text, [(at, end) for at in range(0, len(text), 7) for end in (at + 3, at + 9) if end < len(text)])
                for text in texts]

    def feed(self, data: bytes) -> bool:
        files, taken = self._Files(data), False
        for decode in (lambda: sources._of_docker(files, ""), lambda: sources._chosen(files, ""),
                       lambda: sources._config(sources.document(files, "config")),
                       lambda: sources._diff_ids(sources.document(files, "config")),
                       lambda: sources.of_manifest(files, {"digest": "sha256:" + "0" * 64}, sources.blob)):
            try:
                decode()
                taken = True
            except (BadRequest, Unsupported):
                pass
        return taken


TARGETS: dict[str, Callable[[], Layers | Documents]] = {"image layers": Layers, "image documents": Documents}

"""
The user's images: layers that are unpacked once, and names for what they make together.

Owns:      a folder of mode 0700, and a lock in it that whoever changes something holds, one at a time. A layer has its
           name when its digests were checked, an image's record comes last; what a process left half-made is removed
           by the next one.
Blocks:    while another process imports or removes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import glob

from leeward._native.beneath import open_beneath, open_in_root
from leeward.apps.images import packing, unpacking
from leeward.apps.images.sources import FoundImage, Packed
from leeward.apps.images.streams import BadImage, ImageBounds, Plain
from leeward.base.closing import OwnedFd
from leeward.base.file_locks import locked
from leeward.base.whole_files import followed, names_in, write_whole
from leeward.client.environments import read_record, remove_record, remove_tree, unused
from leeward.errors import BadRequest, quoted
from leeward.spec import images
from leeward.spec.images import Image, LayerRecord

#: Bytes of /etc/passwd and /etc/group in an image that are read.
_MOST_USERS = 1 << 20
_PARTS = ("layers", "images", "names")
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass
class ImportProgress:
    """How far an import is: stored bytes that were read, of how many (0 if nobody knows)."""

    done: int = 0
    total: int = 0

    def passed(self, size: int) -> None:
        self.done += size


class Images:
    """The images in *folder*, which may take *size* bytes together. Several processes may use it at once."""

    def __init__(self, folder: str, size: int = 20 << 30) -> None:
        self.folder, self.size = folder, size

    # --- looking ----------------------------------------------------------------------

    def names(self) -> dict[str, Image | None]:
        """Each name with its image; None for one whose record can't be read."""
        found: dict[str, Image | None] = {}
        for entry in sorted(self._list("names")):
            name, ending = os.path.splitext(entry)
            if ending == ".json":
                found[name] = None
                with contextlib.suppress(BadRequest):
                    found[name] = self.image(name)
        return found

    def image(self, name: str) -> Image:
        """The image that *name* stands for; BadRequest if there is none, or its record can't be read."""
        return followed(partial(self._image, name), (BadRequest,))

    def _image(self, name: str) -> Image:
        data = _read(images.name_path(self.folder, name))
        if data is None:
            known = ", ".join(entry.removesuffix(".json") for entry in sorted(self._list("names"))[:32]) or "none"
            raise BadRequest(f"there is no image {name!r}; there are: {known}")
        written = _read(images.image_path(self.folder, images.read_name(data)))
        if written is None:
            raise BadRequest(f"the image {name!r} was removed; import it again")
        return images.read_image(written)

    def layer(self, digest: str) -> LayerRecord | None:
        """The record of a layer; None if there is none, it isn't finished, or can't be read: an import makes it again."""
        with contextlib.suppress(BadRequest):
            data = _read(images.layer_record_path(self.folder, digest))
            return None if data is None else images.read_layer(data)
        return None

    def size_of(self, image: Image) -> int:
        """Bytes of the files in the layers of *image*, of which others may have some."""
        return sum(layer.size for layer in map(self.layer, set(image.layers)) if layer is not None)

    def used(self) -> int:
        digests = {entry.removesuffix(".json") for entry in self._list("layers") if entry.endswith(".json")}
        return sum(layer.size for layer in map(self.layer, filter(images.is_digest, digests)) if layer is not None)

    def room(self, wanted: int) -> int:
        """Bytes that further layers may have; BadRequest if these are fewer than *wanted*."""
        used = self.used()
        if self.size - used < wanted:
            raise BadRequest(f"images have {used} bytes of the {self.size} that they may have (images_size):"
                             " `leeward image prune` removes those without a name")
        return self.size - used

    # --- changing ---------------------------------------------------------------------

    def add(self, name: str, found: FoundImage, source: str, progress: ImportProgress,
            bounds: ImageBounds) -> tuple[Image, dict[str, int]]:
        """
        Unpack those layers of *found* that aren't there, and give the image its *name*. Returns it, and what was left
        out of its layers.

        Raises:
            BadImage: a layer is broken, hostile, beyond *bounds*, or has another digest. Nothing is left of it.
            BadRequest: the name isn't valid, or images take too much room.
        """
        place = images.name_path(self.folder, name)
        progress.total = sum(packed.size for packed in found.layers)
        with self.locked():
            every, names = list[str](), bounds.names
            for packed in found.layers:
                every.append(self._have(packed, progress, replace(bounds, names=names)))
                names -= record.names if (record := self.layer(every[-1])) is not None else 0
            if names < 0:
                raise BadImage(f"the image has more names than the {bounds.names} that it may have")
            # An overlay has no layer twice. Of one that was repeated, all that it has is in the upper one of them.
            digests = tuple(reversed(dict.fromkeys(reversed(every))))
            self._check_implied(digests)
            image = Image(digests, found.config, images.users_of(self._file(digests, b"etc/passwd")),
                          images.groups_of(self._file(digests, b"etc/group")), source, int(time.time()))
            image.identity("")  # BadRequest for a user that isn't there
            written = _record(images.write_image(image), "configuration")
            write_whole(images.image_path(self.folder, image.hash), written, 0o644)
            write_whole(place, images.write_name(image.hash), 0o644)
        left: dict[str, int] = {}
        for layer in map(self.layer, digests):
            for what, number in (layer.left_out.items() if layer is not None else ()):
                left[what] = left.get(what, 0) + number
        return image, left

    def remove(self, name: str) -> None:
        """Remove *name*; BadRequest if there is none. Its layers stay until `prune`."""
        with self.locked():
            if not remove_record(images.name_path(self.folder, name)):
                raise BadRequest(f"there is no image {name!r}")

    def prune(self) -> tuple[int, int, int]:
        """
        Remove images without a name, layers of no image, and what was never finished. Returns how many layers were
        removed, their bytes, and how many stay since a daemon uses them.
        """
        gone = size = busy = 0
        with self.locked():
            hashes = set()
            for entry in self._list("names"):
                with contextlib.suppress(BadRequest):
                    hashes.add(images.read_name(_read(os.path.join(self.folder, "names", entry)) or b""))
            wanted = set[str]()
            for entry in self._list("images"):
                path = os.path.join(self.folder, "images", entry)
                if entry.removesuffix(".json") in hashes:
                    with contextlib.suppress(BadRequest):
                        wanted |= set(images.read_image(_read(path) or b"").layers)
                        continue
                remove_record(path)
            for part in _PARTS:  # what a killed process was writing: none has the lock
                for path in glob(os.path.join(self.folder, part, ".*")):
                    remove_tree(path)
            for digest in sorted({entry.split(".")[0] for entry in self._list("layers")} - wanted):
                with unused(images.layer_record_path(self.folder, digest)) as free:
                    if not free:
                        busy += 1
                        continue
                    layer = self.layer(digest)
                    size += layer.size if layer is not None else 0
                    self._discard(digest)
                    gone += 1
        return gone, size, busy

    def export(self, name: str, path: str) -> None:
        """
        Write the image *name* to the file *path*, which is new, as an archive of an OCI layout. Its layers are packed
        anew, with root as the owner of all files: their digests are others than those of the import.
        """
        with self.locked(shared=os.geteuid() == 0):  # another user opens closed files to itself meanwhile
            image = self.image(name)
            packing.write(path, [images.layer_path(self.folder, digest) for digest in image.layers], image.config, name)

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """A context in which no other process changes something; the kernel ends it with the process."""
        for part in _PARTS:
            os.makedirs(os.path.join(self.folder, part), mode=0o700, exist_ok=True)
        os.chmod(self.folder, 0o700)
        with OwnedFd(locked(os.path.join(self.folder, ".lock"), shared=shared, wait=True)):
            yield

    # --- layers -----------------------------------------------------------------------

    def _have(self, packed: Packed, progress: ImportProgress, bounds: ImageBounds) -> str:
        """The digest of the layer *packed*, which is unpacked unless it is there."""
        if packed.diff_id and self.layer(packed.diff_id) is not None:
            progress.passed(packed.size)
            return packed.diff_id
        room = min(bounds.size, self.room(1))
        half = os.path.join(self.folder, "layers", "half")
        remove_tree(half)
        os.mkdir(half, 0o755)
        try:
            with packed.open() as source:
                bounds = replace(bounds, size=room)
                plain = Plain(source, bounds, progress.passed)
                fd = os.open(half, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    done = unpacking.unpack(plain, fd, bounds)
                finally:
                    os.close(fd)
            for what, wanted, got in (("digest", packed.digest, plain.digest), ("diff_id", packed.diff_id, plain.diff_id)):
                if wanted not in ("", got):
                    raise BadImage(f"a layer has the {what} {got}, and should have {wanted}")
            digest = plain.diff_id
            if self.layer(digest) is None:
                implied = tuple(sorted(path.decode("utf-8", "surrogateescape") for path in done.implied))
                record = _record(images.write_layer(LayerRecord(done.size, done.names, implied, done.left_out)),
                                 "list of folders above its files")
                self._discard(digest)
                os.rename(half, images.layer_path(self.folder, digest))
                write_whole(images.layer_record_path(self.folder, digest), record, 0o644)
            return digest
        finally:
            remove_tree(half)

    def _check_implied(self, digests: Sequence[str]) -> None:
        """
        Refuse layers that write through a link of a lower one: unpacked by itself, such a layer has a folder there,
        which would cover the link.
        """
        for number, digest in enumerate(digests):
            layer = self.layer(digest)
            for path in layer.implied if layer is not None and number else ():
                for lower in reversed(digests[:number]):
                    mode = self._mode(lower, path.encode("utf-8", "surrogateescape"))
                    if mode and stat.S_ISLNK(mode):
                        raise BadImage(f"a layer writes through {quoted(path)[:200]}, a link in a lower layer; "
                                       "`docker save`, or an export of the merged root, has none such")
                    if mode:
                        break

    def _mode(self, digest: str, path: bytes) -> int:
        """The mode of *path* in a layer, not through links; 0 if it isn't there."""
        with self._root(digest) as root:
            try:
                fd = open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW)
            except OSError:
                return 0
            try:
                return os.fstat(fd).st_mode
            finally:
                os.close(fd)

    def _file(self, digests: Sequence[str], path: bytes) -> bytes:
        """The beginning of the regular file *path* in the topmost layer that has the name; b"" if there is none."""
        for digest in reversed(digests):
            with self._root(digest) as root:
                try:
                    fd = open_in_root(root, path, _REGULAR)
                except FileNotFoundError:
                    continue
                except OSError:  # a whiteout, a link
                    return b""
                with open(fd, "rb") as file:
                    return file.read(_MOST_USERS) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        return b""

    @contextlib.contextmanager
    def _root(self, digest: str) -> Iterator[int]:
        fd = os.open(images.layer_path(self.folder, digest), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _discard(self, digest: str) -> None:
        remove_record(images.layer_record_path(self.folder, digest))
        remove_tree(images.layer_path(self.folder, digest))

    def _list(self, part: str) -> list[str]:
        return names_in(os.path.join(self.folder, part))


def _read(path: str) -> bytes | None:
    return read_record(path, images.MOST_WRITTEN)


def _record(data: bytes, what: str) -> bytes:
    """*data*, if it can be read again; BadImage."""
    if len(data) > images.MOST_WRITTEN:
        raise BadImage(f"the image's {what} is longer than {images.MOST_WRITTEN} bytes")
    return data

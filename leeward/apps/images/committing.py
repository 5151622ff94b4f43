"""
A new image of what a live sandbox has changed of its image's root: one more layer, in the form that archives have.

Trust:     none in names, kinds and contents, which are the sandbox's. The layer goes through all that a stranger's layer
           goes through; a name that marks what is missing in a layer, made by a program, is left out.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import IO

from leeward.apps.images.merged import MergedLayers
from leeward.apps.images.sources import FoundImage, Packed
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import ImageBounds, Readable
from leeward.apps.images.unpacking import OPAQUE_MARK, WHITEOUT
from leeward.client.changes import Changes, UpperRow, changes
from leeward.client.overlay import UpperContents, UpperLayer
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, RequestRejected
from leeward.spec.images import MOST_LAYERS, Image, layer_path
from leeward.spec.profiles.image import COVERED

_COVERED = {os.fsencode(path[1:]) for path in COVERED}
#: What leeward makes, where the image hasn't it, with its mode: folders of each sandbox, and those above a mount.
_OURS, _MODE = {b"tmp": 0o1777, b"workspace": 0o755, b"etc": 0o755}, {"folder": 0o755, "file": 0o444}


def commit(box: Sandbox, store: Images, name: str, progress: ImportProgress) -> tuple[Image, Mapping[str, int]]:
    """
    Make the image *name* of the image of *box* and what the sandbox has changed: returned with what was left out. What
    programs write meanwhile may be in it or not.

    Raises:
        BadRequest: the sandbox has no image, or none of this store's; or there are more layers or bytes than may be.
        BadImage: there are names that no layer has, too deep ones for instance.
    """
    below, base = _base(box, store)
    if len(base.layers) == MOST_LAYERS:
        raise BadRequest(f"the image has {MOST_LAYERS} layers, all that one may have: import the merged root as a new one")
    changed = UpperLayer(box, "/")
    with closing(_merged(store, base)) as lower:
        rows = _rows(box, lower)
    progress.total = sum(row.size for row in rows if row.type == "file")
    store.room(progress.total)
    contents = UpperContents(changed, [(row.path, row.size) for row in rows if row.type == "file"])
    with (tempfile.TemporaryFile(dir=store.folder) as spool,
          tempfile.TemporaryFile(dir=store.folder, buffering=0) as single):
        left = _pack(spool, rows, contents, single, progress)
        size = spool.tell()
        spool.seek(0)
        layers = (*(Packed(_unpacked, diff_id=digest) for digest in base.layers),
                  Packed(lambda: contextlib.nullcontext(spool), size))
        made, _ = store.add(name, FoundImage(layers, base.config), f"a sandbox of {below}", ImportProgress(),
                            ImageBounds(size=store.size))
    new = store.layer(made.layers[-1])
    return made, left + Counter(new.left_out if new is not None else {})


def diff(box: Sandbox, store: Images) -> Changes:
    """What *box* has changed of its image's root, as `Sandbox.diff` lists it; BadRequest as for `commit`."""
    _, base = _base(box, store)
    with closing(_merged(store, base)) as below:
        return changes(_rows(box, below), below)


def _base(box: Sandbox, store: Images) -> tuple[str, Image]:
    """The name of the image of *box*, and the image in *store* with its layers."""
    about = box.info()
    if not about.get("image"):
        raise BadRequest("the sandbox has the host's files, and no image whose root it could have changed")
    there = store.names()
    base = next((each for each in (there.get(about["image"]), *there.values())
                 if each is not None and each.layers == tuple(about["layers"])), None)
    if base is None:
        raise BadRequest(f"the layers of its image {about['image']!r} aren't in {store.folder}, as one image")
    return about["image"], base


def _merged(store: Images, base: Image) -> MergedLayers:
    return MergedLayers([layer_path(store.folder, digest) for digest in base.layers])


def _rows(box: Sandbox, below: MergedLayers) -> list[UpperRow]:
    """What is changed over *below*, without what leeward has made and nothing has been put into."""
    rows = [row for row in UpperLayer(box, "/").rows() if row.path not in _COVERED]
    points = set[bytes]()
    for mount in box.info().get("mounts", []):
        point = os.fsencode(mount["target"]).strip(b"/")
        while point:
            points.add(point)
            point = os.path.dirname(point)

    def is_made(row: UpperRow) -> bool:
        if row.path in _OURS:
            return row.type == "folder" and row.mode == _OURS[row.path] and not row.hides
        return (row.path in points and row.mode == _MODE.get(row.type) and not (row.type == "file" and row.size)
                and below.look(row.path) is None)

    holds = set[bytes]()  # folders in which something is
    for row in sorted(rows, key=lambda row: row.path.count(b"/"), reverse=True):
        if row.path in holds or not is_made(row):
            holds.add(os.path.dirname(row.path))
            holds.add(row.path)
    return [row for row in rows if row.path in holds]


def _unpacked() -> AbstractContextManager[Readable]:
    raise BadRequest("a layer of the image was just removed")


def _pack(out: IO[bytes], rows: Sequence[UpperRow], contents: UpperContents, single: IO[bytes],
          progress: ImportProgress) -> Counter[str]:
    """Write the layer's archive, each file by way of *single*; returns what was left out of it, with its number."""
    left = Counter[str]()
    with tarfile.open(mode="w", fileobj=out, format=tarfile.PAX_FORMAT, encoding="utf-8",
                      errors="surrogateescape") as archive:
        for row in rows:
            above, name = os.path.split(row.path)
            info = tarfile.TarInfo(os.fsdecode(row.path))
            info.mode, info.mtime = row.mode, row.mtime / 1e9
            if row.path.startswith(WHITEOUT) or b"/" + WHITEOUT in row.path:
                left["names that begin with .wh."] += 1
            elif row.type == "gone":
                archive.addfile(tarfile.TarInfo(os.fsdecode(os.path.join(above, WHITEOUT + name))))
            elif row.type == "folder":
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                if row.hides:
                    archive.addfile(tarfile.TarInfo(os.fsdecode(os.path.join(row.path, OPAQUE_MARK))))
            elif row.type == "link":
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(row.link)
                archive.addfile(info)
            elif row.type == "file":
                left["files that changed meanwhile"] += not _add(archive, info, row, contents, single)
                progress.passed(row.size)
            else:
                left["special files"] += 1
    return +left


def _add(archive: tarfile.TarFile, info: tarfile.TarInfo, row: UpperRow, contents: UpperContents, single: IO[bytes]) -> bool:
    """Add a file as it is now, with no more bytes than it had; returns whether it is still one."""
    single.seek(0)
    single.truncate()
    try:
        contents.read(row.path, single.fileno(), row.size)
    except RequestRejected:
        return False
    info.size = min(row.size, os.fstat(single.fileno()).st_size)
    single.seek(0)
    archive.addfile(info, single)
    return True

"""
Images by their names, for pools: `leeward image` has checked and unpacked them, in a folder of the daemon's user.

Opens no file in a layer. The records that are read belong to the daemon's user, and nobody else may write there.
"""

from __future__ import annotations

import os
from functools import partial

from leeward._native import mounts as native
from leeward._native.memfd import memory_file
from leeward.base.points import point
from leeward.base.whole_files import followed, read_whole
from leeward.daemon.held_locks import HeldLocks
from leeward.errors import BadRequest, PoolFailed, Unsupported
from leeward.isolation import ownership
from leeward.spec import images
from leeward.spec.profiles.image import ImagePlan
from leeward.wire import control


def find(folder: str, name: str, user: str, held: HeldLocks, *, owners: bool = False) -> ImagePlan:
    """
    The image *name* in *folder*, for *user*, "" for its own. *held* locks its layers against
    `leeward image prune`, until this daemon ends or has used many others since.

    Raises:
        BadRequest: there is no such image or user.
        PoolFailed: the image can't be used.
        Unsupported: this kernel can't show images.
    """
    image, paths = followed(partial(_follow, folder, name, held), (PoolFailed,))
    uid, gid, home = image.identity(user)
    disk = "" if on_tmpfs() else _on_disk(os.path.realpath(folder))
    root, most = os.geteuid() == 0, control.MAX_FDS - bool(disk)
    if root and len(paths) > most:
        raise BadRequest(f"image {name!r} has {len(paths)} layers; root's daemon shows {most} at most")
    return ImagePlan(name, paths, image.config.env, image.config.cwd, uid, gid, home, handed=root, owners=owners,
                     disk=disk)


def _follow(folder: str, name: str, held: HeldLocks) -> tuple[images.Image, tuple[str, ...]]:
    """The image of that name, and its layers, which are locked."""
    try:
        data = _read(images.name_path(folder, name))
    except OSError as error:
        raise PoolFailed(f"image {name!r}: {error}") from None
    if data is None:
        raise BadRequest(f"image {name!r} is unknown; `leeward image list` shows those that are there, `leeward image pull`"
                         " and `import` make others")
    try:
        written = _read(images.image_path(folder, images.read_name(data)))
        if written is None:
            raise BadRequest("it was removed; `leeward image import` makes it again")
        image = images.read_image(written)
        ownership.check(os.path.join(os.path.realpath(folder), "layers"), "image")
        for digest in image.layers:
            held.hold(images.layer_record_path(folder, digest))
    except (BadRequest, OSError) as error:
        raise PoolFailed(f"image {name!r}: {error}") from None
    return image, tuple(os.path.realpath(images.layer_path(folder, digest)) for digest in image.layers)


@point("images.on-tmpfs")
def on_tmpfs() -> bool:
    """Whether tmpfs has user attributes, by which an overlay marks folders that cover others. Linux 6.6."""
    fd = memory_file("leeward_probe")
    try:
        os.setxattr(f"/proc/self/fd/{fd}", "user.leeward", b"y")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _on_disk(folder: str) -> str:
    """The folder, beside the images, for what sandboxes write; Unsupported if its file system has no user attributes."""
    place = os.path.join(folder, "uppers")
    try:
        os.makedirs(place, 0o700, exist_ok=True)
        os.setxattr(place, "user.leeward", b"y")
        os.removexattr(place, "user.leeward")
    except OSError as error:
        raise Unsupported("images", have=f"tmpfs without user attributes, and {place}: {error.strerror}",
                          need="Linux 6.6, or images_folder on ext4, xfs or btrfs") from None
    if not native.sets_attributes():
        raise Unsupported("images", have="no mount_setattr(2)", need="Linux 5.12")
    return place


def _read(path: str) -> bytes | None:
    return read_whole(path, images.MOST_WRITTEN + 1)

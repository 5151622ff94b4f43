"""
Overlays: a folder of the host as the lower layer, and the sandbox's changes, on its scratch file system, as the upper.

Runs in:   the porter.
Leaves:    the layers' own mounts, below the overlay on its target, where no process reaches them.
Source:    the kernel's overlayfs document; mount options by Linux 5.11 (userxattr), tmpfs with user attributes by 6.6
"""

from __future__ import annotations

import errno
import os
import time

from leeward._native import mounts as native
from leeward._native.beneath import open_plain
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Table, returns
from leeward.crossing.walk import opened
from leeward.errors import KernelRefusal, LeewardError, Unsupported
from leeward.isolation import mounts

#: Names on the scratch file system, whose root no process of the sandbox sees.
UPPER, _WORK = "upper.{}", "work.{}"
#: UMOUNT_NOFOLLOW of umount2(2).
_NOFOLLOW = 8
#: Seconds for which killed processes may still use an overlay.
_BUSY_S = 1.0


def scratch_trees(first: str, count: int) -> list[int]:
    """Make *count* detached copies of the root of the scratch file system, whose files count as the sandbox's."""
    if not count:
        return []
    folder = native.copy(first)
    Table([native.unmount_step(first)]).run()
    trees = [native.copy(first, recursive=False) for _ in range(count)]
    native.move_mount(folder, first)
    os.close(folder)
    return trees


def _check(upper: str) -> None:
    """Check that the upper folder has user attributes: without them, folders that replace others aren't marked."""
    try:
        os.setxattr(upper, "user.leeward", b"y")
        os.removexattr(upper, "user.leeward")
    except OSError as error:
        raise Unsupported("overlay", have=f"tmpfs without user attributes ({error.strerror})",
                          need="Linux 6.6") from None


def lay(scratch: int, lower: int, number: int, target: str) -> None:
    """Mount the overlay with *lower* on *target*; no path leads below it, but *scratch* has its layers from then on."""
    native.move_mount(scratch, target)
    about = os.fstat(lower)
    for name in (UPPER, _WORK):
        os.mkdir(name.format(number), 0o755, dir_fd=scratch)
    os.chmod(UPPER.format(number), about.st_mode & 0o777, dir_fd=scratch)
    native.move_mount(lower, target)
    cover(scratch, lower, number, target)
    os.close(lower)


def upper(scratch: int, number: int | str) -> int:
    """The upper folder of an overlay, opened with O_PATH."""
    return os.open(UPPER.format(number), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=scratch)


def upper_of_root(first: str, part: str = mounts.UPPER) -> int:
    """
    The upper folder of an image's root, opened with O_PATH, or another *part* of the folder that has all upper layers. It
    lies on the file system that the folder *first* covers, which is uncovered in a mount namespace of this process alone:
    nobody else sees it.
    """
    Table([returns(Call.UNSHARE, Clone.NEWNS), native.unmount_step(first)]).run()
    return os.open(f"{first}/{part}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def cover(scratch: int, lower: int, number: int | str, target: str) -> None:
    """Mount an overlay of the existing layers on *target*."""
    here = "/proc/self/fd"
    with opened(upper(scratch, number)) as found:
        _check(f"{here}/{found}")
        mount = native.filesystem("overlay", {
            "source": "overlay", "lowerdir": f"{here}/{lower}", "upperdir": f"{here}/{found}",
            "workdir": f"{here}/{scratch}/{_WORK.format(number)}", "userxattr": ""}, MountAttr.NOSUID | MountAttr.NODEV)
    native.move_mount(mount, target)
    os.close(mount)


def mounted(target: str, flags: int) -> int:
    """What is mounted on *target*, opened; LeewardError if a process has moved a folder in which that lies."""
    fds: list[int] = []
    try:
        for path, how in ((os.path.dirname(target), os.O_PATH), (target, flags)):
            fds.append(open_plain(path, how))
        if os.fstat(fds[0]).st_dev != os.fstat(fds[1]).st_dev:
            return fds.pop()
    except OSError:
        pass  # a folder on the way has gone, or is a link
    finally:
        for fd in fds:
            os.close(fd)
    raise LeewardError(f"what was mounted on {target!r:.200} is somewhere else: a process has moved a folder above it")


def uncover(target: str) -> bool:
    """Unmount the overlay, so that its layers, uncached then, may be changed; False if a process uses it."""
    until = time.monotonic() + _BUSY_S
    while True:
        done, result = Table([returns(Call.UMOUNT2, target, _NOFOLLOW)]).take()
        if done:
            return True
        if result != -errno.EBUSY:
            raise KernelRefusal("umount2", repr(target), -result)
        if time.monotonic() > until:
            return False
        time.sleep(0.005)

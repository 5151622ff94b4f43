"""
The file of certificates that a pool's sandboxes trust, on this host, for as long as the pool exists.

Runs in:   the daemon, and `leeward run`.
Leaves:    the file, if the daemon is killed. It holds nothing but certificates, and the next such pool removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from leeward.spec.folders import within

_PREFIX, _NAME = "leeward-trust-", "certificates.pem"

#: Where a sandbox has folders of its own.
_HIDING = ("/tmp", "/var/tmp", "/workspace", "/dev", "/proc")
#: Seconds after which a folder without a lock counts as abandoned.
_OLD_S = 60.0


class TrustFile:
    """
    It is removed with this object, or at the process's end.

    Attributes:
        path: absolute; everybody may read it.
    """

    def __init__(self, certificates: bytes) -> None:
        """
        Raises:
            OSError: it can't be written.
        """
        sweep()
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=place())
        self.path = os.path.join(folder, _NAME)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_SH)  # by which another daemon sees that it is in use
            with open(self.path, "wb") as file:
                file.write(certificates)
            os.fchmod(self._fd, 0o444)
            os.chmod(folder, 0o755)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(self, _remove, folder, self._fd)


def place() -> str:
    """
    The folder for such files: a sandbox has one at the path that it has here, and /tmp and /var/tmp of its own.

    Raises:
        OSError: there is none, and none can be made.
    """
    if 0 == os.geteuid():
        return "/run"
    for name in (os.environ.get("XDG_RUNTIME_DIR", ""), os.path.expanduser("~/.cache")):
        folder = os.path.realpath(name)
        if name and not any(within(folder, hiding) for hiding in _HIDING):
            os.makedirs(folder, 0o700, exist_ok=True)
            return folder
    raise OSError(errno.ENOENT, "XDG_RUNTIME_DIR and ~/.cache are below /tmp, which a sandbox has for itself")


def _remove(folder: str, fd: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.close(fd)


def sweep() -> None:
    """
    Remove what daemons of this user have left that were killed.
    """
    for folder in Path(place()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid != os.geteuid() or folder.is_symlink() or time.time() - about.st_mtime < _OLD_S:
                continue
            fd = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)

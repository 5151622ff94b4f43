"""
Further folders of the host that an agent's sandbox shows besides the project: PATH[:MOUNT][:rw].

Runs in:   the user's program; pure except for resolving links.
Trust:     none. A project's `vendor` may be a link to the user's keys, so links are resolved first, and the person is
           asked about the resolved path. What the user names is shown without a question, so a link of another user's
           isn't followed there. The client and the daemon check mounts as well; the check here gives an error
           earlier.
"""

from __future__ import annotations

import os

from leeward.agents import checks
from leeward.agents.variables import absolute
from leeward.client.host_paths import open_own, open_through
from leeward.dataclass import dataclass
from leeward.errors import RequestRejected
from leeward.spec.folders import reserved

#: Folders that are never shown: the root, and those with the kernel's and the daemons' interfaces.
_NEVER = ("/", "/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """
    A folder or file of the host that an agent's sandbox shows.

    Attributes:
        source: its absolute path on the host, without links.
        target: its absolute path in the sandbox.
        writable: whether the agent can write to it, on the host.
    """

    source: str
    target: str
    writable: bool = False

    @property
    def text(self) -> str:
        """The form that `parse_library` reads."""
        return f"{self.source}:{self.target}" + (":rw" if self.writable else "")


def parse_library(text: str, base: str, home: str, *, asked: bool = False) -> LibraryFolder:
    """
    A library from "PATH", "PATH:rw", "PATH:MOUNT" or "PATH:MOUNT:rw"; ":ro" may stand for ":rw". Without a MOUNT the
    path in the sandbox is PATH.

    Args:
        text: with its variables expanded.
        base: the folder to which a relative PATH is relative.
        home: the folder that "~" stands for.
        asked: the person is going to be asked about the real path.

    Raises:
        ValueError: *text* isn't a library, or leads through a link of another user's without a question; the message
            says why.
    """
    parts = text.split(":")
    writable = parts[-1] == "rw"
    if len(parts) > 1 and parts[-1] in ("rw", "ro"):
        parts.pop()
    if len(parts) > 2:
        raise ValueError("has the form PATH[:MOUNT][:rw], and no path has a colon in it")
    path = checks.filled(parts[0])
    written = absolute(path, base, home)
    source = _real(written, asked)
    target = absolute(checks.inside(checks.filled(parts[1])), "/", home) if len(parts) == 2 else written
    for place in (source, target):
        if place in _NEVER or place.startswith(("/proc/", "/sys/", "/dev/")):
            raise ValueError(f"{place} is never shown as a library")
    own = reserved(target)
    if own:
        raise ValueError(f"{own} is the sandbox's own; choose another place for it there, as in"
                         f" {path}:/opt/{os.path.basename(source)}")
    return LibraryFolder(source, target, writable)


def _real(path: str, asked: bool) -> str:
    """The real path of *path*; *path* itself if it isn't there, which is an error when it is opened."""
    try:
        found = open_through(path, lambda *_: None) if asked else open_own(path)
    except RequestRejected as error:
        raise ValueError(str(error)) from None
    except OSError:
        return path
    try:
        return os.readlink(f"/proc/self/fd/{found}")
    finally:
        os.close(found)

"""
Further folders of the host that an agent's sandbox shows besides the project: PATH[:MOUNT][:rw].

Runs in:   the user's program; pure but for links, which are looked up.
Trust:     none. A project's `vendor` may be a link to the user's keys. So a source is resolved first, and the person
           is asked about the resolved path. Client and daemon refuse again what can't be mounted; the check here gives
           a reason early.
"""

from __future__ import annotations

import os

from leeward.agents import checks
from leeward.agents.variables import absolute
from leeward.dataclass import dataclass

#: Never shown, nor anything that has them below it: they are the host's whole.
_NEVER = ("/", "/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """
    A folder or file of the host's that an agent is shown.

    Attributes:
        source: an absolute path of the host's, without links.
        target: an absolute path inside.
        writable: what the agent writes there is written on the host.
    """

    source: str
    target: str
    writable: bool = False

    @property
    def text(self) -> str:
        """
        As `parse_library` reads it.
        """
        return f"{self.source}:{self.target}" + (":rw" if self.writable else "")


def parse_library(text: str, base: str, home: str) -> LibraryFolder:
    """
    A library from "PATH", "PATH:rw", "PATH:MOUNT", "PATH:MOUNT:rw" (or ":ro" for either). Without a MOUNT it is inside
    where it is on the host.

    Args:
        text: as written, with its variables put in.
        base: the folder that a relative PATH is below.
        home: what "~" is.

    Raises:
        ValueError: what is wrong with it.
    """
    parts = text.split(":")
    writable = parts[-1] == "rw"
    if len(parts) > 1 and parts[-1] in ("rw", "ro"):
        parts.pop()
    if len(parts) > 2:
        raise ValueError("has the form PATH[:MOUNT][:rw], and no path has a colon in it")
    path = checks.filled(parts[0])
    written = absolute(path, base, home)
    source = os.path.realpath(written)
    target = absolute(checks.inside(checks.filled(parts[1])), "/", home) if len(parts) == 2 else written
    for place in (source, target):
        if place in _NEVER or place.startswith(("/proc/", "/sys/", "/dev/")):
            raise ValueError(f"{place} is never shown as a library")
    return LibraryFolder(source, target, writable)

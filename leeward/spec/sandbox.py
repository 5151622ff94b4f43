"""
A sandbox, as data: the files it sees, the rights it has, what is warm in it.

Runs in:   anywhere; pure. `profiles.py` builds these, `isolation` plans from them.
"""

from __future__ import annotations

from leeward.dataclass import dataclass, field
from leeward.spec.limits import Limits


@dataclass(frozen=True, slots=True)
class Bind:
    """
    A part of the host, shown at *target*; read-only, nosuid and nodev.

    Attributes:
        optional: a host without *source* is no error.
        device: a device node such as /dev/null: writable, and nodev is not set.
        written: a device that may be opened for writing.
        file: it isn't a folder. A device never is.
    """

    source: str
    target: str
    optional: bool = False
    device: bool = False
    written: bool = True
    file: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """
    A small read-only file of our own making.
    """

    target: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """
    A symbolic link.
    """

    target: str
    to: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """
    Writable folders, fresh for each job, on one size-limited tmpfs.

    Attributes:
        targets: where its folders show, e.g. ("/workspace", "/tmp", "/dev/shm").
        inodes: files, folders and links at once.
    """

    targets: tuple[str, ...]
    inodes: int = 16384


@dataclass(frozen=True, slots=True)
class View:
    """
    Everything that a sandbox sees. /proc of its own pid namespace comes on top.
    """

    binds: tuple[Bind, ...]
    texts: tuple[Text, ...]
    links: tuple[Link, ...]
    scratch: Scratch


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """
    A profile, resolved for one host.

    Attributes:
        profile: its name, e.g. "python".
        executable: the Python that the zygote is, and sys.executable inside.
        preload: modules that the zygote imports before any job.
        uid: user and group id inside; never 0.
    """

    profile: str
    view: View
    executable: str
    preload: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    hostname: str = "leeward"
    uid: int = 1000
    environment: tuple[tuple[str, str], ...] = ()

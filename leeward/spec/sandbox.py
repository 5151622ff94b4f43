"""
A sandbox as data: the files that it shows, its identity, and its imported modules.

Runs in:   anywhere; pure. `profiles.py` makes these, `isolation` plans from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.dataclass import dataclass, field
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.spec.egress_tls import Seal


@dataclass(frozen=True, slots=True)
class Bind:
    """
    A bind mount of a file or folder of the host; read-only, nosuid and nodev.

    Attributes:
        source: its path on the host.
        target: its path in the sandbox.
        optional: it is no error if the host lacks *source*.
        device: a device node such as /dev/null: mounted writable and without nodev.
        written: for a device: a job may open it for writing.
        file: *source* is a file and not a folder. Not set for devices, which never are folders.
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
    A small read-only file that leeward writes.

    Attributes:
        program: the file can be executed.
    """

    target: str
    content: bytes
    program: bool = False


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link."""

    target: str
    to: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """
    Writable folders, fresh for each job, on one size-limited tmpfs.

    Attributes:
        targets: paths of the folders, e.g. ("/workspace", "/tmp", "/dev/shm").
        inodes: the most files, folders and links.
    """

    targets: tuple[str, ...]
    inodes: int = 16384


@dataclass(frozen=True, slots=True)
class View:
    """
    The files of a sandbox. /proc of its own pid namespace is added to these.

    Attributes:
        proc: files that leeward writes in place of the kernel's, by their paths below /proc.
        proc_live: files of the kernel's own /proc to show, by name. All others that aren't a process's are absent.
        listed: folders whose names, and those of all folders below, may be listed, whatever else is refused there.
        terminals: the most pseudo-terminals at once, on a devpts of the job's own; 0 is none, and no devpts.
    """

    binds: tuple[Bind, ...]
    texts: tuple[Text, ...]
    links: tuple[Symlink, ...]
    scratch: Scratch
    proc: tuple[Text, ...] = ()
    proc_live: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    terminals: int = 0


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """
    A profile for one host.

    Attributes:
        profile: the name of the profile, e.g. "python".
        view: the files of the sandbox.
        executable: the interpreter of the zygote, and `sys.executable` of a job.
        preload: modules that the zygote imports before any job.
        limits: the limits of a job that sets none.
        hostname: what gethostname(2) returns inside.
        uid: user and group id inside; never 0.
        environment: the environment variables of a job.
        loopback: jobs may use TCP and UDP. Their network namespace has `lo` and no other interface.
        host: the view shows the host's files. Sandboxes can't connect to the host's sockets, and the files with secrets
            of the client's are hidden when a sandbox is opened.
        egress: the ports of TCP on which jobs reach the hosts that a policy allows, still in that namespace; () for
            none.
        routed: every address leads to the broker; otherwise jobs can reach the broker's proxy alone.
        seal: the data for TLS that the broker ends; None if it ends no TLS.
    """

    profile: str
    view: View
    executable: str
    preload: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    hostname: str = "leeward"
    uid: int = 1000
    environment: tuple[tuple[str, str], ...] = ()
    loopback: bool = False
    egress: tuple[int, ...] = ()
    routed: bool = True
    host: bool = False
    seal: Seal | None = None


#: The file, and links to it: where programs look for all certificates by default.
TRUST = "/etc/ssl/certs/ca-certificates.crt"
LINKS = ("/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt")

#: The environment variables that name that file to programs.
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")

#: Bytes of the host's certificates in it, at most.
MOST_BUNDLE = 4 << 20


def has_trust(view: View) -> bool:
    """Whether *view* has such a file."""
    return any(text.target == TRUST for text in view.texts)

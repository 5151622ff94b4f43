"""
Profiles: what each kind of sandbox sees, built from facts about the host.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.dataclass import dataclass
from leeward.spec.limits import Limits
from leeward.spec.sandbox import Bind, Link, SandboxSpec, Scratch, Text, View

#: Modules that most programs import; each costs 1 to 3 ms when a job imports it itself.
WARM = ("json", "re", "collections", "dataclasses", "typing", "functools", "itertools", "contextlib", "math", "random",
        "datetime", "string", "io", "pathlib", "tempfile", "subprocess", "threading", "traceback", "linecache",
        "runpy", "glob", "hashlib", "base64", "csv", "textwrap", "copy", "decimal")

#: Warm-ups that would start threads in the zygote; there a library may have one only.
_ONE_THREAD = tuple((name, "1") for name in (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"))

_USER = "sandbox"
_NOLOGIN = "/usr/sbin/nologin"


@dataclass(frozen=True, slots=True)
class HostPython:
    """
    The interpreter that jobs get.

    Attributes:
        executable: what the zygote runs, and sys.executable of a job.
        version: major and minor.
        prefix: sys.base_prefix: the standard library lies below it.
        env: a virtual environment whose packages jobs see, or "".
        shown: further folders that the interpreter needs, e.g. targets of links.
    """

    executable: str
    version: tuple[int, int]
    prefix: str
    env: str = ""
    shown: tuple[str, ...] = ()


def python(host: HostPython, root_links: Mapping[str, str], *, limits: Limits, uid: int = 1000,
           localtime: str = "", preload: tuple[str, ...] = (), memory_counted: bool = True,
           landlocked: bool = True, warm: bool = True) -> SandboxSpec:
    """
    Python code in a warm interpreter; /usr read-only, private /workspace and /tmp, no network.

    Args:
        root_links: which of /bin, /sbin, /lib, /lib64 are links on this host, and to what;
            the others are bound if they exist.
        localtime: what /etc/localtime points to, below /usr.
        memory_counted: a cgroup counts all memory. If not, there is no shared mapping of /dev/zero:
            memory that no resident set shows once it is let go of.
        warm: have what most programs import, WARM, in memory.
        landlocked: Landlock holds; without it such a mapping can be refused only by leaving the device out.
    """
    below_usr = [folder for folder in (host.prefix, host.env, *host.shown) if folder and not _within(folder, "/usr")]
    roots = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
    binds = (
        Bind("/usr", "/usr"),
        *(Bind(root, root, optional=True) for root in roots if root not in root_links),
        *(Bind(folder, folder) for folder in _outermost(below_usr)),
        Bind("/etc/alternatives", "/etc/alternatives", optional=True),  # /usr/bin/awk and others lead through it
        Bind("/etc/ld.so.cache", "/etc/ld.so.cache", optional=True, file=True),
        Bind("/etc/ssl/certs", "/etc/ssl/certs", optional=True),        # the roots of trust, no private key
        Bind("/etc/ssl/openssl.cnf", "/etc/ssl/openssl.cnf", optional=True, file=True),
        Bind("/etc/pki/tls/certs", "/etc/pki/tls/certs", optional=True),
        Bind("/etc/fonts", "/etc/fonts", optional=True),
        Bind("/etc/services", "/etc/services", optional=True, file=True),      # socket.getservbyname
        Bind("/etc/mime.types", "/etc/mime.types", optional=True, file=True),  # mimetypes
        *(Bind(f"/dev/{name}", f"/dev/{name}", device=True) for name in ("null", "full", "random", "urandom")),
        *((Bind("/dev/zero", "/dev/zero", device=True, written=memory_counted),)
          if memory_counted or landlocked else ()),
    )
    texts = (
        Text("/etc/passwd", f"root:x:0:0:root:/nonexistent:{_NOLOGIN}\n"
                            f"{_USER}:x:{uid}:{uid}:{_USER}:/workspace:/bin/sh\n"
                            f"nobody:x:65534:65534:nobody:/nonexistent:{_NOLOGIN}\n".encode()),
        Text("/etc/group", f"root:x:0:\n{_USER}:x:{uid}:\nnogroup:x:65534:\n".encode()),
        Text("/etc/hosts", b"127.0.0.1 localhost leeward\n::1 localhost\n"),
        Text("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n"),
    )
    links = (
        *(Link(root, to) for root, to in root_links.items()),
        Link("/dev/fd", "/proc/self/fd"),
        Link("/dev/stdin", "/proc/self/fd/0"),
        Link("/dev/stdout", "/proc/self/fd/1"),
        Link("/dev/stderr", "/proc/self/fd/2"),
        Link("/etc/mtab", "/proc/self/mounts"),
        Link("/etc/os-release", "/usr/lib/os-release"),
        *(() if any(_within(folder, "/var/tmp") for folder in below_usr) else (Link("/var/tmp", "/tmp"),)),
        *((Link("/etc/localtime", localtime),) if localtime else ()),
    )
    path = "/usr/local/bin:/usr/bin:/bin"
    return SandboxSpec(
        profile="python",
        view=View(binds, texts, links, Scratch(("/workspace", "/tmp", "/dev/shm"))),
        executable=host.executable,
        preload=tuple(dict.fromkeys((*(WARM if warm else ()), *preload))),
        limits=limits,
        uid=uid,
        environment=(
            ("PATH", f"{host.env}/bin:{path}" if host.env else path),
            ("HOME", "/workspace"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"), ("USER", _USER), ("LOGNAME", _USER),
            ("PYTHONDONTWRITEBYTECODE", "1"), ("MPLCONFIGDIR", "/tmp"),
            *_ONE_THREAD,
        ),
    )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _outermost(folders: list[str]) -> list[str]:
    """
    *folders* without those that lie in another one of them.
    """
    unique = list(dict.fromkeys(folders))
    return [folder for folder in unique if not any(other != folder and _within(folder, other) for other in unique)]

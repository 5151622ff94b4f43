"""
Finds the program of an agent, and the folders of the host that a sandbox has to show for it.

Leaves:    files that a program loads from other places. A definition can show more folders (`programs`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from leeward.apps.agents.written import open_beside, writable_by_agents
from leeward.base.dataclass import dataclass
from leeward.errors import RequestRejected
from leeward.spec.folders import outermost, within

#: Folders of the host that each sandbox shows.
_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
#: Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE), and the most interpreters of interpreters.
_LINE, _DEPTH = 256, 4
_ENV = "env"
#: Programs of version managers to which their shims are links.
_MANAGERS = ("mise", "volta-shim")


@dataclass(frozen=True, slots=True)
class AgentProgram:
    argv: tuple[str, ...]  # the program, with its interpreter before it if it is a script
    shown: tuple[str, ...]  # files and folders of the host that it needs, by their real paths; none is below another
    folders: tuple[str, ...]  # the folders to put first in PATH


@dataclass(frozen=True, slots=True)
class _Places:
    environ: Mapping[str, str]  # of the caller
    written: Sequence[str]  # real paths of folders that agents can write to: what a program there names isn't trusted
    allowed: Sequence[str]  # real paths that may be shown even so
    in_image: bool  # what is in the host's /usr isn't shown: the image has it, by its name

    def is_doubtful(self, found: str) -> bool:
        """Whether *found* is in a folder that agents can write to, or leads there or through one."""
        if not self.written:
            return False
        if any(within(path, each) for path in (found, os.path.realpath(found)) for each in self.written):
            return True
        try:
            os.close(open_beside(found, writable_by_agents(self.written, self.environ)))
        except RequestRejected:
            return True
        except OSError:
            pass  # running the program reports it
        return False

    def check(self, found: str, shown: Sequence[str]) -> None:
        for path in shown:
            if not any(within(path, each) for each in (*self.written, *self.allowed)):
                raise RequestRejected(
                    f"{found!a:.200} is in a folder that agents write, and has to be shown {path!a:.200}, which isn't"
                    " for an agent to choose: install it elsewhere, or name that in `programs` of its definition")


def find(command: str, environ: Mapping[str, str], written: Sequence[str] = (),
         allowed: Sequence[str] = (), *, in_image: bool = False) -> AgentProgram | None:
    """
    The program *command*, a path or a name in PATH, as the caller's shell would find it; None if there is none. *in_image*:
    for a sandbox with an image, whose program of the same name, and interpreter, stand for those in the host's /usr.

    For a program in *written*, real paths that agents can write to, only these, /usr and *allowed* are shown. Raises
    RequestRejected if it can't be run in a sandbox: its interpreter is missing, it is a shim whose program isn't found,
    or agents may have chosen what it needs.
    """
    path = environ.get("PATH") or os.defpath
    found = _which(command, path, environ)
    if found is None:
        return AgentProgram((os.path.basename(command),), (), ()) if in_image else None
    argv, shown = _resolved(os.path.abspath(found), path, environ, 0, _Places(environ, written, allowed, in_image), False)
    folders = [os.path.dirname(word) for word in argv if word.startswith("/") and os.access(word, os.X_OK)]
    return AgentProgram(tuple(argv), outermost(shown), tuple(dict.fromkeys(
        folder for folder in folders if not _is_shown(folder))))


def _which(command: str, path: str, environ: Mapping[str, str]) -> str | None:
    """As `shutil.which`, but without the imports of its module, and with the program behind a version manager's shim."""
    folders = [""] if os.path.dirname(command) else path.split(os.pathsep)
    for folder in folders:
        found = os.path.join(folder, command)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            if "/shims/" not in found and os.path.basename(os.path.realpath(found)) not in _MANAGERS:
                return found
            from leeward.apps.agents.shims import behind  # only for a shim

            program = behind(found, environ)
            if program is None:
                return found
            if program:
                return program
    return None


def _resolved(found: str, path: str, environ: Mapping[str, str], depth: int, places: _Places,
              doubtful: bool) -> tuple[list[str], list[str]]:
    """The argv of the program at *found*, and what it needs; *doubtful*: one that an agent can write to has named it."""
    doubtful = doubtful or places.is_doubtful(found)
    venv = _venv(os.path.dirname(os.path.dirname(found)))
    # In a virtual environment python is a link, and finds its packages by the link's path.
    real = found if venv else os.path.realpath(found)
    if places.in_image and _is_shown(real):
        return [os.path.basename(found)], []
    venv = venv or _venv(os.path.dirname(os.path.dirname(real)))
    shown = [*venv, *_rooms(os.path.realpath(real))]
    if doubtful:
        places.check(found, shown)
    line = _first_line(real)
    if not line:
        return [real], shown
    if depth >= _DEPTH:
        raise RequestRejected(f"{found}: too many interpreters")
    words = line.split(None, 1)
    interpreter, rest = words[0], words[1:]
    if os.path.basename(interpreter) == _ENV and rest:
        rest = rest[0].removeprefix("-S ").split()
        interpreter, rest = rest[0], rest[1:]
    where = _which(interpreter, path, environ)
    if where is None:
        raise RequestRejected(f"{found} is run by {interpreter}, which isn't there")
    argv, more = _resolved(os.path.abspath(where), path, environ, depth + 1, places, doubtful)
    return [*argv, *rest, real], [*shown, *more]


def _first_line(path: str) -> str:
    """The text after `#!` in the first line; "" for a program that is no script."""
    try:
        with open(path, "rb") as file:
            head = file.read(_LINE)
    except OSError:
        return ""
    return head[2:].partition(b"\n")[0].decode("utf-8", "replace").strip() if head.startswith(b"#!") else ""


def _rooms(real: str) -> list[str]:
    """The folders to show for the program *real*: its node_modules, or the file and its library; [] if it is shown anyway."""
    if _is_shown(real):
        return []
    head, name, _ = real.partition("/node_modules/")
    return [f"{head}/node_modules"] if name else [real, *_library(real)]


def _library(real: str) -> list[str]:
    """The modules and the shared library of a Python interpreter that isn't in /usr; [] for other programs."""
    version = re.fullmatch(r"python(3\.\d+)t?", os.path.basename(real))
    if version is None:
        return []
    lib = os.path.join(os.path.dirname(os.path.dirname(real)), "lib")
    shared = f"{lib}/libpython{version[1]}.so.1.0"
    return [path for path in (f"{lib}/python{version[1]}", shared) if os.path.exists(path)]


def _venv(folder: str) -> list[str]:
    """*folder* and the Python installation that it is based on, if it is a virtual environment; else []."""
    try:
        with open(os.path.join(folder, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            pairs = [line.split("=", 1) for line in file if "=" in line]
    except OSError:
        return []
    home = {name.strip(): value.strip() for name, value in pairs}.get("home", "/usr/bin")
    base = os.path.dirname(os.path.realpath(home))
    return [os.path.realpath(folder), *([base] if not _is_shown(base) and base != "/" else [])]


def _is_shown(path: str) -> bool:
    return any(within(path, place) for place in _SHOWN)

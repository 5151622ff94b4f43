"""
The program of an agent: where the caller has it, and which folders of the host a sandbox has to show for it.

Runs in:   the caller's program. It reads the caller's files, with the caller's rights.
Leaves:    files that a program loads from other places. A definition may show more folders (`programs`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from leeward.agents.written import open_beside, state_folders
from leeward.dataclass import dataclass
from leeward.errors import RequestRejected
from leeward.spec.folders import within

#: What each sandbox shows in any case.
_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
#: Bytes of a script's first line, as the kernel has it (BINPRM_BUF_SIZE), and interpreters of interpreters.
_LINE, _DEPTH = 256, 4
_ENV = "env"
#: Programs of version managers that their shims are links to.
_MANAGERS = ("mise", "volta-shim")


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """
    Attributes:
        argv: what to run: the program, with its interpreter before it if it is a script.
        shown: files and folders of the host that it needs, by their real paths; none of them lies in another one.
        folders: that PATH is to have before others.
    """

    argv: tuple[str, ...]
    shown: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Places:
    """
    Attributes:
        environ: of the caller.
        written: real paths of folders that agents write, the project among them. What a program there names, by a link,
            its first line or a file beside it, is a stranger's word.
        allowed: real paths that may be shown whoever names them.
    """

    environ: Mapping[str, str]
    written: Sequence[str]
    allowed: Sequence[str]

    def is_doubtful(self, found: str) -> bool:
        """
        Does *found* lie in what agents write, or lead there or through it?
        """
        if not self.written:
            return False
        if any(within(path, each) for path in (found, os.path.realpath(found)) for each in self.written):
            return True
        try:
            os.close(open_beside(found, lambda: (*self.written, *state_folders(self.environ))))
        except RequestRejected:
            return True
        except OSError:
            pass  # who runs it hears that
        return False

    def check(self, found: str, shown: Sequence[str]) -> None:
        for path in shown:
            if not any(within(path, each) for each in (*self.written, *self.allowed)):
                raise RequestRejected(
                    f"{found!a:.200} is in a folder that agents write, and has to be shown {path!a:.200}, which isn't"
                    " for an agent to choose: install it elsewhere, or name that in `programs` of its definition")


def find(command: str, environ: Mapping[str, str], written: Sequence[str] = (),
         allowed: Sequence[str] = ()) -> AgentProgram | None:
    """
    The program *command*, a name or a path, as a shell of the caller's would find it; None where there is none.

    Args:
        written: real paths of folders that agents write. A program there is shown nothing outside of them, /usr and
            *allowed*.
        allowed: real paths.

    Raises:
        RequestRejected: it is there, and can't be run in a sandbox: its interpreter is missing, or agents can have
            chosen what it needs.
    """
    path = environ.get("PATH") or os.defpath
    found = _which(command, path, environ)
    if found is None:
        return None
    argv, shown = _resolved(os.path.abspath(found), path, environ, 0, _Places(environ, written, allowed), False)
    folders = [os.path.dirname(word) for word in argv if word.startswith("/") and os.access(word, os.X_OK)]
    return AgentProgram(tuple(argv), outermost(shown), tuple(dict.fromkeys(
        folder for folder in folders if not _is_shown(folder))))


def _which(command: str, path: str, environ: Mapping[str, str]) -> str | None:
    """
    As `shutil.which`, whose module imports every compressor; and past the shims of version managers.
    """
    folders = [""] if os.path.dirname(command) else path.split(os.pathsep)
    for folder in folders:
        found = os.path.join(folder, command)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            if "/shims/" not in found and os.path.basename(os.path.realpath(found)) not in _MANAGERS:
                return found
            from leeward.agents.shims import behind  # most programs have none

            program = behind(found, environ)
            if program is None:
                return found
            if program:
                return program
    return None


def _resolved(found: str, path: str, environ: Mapping[str, str], depth: int, places: _Places,
              doubtful: bool) -> tuple[list[str], list[str]]:
    """
    The argv of the program at *found*, and what shows it; *doubtful* says that a program of an agent's has named it.
    """
    doubtful = doubtful or places.is_doubtful(found)
    venv = _venv(os.path.dirname(os.path.dirname(found)))
    # In a virtual environment python is a link, and looks beside that for its packages.
    real = found if venv else os.path.realpath(found)
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
    """
    What follows `#!`; "" for a program that is no script.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_LINE)
    except OSError:
        return ""
    return head[2:].partition(b"\n")[0].decode("utf-8", "replace").strip() if head.startswith(b"#!") else ""


def _rooms(real: str) -> list[str]:
    """
    The folder of packages that has *real*, or *real* alone.
    """
    if _is_shown(real):
        return []
    head, name, _ = real.partition("/node_modules/")
    return [f"{head}/node_modules"] if name else [real, *_library(real)]


def _library(real: str) -> list[str]:
    """
    Of an interpreter of Python's that was installed elsewhere than in /usr: its modules and its shared library.
    """
    version = re.fullmatch(r"python(3\.\d+)t?", os.path.basename(real))
    if version is None:
        return []
    lib = os.path.join(os.path.dirname(os.path.dirname(real)), "lib")
    shared = f"{lib}/libpython{version[1]}.so.1.0"
    return [path for path in (f"{lib}/python{version[1]}", shared) if os.path.exists(path)]


def _venv(folder: str) -> list[str]:
    """
    *folder* and the installation of Python's that it is made of, if it is a virtual environment.
    """
    try:
        with open(os.path.join(folder, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            pairs = [line.split("=", 1) for line in file if "=" in line]
    except OSError:
        return []
    home = {name.strip(): value.strip() for name, value in pairs}.get("home", "/usr/bin")
    base = os.path.dirname(os.path.realpath(home))
    return [os.path.realpath(folder), *([base] if not _is_shown(base) and base != "/" else [])]


def _is_shown(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in _SHOWN)


def outermost(paths: list[str]) -> tuple[str, ...]:
    """
    *paths*, each once, without those that lie in another one.
    """
    unique = dict.fromkeys(paths)
    return tuple(path for path in unique
                 if not any(other != path and path.startswith(f"{other.rstrip('/')}/") for other in unique))

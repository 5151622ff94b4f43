"""
Shims: scripts that a version manager puts into PATH, and the programs that they would run.

Runs in:   the caller's program. It reads the caller's files, with the caller's rights.

A shim calls its manager, which chooses a version by a variable, by files of the current folder and by a file of its
own. A sandbox has none of these, so the choice is made here. A project's own file (`.python-version`) isn't read: a
project isn't trusted to choose the program that runs the agent.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence

from leeward.errors import RequestRejected

#: The call of the manager in a shim of pyenv, rbenv or nodenv.
_EXEC = re.compile(r"/(pyenv|rbenv|nodenv)\"? exec ")
#: Managers of all kinds of tools, whose shims call or link to a program of theirs (`shims_of_tools`).
_OTHERS = ("asdf", "mise", "volta-shim")
#: Bytes of a shim, and of a file with versions.
_MOST = 4096
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def behind(found: str, environ: Mapping[str, str]) -> str | None:
    """
    The program that the shim *found* would run; "" for the system's program, which is later in PATH; None if *found* is
    no shim.

    Raises:
        RequestRejected: no chosen version has the program, or it isn't known which one the manager would run.
    """
    folder, name = os.path.split(found)
    manager = os.path.basename(os.path.realpath(found))
    if name != manager and manager in _OTHERS:
        return _chosen(manager, found, environ)
    if os.path.basename(folder) != "shims":
        return None
    text = read_head(found)
    asked = _EXEC.search(text) if text.startswith("#!") else None
    if asked is None:
        other = next((each for each in _OTHERS if re.search(rf"\b{each} exec\b", text)), None)
        if other is not None:
            return _chosen(other, found, environ)
        return None
    root = os.path.dirname(folder)
    versions = (environ.get(f"{asked[1].upper()}_VERSION") or read_head(f"{root}/version")).replace(":", " ").split()
    for version in versions or ["system"]:
        if version == "system":
            return ""
        program = f"{installed(f'{root}/versions', version)}/bin/{name}"
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    there = [each for each in _folders(f"{root}/versions") if os.access(f"{root}/versions/{each}/bin/{name}", os.X_OK)]
    raise RequestRejected(
        f"{found} is a shim of {asked[1]}, and its version {', '.join(versions)!a:.100} has no {name!a:.100}"
        + (f"; these have: {', '.join(there)[:500]}. Choose one by {asked[1]} global, or {asked[1].upper()}_VERSION"
           if there else ""))


def _chosen(manager: str, found: str, environ: Mapping[str, str]) -> str:
    from leeward.agents.shims_of_tools import chosen  # only for a shim of theirs

    program = chosen(manager, found, environ)
    if program is None:
        raise RequestRejected(
            f"{found} is a shim of {manager}, and no version that you have chosen for all folders has that program (a"
            " project's own choice isn't used): choose one, or name the program itself in the agent's definition, by"
            f" the path that `{manager.removesuffix('-shim')} which` prints")
    return program


def read_head(path: str, most: int = _MOST) -> str:
    """The first *most* bytes of a regular file, as text; "" for one that can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        return file.read(most).decode("utf-8", "replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""


def installed(versions: str, asked: str) -> str:
    """
    The folder of the version *asked*, or of the newest version that begins with it (3.12.1 for 3.12), as these managers
    choose.
    """
    if _VERSION.fullmatch(asked) is None:  # it could be a path
        return "/nonexistent"
    if os.path.isdir(f"{versions}/{asked}"):
        return f"{versions}/{asked}"
    fit = [each for each in _folders(versions) if each.startswith(f"{asked}.")]
    return f"{versions}/{max(fit, key=_numbers)}" if fit else "/nonexistent"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:8]]


def _folders(path: str) -> Sequence[str]:
    try:
        return sorted(name for name in os.listdir(path) if _VERSION.fullmatch(name))
    except OSError:
        return ()

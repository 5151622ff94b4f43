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
from collections.abc import Mapping, Sequence

from leeward.errors import RequestRejected

#: The call of the manager in a shim of pyenv, rbenv or nodenv.
_EXEC = re.compile(r"/(pyenv|rbenv|nodenv)\"? exec ")
#: Managers whose choice can't be made here: their shims call or link to a program of theirs.
_OTHERS = ("asdf", "mise", "volta-shim")
#: Bytes of a shim, and of a file with versions.
_MOST = 4096
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def behind(found: str, environ: Mapping[str, str]) -> str | None:
    """
    The program that the shim *found* would run; "" for the system's program, which is later in PATH; None if *found* is
    no shim.

    Raises:
        RequestRejected: no chosen version has the program, or the manager's choice can't be made here.
    """
    folder, name = os.path.split(found)
    manager = os.path.basename(os.path.realpath(found))
    if name != manager and manager in _OTHERS:
        raise RequestRejected(_unknown(found, manager))
    if os.path.basename(folder) != "shims":
        return None
    text = _head(found)
    asked = _EXEC.search(text) if text.startswith("#!") else None
    if asked is None:
        other = next((each for each in _OTHERS if re.search(rf"\b{each} exec\b", text)), None)
        if other is not None:
            raise RequestRejected(_unknown(found, other))
        return None
    root = os.path.dirname(folder)
    versions = (environ.get(f"{asked[1].upper()}_VERSION") or _head(f"{root}/version")).replace(":", " ").split()
    for version in versions or ["system"]:
        if "system" == version:
            return ""
        program = f"{_installed(f'{root}/versions', version)}/bin/{name}"
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    there = [each for each in _folders(f"{root}/versions") if os.access(f"{root}/versions/{each}/bin/{name}", os.X_OK)]
    raise RequestRejected(
        f"{found} is a shim of {asked[1]}, and its version {', '.join(versions)!a:.100} has no {name!a:.100}"
        + (f"; these have: {', '.join(there)[:500]}. Choose one by {asked[1]} global, or {asked[1].upper()}_VERSION"
           if there else ""))


def _unknown(found: str, manager: str) -> str:
    return (f"{found} is a shim of {manager}, which chooses a program by files that a sandbox doesn't have: name"
            f" the program itself in the agent's definition, by the path that `{manager.removesuffix('-shim')} which`"
            " prints")


def _head(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def _installed(versions: str, asked: str) -> str:
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

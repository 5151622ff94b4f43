"""
Shims: scripts that a version manager puts into PATH, and the programs that they would run.

A shim calls its manager, which chooses a version by a variable, by files of the current folder and by a file of its
own. A sandbox has none of these, so the choice is made here, by the variables and the user's own files. A project's
files (`.python-version`, `.tool-versions`, `mise.toml`, `package.json`) aren't read: a project isn't trusted to choose
the program that runs the agent. What the managers compute by programs of plug-ins isn't known here.
Source:    asdf's shims name their plugins in comments; `installs/PLUGIN/VERSION/bin` is the default of its
           `list-bin-paths`. mise's data folder has `installs/TOOL/VERSION` too. Volta's has `tools/user/platform.json`,
           `tools/user/bins/NAME.json` and `tools/image`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leeward.apps.agents.reading import beginning
from leeward.base.user_folders import user_folder
from leeward.errors import RequestRejected

#: The call of the manager in a shim of pyenv, rbenv or nodenv.
_EXEC = re.compile(r"/(pyenv|rbenv|nodenv)\"? exec ")
#: Managers of all kinds of tools, whose shims call or link to a program of theirs.
_OTHERS = ("asdf", "mise", "volta-shim")
#: Bytes of a shim, and of a file with versions.
_MOST = 4096
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def behind(found: str, environ: Mapping[str, str]) -> str | None:
    """
    The program that the shim *found* would run; "" for the system's, which is later in PATH; None if it is no shim.

    Raises RequestRejected if no chosen version has the program, or it isn't known which one the manager would run.
    """
    folder, name = os.path.split(found)
    manager = os.path.basename(os.path.realpath(found))
    if name != manager and manager in _OTHERS:
        return _chosen_or_refused(manager, found, environ)
    if os.path.basename(folder) != "shims":
        return None
    text = _text(found)
    asked = _EXEC.search(text) if text.startswith("#!") else None
    if asked is None:
        other = next((each for each in _OTHERS if re.search(rf"\b{each} exec\b", text)), None)
        if other is not None:
            return _chosen_or_refused(other, found, environ)
        return None
    root = os.path.dirname(folder)
    versions = (environ.get(f"{asked[1].upper()}_VERSION") or _text(f"{root}/version")).replace(":", " ").split()
    for version in versions or ["system"]:
        if version == "system":
            return ""
        program = f"{_installed(f'{root}/versions', version)}/bin/{name}"
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    there = [each for each in _folders(f"{root}/versions") if os.access(f"{root}/versions/{each}/bin/{name}", os.X_OK)]
    raise RequestRejected(
        f"{found} is a shim of {asked[1]}, and its version {', '.join(versions)!a:.100} has no {name!a:.100}"
        + (f"; these have: {', '.join(there)[:500]}. Choose one by {asked[1]} global, or {asked[1].upper()}_VERSION"
           if there else ""))


def _chosen_or_refused(manager: str, found: str, environ: Mapping[str, str]) -> str:
    program = _chosen(manager, found, environ)
    if program is None:
        raise RequestRejected(
            f"{found} is a shim of {manager}, and no version that you have chosen for all folders has that program (a"
            " project's own choice isn't used): choose one, or name the program itself in the agent's definition, by"
            f" the path that `{manager.removesuffix('-shim')} which` prints")
    return program


def _text(path: str, most: int = _MOST) -> str:
    return (beginning(path, most, follow=True) or b"").decode("utf-8", "replace")


def _installed(versions: str, asked: str) -> str:
    """The folder of the version *asked*, or of the newest that begins so (3.12.1 for 3.12), as these managers choose."""
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


#: Bytes of a file with a user's choices.
_MOST_CHOSEN = 1 << 18
_PLUGIN = re.compile(r"^# asdf-plugin: ([A-Za-z0-9][\w.-]*) \S+$", re.MULTILINE)
_PACKAGE = re.compile(r"(?:@[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


def _chosen(manager: str, found: str, environ: Mapping[str, str]) -> str | None:
    """The program behind the shim *found* of asdf, mise or Volta; "" for the system's; None if it isn't known which."""
    folder, name = os.path.split(found)
    root = os.path.dirname(folder)
    if manager == "volta-shim":
        places = _of_volta(environ.get("VOLTA_HOME") or root, name)
    elif manager == "mise":
        places = _versions(f"{environ.get('MISE_DATA_DIR') or root}/installs", _of_mise(environ))
    else:
        asked = _of_asdf(environ, dict.fromkeys(_PLUGIN.findall(_text(found, _MOST_CHOSEN))))
        places = _versions(f"{environ.get('ASDF_DATA_DIR') or root}/installs", asked)
    system = None
    for place in places:
        if not place and manager == "mise":
            system = ""  # another tool may have it: which one isn't in the shim
            continue
        if not place:
            return ""
        for program in (f"{place}/bin/{name}", f"{place}/{name}"):
            if os.path.isfile(program) and os.access(program, os.X_OK):
                return program
    return system


def _versions(installs: str, asked: Iterator[tuple[str, str]]) -> Iterator[str]:
    return ("" if version == "system" else _installed(f"{installs}/{tool}", version) for tool, version in asked)


def _of_asdf(environ: Mapping[str, str], plugins: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    own = dict(_tool_versions(environ))
    for plugin in plugins:
        given = environ.get(f"ASDF_{plugin.upper().replace('-', '_')}_VERSION")
        for version in given.split() if given else own.get(plugin, []):
            yield plugin, version


def _tool_versions(environ: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for line in _text(os.path.join(environ.get("HOME") or "/", ".tool-versions"), _MOST_CHOSEN).splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words[0], words[1:]


def _of_mise(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    import tomllib  # only for a shim

    folder = environ.get("MISE_CONFIG_DIR") or user_folder(environ, "CONFIG", "mise")
    try:
        tools = tomllib.loads(_text(f"{folder}/config.toml", _MOST_CHOSEN)).get("tools", {})
    except (ValueError, RecursionError):
        return
    asked = {**dict(_tool_versions(environ)), **(tools if isinstance(tools, dict) else {})}
    for tool, versions in asked.items():
        slug = re.sub(r"[^a-z0-9]+", "-", tool.lower()).strip("-")
        given = environ.get(f"MISE_{slug.upper().replace('-', '_')}_VERSION")
        for version in given.split() if given else versions if isinstance(versions, list) else [versions]:
            text = version.get("version") if isinstance(version, dict) else version
            if slug and isinstance(text, str):
                yield slug, text


def _of_volta(root: str, name: str) -> Iterator[str]:
    own = _json(f"{root}/tools/user/bins/{name}.json").get("package")
    if isinstance(own, str):
        if _PACKAGE.fullmatch(own):
            yield f"{root}/tools/image/packages/{own}"
        return
    node = _json(f"{root}/tools/user/platform.json").get("node")
    for tool, version in (("npm", node.get("npm")), ("node", node.get("runtime"))) if isinstance(node, dict) else ():
        if isinstance(version, str):
            yield _installed(f"{root}/tools/image/{tool}", version)


def _json(path: str) -> dict[str, Any]:
    try:
        table = json.loads(_text(path, _MOST_CHOSEN) or "{}")
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}

"""
Shims of asdf, mise and Volta, which install many kinds of tools: the versions that their user has chosen.

Runs in:   the caller's program. It reads the caller's files, with the caller's rights, and runs none of them.
Source:    asdf's shims name their plugins in comments; `installs/PLUGIN/VERSION/bin` is the default of its
           `list-bin-paths`. mise's data folder has `installs/TOOL/VERSION` too. Volta's has `tools/user/platform.json`,
           `tools/user/bins/NAME.json` and `tools/image`.

Read are the variables and the user's own files. A project's `.tool-versions`, `mise.toml` and `package.json` aren't,
since a project isn't trusted to choose the program that runs the agent. What the managers compute by programs of
plug-ins isn't known here; a tool that needs that isn't found.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from leeward.agents.shims import installed, read_head

#: Bytes of a file with a user's choices.
_MOST = 1 << 18
_PLUGIN = re.compile(r"^# asdf-plugin: ([A-Za-z0-9][\w.-]*) \S+$", re.MULTILINE)
_PACKAGE = re.compile(r"(?:@[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


def chosen(manager: str, found: str, environ: Mapping[str, str]) -> str | None:
    """
    The program behind the shim *found* of *manager* (`asdf`, `mise` or `volta-shim`); "" for the system's program;
    None if it isn't known which one the manager would run.
    """
    folder, name = os.path.split(found)
    root = os.path.dirname(folder)
    if manager == "volta-shim":
        places = _of_volta(environ.get("VOLTA_HOME") or root, name)
    elif manager == "mise":
        places = _versions(f"{environ.get('MISE_DATA_DIR') or root}/installs", _of_mise(environ))
    else:
        asked = _of_asdf(environ, dict.fromkeys(_PLUGIN.findall(read_head(found, _MOST))))
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
    return ("" if version == "system" else installed(f"{installs}/{tool}", version) for tool, version in asked)


def _of_asdf(environ: Mapping[str, str], plugins: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    own = dict(_tool_versions(environ))
    for plugin in plugins:
        given = environ.get(f"ASDF_{plugin.upper().replace('-', '_')}_VERSION")
        for version in given.split() if given else own.get(plugin, []):
            yield plugin, version


def _tool_versions(environ: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for line in read_head(os.path.join(environ.get("HOME") or "/", ".tool-versions"), _MOST).splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words[0], words[1:]


def _of_mise(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    import tomllib  # only for a shim

    home = environ.get("HOME") or "/"
    config = environ.get("XDG_CONFIG_HOME", "")
    folder = environ.get("MISE_CONFIG_DIR") or f"{config if config.startswith('/') else f'{home}/.config'}/mise"
    try:
        tools = tomllib.loads(read_head(f"{folder}/config.toml", _MOST)).get("tools", {})
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
            yield installed(f"{root}/tools/image/{tool}", version)


def _json(path: str) -> dict[str, Any]:
    try:
        table = json.loads(read_head(path, _MOST) or "{}")
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}

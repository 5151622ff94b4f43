"""
The name and address of a person in git's settings on the host, and the settings file that an agent gets instead: it has
these two, and nothing else of the person's, such as credential helpers, aliases and programs.

Trust:     none in the values: they are written quoted, and one that isn't plain text is left out. git isn't run, since
           a project could choose which one, or what it reads.
Source:    git-config(1): syntax, includes and their conditions.
Leaves:    the conditions `onbranch` and `hasconfig`, which depend on the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from leeward.apps.agents.reading import beginning
from leeward.base.user_folders import user_folder

#: Bytes of a file, files that are included, and characters of a value, at most.
_MOST_BYTES, _MOST_FILES, _MOST_VALUE = 256 << 10, 20, 200
_SECTION = rb"\[[ \t]*([A-Za-z0-9.-]+)(?:[ \t]+\"((?:[^\"\\\n]|\\.)*)\")?[ \t]*\]"
#: A key, and its value up to the end of the line, which a backslash continues.
_ENTRY = rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=((?:[^\\\n]|\\.|\\\r?\n)*))?"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def identity_of(project: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`name` and `email` of the user who works on the real path *project*, as far as the user's own settings have them."""
    home = environ.get("HOME") or "/"
    named = environ.get("GIT_CONFIG_GLOBAL")
    files = [named] if named is not None else [
        user_folder(environ, "CONFIG", "git/config"), os.path.join(home, ".gitconfig")]
    found, left = dict[str, str](), [_MOST_FILES]
    for file in files:
        for key, value in _entries(file, project, home, left):
            found[key] = value
    return {key: value for key, value in found.items() if value and value.isprintable() and len(value) <= _MOST_VALUE}


def own_settings(project: str, environ: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    """The file of git's for the sandbox of an agent on *project*, with its path there and its content; () if it is empty."""
    identity = identity_of(project, environ)
    home = os.path.realpath(environ.get("HOME") or "/")
    return ((os.path.join(home, ".gitconfig"), settings_with(identity)),) if identity else ()


def settings_with(identity: Mapping[str, str]) -> bytes:
    """A settings file of git's with *identity* alone."""
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "".join(("[user]\n", *(f"\t{key} = {quoted(value)}\n" for key, value in identity.items()))).encode()


def _entries(file: str, project: str, home: str, left: list[int]) -> Iterator[tuple[str, str]]:
    """The entries `name` and `email` of *file* and what it includes, in git's order; *left* files may still be read."""
    left[0] -= 1
    content = beginning(file, _MOST_BYTES, follow=True) if left[0] >= 0 else None
    section, condition = "", ""
    for found in re.finditer(_SECTION + rb"|^[ \t]*[#;][^\n]*|" + _ENTRY, content or b"", re.MULTILINE):
        if found[1] is not None:
            section, condition = found[1].decode().lower(), _unescaped(found[2] or b"")
        elif found[3] is not None:
            key, value = found[3].decode().lower(), _value(found[4] or b"")
            if section == "user" and not condition and key in ("name", "email"):
                yield key, value
            elif key == "path" and (section == "include" or (section == "includeif" and _holds(
                    condition, project, home, os.path.dirname(file)))):
                yield from _entries(_path(value, home, os.path.dirname(file)), project, home, left)


def _value(written: bytes) -> str:
    """A value as git reads it: quotes and escapes are resolved, and a comment and blanks at the ends are left out."""
    made, kept, is_quoted, letters = "", 0, False, iter(written.decode("utf-8", "replace").replace("\\\r\n", "\\\n"))
    for letter in letters:
        if letter == '"':
            is_quoted = not is_quoted
            kept = len(made)
        elif letter == "\\":
            after = next(letters, "")
            made += "" if after == "\n" else _ESCAPES.get(after, after)
            kept = len(made)
        elif letter in "#;" and not is_quoted:
            break
        elif is_quoted or letter not in " \t\r":
            made += letter
            kept = len(made)
        elif made:
            made += letter
    return made[:kept]


def _unescaped(name: bytes) -> str:
    return re.sub(r"\\(.)", r"\1", name.decode("utf-8", "replace"))


def _path(written: str, home: str, folder: str) -> str:
    return os.path.join(home, written[2:]) if written.startswith("~/") else os.path.join(folder, written)


def _holds(condition: str, project: str, home: str, folder: str) -> bool:
    """Whether a condition `gitdir:PATTERN` of an include holds for the repository in *project*."""
    kind, _, pattern = condition.partition(":")
    if kind not in ("gitdir", "gitdir/i") or not pattern:
        return False
    if pattern.startswith("./"):
        pattern = os.path.join(folder, pattern[2:])
    elif pattern.startswith("~/"):
        pattern = os.path.join(home, pattern[2:])
    elif not pattern.startswith("/"):
        pattern = f"**/{pattern}"
    if pattern.endswith("/"):
        pattern += "**"
    parts = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    compiled = "".join(parts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", pattern))
    return re.fullmatch(compiled, f"{project}/.git", re.IGNORECASE if kind == "gitdir/i" else 0) is not None

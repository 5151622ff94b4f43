"""
Repositories: which folders are some, by what git and its relatives recognise; what they obey in one; and what the
settings of one of git's name.

Leaves:    a user's own settings, in the home folder; values over several lines.
Source:    gitrepository-layout(5), git's setup.c (is_git_directory): a folder with HEAD, objects and refs is a
           repository, whatever its name; a linked worktree's has HEAD and commondir. svnadmin(1): format, db and hooks.
           git-config(1)
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence

from leeward.spec.obeyed.lookup import plain
from leeward.spec.obeyed.table import AT_ONCE, ROWS

#: Settings whose value is a path, and those whose value is a command, beside aliases with a `!`.
_PATHS = (b"hookspath", b"path", b"attributesfile", b"templatedir")
_COMMANDS = (b"fsmonitor", b"sshcommand", b"editor", b"pager", b"clean", b"smudge", b"process", b"textconv", b"command",
             b"driver", b"cmd", b"program", b"helper", b"askpass", b"external", b"gitproxy", b"difffilter",
             b"alternaterefscommand", b"defaultkeycommand", b"uploadpack", b"receivepack")
#: Words of a value that are looked at, at most; and paths until no further file is read.
_MOST, _MOST_NAMED = 100, 500


def named_in(settings: bytes) -> list[tuple[str, bool]]:
    """The words of *settings* that git runs or reads: whether each is a path by itself, or a word of a command."""
    found, lower = list[tuple[str, bool]](), settings.lower()
    if not any(each in lower for each in (*_PATHS, *_COMMANDS, b"!")):  # few repositories have one
        return found
    keys = b"|".join((*_PATHS, *_COMMANDS))
    for naming in re.finditer(rb"(?im)(?:^|\])[ \t]*(" + keys + rb")[ \t]*=(.*)$|=[ \t]*\"?!(.*)$", settings):
        is_path = (naming[1] or b"").lower() in _PATHS
        words = re.split(rb"[\s\"'=:;|&()<>]+", naming[2] or naming[3] or b"")[:_MOST]
        found += [(word.decode("utf-8", "surrogateescape"), is_path) for word in words if word]
    return found


def named_below(settings: Iterable[str], bases: Sequence[str], inner: Callable[[str], str],
                read: Callable[[str], bytes]) -> dict[str, bool]:
    """
    The paths in a folder that git runs or reads by the files *settings*, and by those that these include: whether each
    is a path by itself, or a word of a command. *bases* are the folders from which a path may count; *inner* makes a
    path one in the folder, or "" of one that isn't in it; *read* gives a file's content, empty if there is none.
    """
    found, waiting = dict[str, bool](), list(settings)
    while waiting:
        here = waiting.pop()
        for word, is_path in named_in(read(here)):
            for name in {inner(posixpath.join(base, word)) for base in (*bases, posixpath.dirname(here))} - {"", *bases}:
                if is_path and not found.get(name) and len(found) < _MOST_NAMED:
                    waiting.append(name)
                found[name] = is_path or found.get(name, False)
    return found


#: The head and the lines of a branch's settings: which branch of which remote it follows.
_BRANCH = re.compile(rb'[ \t]*\[branch "[^"\\]*"\][ \t\r]*')
_OF_BRANCH = re.compile(rb"[ \t]*(remote|merge|rebase)[ \t]*=[ \t]*[a-z0-9][a-z0-9._/-]*[ \t\r]*", re.I)


def without_branches(settings: bytes) -> bytes | None:
    """Settings of git without those of branches, which name no program; None if a value may have several lines."""
    kept, head = list[bytes](), b""
    for line in settings.split(b"\n"):
        if line.rstrip(b"\r").endswith(b"\\"):
            return None
        if _BRANCH.fullmatch(line):
            head = line
        elif not (head and _OF_BRANCH.fullmatch(line)):
            if head and line.strip():
                if not line.lstrip().startswith(b"["):
                    kept.append(head)  # with another setting, which may have been another section's
                head = b""
            kept.append(line)
    return b"\n".join(kept)


#: Names that make a folder a repository together, in lower case; each set by itself.
SIGNS = (frozenset(("head", "objects", "refs")), frozenset(("head", "commondir")), frozenset(("format", "db", "hooks")))

#: A name that no folder of a project has by chance, and without which no set of SIGNS is whole for git.
_MAKING = ("head", "commondir")

#: The names of the folders and files that stand for a repository.
NAMES = frozenset((".git", ".hg", ".sl", ".jj", ".svn", ".fslckout", "_fossil_", ".pijul", "_darcs", ".bzr"))

#: What is obeyed in a repository, by the name of its folder; "" for one of git's with another name.
INSIDE: dict[str, list[str]] = {name: [] for name in NAMES}
for _row in (row for row in ROWS if row.kind == AT_ONCE):
    for _name in _row.names:
        if "/" in _name and (_folder := _name[:_name.index("/")]) in INSIDE:
            INSIDE[_folder].append(_name[len(_folder) + 1:])
INSIDE[""] = INSIDE[".git"]


def is_repository(names: Iterable[str]) -> bool:
    """Whether a folder with *names* in it is a repository, whatever its own name is."""
    there = _plain(names)
    return any(signs <= there for signs in SIGNS)


def _plain(names: Iterable[str]) -> set[str]:
    """Those of *names* that may be one of SIGNS, as the host reads them."""
    return {plain(name) for name in names
            if len(name) < 10 or ":" in name or name[-1] in " ." or not name.isascii()}


def names_repository(path: str) -> bool:
    """Whether *path*, or a pattern, names or lies in a repository by its name, or its last part makes a folder one."""
    parts = [plain(part) for part in path.split("/")]
    return not NAMES.isdisjoint(parts) or parts[-1] in _MAKING


def makes_repository(name: str, there: Iterable[str]) -> bool:
    """Whether the names *there* and *name* make a repository. HEAD and one other do: the third may be on its way."""
    present = _plain(there)
    return is_repository((*present, name)) or ("head" in present and plain(name) in ("objects", "refs"))

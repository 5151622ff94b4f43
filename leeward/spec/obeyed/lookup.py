"""
Looks names up in the table, as the host reads them.

Source:    git's path.c and utf8.c (is_ntfs_dotgit, is_hfs_dotgit): a file system may ignore case, HFS+ characters
           without a width, NTFS blanks and full stops at the end and what follows a colon; `git~1` is a short name.
           fs/unicode in Linux: a folder of ext4, f2fs or tmpfs with `casefold` ignores what Unicode's
           DerivedCoreProperties.txt calls Default_Ignorable_Code_Point.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from leeward.spec.obeyed.table import AT_ONCE, HARMLESS, ROWS, WHEN_ASKED, ObeyedRow

#: What a name is that begins with a dot and isn't in the table.
DOTTED = ObeyedRow((".*",), "a program that isn't known here", WHEN_ASKED, "", "names of settings begin with a dot")

_RANK = {AT_ONCE: 0, WHEN_ASKED: 1, HARMLESS: 2}
#: Characters that file systems ignore in a name.
_IGNORED = re.compile("[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
                      "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
                      "\U000e0000-\U000e0fff]+")
#: The names that NTFS gives for those that are no DOS names.
_SHORT = {"git": ".git", "gitmod": ".gitmodules", "gi7eba": ".gitmodules", "gitatt": ".gitattributes",
          "gi7d29": ".gitattributes", "gitign": ".gitignore", "gi250a": ".gitignore"}

#: A row with one of its names, by parts.
_Pattern = tuple[tuple[str, ...], ObeyedRow]


def _table() -> tuple[dict[str, list[_Pattern]], list[_Pattern], list[_Pattern]]:
    """The names by their last part; those with a star in it; and those of home folders."""
    exact, starred, homes = dict[str, list[_Pattern]](), list[_Pattern](), list[_Pattern]()
    for row in ROWS:
        for name in row.names:
            parts = tuple(name.casefold().split("/"))
            if parts[0] == "~":
                homes.append((tuple(name.split("/")[1:]), row))
            elif "*" in parts[-1]:
                starred.append((parts, row))
            else:
                exact.setdefault(parts[-1], []).append((parts, row))
    return exact, starred, homes


_EXACT, _STARRED, _HOMES = _table()
_HEADS = tuple(each for each in (parts[-1].partition("*")[0] for parts, _ in _STARRED) if each)
_TAILS = tuple(parts[-1][1:] for parts, _ in _STARRED if parts[-1].startswith("*"))
#: What such names begin or end with, for a quick look at each name of a project.
_STARTS, _ENDS = frozenset(each[:3] for each in _HEADS), frozenset(_TAILS)


def plain(name: str) -> str:
    """One part of a path as the table has it: what a host that ignores the differences takes it for."""
    if not name.isascii():
        import unicodedata  # nearly no name needs it

        name = unicodedata.normalize("NFC", _IGNORED.sub("", name))
    name = name.casefold()
    if name[-1:] in (" ", ".") or ":" in name:
        name = name.partition(":")[0].rstrip(" .") or name
    if "~" in name:
        short, _, number = name.partition("~")
        return _SHORT.get(short, name) if number.isdigit() else name
    return name


def obeyed_by(path: str) -> ObeyedRow | None:
    """The most dangerous row of *path*, in a project, and of folders above it; DOTTED where a part begins with a dot."""
    parts = [plain(part) for part in path.split("/")]
    rows = [row for end in range(1, len(parts) + 1) if (row := _row(parts[:end])) is not None]
    return min(rows, key=lambda row: (_RANK[row.kind], row is DOTTED)) if rows else None


def by_danger(path: str) -> tuple[int, str]:
    """A key to sort paths that programs obey: what runs at once first, and repositories whose name says nothing."""
    row = obeyed_by(path)
    return (0 if row is None else _RANK[row.kind]), path


def among(above: Sequence[str], names: Iterable[str]) -> list[tuple[str, ObeyedRow]]:
    """Those of *names*, in a folder of a project with the parts *above*, that have a row, each with it."""
    found, upper = list[tuple[str, ObeyedRow]](), None
    together = "/".join(names := list(names))
    is_odd = not together.isascii() or any(each in together for each in "~: ") or "./" in f"{together}/"
    for name in names:
        if not is_odd and name[0] != ".":
            key = name.lower()
            if key not in _EXACT and key[:3] not in _STARTS and key[key.rfind("."):] not in _ENDS:
                continue
        if upper is None:
            upper = [plain(part) for part in above]
        row = _row([*upper, plain(name)])
        if row is not None:
            found.append((name, row))
    return found


def home_settings(folder: str) -> list[str]:
    """The names below the state folder *folder*, relative to the home folder, that its agent obeys; they may have a star."""
    parts = tuple(folder.split("/"))
    return ["/".join(each[len(parts):]) for each, _ in _HOMES if each[:len(parts)] == parts]


def _row(parts: Sequence[str]) -> ObeyedRow | None:
    """The row whose name is at the end of *parts*, which are plain."""
    last = parts[-1]
    starred = _STARRED if last.startswith(_HEADS) or last.endswith(_TAILS) else []
    found = [row for wanted, row in _EXACT.get(last, []) + starred
             if len(wanted) <= len(parts) and all(map(_fits, wanted, parts[len(parts) - len(wanted):]))]
    if found:
        return min(found, key=lambda row: _RANK[row.kind])
    return DOTTED if last.startswith(".") else None


def _fits(wanted: str, part: str) -> bool:
    head, star, tail = wanted.partition("*")
    return part == wanted if not star else (
        len(part) >= len(head) + len(tail) and part.startswith(head) and part.endswith(tail))

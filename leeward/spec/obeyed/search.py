"""
Searches a folder for what programs on the host obey.

Trust:     none in the names. Depth and number are bounded; what isn't looked at is in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from leeward.base.dataclass import dataclass
from leeward.spec.obeyed.lookup import among, obeyed_by, plain
from leeward.spec.obeyed.repositories import INSIDE, NAMES, is_repository
from leeward.spec.obeyed.table import AT_ONCE, HARMLESS, ObeyedRow

#: Levels of folders, at most.
MAX_LEVELS = 100

#: Names in a search of paths, at most.
_MOST_PATHS = 2_000_000
#: Folders in which only names of the table count, and names that begin with a dot, and not all that is in them.
_OPEN = frozenset((".venv", ".tox", ".nox", *NAMES))
#: Names in a repository's own folders of submodules and worktrees by which one is recognised.
_SIGNS = frozenset(("config", "commondir", "gitdir"))


@dataclass(frozen=True, slots=True)
class ObeyedPaths:
    """What `search` has found, all sorted."""

    names: tuple[str, ...]  # paths that have a row, none of them below another whose whole content counts
    repositories: tuple[str, ...]  # folders, and files and links that stand for one; "" for the folder itself
    unseen: tuple[str, ...] = ()  # folders that weren't looked at: too many names, too deep, or unreadable


def repositories_among(above: Sequence[str], names: Sequence[str]) -> list[str]:
    """The paths of repositories that the *names* of the folder with the parts *above* show."""
    place = "/".join(above)
    found = [place] if is_repository(names) or (
        above[:1] == [".git"] and above[1:2] in (["modules"], ["worktrees"]) and not _SIGNS.isdisjoint(names)) else []
    return found + [f"{place}/{name}" if place else name for name in names if plain(name) in NAMES]


def outermost(found: Iterable[tuple[str, ObeyedRow]]) -> tuple[str, ...]:
    """The paths of *found* that aren't below another whose whole content counts, sorted."""
    kept, closed = list[str](), "\0"
    for path, row in sorted(found, key=lambda each: each[0].split("/")):
        if path.startswith(closed):
            continue
        kept.append(path)
        if row.kind != HARMLESS and plain(path.rpartition("/")[2]) not in _OPEN:
            closed = f"{path}/"
    return tuple(kept)


def has_own_content(path: str) -> bool:
    """Whether all that is in the folder *path*, one of `ObeyedPaths.names`, counts as its state."""
    row = obeyed_by(path)
    return row is None or (row.kind != HARMLESS and plain(path.rpartition("/")[2]) not in _OPEN)


def search(listed: Callable[[str], Iterable[tuple[str, bool]]], most: int, *, at_once: bool = False,
           passed: Sequence[str] = ()) -> ObeyedPaths:
    """
    Search a folder of *most* names, with *at_once* for what runs at once, in folders of *passed* for repositories
    alone.

    *listed* returns the names in a folder, by its path below the searched one, and whether each is a folder; or
    OSError.
    """
    found, repositories, unseen = list[tuple[str, ObeyedRow]](), list[str](), list[str]()
    waiting, left = [""], most
    while waiting:
        place = waiting.pop()
        above = place.split("/") if place else []
        try:
            rows = list(listed(place)) if left > 0 and len(above) <= MAX_LEVELS else None
        except OSError:
            rows = None
        if rows is None:
            unseen.append(place)
            continue
        left -= len(rows)
        names = [name for name, _ in rows]
        repositories += repositories_among(above, names)
        if not any(part in passed for part in above):
            found += [(f"{place}/{name}" if place else name, row) for name, row in among(above, names)
                      if row.kind == AT_ONCE or not at_once]
        waiting += [f"{place}/{name}" if place else name for name, is_folder in rows if is_folder]
    return ObeyedPaths(outermost(found), tuple(sorted(set(repositories))), tuple(sorted(unseen)))


def at_once_among(paths: Iterable[str]) -> list[str]:
    """What of *paths* runs at once, the outermost ones, sorted: of a repository its settings and hooks alone."""
    above = {path: ["/".join(parts[:end]) for end in range(len(parts) + 1)]
             for path in sorted(paths) for parts in [path.split("/")]}
    tree: dict[str, dict[str, bool]] = {"": {}}
    for folders in above.values():
        for folder, path in pairwise(folders):
            tree.setdefault(folder, {})[path.rpartition("/")[2]] = True  # what isn't a folder has nothing in it
    found = search(lambda place: tree.get(place, {}).items(), _MOST_PATHS, at_once=True)
    held = {name for name in found.names if name not in found.repositories or name not in tree}.union(
        found.unseen, (f"{place}/{name}".lstrip("/") for place in found.repositories
                       for name in INSIDE.get(plain(place.rpartition("/")[2]), INSIDE[""])))
    told = {path for path, folders in above.items() if not held.isdisjoint(folders)}
    return [path for path in above if path in told and told.isdisjoint(above[path][:-1])]

"""
A project that is a linked worktree of git's: the repository that it belongs to, and what of that an agent gets.

Trust:     none in the project: its `.git` is a file like any other. A repository counts that lists the project itself,
           and whose shared folder is the one above. The agent writes objects, references and the worktree's own entry,
           in which what says where settings are can't be written; the other files of the repository are read-only.
           Reflogs are a copy of the sandbox's: git appends to them on the host, by a link as well.
Leaves:    the agent can remove and replace objects and references, also those of other branches.
Source:    gitrepository-layout(5), git-worktree(1), git's setup.c (get_common_dir) and refs/files-backend.c
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from leeward.apps.agents.reading import beginning
from leeward.client.mounts import Mount
from leeward.client.protecting import FolderGuard
from leeward.spec.folders import within

#: The first kernel whose tmpfs can have an overlay's changes.
_OVERLAYS = (6, 6)


@dataclass(frozen=True, slots=True)
class Worktree:
    folder: str  # the main repository's, by the path that the project's .git has
    real: str  # its real path
    entry: str  # the worktree's own folder in it: worktrees/NAME

    def mounts(self, *, writable: bool) -> list[Mount]:
        """The repository, read-only; with *writable* what git writes for a commit as well, mounted on it."""
        parts = (self.entry, "objects", "refs") if writable else ()
        return [Mount(self.real, self.folder),
                *(Mount(f"{self.real}/{part}", f"{self.folder}/{part}", writable=True) for part in parts),
                *(Mount(f"{self.real}/logs", f"{self.folder}/logs", overlay=True) for _ in parts[:self._copies_logs()])]

    def unlogged(self) -> tuple[list[str], dict[str, str]]:
        """Without a copy of the reflogs: what to hide, and variables by which git writes none."""
        if self._copies_logs():
            return [], {}
        logs = [f"{self.folder}/logs"] if os.path.isdir(f"{self.real}/logs") else []
        return logs, {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.logAllRefUpdates",
                      "GIT_CONFIG_VALUE_0": "false"}

    def _copies_logs(self) -> bool:
        return (tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= _OVERLAYS
                and os.path.isdir(f"{self.real}/logs"))

    def guard(self) -> tuple[FolderGuard, list[str]]:
        """What keeps the settings in the worktree's entry from being written, and the paths to protect in the sandbox."""
        guard = FolderGuard(f"{self.real}/{self.entry}", ())
        return guard, [f"{self.folder}/{self.entry}/{name}" for name in guard.names]

    def links(self) -> dict[str, str]:
        """The links in what the agent writes, with their targets: git on the host would follow them."""
        found = dict[str, str]()
        waiting = [f"{self.real}/{part}" for part in (self.entry, "objects", "refs")]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_symlink():
                            found[entry.path] = os.readlink(entry.path)
                        elif len(entry.name) > 2 and entry.is_dir():  # those of two characters are full of objects
                            waiting.append(entry.path)
            except OSError:
                found[folder] = "?"
        return found


def worktree_of(project: str, source: str, shown: Iterable[str]) -> Worktree | str | None:
    """
    The worktree that *project* is, opened as *source*; or the reason why its `.git` leads to nothing in the sandbox.
    None for other projects, and where the repository is in one of *shown*, the targets of mounts.
    """
    found = re.fullmatch(r"gitdir: ([^\0\n]+)\n?", _small_file(f"{source}/.git"))
    if found is None:
        return None
    place = os.path.normpath(os.path.join(project, found[1]))
    if any(within(place, each) for each in (project, *shown)):
        return None
    wrong = f"{project!a:.200} is a part of the repository {place!a:.200}, without which git doesn't work in the sandbox"
    named = re.fullmatch(r"(/.+)/(worktrees/[^/]+)", place)
    if named is None or place != os.fsencode(place).decode(errors="replace"):  # requests are UTF-8
        return wrong
    real = os.path.realpath(named[1])  # before its files are read, since links on the path may be changed
    entry = f"{real}/{named[2]}"
    back, shared = (_small_file(f"{entry}/{name}").removesuffix("\n") for name in ("gitdir", "commondir"))
    if not back or os.path.normpath(os.path.join(entry, back)) != f"{project}/.git":
        return f"{wrong}, and which doesn't list it as its worktree"
    if shared != "../.." or not _is_whole(real):
        return f"{wrong}, and which has its files elsewhere"
    if within(real, project) or within(project, real) or any(within(each, named[1]) for each in shown):
        return f"{wrong}, and which is in the project or holds something that the agent gets"
    return Worktree(named[1], real, named[2])


def _is_whole(folder: str) -> bool:
    """Whether *folder* is a repository whose parts are folders, and no links to some."""
    try:
        with os.scandir(folder) as entries:
            names = {entry.name for entry in entries if entry.name == "HEAD" or entry.is_dir(follow_symlinks=False)}
    except OSError:
        return False
    return names >= {"HEAD", "objects", "refs"}


def _small_file(path: str) -> str:
    return os.fsdecode(beginning(path, 4096) or b"")

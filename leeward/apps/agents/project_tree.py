"""
A project's tree, searched for files that have to be hidden.

Trust:     none in the tree. It is walked from the descriptor of its folder, through no link; depth and number are
           bounded. A tree beyond the bounds is refused before a start. While an agent runs, which may have made it so,
           a folder that can't be searched is hidden as a whole.
Links:     if a symbolic link is hidden, its target within the project is hidden as well, and the links that it leads
           to. If a file is hidden, so are its other names in the project.
Shown:     a file that leeward's own patterns alone would hide, and that git's index has with the same content: git
           shows it anyway, and `git add` fails on a file that can't be read (`git_index`).
Leaves:    the content of a hidden file in git's objects, and copies under other names; the target of a hidden link
           whose path leads through a link to a folder, which the agent can change before the next start.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from leeward.apps.agents.errors import SettingsError, printable
from leeward.apps.agents.git_index import tracked_unchanged
from leeward.apps.agents.hiding import FilePattern, FileRules, unfit
from leeward.base.closing import OwnedFd
from leeward.base.dataclass import dataclass
from leeward.errors import RequestRejected, reason_of
from leeward.spec.obeyed.lookup import among
from leeward.spec.obeyed.search import ObeyedPaths, outermost, repositories_among
from leeward.spec.obeyed.table import ObeyedRow

#: Files and folders, levels of folders, bytes of a folder's path, links in a chain, and hidden paths: at most.
MAX_FILES, MAX_LEVELS, MAX_PATH, MAX_LINKS, MAX_HIDDEN = 2_000_000, 100, 2048, 40, 2000

#: Repositories, and names that programs obey, that a search reports, at most.
MAX_REPORTED = 100_000

#: Errors of open(2) for a folder that was removed, or replaced by a link or a file.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class HiddenPath:
    path: str  # relative to the project, without links
    folder: bool  # it is covered by an empty one; a file is covered by one that can't be read


@dataclass(frozen=True, slots=True)
class HidingPlan:
    hidden: tuple[HiddenPath, ...]  # sorted, none of them below another
    absent: tuple[str, ...]  # excluded without wildcards, and don't exist: a file there is hidden when it appears
    warnings: tuple[str, ...]  # lines for a person
    #: folders that the agent must not rename or move: something in them is hidden because of its path, and the next
    #: start would show it in another place
    pinned: tuple[str, ...] = ()
    obeyed: ObeyedPaths = ObeyedPaths((), ())  # what programs on the host obey in the project, hidden folders left out


def hiding_plan(project: int, rules: FileRules, shown: str = "", *, running: bool = False) -> HidingPlan:
    """
    Search the open folder *project*, whose path is *shown*, for the files that *rules* hide.

    Raises SettingsError if it is too large or too deep, or a folder in which patterns could match can't be read. With
    *running*, while an agent runs in it, such a folder is hidden, or OSError is for a reason that may pass.
    """
    try:
        search = _TreeSearch(project, rules, shown, running)
        search.walk()
        return search.plan()
    except OSError as error:
        if running:
            raise
        raise SettingsError(shown, "", "can't be looked at, so it isn't known what is to be hidden in it:"
                                       f" {reason_of(error)}") from None


def check_text(hidden: Iterable[str]) -> None:
    """Refuse a name to hide that the daemon can't be told, since requests are UTF-8."""
    for name in hidden:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RequestRejected(f"{name!a:.200} has to be hidden, and can't be, because its name isn't UTF-8: rename"
                                  " it, or let files.exclude name a folder above it") from None


class _TreeSearch:
    def __init__(self, project: int, rules: FileRules, shown: str, running: bool) -> None:
        self._project, self._rules, self._shown, self._running = project, rules, shown, running
        self._left = 2 * MAX_FILES  # a tree is walked twice if a hidden file has other names
        self._fitting: dict[FilePattern, None] = {}
        self._hidden: dict[str, bool] = {}
        self._placed: dict[str, None] = {}  # hidden paths that no pattern hides by the last name alone
        self._included = self._uncounted = 0
        self._maybe_tracked: list[str] = []
        self._links: list[str] = []
        self._inodes: dict[tuple[int, int], None] = {}
        self._warnings: list[str] = []
        self._repositories: list[str] = []
        self._obeyed: list[tuple[str, ObeyedRow]] = []
        self._unseen: list[str] = []

    def walk(self) -> None:
        root = os.open(".", _FOLDER, dir_fd=self._project)
        self._folder(root, [], False)
        self._hide_untracked()
        for link in self._links:
            self._follow(link)
        if self._inodes:
            self._other_names()

    def plan(self) -> HidingPlan:
        kept: list[HiddenPath] = []
        for path in sorted(self._hidden, key=lambda each: each.split("/")):
            if not (kept and kept[-1].folder and path.startswith(kept[-1].path + "/")):
                kept.append(HiddenPath(path, self._hidden[path]))
        absent = []
        for each in self._rules.exclude:
            # A name that is hidden at any depth is listed for the project's top folder alone.
            path = each.literal or ("" if any(letter in each.name for letter in "*?[") else each.name)
            if path and path not in self._hidden and self._stat(path) is None and not self._rules.includes(
                    path.split("/"), False):
                absent.append(path)
        return HidingPlan(tuple(kept), tuple(dict.fromkeys(absent)),
                          (*self._warnings, *unfit(self._rules, list(self._fitting))), self._pinned(kept),
                          ObeyedPaths(outermost(self._obeyed), tuple(sorted(set(self._repositories))),
                                      tuple(sorted(self._unseen))))

    def _pinned(self, hidden: list[HiddenPath]) -> tuple[str, ...]:
        # With `include`, a folder could get a name that shows everything below it.
        placed = [each.path for each in hidden] if self._rules.include else self._placed
        folders = {*map(os.path.dirname, placed), *(each.place for each in self._rules.exclude)} - {""}
        kept: list[str] = []
        for path in sorted(folders, key=lambda each: each.split("/")):
            if kept and path.startswith(kept[-1] + "/"):
                kept.pop()  # pinned with what is in it
            kept.append(path)
        return tuple(kept)

    def _folder(self, descriptor: int, above: list[str], hidden: bool) -> None:
        """Search one folder, and close its descriptor. *hidden*: one above is excluded, something below may be included."""
        with OwnedFd(descriptor):
            if len(above) > MAX_LEVELS or (len(above) > 8 and len(os.fsencode("/".join(above))) > MAX_PATH):
                if self._running or hidden:
                    self._hide_unseen("/".join(above), undecided=hidden)
                    return
                raise SettingsError(self._shown, "", f"has more than {MAX_LEVELS} folders within each other, or a path"
                                    f" of more than {MAX_PATH} bytes", "start the agent in a part of it")
            with os.scandir(descriptor) as some:
                entries = list(islice(some, self._left + 1))
            self._left -= len(entries)
            if self._left < 0:
                raise self._too_many()
            names = "/".join([entry.name for entry in entries])
            self._note_obeyed(above, [entry.name for entry in entries])
            # In most folders no name can match a pattern, and little is done for each entry.
            literals = self._rules.literals
            may_match = self._rules.last_names.match if hidden or not literals or any(
                literal in names for literal in literals) else None
            for entry in entries:
                if may_match is not None and (hidden or may_match(entry.name)):
                    self._entry(descriptor, [*above, entry.name], entry.is_dir(follow_symlinks=False),
                                entry.is_symlink(), hidden)
                elif entry.is_dir(follow_symlinks=False):
                    self._below(descriptor, [*above, entry.name], False)

    def _note_obeyed(self, above: list[str], names: list[str]) -> None:
        if len(self._repositories) < MAX_REPORTED:
            self._repositories += repositories_among(above, names)
        if len(self._obeyed) < MAX_REPORTED:
            self._obeyed += [("/".join([*above, name]), row) for name, row in among(above, names)]

    def _too_many(self) -> SettingsError:
        return SettingsError(self._shown, "", f"has more than {MAX_FILES} files", "start the agent in a part of it")

    def _entries(self, descriptor: int) -> Iterator[tuple[str, bool, bool]]:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    raise self._too_many()
                yield entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()

    def _entry(self, descriptor: int, names: list[str], folder: bool, link: bool, hidden: bool) -> None:
        # A link may lead to a folder.
        patterns = self._rules.excluding(names, folder, link)
        self._fitting.update(dict.fromkeys(patterns))
        if self._rules.includes(names, folder):
            self._included += 1
            return  # shown, with everything below
        path = "/".join(names)
        if patterns and not any(each.name for each in patterns):
            self._placed[path] = None
        if not (hidden or patterns):
            if folder:
                self._below(descriptor, names, False)
        elif folder and self._rules.may_include_below(names):
            self._hide_but_included(path, descriptor, names, outermost=not hidden)
        elif not (hidden or folder or link) and len(self._maybe_tracked) < MAX_HIDDEN and all(
                each.ours for each in patterns):
            self._maybe_tracked.append(path)
        else:
            self._hide(path, descriptor, names[-1], folder, link, undecided=hidden)

    def _hide_untracked(self) -> None:
        shown = tracked_unchanged(self._project, self._maybe_tracked) if self._rules.shows_repository else frozenset()
        for path in self._maybe_tracked:
            if path not in shown:
                self._hide(path, self._project, path, folder=False, link=False, undecided=False)

    def _hide_but_included(self, path: str, descriptor: int, names: list[str], outermost: bool) -> None:
        """Hide an excluded folder as a whole, unless something in it is included; *outermost*: none above is excluded."""
        included, uncounted = self._included, self._uncounted
        lists: tuple[list[Any], ...] = (self._links, self._repositories, self._obeyed, self._unseen)
        mappings: tuple[dict[Any, Any], ...] = (self._hidden, self._placed, self._inodes)
        before = [len(each) for each in (*lists, *mappings)]
        self._below(descriptor, names, True)
        if included == self._included:  # then what was found below it isn't needed
            for found, count in zip(lists, before[:len(lists)], strict=True):
                del found[count:]
            for noted, count in zip(mappings, before[len(lists):], strict=True):
                while len(noted) > count:
                    noted.popitem()
            self._uncounted = uncounted
            self._hide(path, descriptor, names[-1], True, False, undecided=not outermost)
        elif outermost and self._uncounted:
            raise self._too_many_hidden()

    def _below(self, descriptor: int, names: list[str], hidden: bool) -> None:
        if not hidden and not self._rules.may_exclude_below(names):
            return
        try:
            folder = os.open(names[-1], _FOLDER, dir_fd=descriptor)
        except PermissionError:
            # The agent has this user's rights, so it can make the user's own folder readable. In another user's folder
            # it may be able to open names that it can guess.
            path = "/".join(names)
            owner = os.stat(names[-1], dir_fd=descriptor, follow_symlinks=False).st_uid
            if owner == os.geteuid() and not (self._running or hidden):
                raise SettingsError(self._shown, "", f"{printable(path)} can't be read, so it isn't known what is to be"
                                                     " hidden in it", "exclude it") from None
            self._hide_unseen(path, undecided=hidden)
            return
        except OSError as error:
            if error.errno not in _GONE:  # such as EMFILE
                raise
            return  # the folder was removed or replaced meanwhile
        self._folder(folder, names, hidden)

    def _hide_unseen(self, path: str, undecided: bool) -> None:
        if self._has_room(undecided):
            self._hidden[path] = True
            self._unseen.append(path)

    def _has_room(self, undecided: bool) -> bool:
        """Whether one more path can be hidden. *undecided*: `_hide_but_included` may hide a folder above as a whole."""
        if len(self._hidden) < MAX_HIDDEN:
            return True
        if not undecided:
            raise self._too_many_hidden()
        self._uncounted += 1
        return False

    def _too_many_hidden(self) -> SettingsError:
        return SettingsError(self._shown, "files.exclude", f"fits more than {MAX_HIDDEN} files",
                             "exclude the folders that have them")

    def _hide(self, path: str, descriptor: int, name: str, folder: bool, link: bool, undecided: bool) -> None:
        if not self._has_room(undecided):
            return
        try:
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return
        self._hidden[path] = folder
        self._note_names(about)
        if link:
            self._links.append(path)

    def _note_names(self, about: os.stat_result) -> None:
        if about.st_nlink > 1 and stat.S_ISREG(about.st_mode):
            self._inodes[about.st_dev, about.st_ino] = None

    def _follow(self, link: str) -> None:
        """Hide the target of a hidden link, if it is in the project, and the links that are its names."""
        chain: list[str] = []
        target = self._resolved(link, chain)
        if target is None:
            return
        if not target or link.startswith(target + "/"):
            self._warnings.append(f"files.exclude: {printable(link)} is a link to a folder that it lies in, which is"
                                  " shown")
            return
        about = self._stat(target)
        if about is not None and not self._rules.includes(target.split("/"), stat.S_ISDIR(about.st_mode)):
            self._hidden |= {**dict.fromkeys(chain, False), target: stat.S_ISDIR(about.st_mode)}
            self._placed |= dict.fromkeys((link, *chain, target))
            self._note_names(about)

    def _resolved(self, path: str, chain: list[str]) -> str | None:
        """*path* without links; None if it leads out of the project or to nothing. *chain* gets links of the whole path."""
        rest, found, links = path.split("/"), list[str](), 0
        while rest:
            name = rest.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                if not found:
                    return None
                found.pop()
                continue
            try:
                target = os.readlink("/".join([*found, name]), dir_fd=self._project)
            except OSError:
                if self._stat("/".join([*found, name])) is None:
                    return None
                found.append(name)
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            if not any(each not in ("", ".") for each in rest):
                chain.append("/".join([*found, name]))
            if target.startswith("/"):
                inner = os.path.relpath(target, self._shown) if self._shown else ".."
                if inner == ".." or inner.startswith("../"):
                    return None
                found, target = [], inner
            rest = target.split("/") + rest
        return "/".join(found)

    def _other_names(self) -> None:
        waiting = [""]
        while waiting:
            above = waiting.pop()
            try:
                descriptor = os.open(above or ".", _FOLDER, dir_fd=self._project)
            except OSError as error:
                if error.errno not in (*_GONE, errno.EACCES):
                    raise
                continue
            with OwnedFd(descriptor):
                for name, folder, link in self._entries(descriptor):
                    path = f"{above}/{name}" if above else name
                    if folder:
                        waiting.append(path)
                    elif not link and path not in self._hidden:
                        self._other_name(descriptor, name, path)

    def _other_name(self, descriptor: int, name: str, path: str) -> None:
        try:
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return
        if (about.st_dev, about.st_ino) in self._inodes:
            self._hidden[path] = False
            self._warnings.append(f"files.exclude: {printable(path)} is hidden as well: it is another name of a hidden"
                                  " file")

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path, dir_fd=self._project, follow_symlinks=False)
        except OSError:
            return None

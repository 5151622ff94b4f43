"""
Which of a project's files are hidden from an agent: globs, and the matching of paths. Pure; `project_tree` walks.

Trust:     none in patterns and names. No name can make matching take exponential time.
Globs:     `*` matches characters of one name, `?` one character, `[a-z]` and `[!a-z]` one of a set, `**` as a whole
           name any number of folders, also none. A pattern without a slash matches a name at any depth; one with a
           slash begins at the project's folder. One with a slash at the end matches only folders. A folder that matches
           is hidden with everything below it.
Order:     a path that matches a pattern of `include`, and everything below it, is shown even if `exclude` matches it.
           What leeward hides by itself leaves out the names of EXAMPLES, and `project_tree` what git shows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fnmatch import translate
from itertools import takewhile

from leeward.apps.agents.errors import printable
from leeward.base.dataclass import dataclass, replace
from leeward.spec.folders import EXAMPLES, SECRET_FILES

#: Characters of a pattern, and names in it, at most.
MAX_PATTERN, MAX_NAMES = 1024, 32

_SPECIAL = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class FilePattern:
    text: str  # in normal form: equal patterns have equal texts
    parts: tuple[str, ...]  # the globs of its names; "**" for any number of folders
    folder: bool = False  # whether it matches only folders
    ours: bool = False  # whether it is one of leeward's own, and not of a person's settings

    @property
    def literal(self) -> str:
        """The only path that the pattern can match; "" if it can match several."""
        return "" if any(_SPECIAL.search(part) for part in self.parts) else "/".join(self.parts)

    @property
    def name(self) -> str:
        """The glob of a pattern that matches names at any depth; "" for a pattern with folders."""
        return self.parts[1] if len(self.parts) == 2 and self.parts[0] == "**" and self.parts[1] != "**" else ""

    @property
    def place(self) -> str:
        """The folder, as far as it is without wildcards, in which all that matches lies; "" for the project's."""
        return "/".join(takewhile(lambda part: not _SPECIAL.search(part), self.parts[:-1]))

    def fits(self, names: Sequence[str], folder: bool) -> bool:
        """Whether the pattern matches the path *names* itself; False for a path below a matching folder."""
        return (folder or not self.folder) and len(names) in _reached(self.parts, names)

    def may_fit_below(self, names: Sequence[str]) -> bool:
        # If some leading parts match the folder's names, and further parts remain.
        return any(len(names) in _reached(self.parts[:end], names) for end in range(len(self.parts)))


def parse_pattern(text: str) -> FilePattern:
    """Parse a glob; ValueError says why *text* isn't a pattern of a project's files."""
    if not text or len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern has 1 to {MAX_PATTERN} characters")
    if "\0" in text:
        raise ValueError("no file has a character 0 in its name")
    folder = text.endswith("/")
    inner = text.removesuffix("/")
    anchored = "/" in inner
    parts = [part for part in inner.removeprefix("/").split("/") if part != "."]
    if not parts or "" in parts:
        raise ValueError("it names no file: two slashes in succession, or nothing but one")
    if ".." in parts:
        raise ValueError('".." leads out of the project')
    if len(parts) > MAX_NAMES:
        raise ValueError(f"it has more than {MAX_NAMES} names")
    if any("**" in part and part != "**" for part in parts):
        raise ValueError('"**" stands for whole names alone')
    while parts and parts[-1] == "**":
        # Everything in a folder is the same as the folder.
        parts, folder = parts[:-1], True
    if not parts:
        raise ValueError("it matches everything")
    if not anchored:
        parts = ["**", *parts]
    plain = "/".join(parts[1:] if not anchored else parts)
    shown = f"/{plain}" if anchored and len(parts) == 1 else plain
    return FilePattern(shown + "/" * folder, tuple(parts), folder)


@functools.lru_cache(maxsize=4096)
def _name(glob: str) -> re.Pattern[str]:
    # Since Python 3.9 `translate` makes atomic groups of stars, so matching doesn't backtrack.
    return re.compile(translate(glob))


def _reached(parts: Sequence[str], names: Sequence[str]) -> set[int]:
    """The numbers of leading *names* that *parts* can match."""
    reached = {0}
    for part in parts:
        if part == "**":
            reached = set(range(min(reached), len(names) + 1))
        else:
            reached = {count + 1 for count in reached
                       if count < len(names) and _name(part).match(names[count])}
        if not reached:
            return reached
    return reached


def _literal(glob: str) -> str:
    """A text that each matching name contains: the longer part, before the first special character or after the last."""
    if not _SPECIAL.search(glob):
        return glob
    before, after = _SPECIAL.split(glob, maxsplit=1)[0], re.split(r"[*?\]]", glob)[-1]
    return "" if "[" in after else max(before, after, key=len)


@dataclass(frozen=True)
class FileRules:
    """Patterns of `exclude` and `include` together."""

    exclude: tuple[FilePattern, ...]  # patterns of the hidden files
    include: tuple[FilePattern, ...] = ()  # patterns of the files that are shown in spite of `exclude`

    @functools.cached_property
    def last_names(self) -> re.Pattern[str]:
        """A pattern for the last names of matching paths. Most files don't match it, and need no further check."""
        return re.compile("|".join(translate(each.parts[-1]) for each in (*self.exclude, *self.include)) or r"(?!)")

    @functools.cached_property
    def literals(self) -> tuple[str, ...]:
        """Texts of which each name that `last_names` matches has one, to search a folder's joined names; perhaps ()."""
        found = {_literal(each.parts[-1]) for each in (*self.exclude, *self.include)}
        if "" in found:
            return ()
        return tuple(each for each in found if not any(other != each and other in each for other in found))

    def excluding(self, names: Sequence[str], folder: bool, link: bool = False) -> tuple[FilePattern, ...]:
        """The patterns of `exclude` that match this path itself; a link may lead to a folder."""
        example = names[-1].endswith(EXAMPLES) and not folder
        return tuple(each for each in self.exclude if each.fits(names, folder or link) and not (each.ours and example))

    def includes(self, names: Sequence[str], folder: bool) -> bool:
        return any(each.fits(names, folder) for each in self.include)

    @functools.cached_property
    def shows_repository(self) -> bool:
        """Whether nothing of `.git` is hidden, so that git shows what it tracks."""
        return not (any(self.hides(name, True) for name in (".git", ".git/objects", ".git/refs"))
                    or any(".git" in each.parts for each in self.exclude if not each.ours))

    def hides(self, path: str, folder: bool = False) -> bool:
        """Whether a path of the project is hidden: it or a folder above it is excluded, and none of these is included."""
        names = path.split("/")
        hidden = False
        for end in range(1, len(names) + 1):
            is_folder = folder or end < len(names)
            if self.includes(names[:end], is_folder):
                return False
            hidden = hidden or bool(self.excluding(names[:end], is_folder))
        return hidden

    def hides_by_name(self, path: str) -> bool:
        """Whether a file, relative to the project, is hidden by its own name and leeward's own patterns alone."""
        names = path.split("/")
        found = self.excluding(names, False)
        return (bool(found) and all(each.ours for each in found)
                and not any(self.excluding(names[:end], True) for end in range(1, len(names))))

    def may_include_below(self, names: Sequence[str]) -> bool:
        return any(each.may_fit_below(names) for each in self.include)

    def may_exclude_below(self, names: Sequence[str]) -> bool:
        return any(each.may_fit_below(names) for each in self.exclude)


#: Patterns of names that are hidden in every project, unless `include` matches them.
SECRETS = tuple(replace(parse_pattern(each), ours=True) for each in SECRET_FILES)


def rules_of(exclude: Sequence[FilePattern], include: Sequence[FilePattern]) -> FileRules:
    """The rules of settings, after those of SECRETS."""
    return FileRules((*SECRETS, *exclude), tuple(include))


def unfit(rules: FileRules, fitting: Sequence[FilePattern]) -> list[str]:
    """A warning for each pattern of the settings' `exclude` that isn't among *fitting*, those that matched a file."""
    ours = {each.text for each in SECRETS}
    return [f"files.exclude: {printable(each.text)} matches nothing yet" for each in rules.exclude
            if each not in fitting and each.text not in ours]

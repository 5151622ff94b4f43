"""
What a push adds, for the person who decides: its commits, and the files that all of them or one of them change.

Runs in:   the operator's program that decides, and git as a child of it.
Trust:     none in what a sandbox has pushed. Names come from `git diff --raw -z`, where each ends in a NUL; of the patch
           only its lines are read, in the order of these names: each line of content begins with `+`, `-` or a blank, so
           none can look like the head of another file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from leeward.apps.approvals.git.git_host import MOST_COMMITS, MOST_FILES, MOST_PRINTED, empty_tree, git
from leeward.errors import BadRequest

#: Bytes of a patch, characters of a commit's text, bytes of a file that isn't text: at most.
MOST_PATCH, MOST_SAID, MOST_BLOB = 1 << 20, 300, 4 << 20

_VERBS = {"A": "add", "D": "delete", "R": "rename", "C": "copy"}

#: Renames are found, and no program of a repository's configuration is run.
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--submodule=short")

_NO_BLOB = re.compile("0+")


@dataclass(frozen=True, slots=True)
class PushedCommit:
    """One commit."""

    commit: str  # in hexadecimal
    parent: str  # the first one; "" for none
    author: str
    when: float  # seconds since the epoch, as the author says
    subject: str


@dataclass(frozen=True, slots=True)
class PushedFile:
    """One file of a push."""

    verb: str  # "add", "change", "delete", "rename" or "copy"
    path: str
    was: str  # its path before, if that was another one; else ""
    mode: str  # of git, in octal; "000000" if it is gone
    base_mode: str  # the same before
    blob: str  # the id of its content; "" if it is gone
    base_blob: str  # the same before
    patch: tuple[str, ...]  # the lines from the first @@ on; () if there are none
    is_binary: bool
    is_cut: bool  # whether the patch was cut before its end


@dataclass(frozen=True, slots=True)
class PushedChanges:
    """The commits of a push, the newest first, MOST_COMMITS at most, and MOST_FILES files of one or of all of them."""

    repository: str  # the folder that has the commits
    commits: tuple[PushedCommit, ...]
    files: tuple[PushedFile, ...]
    more: int  # how many files aren't in `files`

    def content(self, place: int, side: str) -> bytes:
        """The content of the file at *place* "before" or "after", MOST_BLOB bytes at most; BadRequest if there is none."""
        blob = "" if not 0 <= place < len(self.files) else (
            self.files[place].blob if side == "after" else self.files[place].base_blob)
        if not blob or self.size(blob) > MOST_BLOB:
            raise BadRequest("there is no such file, or it is too large to be shown")
        return git("cat-file", "blob", blob, folder=self.repository)

    def size(self, blob: str) -> int:
        """The bytes of a file's content."""
        return int(git("cat-file", "-s", blob, folder=self.repository))


def pushed_changes(repository: str, base: str, tip: str, commit: str = "") -> PushedChanges:
    """
    The commits after *base* ("": none) up to *tip*, and the files that *commit* changes, by "" those of the whole push.
    BadRequest if *commit* isn't one of them, GitFailed if one is missing.
    """
    commits = _commits(repository, f"{base}..{tip}" if base else tip)
    before, after = base, tip
    if commit:
        found = next((each for each in commits if each.commit == commit), None)
        if found is None:
            raise BadRequest("there is no such commit in this push")
        before, after = found.parent, found.commit
    files = _files(repository, before or empty_tree(repository), after)
    return PushedChanges(repository, tuple(commits), tuple(files[:MOST_FILES]), max(0, len(files) - MOST_FILES))


def _commits(repository: str, between: str) -> list[PushedCommit]:
    said = git("log", "-z", f"--max-count={MOST_COMMITS}", "--no-show-signature", "--format=%H%n%P%n%at%n%an%n%s", between,
               folder=repository).decode("utf-8", "replace")
    found = list[PushedCommit]()
    for row in said.split("\0"):
        fields = row.split("\n", 4)
        if len(fields) == 5:
            commit, parents, when, author, subject = fields
            found.append(PushedCommit(commit, parents.split(" ")[0], author[:MOST_SAID],
                                      float(when) if when.isdecimal() else 0.0, subject[:MOST_SAID]))
    return found


def _files(repository: str, before: str, after: str) -> list[PushedFile]:
    raw = git(*_DIFF, "--raw", "-z", "--no-abbrev", before, after, folder=repository, cut=True)
    whole = git(*_DIFF, before, after, folder=repository, cut=True)
    if len(raw) >= MOST_PRINTED:
        raw = raw[:raw.rfind(b"\0:") + 1]
    is_cut = len(whole) > MOST_PATCH
    patches = _patches(whole[:MOST_PATCH].decode("utf-8", "replace"))
    found, fields, at, part = list[PushedFile](), raw.split(b"\0"), 0, 0
    while at + 1 < len(fields):
        base_mode, mode, base_blob, blob, status = fields[at].decode("ascii", "replace").lstrip(":").split(" ")
        moves = status[:1] in ("R", "C")
        names = [os.fsdecode(name) for name in fields[at + 1:at + 2 + moves]]
        # A file that becomes a link, say, has two parts: it is deleted, and made anew.
        parts = patches[part:part + 1 + (status[:1] == "T")]
        heads = [next((place for place, line in enumerate(each) if line.startswith("@@")), len(each)) for each in parts]
        found.append(PushedFile(
            _VERBS.get(status[:1], "change"), names[-1], names[0] if moves else "", mode, base_mode,
            "" if _NO_BLOB.fullmatch(blob) or mode == "160000" else blob,
            "" if _NO_BLOB.fullmatch(base_blob) or base_mode == "160000" else base_blob,
            tuple(line for each, head in zip(parts, heads, strict=True) for line in each[head:] if line[:1] in tuple("@+- ")),
            any(line.startswith("Binary files ") for each, head in zip(parts, heads, strict=True) for line in each[:head]),
            is_cut and part + len(parts) >= len(patches)))
        part, at = part + len(parts), at + 2 + moves
    return found


def _patches(text: str) -> list[list[str]]:
    """The lines of each file's patch, after its first one."""
    found = list[list[str]]()
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            found.append([])
        elif found:
            found[-1].append(line)
    return found

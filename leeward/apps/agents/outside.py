"""
Files of a project, and of an agent's state folder, that programs on the host obey (`leeward.spec.obeyed`): what an agent
writes there acts on the host afterwards, with the user's rights.

Leaves:    the project's own code. Files of the project that the user's own settings name, outside of it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

from leeward.apps.agents.instance_names import blake2b
from leeward.apps.agents.reading import beginning
from leeward.apps.agents.written import closed_path
from leeward.base.closing import OwnedFd
from leeward.spec.folders import within
from leeward.spec.obeyed.lookup import home_settings, plain
from leeward.spec.obeyed.repositories import INSIDE, named_below
from leeward.spec.obeyed.search import ObeyedPaths, has_own_content

#: Folders that an agent can't write to if they exist at its start: git's hooks, and the settings of agents.
PROTECTED = (".git/hooks", ".leeward", ".hole")

#: The form of a file that names a repository's folder.
_GITDIR = rb"gitdir: ([^\0\n]{1,4000})\s*"  # few starts have one: to compile it takes 0.1 ms

#: Paths that git's settings name, at most.
_MOST_NAMED = 100

#: Files of one path, and bytes of each, that are compared by content; others are compared by size and times.
_MOST_FILES, _MOST_BYTES = 1000, 1 << 20
#: Names of one path that are compared, at most.
_MOST_ENTRIES = 50_000


def snapshot(project: str, found: ObeyedPaths | None = None) -> dict[str, str]:
    """A digest of each path below *project* that programs obey, by path; *found* is of a search that was made already."""
    found, digests, left = found or _found_in(project), dict[str, str](), [_MOST_FILES]
    # What is obeyed in the project's own repository is told by itself, any other repository as one.
    parts = _is_folder(os.path.join(project, ".git"))
    whole = [path for path in found.repositories if not (parts and path == ".git")]
    below = tuple(f"{path}/" for path in whole if path)
    for path in (*found.names, *_named_by_git(project), *found.unseen):
        if path in found.repositories or path.startswith(below):
            continue
        digest, at = blake2b(), os.path.join(project, path)
        if _add(digest, at, left, project) if has_own_content(path) else _add_itself(digest, at):
            digests[path] = digest.hexdigest()
    for path in whole:
        digests[path or "HEAD"] = _repository(project, path, left)
    return digests


def state_snapshot(folder: str, home: str) -> dict[str, str]:
    """The same for the settings in an agent's state folder, by absolute path."""
    digests, left = dict[str, str](), [_MOST_FILES]
    for name in home_settings(os.path.relpath(folder, home)):
        head, star, tail = name.partition("*")
        try:
            names = [each for each in os.listdir(folder) if each.startswith(head) and each.endswith(tail)]
        except OSError:
            names = []
        for path in (os.path.join(folder, each).rstrip("/") for each in (names if star else [name])):
            digest = blake2b()
            if _add(digest, path, left, folder):
                digests[path] = digest.hexdigest()
    return digests


def _found_in(project: str) -> ObeyedPaths:
    from leeward.client.protecting import found_in  # most starts have searched the project themselves

    try:
        folder = os.open(project, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ObeyedPaths((), ())
    with OwnedFd(folder):
        return found_in(folder)


def _named_by_git(project: str) -> list[str]:
    """The paths in the project that the settings of its repository name as programs, hooks or further settings."""
    real = os.path.realpath(project)

    def inner(path: str) -> str:
        path = os.path.normpath(os.path.join(real, path))
        return path[len(real) + 1:] if within(path, real) else ""

    found = named_below((".git/config", ".git/config.worktree"), ("", ".git"), inner,
                        lambda name: beginning(os.path.join(project, name), _MOST_BYTES) or b"")
    return [name for name in found if os.path.lexists(os.path.join(project, name))][:_MOST_NAMED]


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _repository(project: str, path: str, left: list[int]) -> str:
    """A digest of what is obeyed in a repository's folder, or in the one that a file or link *path* names."""
    inside = INSIDE.get(plain(os.path.basename(path)), INSIDE[""])
    path = os.path.join(project, path)
    digest, places = blake2b(), [path]
    if not _is_folder(path):
        _add(digest, path, left, project)
        named = re.fullmatch(_GITDIR, beginning(path, _MOST_BYTES) or b"")
        if named:
            places.append(os.path.join(os.path.dirname(path), os.fsdecode(named[1])))
    for place in places:
        for each in inside:
            _add(digest, os.path.join(place, each), left, project)
    return digest.hexdigest()


def identities(project: str, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Device and inode of each of *paths* that exists: a hidden file's cover doesn't hide one with another inode."""
    found = {}
    for path in paths:
        try:
            about = os.lstat(os.path.join(project, path))
        except OSError:
            continue
        found[path] = (about.st_dev, about.st_ino)
    return found


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The keys whose values differ or that only one mapping has, sorted."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _add(digest: blake2b, path: str, left: list[int], project: str) -> bool:
    """
    Update *digest* with the state of *path* and all below it; returns whether *path* exists. *left* is how many files
    may still be opened.

    Links are followed within *project*: `.git/hooks/pre-commit` may be a link to a script. The tree is hostile: it may
    be too deep for recursion, and change meanwhile.
    """
    waiting, there, followed = [path], False, set[str]()
    for _ in range(_MOST_ENTRIES):
        if not waiting:
            break
        path = waiting.pop()
        try:
            about = os.lstat(path)
            said = f"{about.st_mode:o} {os.path.basename(path)!r} ".encode("utf-8", "surrogateescape")
            if stat.S_ISLNK(about.st_mode):
                said += os.readlink(path).encode("utf-8", "surrogateescape")
                target, real = _target(path), os.path.realpath(project)
                if target not in followed and target != real and within(target, real):
                    followed.add(target)
                    waiting.append(os.path.join(project, target[len(real) + 1:]))
            elif stat.S_ISDIR(about.st_mode):
                waiting += [os.path.join(path, name) for name in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISREG(about.st_mode):
                left[0] -= 1
                content = beginning(path, _MOST_BYTES) if left[0] >= 0 and about.st_size <= _MOST_BYTES else None
                said += (f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode() if content is None else
                         content)
        except OSError:
            continue
        there = True
        digest.update(b"%d:" % len(said) + said)  # so that no two trees are one row of bytes
    if waiting:  # what wasn't looked at may have changed
        digest.update(os.urandom(16))
    return there


def _add_itself(digest: blake2b, path: str) -> bool:
    """Update *digest* with a folder whose content has names of its own; returns whether *path* exists."""
    try:
        about = os.lstat(path)
    except OSError:
        return False
    digest.update(f"{about.st_mode:o} {about.st_ino}".encode())
    return True


def _target(path: str) -> str:
    """The real path of what a link leads to; "" for nothing, or a circle. The kernel follows a bounded number of links."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    return closed_path(fd)

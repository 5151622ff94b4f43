"""
Files of a project that programs outside of the sandbox run or read by themselves: what an agent writes there acts on
the host afterwards, with its user's rights.

Runs in:   the caller's program.
Leaves:    files that a person runs: a Makefile, a script of a package, the project's own code. And files below the
           project's top folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from leeward.agents.hashing import blake2b

#: Not to be written by an agent where they are there at its start: hooks of git, and what says what agents may.
PROTECTED = (".git/hooks", ".leeward")

#: Looked at before and after. Each is run or obeyed without a question by a program that people have.
WATCHED = (
    # git, and tools that it starts
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes", ".git/commondir", ".git/HEAD.lock",
    ".gitmodules", ".husky", ".githooks", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml",
    # what agents may, this one and others
    ".leeward", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".codex",
    ".gemini", ".cursor", "opencode.json", ".aider.conf.yml",
    # shells and environments that are entered with the folder
    ".envrc", ".direnv", ".mise.toml", "mise.toml", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv",
    ".zprofile",
    # editors and development environments
    ".vscode", ".idea", ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el", ".editorconfig",
    ".devcontainer", ".devcontainer.json", ".sublime-project", ".zed", ".helix",
    # package managers' settings that name programs
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".cargo/config.toml", ".cargo/config",
)

#: Of one path: files, and bytes of each, that are compared by content; of more by size and times.
_MOST_FILES, _MOST_BYTES = 1000, 1 << 20
#: Of one path: names that are looked at.
_MOST_ENTRIES = 50_000


def snapshot(project: str, paths: Iterable[str] = WATCHED) -> dict[str, str]:
    """
    What each of *paths* below the folder *project* is now: a digest, by its path; without those that aren't there.
    """
    found = {}
    for path in paths:
        digest = blake2b()
        if _add(digest, os.path.join(project, path), [_MOST_FILES]):
            found[path] = digest.hexdigest()
    return found


def identities(project: str, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """
    Device and inode of each of *paths* below the folder *project*, without those that aren't there. A hidden file that
    has other ones isn't hidden any more.
    """
    found = {}
    for path in paths:
        try:
            about = os.lstat(os.path.join(project, path))
        except OSError:
            continue
        found[path] = (about.st_dev, about.st_ino)
    return found


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """
    Those that aren't what they were, sorted.
    """
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _add(digest: blake2b, path: str, left: list[int]) -> bool:
    """
    Tell *digest* what is at *path*. Links aren't followed; *left* is how many files may be opened yet. The tree is a
    stranger's: it may be deeper than calls can be within each other, and change meanwhile.
    """
    waiting, there = [path], False
    for _ in range(_MOST_ENTRIES):
        if not waiting:
            break
        path = waiting.pop()
        try:
            about = os.lstat(path)
            said = f"{about.st_mode:o} {os.path.basename(path)!r} ".encode("utf-8", "surrogateescape")
            if stat.S_ISLNK(about.st_mode):
                said += os.readlink(path).encode("utf-8", "surrogateescape")
            elif stat.S_ISDIR(about.st_mode):
                waiting += [os.path.join(path, name) for name in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISREG(about.st_mode):
                left[0] -= 1
                said += (_content(path, about) if left[0] >= 0 and about.st_size <= _MOST_BYTES else
                         f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode())
        except OSError:
            continue
        there = True
        digest.update(said)
    return there


def _content(path: str, about: os.stat_result) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return f"{about.st_size} {about.st_ctime_ns}".encode()
    with open(fd, "rb") as file:
        return file.read(_MOST_BYTES)

"""
Files of a project that programs outside of the sandbox run or read by themselves: what an agent writes there acts on
the host afterwards, with its user's rights.

Runs in:   the caller's program.
Leaves:    files that a person runs: a Makefile, a script of a package, the project's own code. And files below the
           project's top folder, but for git's: `git status` in the top folder obeys the settings of repositories below
           it, if the index names these, which the agent writes.
"""

from __future__ import annotations

import os
import re
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
    ".leeward", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".claude/agents",
    ".claude/commands", ".claude/skills", "CLAUDE.md", "CLAUDE.local.md", ".codex", "AGENTS.md", ".agents", ".gemini",
    "GEMINI.md", ".cursor", ".cursorrules", "opencode.json", "opencode.jsonc", ".opencode", ".aider.conf.yml",
    ".aider.model.settings.yml", ".github/copilot-instructions.md", ".windsurf",
    # shells and environments that are entered with the folder
    ".envrc", ".direnv", "flake.nix", "flake.lock", "shell.nix", "devenv.nix", "devbox.json", ".tool-versions", ".mise",
    ".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml", ".config/mise.toml", ".config/mise",
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc", ".zshrc", ".zshenv", ".zprofile",
    ".zlogin", ".zlogout",
    # editors and development environments
    ".vscode", ".idea", ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el", ".editorconfig",
    ".devcontainer", ".devcontainer.json", ".zed", ".helix", ".gdbinit", ".lldbinit",
    # package managers' settings that name programs
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins", ".pnpmfile.cjs", "bunfig.toml",
    ".cargo/config.toml", ".cargo/config", "rust-toolchain", "rust-toolchain.toml", ".bundle/config", ".mvn",
    ".bazelrc", ".python-version", ".node-version", ".ruby-version",
)
#: Ends of names in the project's folder, likewise.
_ENDINGS = (".code-workspace", ".sublime-project")
#: What git obeys in a folder of its own, and how a file names one.
_OBEYED = ("config", "config.worktree", "commondir", "gitdir", "hooks", "info/attributes")
_GITDIR = re.compile(rb"gitdir: ([^\0\n]{1,4000})\s*")

#: Of one path: files, and bytes of each, that are compared by content; of more by size and times.
_MOST_FILES, _MOST_BYTES = 1000, 1 << 20
#: Of one path: names that are looked at.
_MOST_ENTRIES = 50_000


def snapshot(project: str, repositories: Iterable[str] = ()) -> dict[str, str]:
    """
    What is obeyed below the folder *project* now: a digest, by its path; without what isn't there.

    Args:
        repositories: of `HidingPlan`.
    """
    found = {}
    for path in (*WATCHED, *_with_endings(project)):
        digest = blake2b()
        if _add(digest, os.path.join(project, path), [_MOST_FILES]):
            found[path] = digest.hexdigest()
    for path in repositories:
        found[path] = _repository(os.path.join(project, path))
    if not _is_folder(os.path.join(project, ".git")) and os.path.lexists(os.path.join(project, ".git")):
        found[".git"] = _repository(os.path.join(project, ".git"))
    return found


def _with_endings(project: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(project) if name.endswith(_ENDINGS))[:_MOST_FILES]
    except OSError:
        return []


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _repository(path: str) -> str:
    """
    A digest of what git obeys in a folder of its own, or by a file or link that stands for one.
    """
    digest, left, places = blake2b(), [_MOST_FILES], [path]
    if not _is_folder(path):
        _add(digest, path, left)
        named = _GITDIR.fullmatch(_read(path) or b"")
        if named:
            places.append(os.path.join(os.path.dirname(path), os.fsdecode(named[1])))
    for place in places:
        for each in _OBEYED:
            _add(digest, os.path.join(place, each), left)
    return digest.hexdigest()


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
        digest.update(b"%d:" % len(said) + said)  # so that no two trees are one row of bytes
    return there


def _content(path: str, about: os.stat_result) -> bytes:
    found = _read(path)
    return f"{about.st_size} {about.st_ctime_ns}".encode() if found is None else found


def _read(path: str) -> bytes | None:
    """
    A regular file's beginning; None of anything else.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)

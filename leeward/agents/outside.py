"""
Files of a project that programs on the host run or obey by themselves: what an agent writes there acts on the host
afterwards, with the user's rights.

Runs in:   the caller's program.
Leaves:    files that a person runs: a Makefile, a script of a package, the project's own code; and such files in
           folders below the project's top folder, except git's: `git status` in the top folder obeys the settings of
           repositories below it that the index names, and the agent can write to the index.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

from leeward.agents.hashing import blake2b

#: Folders that an agent can't write to if they exist at its start: git's hooks, and the settings of agents.
PROTECTED = (".git/hooks", ".leeward")

#: Paths that are compared before and after. A common program runs or obeys each of them without asking.
WATCHED = (
    # git, and tools that it starts
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes", ".git/commondir", ".git/HEAD.lock",
    ".gitmodules", ".husky", ".githooks", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml",
    # settings of agents
    ".leeward", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".claude/agents",
    ".claude/commands", ".claude/skills", "CLAUDE.md", "CLAUDE.local.md", ".codex", "AGENTS.md", ".agents", ".gemini",
    "GEMINI.md", ".cursor", ".cursorrules", "opencode.json", "opencode.jsonc", ".opencode", ".aider.conf.yml",
    ".aider.model.settings.yml", ".github/copilot-instructions.md", ".windsurf",
    # shells, and environments that are activated on entering the folder
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
#: Endings of names in the project's folder that are compared as well.
_ENDINGS = (".code-workspace", ".sublime-project")
#: The paths that git obeys in a repository's folder, and the form of a file that names such a folder.
_OBEYED = ("config", "config.worktree", "commondir", "gitdir", "hooks", "info/attributes")
_GITDIR = rb"gitdir: ([^\0\n]{1,4000})\s*"  # few starts have one: to compile it takes 0.1 ms

#: Files of one path, and bytes of each, that are compared by content; others are compared by size and times.
_MOST_FILES, _MOST_BYTES = 1000, 1 << 20
#: Names of one path that are compared, at most.
_MOST_ENTRIES = 50_000


def snapshot(project: str, repositories: Iterable[str] = ()) -> dict[str, str]:
    """
    A digest of the present state of each watched path below the folder *project*, by path; without those that don't
    exist.

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
    A digest of the files that git obeys in a repository's folder, or in the one that a file or link *path* names.
    """
    digest, left, places = blake2b(), [_MOST_FILES], [path]
    if not _is_folder(path):
        _add(digest, path, left)
        named = re.fullmatch(_GITDIR, _read(path) or b"")
        if named:
            places.append(os.path.join(os.path.dirname(path), os.fsdecode(named[1])))
    for place in places:
        for each in _OBEYED:
            _add(digest, os.path.join(place, each), left)
    return digest.hexdigest()


def identities(project: str, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """
    Device and inode of each of *paths* below the folder *project*, by path; without those that don't exist. The cover
    of a hidden file doesn't hide a file with another inode.
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
    The keys whose values differ or that only one mapping has, sorted.
    """
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _add(digest: blake2b, path: str, left: list[int]) -> bool:
    """
    Update *digest* with the state of *path* and all below it; returns whether *path* exists. Links aren't followed;
    *left* has the number of files that may still be opened. The tree is hostile: it may be too deep for recursion, and
    change meanwhile.
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

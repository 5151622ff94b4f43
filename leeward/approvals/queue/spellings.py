"""
Other spellings of a command, for rules that deny: they match a command if they match one of its spellings.

Runs in:   the operator's program; pure.
In doubt:  a spelling more. `sudo -u x git push` has the spellings `x git push` and `git push`, since it isn't known
           which options of a program take a value.
Leaves:    what isn't in the arguments: aliases of git, scripts, links to a program under another name, a line of a
           shell that isn't plain words; and global options of other programs than git.
Source:    git(1), as of git 2.54
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from leeward.approvals.queue.subjects import plain_words

#: Programs that execute the rest of their arguments as a command.
_RUNNERS = frozenset((
    "env", "command", "exec", "builtin", "nohup", "setsid", "nice", "ionice", "chrt", "taskset", "timeout", "time",
    "stdbuf", "unbuffer", "sudo", "doas", "runuser", "setpriv", "unshare", "nsenter", "prlimit", "busybox", "xargs",
    "chroot", "flock", "script", "strace", "ltrace", "watch", "eatmydata", "fakeroot", "systemd-run", "direnv", "mise",
    "eval", "find", "parallel", "sem", "su", "pkexec", "toybox", "setarch", "linux32", "linux64", "start-stop-daemon",
    "perf", "valgrind", "gdb", "rlwrap", "faketime", "firejail", "bwrap", "proot", "torsocks", "proxychains", "entr",
    "cgexec", "numactl", "chpst", "hyperfine", "tmux", "screen", "ssh", "ssh-agent", "dbus-run-session", "xvfb-run",
    "uv", "uvx", "npm", "npx", "pnpm", "yarn", "bunx", "poetry", "pdm", "pipenv", "hatch", "conda", "bundle", "nix",
    "nix-shell", "devbox", "asdf",
))

#: Programs that run a line after -c.
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash"))

#: Commands of git that run the rest of their arguments, or a line in them.
_RUNNING = frozenset(("submodule", "rebase", "bisect", "for-each-repo"))

#: Options of git before its command whose value is the next argument.
_WITH_VALUE = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env",
                         "--attr-source"))

#: Spellings of one command, at most.
MOST = 2048


def spellings(argv: Sequence[str]) -> set[tuple[str, ...]] | None:
    """*argv*, and what else can be written for it; None if that is more than MOST."""
    waiting, known = [tuple(argv)], set[tuple[str, ...]]()
    while waiting:
        found = waiting.pop()
        if found and found[0] and found not in known:
            if len(known) >= MOST:
                return None
            known.add(found)
            waiting += _others(found)
    return known


def _others(argv: tuple[str, ...]) -> list[tuple[str, ...]]:
    program, rest = posixpath.basename(argv[0]), argv[1:]
    if program != argv[0]:
        return [(program, *rest)]
    if program == "git" and not (rest and rest[0] in _RUNNING):
        return [("git", *_without_globals(rest))]
    if program.startswith("git-"):
        return [("git", program.removeprefix("git-"), *rest)]
    if program in _RUNNERS or program == "git" or program.startswith("ld-linux"):
        # A word may have a line: `env -S 'git push'`, `script -c 'git push'`; with options of `env` at its beginning.
        texts = [each.removeprefix("-S").removeprefix("--split-string=") for each in rest if " " in each]
        lines = [words[at:] for each in texts if (words := plain_words(each)) for at in range(len(words))]
        return [*(rest[at:] for at in range(len(rest))), *lines]
    if program in _SHELLS:
        return [words for each in rest if (words := plain_words(each))]
    return []


def _without_globals(rest: tuple[str, ...]) -> tuple[str, ...]:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 2 if rest[at] in _WITH_VALUE else 1
    return rest[at:]

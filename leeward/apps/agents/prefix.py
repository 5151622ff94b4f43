"""
A shell line of an agent that runs outside of the sandbox: the agent that it comes from, and the file that the agent
reads afterwards.

Runs in:   the user's program, once for each line; pure except for /proc.
Trust:     none in the line: a model wrote most of it. The sandbox runs it whole and unchanged. Only its very end, which
           the agent's program writes, is parsed here, and the only effect is one file with a path.
Source:    Claude Code 2.1 (the program of the wheel claude-agent-sdk 0.2.187, as of 2026-11-24). It runs
           `bash -c [-l] "'PREFIX' 'LINE'"`, where LINE ends in `&& pwd -P >| FILE`, and reads FILE for the folder in
           which the next line starts. A prefix with " -" in it is cut there: what follows the last one is an argument.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from leeward.spec.folders import within

#: Names of processes that may be between an agent and its lines.
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish", "env", "timeout", "leeward-shell-p"))

#: Ancestors that are examined, at most.
_GENERATIONS = 32

_END = re.compile(r"&& pwd -P >\| (\S{1,4096}|'[^']{1,4096}')\Z")
_NAME = re.compile(r"claude-[0-9a-zA-Z]{1,40}-cwd")


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The process of an agent that runs outside of a sandbox."""

    pid: int  # its number
    start: int  # in clock ticks since the boot, which distinguishes it from a later process with this pid

    @property
    def key(self) -> str:
        """The key by which the agent's sandbox is found again."""
        return f"{self.pid}-{self.start}"


def parse_key(text: str) -> AgentSession | None:
    """The session with the key *text*; None if *text* isn't a key."""
    found = re.fullmatch(r"([1-9][0-9]{0,9})-([0-9]{1,19})", text)
    return AgentSession(int(found[1]), int(found[2])) if found else None


def session_of(pid: int, stat: Callable[[int], str]) -> AgentSession:
    """The nearest process from *pid* upwards that is no shell, or the last that *stat*, of /proc/PID/stat, can read."""
    found = AgentSession(pid, 0)
    for _ in range(_GENERATIONS):
        try:
            name, parent, start = parse_stat(stat(pid))
        except (OSError, ValueError):
            return found
        found = AgentSession(pid, start)
        if name not in _SHELLS or parent <= 1:
            return found
        pid = parent
    return found


def parse_stat(text: str) -> tuple[str, int, int]:
    """The name, the parent's pid and the start time in a line of proc_pid_stat(5); else ValueError."""
    # A name may contain blanks and brackets, so it ends at the last bracket.
    head, bracket, rest = text.rpartition(")")
    fields = rest.split()
    if not bracket or len(fields) < 20:
        raise ValueError("no line of /proc/PID/stat")
    return head.partition("(")[2], int(fields[1]), int(fields[19])


def is_alive(session: AgentSession, stat: Callable[[int], str]) -> bool:
    try:
        return parse_stat(stat(session.pid))[2] == session.start
    except (OSError, ValueError):
        return False


def folder_file(line: str, temporary: tuple[str, ...]) -> str:
    """The file from which the agent reads its new folder; "" if *line* names none in one of the folders *temporary*."""
    found = _END.search(line)
    if found is None:
        return ""
    try:
        words = shlex.split(found[1])
    except ValueError:
        return ""
    path = words[0] if len(words) == 1 else ""
    folder, name = os.path.split(path)
    return path if _NAME.fullmatch(name) and folder in temporary else ""


def reported_folder(content: bytes, roots: tuple[str, ...]) -> str:
    """The folder that the end of a line wrote; "" if it isn't below one of *roots*, which have the same paths outside."""
    path = os.fsdecode(content.removesuffix(b"\n"))
    if "\0" in path or "\n" in path or not path.startswith("/") or os.path.normpath(path) != path:
        return ""
    return path if any(within(path, root) for root in roots) else ""

"""
A shell line of an agent that runs outside of the sandbox: which agent it is from, and what the agent reads of it.

Runs in:   the user's program, once for each line; pure but for /proc.
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

#: Programs between an agent and its lines.
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish", "env", "timeout", "leeward-shell-p"))

#: Ancestors looked at, at most.
_GENERATIONS = 32

_END = re.compile(r"&& pwd -P >\| (\S{1,4096}|'[^']{1,4096}')\Z")
_NAME = re.compile(r"claude-[0-9a-zA-Z]{1,40}-cwd")


@dataclass(frozen=True, slots=True)
class AgentSession:
    """
    The process of an agent that runs outside.

    Attributes:
        pid: its number.
        start: when it began, in clock ticks since the boot, which tells it from a later process of the same number.
    """

    pid: int
    start: int

    @property
    def key(self) -> str:
        """
        By which its sandbox is found again.
        """
        return f"{self.pid}-{self.start}"


def parse_key(text: str) -> AgentSession | None:
    """
    The session whose key is *text*; None where it is none.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,9})-([0-9]{1,19})", text)
    return AgentSession(int(found[1]), int(found[2])) if found else None


def session_of(pid: int, stat: Callable[[int], str]) -> AgentSession:
    """
    The nearest ancestor of *pid* that is no shell; the last one that can be seen where all are.

    Args:
        pid: of the parent of the program that was called.
        stat: the content of /proc/PID/stat; OSError where that process is gone.
    """
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
    """
    Name, parent and start of a process, of proc_pid_stat(5).

    Raises:
        ValueError: it has another form.
    """
    # A name may have blanks and brackets in it, so the last one counts.
    head, bracket, rest = text.rpartition(")")
    fields = rest.split()
    if not bracket or len(fields) < 20:
        raise ValueError("no line of /proc/PID/stat")
    return head.partition("(")[2], int(fields[1]), int(fields[19])


def is_alive(session: AgentSession, stat: Callable[[int], str]) -> bool:
    """
    Whether the agent's process is there still.
    """
    try:
        return parse_stat(stat(session.pid))[2] == session.start
    except (OSError, ValueError):
        return False


def folder_file(line: str, temporary: tuple[str, ...]) -> str:
    """
    The file in which the agent looks for its new folder; "" where the line names none that this program may write.

    Args:
        line: the whole of it.
        temporary: folders for temporary files, one of which has it.
    """
    found = _END.search(line)
    if found is None:
        return ""
    try:
        words = shlex.split(found[1])
    except ValueError:
        return ""
    path = words[0] if 1 == len(words) else ""
    folder, name = os.path.split(path)
    return path if _NAME.fullmatch(name) and folder in temporary else ""


def told_folder(content: bytes, roots: tuple[str, ...]) -> str:
    """
    The folder that a line's end wrote down inside; "" where it isn't one of the folders that are the same outside, in
    which alone the agent may go on.
    """
    path = os.fsdecode(content.removesuffix(b"\n"))
    if "\0" in path or "\n" in path or not path.startswith("/") or os.path.normpath(path) != path:
        return ""
    return path if any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots) else ""

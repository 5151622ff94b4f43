"""
`leeward agent start`: click parses the command line in a forked copy of this process, while this process imports the
modules that a start needs.

Runs in:   the CLI. The user waits for the agent: both tasks take some 15 ms, and run at the same time.
Stands if: the copy returns no parameters, because the line is wrong, a shell asks for completions, or no process can be
           forked. In these cases, and if no processor is idle, click parses the line here, and prints its messages.
"""

from __future__ import annotations

import datetime as dt  # noqa: F401  # both processes need these; they take longest to import
import os
import sys
import threading  # noqa: F401
from collections.abc import Sequence
from typing import Any

from leeward.agents.forked import ForkedAnswer
from leeward.errors import LeewardError
from leeward_cli.messages import complain
from leeward_cli.options import UsageError


def run(argv: Sequence[str]) -> int:
    """
    Run `agent start` in *argv*; return the exit status. This process must have only one thread.
    """
    try:
        return _run(argv)
    except LeewardError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        from leeward_cli.main import die_by

        return die_by("SIGINT")


def _run(argv: Sequence[str]) -> int:
    if not processor_idle():
        return by_click(argv)
    line = ForkedAnswer(lambda: parameters(argv))
    try:
        from leeward_cli import agent_start

        agent_start.import_what_follows()
        given = line.take()
    finally:
        line.close()
    if given is None:
        return by_click(argv)
    words, options = given
    try:
        return agent_start.start(*words, **options)
    except UsageError as error:
        return by_click(argv, _refusal(error))


def processor_idle() -> bool:
    """
    Whether a processor is idle, which can run the copy. Without one, the copy takes 10 ms more than it saves.
    """
    if len(os.sched_getaffinity(0)) < 2:
        return False
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])  # running threads, with this one
    except (OSError, ValueError, IndexError):
        return False
    return running < (os.cpu_count() or 1)


def by_click(argv: Sequence[str], act: Any = None) -> int:
    """
    Run `agent start` in *argv*, without the other commands.

    Args:
        act: called instead of the start.
    """
    from leeward_cli.agent_start_command import alone
    from leeward_cli.groups import run_alone

    return run_alone(alone, argv, act)


def parameters(argv: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """
    The arguments with which a start is called for *argv*; None if click refuses *argv* or would print something. Called
    in the copy, which prints nothing from here on.
    """
    sys.stdout = sys.stderr = None  # as if both had been closed at the start
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(*words: Any, **options: Any) -> int:
        found.append((words, options))
        return 0

    by_click(argv, keep)
    return found[0] if found else None


def _refusal(error: UsageError) -> Any:
    def refuse(*_words: Any, **_options: Any) -> int:
        raise error

    return refuse

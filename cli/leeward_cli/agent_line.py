"""
`leeward agent start`: click parses the command line in a forked copy of this process, while this process imports the
modules that a start needs. The copy also parses the files of settings.

Runs in:   the CLI. The user waits for the agent: both tasks take some 18 ms, and run at the same time. So this module
           imports only what both need, and no `typing`, which each of them imports for itself.
Stands if: the copy returns no parameters, because the line is wrong, a shell asks for completions, or no process can be
           forked. In these cases, and if no processor is idle, click parses the line here, and prints its messages.
"""

from __future__ import annotations

import os
import sys

from leeward.agents.forked import ForkedAnswer
from leeward.errors import LeewardError
from leeward_cli.messages import complain
from leeward_cli.options import UsageError

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Modules that click imports, with the names that it uses while it reads a line: for the texts of help and of errors,
#: which the copy doesn't print, and for a type that no option of `start` has. To import them takes 8 ms.
_STAND_INS: dict[str, dict[str, Any]] = {
    "inspect": {"cleandoc": str},
    "gettext": {"gettext": str, "ngettext": lambda one, more, number: one if number == 1 else more},
    "uuid": {"UUID": object},
}


def run(argv: Sequence[str]) -> int:
    """Run `agent start` in *argv*; return the exit status. This process must have only one thread."""
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
    line = ForkedAnswer(lambda: _read(argv))
    try:
        from leeward.agents import reading
        from leeward_cli import agent_start

        agent_start.import_what_follows()
        given = line.take()
    finally:
        line.close()
    if given is None:
        return by_click(argv)
    (words, options), tables = given
    reading.expect(tables)
    try:
        return agent_start.start(*words, **options)
    except UsageError as error:
        return by_click(argv, _refusal(error))


def processor_idle() -> bool:
    """Whether a processor is idle, which can run the copy. Without one, the copy takes 10 ms more than it saves."""
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


def _read(argv: Sequence[str]) -> Any:
    """
    The answer of the copy: the parameters, and the tables in the files of settings that a start with them reads; None
    if there are no parameters.
    """
    _stand_in()
    given = parameters(argv)
    if given is None:
        return None
    from leeward.agents.reading import parsed_ahead

    (name, path, *_), _ = given
    return given, parsed_ahead(name, path, os.environ)


def _stand_in() -> None:
    """Put `_STAND_INS` in the place of modules that this process hasn't imported."""
    from types import ModuleType

    for name, names in _STAND_INS.items():
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__dict__.update(names)


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

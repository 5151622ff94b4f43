"""
What libraries want done in a child of fork, done in each job.

Runs in:   recorded in the zygote, while it imports them; run in the job's process, before it waits for its job.

A runner is cloned in C, and os.register_at_fork's hooks aren't run there: bytecode is dear in a fresh clone (70
pages and 0.5 ms of processor time for the standard library's). Those of the standard library renew locks, which
nobody holds where there is one thread, and `random`, which `fresh` does. Any other library's are run: who knows
what for.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

Hook = Callable[[], object]

#: By registration: what is to be called before a fork, and after it in the child.
_registered: list[tuple[Hook | None, Hook | None]] = []


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """
    Note what the modules that are imported here register. A job's own forks run it in any case.
    """
    register = os.register_at_fork

    def note(**given: Hook) -> None:
        register(**given)  # it says itself what is wrong with them
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.partition(".")[0] not in sys.stdlib_module_names:
            _registered.append((given.get("before"), given.get("after_in_child")))

    os.register_at_fork = note  # type: ignore[assignment]
    try:
        yield
    finally:
        os.register_at_fork = register


def run() -> None:
    """
    As os.fork would: those before it from the last to the first, those after it in order.

    Raises:
        Exception: whatever a hook does. Nobody may get a job whose process isn't what its libraries want.
    """
    for before, _ in reversed(_registered):
        if before is not None:
            before()
    for _, after in _registered:
        if after is not None:
            after()

"""
Runs the hooks that libraries register for a child of fork, in each job.

Runs in:   recorded in the zygote, while it imports the libraries; run in the job's process, before it waits for its
           job.

A runner is cloned in C, and os.register_at_fork's hooks aren't run there: bytecode is expensive in a fresh clone (70
pages and 0.5 ms of processor time for the standard library's hooks). The standard library's hooks renew locks, which
aren't held since there is one thread, and reseed `random`, which `fresh` does. The hooks of other libraries are run
here, since they may do anything.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from leeward.points import point

Hook = Callable[[], object]

#: For each registration, the functions to call before a fork, and in the child after it.
_registered: list[tuple[Hook | None, Hook | None]] = []


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record the hooks that modules register when they are imported in this context. A job's own forks run them anyway."""
    register = os.register_at_fork

    def note(**given: Hook) -> None:
        register(**given)  # raises if the arguments are wrong
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.partition(".")[0] not in sys.stdlib_module_names:
            _registered.append((given.get("before"), given.get("after_in_child")))

    os.register_at_fork = note  # type: ignore[assignment]
    try:
        yield
    finally:
        os.register_at_fork = register


def any_registered() -> bool:
    """Whether any hook was recorded."""
    return bool(_registered)


@point("randomness.hooks")
def run() -> None:
    """
    Call the recorded hooks as os.fork does: those before a fork in reverse order, those after it in order.

    Raises:
        Exception: a hook raised it. Its library's state is then unknown, and the process must not get a job.
    """
    for before, _ in reversed(_registered):
        if before is not None:
            before()
    for _, after in _registered:
        if after is not None:
            after()

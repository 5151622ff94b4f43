"""
Renews in each job what it has from the zygote: generators' seeds, what libraries' fork hooks renew, and TLS contexts.

Runs in:   the job's process, before it waits for its job; `recorded`, `in_one_call` and `find_contexts` in the zygote.

Generators were seeded in the zygote, and don't notice the clone: OpenSSL detects a fork by the pid, and every job is pid
2. `tempfile` makes its generator on first use. A module that isn't loaded needs nothing.

A runner is cloned in C, and os.register_at_fork's hooks aren't run there: bytecode is expensive in a fresh clone (70 pages
and 0.5 ms of processor time for the standard library's hooks). The standard library's hooks renew locks, which aren't held
since there is one thread, and reseed `random`. The hooks of other libraries are run here, since they may do anything.

TLS contexts that modules make while the zygote imports them, such as aiohttp's, lack the sandbox's own authority, which the
zygote can't know.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from leeward.base.points import point

Hook = Callable[[], object]

#: For each registration, the functions to call before a fork, and in the child after it.
_registered: list[tuple[Hook | None, Hook | None]] = []

#: Bytes of the certificates that a worker's file has beyond the host's, at most.
_MOST = (64 + 4) << 10

_contexts: list[Any] = []
#: A file of certificates, and the line behind which are those that the contexts don't know.
_certificates, _further = "", b""


def _random(module: Any) -> None:
    module._inst.seed()  # as the module's own hook does in a child of os.fork


def _numpy(module: Any) -> None:
    module.seed()  # from the system's entropy: the generator behind np.random.rand and similar functions


def _openssl(module: Any) -> None:
    module.RAND_add(os.urandom(32), 32.0)


def _multiprocessing(module: Any) -> None:
    module.current_process().authkey = os.urandom(32)  # the key that signs its connections


#: The functions that reseed, by the name of the module in sys.modules.
SOURCES: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("random", _random),
    ("numpy.random", _numpy),
    ("_ssl", _openssl),
    ("multiprocessing.process", _multiprocessing),
)


@point("randomness.sources")
def sources() -> tuple[tuple[str, Callable[[Any], None]], ...]:
    return SOURCES


def in_one_call() -> Callable[[], object] | None:
    """A function in C that does all of `freshen`, or None if there is none. Called in the zygote."""
    if _registered or [name for name, _ in sources() if name in sys.modules] != ["random"]:
        return None
    generator = sys.modules["random"]._inst  # the generator behind the module's functions
    if type(generator) is not sys.modules["random"].Random:
        return None
    generator.seed()  # sets the part of its state that the function in C doesn't
    return super(type(generator), generator).seed  # type: ignore[no-any-return]  # modules are Any


def reseed() -> None:
    """Reseed the generators of all loaded modules."""
    for name, renew in sources():
        module = sys.modules.get(name)
        if module is not None:
            renew(module)


def freshen() -> None:
    """In each runner: reseed, and run hooks."""
    reseed()
    run_hooks()


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


@point("randomness.hooks")
def run_hooks() -> None:
    """
    Call the recorded hooks as os.fork does: those before a fork in reverse order, those after it in order. If one raises,
    its library's state is unknown, and the process must not get a job.
    """
    for before, _ in reversed(_registered):
        if before is not None:
            before()
    for _, after in _registered:
        if after is not None:
            after()


def find_contexts(path: str, further: bytes) -> None:
    """
    Find the contexts, for the certificates behind the line *further* of *path*. Called before the garbage collector's
    objects are frozen, because it doesn't list frozen ones.
    """
    global _certificates, _further
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        _certificates, _further = path, further
        _contexts[:] = [each for each in gc.get_objects()
                        if issubclass(type(each), ssl.SSLContext) and each.verify_mode]


def tell_contexts() -> None:
    """Add the certificates to the contexts. If that fails, nothing is raised, and their connections will be refused."""
    if not _contexts:
        return
    with contextlib.suppress(OSError, ValueError):  # ssl.SSLError is an OSError
        with open(_certificates, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST))
            more = file.read().rpartition(_further)[2].decode()
        for each in _contexts:
            each.load_verify_locations(cadata=more)

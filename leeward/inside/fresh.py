"""
Reseeds random generators: jobs are clones of one interpreter, and no two may share a generator's state.

Runs in:   the job's process, before it waits for its job.

Generators were seeded in the zygote, and don't notice the clone: OpenSSL detects a fork by the
pid, and every job is pid 2. `tempfile` makes its generator on first use. A module that isn't
loaded needs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from leeward.points import point


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
    """A function in C that does all of `reseed`, or None if there is none. Called in the zygote."""
    if [name for name, _ in sources() if name in sys.modules] != ["random"]:
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

"""Live sandboxes: the object, its first use, a program in it, a kernel."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.figures.row import FigureSettings, Row, absolute, compared, in_turn
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward_cli.bench.floors import CODE, CalledSubject, Spawn, check, printing
from leeward_cli.bench.ours import armed, daemon, good, in_session
from leeward_cli.bench.rounds import GAP_S, timed

_TRUE = "/bin/true"
#: Objects made in a turn, because one takes too little time to measure.
_OBJECTS = 200
#: Seconds after which a daemon is at rest, once it serves.
_BEGUN_S = 1.0


def forked() -> None:
    """Start a program by fork and exec in the bench itself, and wait for it."""
    pid = os.fork()
    if not pid:
        try:
            os.execv(_TRUE, [_TRUE])
        finally:
            os._exit(127)
    if os.waitpid(pid, 0)[1]:
        raise LeewardError(f"bench: {_TRUE} failed")


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [_object(settings), *_first_use(settings), *_calls(settings)]


def _object(settings: FigureSettings) -> Row:
    def make() -> None:
        for _ in range(_OBJECTS):
            Sandbox()

    rounds = [[timed(make) / _OBJECTS] for _ in range(settings.rounds)]
    return absolute("creation of a Sandbox object", rounds, "us", 60, f"a mean of {_OBJECTS} a round")


def _first_use(settings: FigureSettings) -> Sequence[Row]:
    known: list[list[float]] = []
    folder: list[list[float]] = []
    new: list[list[float]] = []
    with tempfile.TemporaryDirectory() as work:
        with daemon(None) as path:
            plain, with_folder = partial(Sandbox, socket=path), partial(Sandbox, socket=path, workdir=work)
            known += [[_opened(path, plain)] for _ in range(settings.rounds)]
            _opened(path, with_folder)
            folder += [[_opened(path, with_folder)] for _ in range(settings.some(20))]
        for _ in range(settings.some(10)):
            with daemon(None) as path:
                armed(path, 1)
                time.sleep(_BEGUN_S)  # the process that opens folders was started with the daemon, and imports
                new.append([_opened(path, partial(Sandbox, socket=path, workdir=work))])
    return [
        absolute("first use of a sandbox of a known shape", known, "ms", 2,
                  "the daemon's own profile, a runner armed"),
        absolute("the same with a folder of the host's", folder, "ms", None, "and again each time"),
        absolute("first use of a sandbox of a new shape", new, "ms", 15,
                  "the first one of a daemon with a folder of the host's, a second after its start"),
    ]


def _opened(path: str, make: Callable[[], Sandbox]) -> float:
    """Return the seconds from making the object to its id, in a daemon without other work."""
    armed(path, 1)
    time.sleep(GAP_S)
    box = make()
    start = time.perf_counter()
    try:
        if not box.id:
            raise LeewardError("bench: a sandbox without an id")
        return time.perf_counter() - start
    finally:
        box.close()


def _calls(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        client = stack.enter_context(Client(path))
        box = stack.enter_context(Sandbox(socket=path))
        ours = CalledSubject('box.run(["true"])', lambda: check("true", good(box.run(["true"])).stdout, b""))
        by_fork = CalledSubject(f"{_TRUE} by fork and exec", forked)
        spawned = Spawn(f"{_TRUE} by posix_spawn", [_TRUE], printed=b"")
        programs = in_turn([ours, by_fork, spawned], settings.some(20), 10)
        own = box.kernel()
        kernel = printing("a kernel's call", lambda: good(own.execute(CODE)).stdout)
        session = in_session(stack.enter_context(client.session()))
        jobs = in_turn([kernel, session], settings.some(20), 10)
    return [compared(f"{ours.name} over {by_fork.name}", programs, ours.name, by_fork.name, 2),
            compared(f"{ours.name} over {spawned.name}", programs, ours.name, spawned.name, None),
            compared("a kernel's call over a session's", jobs, kernel.name, session.name, 1)]

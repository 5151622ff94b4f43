"""
Live sandboxes: the object, its first use, a program in it, a kernel.

Runs in:   a developer's shell.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.figures.row import FigureSettings, Row, times
from bench.figures.turns import beside, in_turn
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE, Spawn, check
from leeward_cli.bench.ours import InSession, armed, daemon, good
from leeward_cli.bench.rounds import GAP_S, timed

_TRUE = "/bin/true"
#: Objects made in a turn, because one takes too little time to measure.
_OBJECTS = 200
#: Seconds after which a daemon is at rest, once it serves.
_BEGUN_S = 1.0


class Forked:
    """A program that the bench itself starts by fork and exec, and waits for."""

    name = f"{_TRUE} by fork and exec"

    def call(self) -> None:
        pid = os.fork()
        if not pid:
            try:
                os.execv(_TRUE, [_TRUE])
            finally:
                os._exit(127)
        if os.waitpid(pid, 0)[1]:
            raise LeewardError(f"bench: {self.name} failed")


class InSandbox:
    name = 'box.run(["true"])'

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    def call(self) -> None:
        good(self._box.run(["true"]))


class InKernel:
    name = "a kernel's call"

    def __init__(self, box: Sandbox) -> None:
        self._kernel = box.kernel()

    def call(self) -> None:
        check(self.name, good(self._kernel.execute(CODE)).stdout)


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [_object(settings), *_first_use(settings), *_calls(settings)]


def _object(settings: FigureSettings) -> Row:
    def make() -> None:
        for _ in range(_OBJECTS):
            Sandbox()

    rounds = [[timed(make) / _OBJECTS] for _ in range(settings.rounds)]
    return _absolute("creation of a Sandbox object", rounds, 1e-6, 60, f"a mean of {_OBJECTS} a round")


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
        _absolute("first use of a sandbox of a known shape", known, 1e-3, 2,
                  "the daemon's own profile, a runner armed"),
        _absolute("the same with a folder of the host's", folder, 1e-3, None, "and again each time"),
        _absolute("first use of a sandbox of a new shape", new, 1e-3, 15,
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
        ours, forked, spawned = InSandbox(box), Forked(), Spawn(f"{_TRUE} by posix_spawn", [_TRUE], printed=b"")
        programs = in_turn([ours, forked, spawned], settings.some(20), 10, GAP_S)
        kernel, session = InKernel(box), InSession(stack.enter_context(client.session()))
        jobs = in_turn([kernel, session], settings.some(20), 10, GAP_S)
    run = {name: times(name, GAP_S, some) for name, some in (programs | jobs).items()}
    return [
        Row(f"{ours.name} over {forked.name}", beside(programs, ours.name, forked.name), "x", 2,
            measured=[run[ours.name], run[forked.name]]),
        Row(f"{ours.name} over {spawned.name}", beside(programs, ours.name, spawned.name), "x", None,
            measured=[run[ours.name], run[spawned.name]]),
        Row("a kernel's call over a session's", beside(jobs, kernel.name, session.name), "x", 1,
            measured=[run[kernel.name], run[session.name]]),
    ]


def _absolute(words: str, rounds: Sequence[Sequence[float]], unit: float, target: float | None, note: str) -> Row:
    middle = percentile([each for row in rounds for each in row], 50) / unit
    return Row(words, round(middle, 2), "us" if unit < 1e-3 else "ms", target,
               measured=[times(words, 0.0, rounds)], note=note)

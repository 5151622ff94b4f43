"""
The interleaved run: every subject is measured in every round, so the load of a shared machine affects all alike.

In a round each subject is called several times in succession, first with gaps and then without. The first call of a
series follows another subject and finds cold caches, which shows in the upper percentiles of all subjects.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from leeward.client.blocking import Client
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.figures import Stir, Watch
from leeward_cli.bench.floors import Peer, Subject
from leeward_cli.bench.ours import OURS, Legs, daemon_pid, fresh, from_c, legs, rate
from leeward_cli.bench.spent import Spent, spent

#: Seconds between calls with gaps: long enough for a worker to be armed again, and for a processor to become idle, as
#: between the calls of a real client.
GAP_S = 0.005

#: The numbers of successive calls with gaps and without, by the time that one call takes.
_CALLS, _FEW, _CALLS_OF_PYTHON = (20, 20), (10, 10), (2, 2)

CALLERS = 8
#: The number of jobs in a burst of the callers, and of rounds between two bursts.
_BURST, _EVERY = 200, 8

#: Calls of each subject before the measurement.
_WARM = 3


@dataclass(slots=True)
class Samples:
    """
    The measured values, in seconds.

    Attributes:
        calls: the times of each round's calls, by subject and gap.
        rates: jobs per second, by subject.
        spent: of the daemon's processes in each burst, of `burst` jobs.
        load: the load average of one minute before the start.
        missing: alternatives that aren't measured, each with the reason.
        in_c: whether the hops are the compiled ones.
    """

    calls: dict[tuple[str, float], list[list[float]]] = field(default_factory=dict)
    legs: list[Legs] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    burst: int = _BURST
    rounds: int = 0
    load: float = 0.0
    stir: Stir = field(default_factory=lambda: Stir(0.0, 0.0))
    missing: dict[str, str] = field(default_factory=dict)
    in_c: bool = True


def measure(path: str, rounds: int, seconds: float, progress: Callable[[int], None] = lambda done: None,
            levels: Mapping[str, str] | None = None) -> Samples:
    """Measure the daemon on *path*, and those of *levels*, for *rounds* rounds, none of which starts after *seconds*."""
    samples = Samples(load=os.getloadavg()[0])
    with contextlib.ExitStack() as stack:
        subjects, client, fork = _subjects(stack, path, levels or {}, samples)
        for subject, _ in subjects:
            for _ in range(_WARM):
                subject.call()
        pid = daemon_pid(path)
        stack.enter_context(no_collections())
        watch = Watch()
        until = time.monotonic() + seconds
        for number in range(1, rounds + 1):
            for subject, calls in subjects:
                for gap, count in zip((GAP_S, 0.0), calls, strict=True):
                    samples.calls.setdefault((subject.name, gap), []).append(row(subject.call, count, gap))
            for _ in range(_CALLS[0] // 4):
                time.sleep(GAP_S)
                samples.legs.append(legs(client))
            watch.window()
            if number % _EVERY == 1 or rounds == number:
                _bursts(samples, path, pid, fork)
                for name, place in (levels or {}).items():
                    _burst(samples, name, partial(rate, place))
            samples.rounds = number
            progress(number)
            if time.monotonic() > until:
                break
        samples.stir = watch.stir()
    return samples


def _subjects(stack: contextlib.ExitStack, path: str, levels: Mapping[str, str],
              samples: Samples) -> tuple[list[tuple[Subject, tuple[int, int]]], Client, Peer]:
    """All subjects, each with its numbers of successive calls, until *stack* closes; the client; and the fork floor."""
    # First, since one of them forks this process.
    others = [alternatives.opened(stack, name, samples.missing) for name in alternatives.ALL]
    program = stack.enter_context(floors.compiled())
    samples.in_c = program is not None
    client = stack.enter_context(Client(path))
    fork = stack.enter_context(floors.fork())
    subjects: list[tuple[Subject, tuple[int, int]]] = [(fresh(client), _CALLS)]
    native = stack.enter_context(from_c(path))
    if native is not None:
        subjects.append((native, _CALLS))
    for name, place in levels.items():
        subjects.append((fresh(stack.enter_context(Client(place)), name), _CALLS))
    subjects += [
        (stack.enter_context(floors.hops("four", program)), _CALLS),
        (stack.enter_context(floors.hops("two", program)), _FEW),
        (floors.warm(), _FEW), (fork, _FEW), (floors.echo(), _FEW), (floors.python(), _CALLS_OF_PYTHON),
    ]
    return subjects + [each for each in others if each is not None], client, fork


def row(call: Callable[[], None], count: int, gap: float) -> list[float]:
    """The seconds that each of *count* calls took, with *gap* seconds before each."""
    clock = time.perf_counter
    times = []
    for _ in range(count):
        if gap:
            time.sleep(gap)
        start = clock()
        call()
        times.append(clock() - start)
    return times


def _bursts(samples: Samples, path: str, pid: int, fork: Peer) -> None:
    before = spent(pid)
    _burst(samples, OURS, partial(rate, path))
    after = spent(pid)
    if before is not None and after is not None:
        samples.spent.append(after.since(before))
    _burst(samples, fork.name, fork.rate)


def _burst(samples: Samples, name: str, run: Callable[[int, int], None]) -> None:
    seconds = timed(lambda: run(CALLERS, samples.burst))
    samples.rates.setdefault(name, []).append(samples.burst / seconds)


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """A context in which the garbage collector of this process is disabled, so that it doesn't affect the figures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

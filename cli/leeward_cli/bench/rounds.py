"""
The interleaved run: every subject has its turn in every round.

Runs in:   the CLI.

What a shared machine does to one subject it then does to the others, and the ratios hold
where the times don't. In a round each subject is called in a row, first with gaps and
then without. A row takes one call's warm caches and cold ones alike, as its first call
follows another subject; that is in the upper percentiles, for all.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from leeward.client.blocking import Client
from leeward_cli.bench import floors, native
from leeward_cli.bench.floors import Subject
from leeward_cli.bench.ours import Leeward, Legs, Spent, daemon_pid, legs, rate, spent

#: Seconds between calls, where there are gaps: long enough for a worker to be armed again and
#: for a processor to fall asleep, as it does between the calls of a real client.
GAP_S = 0.005

#: Calls in a row with gaps and without, by how long one takes.
_CALLS, _CALLS_OF_PYTHON = (20, 20), (2, 3)

CALLERS = 8
#: Jobs of a burst of the callers, and after how many rounds there is one.
_BURST, _EVERY = 200, 8

#: Calls before anything counts.
_WARM = 3


@dataclass(slots=True)
class Samples:
    """
    Everything that was measured, in seconds, by round.

    Attributes:
        calls: by subject and gap.
        legs: calls of leeward with gaps whose job says when it began.
        rates: jobs per second, by subject.
        spent: by the daemon's processes during the bursts, and for how many jobs.
        rounds: how many there were.
        load: of one minute, before the start.
    """

    calls: dict[tuple[str, float], list[list[float]]] = field(default_factory=dict)
    legs: list[Legs] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    burst: int = _BURST
    rounds: int = 0
    load: float = 0.0


def measure(path: str, rounds: int, seconds: float, told: Callable[[int], None] = lambda done: None,
            levels: Mapping[str, str] | None = None) -> Samples:
    """
    Measure for *rounds* rounds against the daemon on *path*.

    Args:
        seconds: after which no further round begins.
        levels: paths of other daemons, by the switches that they were started with.
        told: called after each round.

    Raises:
        LeewardError: the daemon is away, or a subject answers wrong.
    """
    samples = Samples(load=os.getloadavg()[0])
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(path))
        hops = stack.enter_context(floors.Hops())
        fork = stack.enter_context(floors.Fork())
        ours = Leeward(client)
        subjects: list[tuple[Subject, tuple[int, int]]] = [(ours, _CALLS)]
        from_c = stack.enter_context(native.connected(path))
        if from_c is not None:
            subjects.append((from_c, _CALLS))
        for name, place in (levels or {}).items():
            subjects.append((Leeward(stack.enter_context(Client(place)), name), _CALLS))
        subjects += [(hops, _CALLS), (fork, _CALLS), (floors.echo(), _CALLS), (floors.python(), _CALLS_OF_PYTHON)]
        for subject, _ in subjects:
            for _ in range(_WARM):
                subject.call()
        pid = daemon_pid(path)
        stack.enter_context(_no_collections())
        until = time.monotonic() + seconds
        for number in range(1, rounds + 1):
            for subject, calls in subjects:
                for gap, count in zip((GAP_S, 0.0), calls, strict=True):
                    samples.calls.setdefault((subject.name, gap), []).append(_row(subject.call, count, gap))
            samples.legs += [_after(GAP_S, lambda: legs(client)) for _ in range(_CALLS[0] // 4)]
            if number % _EVERY == 1 or rounds == number:
                _bursts(samples, path, pid, fork)
                for name, place in (levels or {}).items():
                    seconds_of = _timed(lambda place=place: rate(place, CALLERS, samples.burst))  # type: ignore[misc]  # a bound default
                    samples.rates.setdefault(name, []).append(samples.burst / seconds_of)
            samples.rounds = number
            told(number)
            if time.monotonic() > until:
                break
    return samples


def _row(call: Callable[[], None], count: int, gap: float) -> list[float]:
    clock = time.perf_counter
    times = []
    for _ in range(count):
        if gap:
            time.sleep(gap)
        start = clock()
        call()
        times.append(clock() - start)
    return times


def _after(gap: float, call: Callable[[], Legs]) -> Legs:
    time.sleep(gap)
    return call()


def _bursts(samples: Samples, path: str, pid: int, fork: floors.Fork) -> None:
    before = spent(pid)
    seconds = _timed(lambda: rate(path, CALLERS, samples.burst))
    after = spent(pid)
    if before is not None and after is not None:
        samples.spent.append(after.since(before))
    samples.rates.setdefault(Leeward.name, []).append(samples.burst / seconds)
    seconds = _timed(lambda: floors.fork_rate(fork.socket, CALLERS, samples.burst))
    samples.rates.setdefault(floors.Fork.name, []).append(samples.burst / seconds)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """
    Keep the client's own collector out of the figures.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

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
from leeward_cli.bench import alternatives, compiled, floors, machine, native
from leeward_cli.bench.floors import Subject
from leeward_cli.bench.ours import LeewardSubject, Legs, daemon_pid, legs, rate
from leeward_cli.bench.spent import Spent, spent

#: Seconds between calls, where there are gaps: long enough for a worker to be armed again and
#: for a processor to fall asleep, as it does between the calls of a real client.
GAP_S = 0.005

#: Calls in a row with gaps and without, by how long one takes.
_CALLS, _FEW, _CALLS_OF_PYTHON = (20, 20), (10, 10), (2, 2)

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
        stir: what others did to the machine meanwhile.
        missing: alternatives that aren't measured, and why.
        in_c: the hops are C's.
    """

    calls: dict[tuple[str, float], list[list[float]]] = field(default_factory=dict)
    legs: list[Legs] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    burst: int = _BURST
    rounds: int = 0
    load: float = 0.0
    stir: machine.Stir = field(default_factory=lambda: machine.Stir(0.0, 0.0))
    missing: dict[str, str] = field(default_factory=dict)
    in_c: bool = True


def measure(path: str, rounds: int, seconds: float, progress: Callable[[int], None] = lambda done: None,
            levels: Mapping[str, str] | None = None) -> Samples:
    """
    Measure for *rounds* rounds against the daemon on *path*.

    Args:
        seconds: after which no further round begins.
        levels: paths of other daemons, by the switches that they were started with.
        progress: called after each round.

    Raises:
        LeewardError: the daemon is away, or a subject answers wrong.
    """
    samples = Samples(load=os.getloadavg()[0])
    with contextlib.ExitStack() as stack:
        subjects, client, fork = _subjects(stack, path, levels or {}, samples)
        for subject, _ in subjects:
            for _ in range(_WARM):
                subject.call()
        pid = daemon_pid(path)
        stack.enter_context(no_collections())
        watch = machine.Watch()
        until = time.monotonic() + seconds
        for number in range(1, rounds + 1):
            for subject, calls in subjects:
                for gap, count in zip((GAP_S, 0.0), calls, strict=True):
                    samples.calls.setdefault((subject.name, gap), []).append(row(subject.call, count, gap))
            samples.legs += [_after(GAP_S, lambda: legs(client)) for _ in range(_CALLS[0] // 4)]
            watch.window()
            if number % _EVERY == 1 or rounds == number:
                _bursts(samples, path, pid, fork)
                for name, place in (levels or {}).items():
                    seconds_of = timed(lambda place=place: rate(place, CALLERS, samples.burst))  # type: ignore[misc]  # a bound default
                    samples.rates.setdefault(name, []).append(samples.burst / seconds_of)
            samples.rounds = number
            progress(number)
            if time.monotonic() > until:
                break
        samples.stir = watch.stir()
    return samples


def _subjects(stack: contextlib.ExitStack, path: str, levels: Mapping[str, str],
              samples: Samples) -> tuple[list[tuple[Subject, tuple[int, int]]], Client, floors.Fork]:
    """
    All that is measured, with its calls in a row, until *stack* closes.
    """
    # Before everything else, as one of them forks us.
    others = [alternatives.opened(stack, name, samples.missing) for name in alternatives.ALL]
    program = stack.enter_context(compiled.floors())
    samples.in_c = program is not None
    client = stack.enter_context(Client(path))
    fork = stack.enter_context(floors.Fork())
    subjects: list[tuple[Subject, tuple[int, int]]] = [(LeewardSubject(client), _CALLS)]
    from_c = stack.enter_context(native.connected(path))
    if from_c is not None:
        subjects.append((from_c, _CALLS))
    for name, place in levels.items():
        subjects.append((LeewardSubject(stack.enter_context(Client(place)), name), _CALLS))
    subjects += [
        (stack.enter_context(floors.Hops("four", program)), _CALLS),
        (stack.enter_context(floors.Hops("two", program)), _FEW),
        (floors.Warm(), _FEW), (fork, _FEW), (floors.echo(), _FEW), (floors.python(), _CALLS_OF_PYTHON),
    ]
    return subjects + [each for each in others if each is not None], client, fork


def row(call: Callable[[], None], count: int, gap: float) -> list[float]:
    """
    The seconds that each of *count* calls took, with *gap* seconds before each.
    """
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
    seconds = timed(lambda: rate(path, CALLERS, samples.burst))
    after = spent(pid)
    if before is not None and after is not None:
        samples.spent.append(after.since(before))
    samples.rates.setdefault(LeewardSubject.name, []).append(samples.burst / seconds)
    seconds = timed(lambda: floors.fork_rate(fork.socket, CALLERS, samples.burst))
    samples.rates.setdefault(floors.Fork.name, []).append(samples.burst / seconds)


def timed(call: Callable[[], None]) -> float:
    """
    The seconds that it took.
    """
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """
    Keep the client's own collector out of the figures.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""
The interleaved run: every subject is measured in every round.

Runs in:   the CLI.

The load of a shared machine then affects all subjects alike, so ratios are reliable even if times aren't. In a round
each subject is called several times in succession, first with gaps and then without. The first call of a series follows
another subject and finds cold caches, which shows in the upper percentiles of all subjects.
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
        legs: the parts of calls of leeward with gaps.
        rates: jobs per second, by subject.
        spent: the processor time of the daemon's processes in each burst.
        burst: the number of jobs in a burst.
        rounds: the number of rounds.
        load: the load average of one minute before the start.
        stir: the load of others meanwhile.
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
    stir: machine.Stir = field(default_factory=lambda: machine.Stir(0.0, 0.0))
    missing: dict[str, str] = field(default_factory=dict)
    in_c: bool = True


def measure(path: str, rounds: int, seconds: float, progress: Callable[[int], None] = lambda done: None,
            levels: Mapping[str, str] | None = None) -> Samples:
    """
    Measure for *rounds* rounds against the daemon on *path*.

    Args:
        rounds: the greatest number of rounds.
        seconds: the time after which no further round starts.
        progress: called after each round, with its number.
        levels: paths of other daemons' sockets, by the options with which they were started.

    Raises:
        LeewardError: the daemon doesn't answer, or a subject gives a wrong answer.
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
    """All subjects, each with its numbers of successive calls, until *stack* closes; the client; and the fork floor."""
    # First, since one of them forks this process.
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
    """The seconds that *call* takes."""
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

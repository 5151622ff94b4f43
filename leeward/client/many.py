"""Many jobs by one call: what both clients' `map` yields and keeps, without the calls themselves."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leeward.errors import Refused
    from leeward.spec.outcome import Result

#: Jobs of one `map` that are sent at once, unless the caller says otherwise; the daemon may take fewer.
AT_ONCE = 256

#: One job of `map`: its code, or the options of `execute` with the code.
MapJob = str | bytes | Mapping[str, Any]
MapJobs = Iterable[MapJob]
AsyncMapJobs = Iterable[MapJob] | AsyncIterable[MapJob]


@dataclass(frozen=True, slots=True)
class MapEnd:
    """One job's end: its *number* in the order of the jobs, from 0, and its result, or the error if it was refused."""

    number: int
    job: MapJob
    result: Result | None = None
    error: Refused | None = None


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far a `map` is: jobs that have ended, those of them that were refused, and all, if their number is known."""

    done: int
    refused: int
    total: int | None


MapWatch = Callable[[MapProgress], object]


class Course:
    """
    Which jobs of one `map` may be sent, and whose ends may be yielded. With *ordered* an end waits for those before it;
    as many may wait as are sent *at_once*. In its place *room* says how many may be sent or wait now.
    """

    def __init__(self, jobs: object, *, ordered: bool, at_once: int | None = None, progress: MapWatch | None = None,
                 room: Callable[[], int] | None = None) -> None:
        if at_once is not None and at_once < 1:
            raise ValueError(f"at_once is {at_once}; it must be 1 or more")
        self._ordered, self._at_once, self._progress, self._room = ordered, at_once or AT_ONCE, progress, room
        self._total = len(jobs) if hasattr(jobs, "__len__") else None
        self._sent = self._done = self._refused = self._yielded = 0
        self._ended: dict[int, MapEnd] = {}

    @property
    def running(self) -> int:
        return self._sent - self._done

    @property
    def has_room(self) -> bool:
        """Whether one more job may be sent."""
        if self._room is not None:
            return self._sent - self._yielded < self._room()
        return self.running < self._at_once and self._sent - self._yielded < 2 * self._at_once

    def send(self) -> int:
        """Count a job that is sent now; returns its number."""
        self._sent += 1
        return self._sent - 1

    def end(self, mapped: MapEnd) -> None:
        self._done += 1
        self._refused += mapped.error is not None
        self._ended[mapped.number] = mapped
        if self._progress is not None:
            self._progress(MapProgress(self._done, self._refused, self._total))

    def next(self) -> MapEnd | None:
        """The next end to yield, if there is one."""
        number = self._yielded if self._ordered else next(iter(self._ended), -1)
        found = self._ended.pop(number, None)
        self._yielded += found is not None
        return found


def options_of(job: MapJob, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `execute` for *job*, whose own options come before *options*; TypeError for another kind of job."""
    if isinstance(job, (str, bytes)):
        return {**options, "code": job}
    if isinstance(job, Mapping):
        return {**options, **job}
    raise TypeError(f"a job is code, or a mapping with the options of execute, not {type(job).__name__}")

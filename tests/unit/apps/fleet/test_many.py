"""The jobs of one execute_many: each has one answer, and no more are under way than there is room for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from leeward.client.aio_mapping import ends_of
from leeward.client.many import Course, MapEnd, MapJob
from leeward.errors import Busy
from leeward.spec.outcome import Outcome, Result


def result(text: bytes) -> Result:
    return Result(text, b"", 0, Outcome.FINISHED)


class Stand:
    """Runs jobs in a random order. *room* is for how many; `most` were under way at once."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.running = self.most = self.begun = 0
        self._chance = random.Random(1)

    async def run(self, number: int, job: MapJob) -> MapEnd:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(self._chance.randrange(20)):
                await asyncio.sleep(0)
            if "wrong" == job:
                raise TypeError("no such option")
            if "busy" == job:
                return MapEnd(number, job, error=Busy("full"))
            return MapEnd(number, job, result(str(job).encode()))
        finally:
            self.running -= 1

    def many(self, jobs: Any, in_order: bool = False) -> AsyncGenerator[MapEnd, None]:
        return ends_of(jobs, Course(jobs, ordered=in_order, room=lambda: self.room), self.run)


async def all_of(many: AsyncGenerator[MapEnd, None]) -> list[tuple[int, Any]]:
    return [(each.number, each.error or each.result) async for each in many]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("room", [1, 7, 1000])
def test_each_job_has_one_answer(room: int, in_order: bool):
    stand = Stand(room)
    answers = asyncio.run(all_of(stand.many(map(str, range(100)), in_order)))

    assert [(number, str(number)) for number in range(100)] == [
        (number, answer.text) for number, answer in (answers if in_order else sorted(answers, key=lambda each: each[0]))]
    assert stand.most <= room


def test_no_jobs_are_no_answers():
    assert [] == asyncio.run(all_of(Stand(3).many([])))


def test_an_error_is_its_jobs_answer():
    answers = dict(asyncio.run(all_of(Stand(3).many(["1", "busy", "2"]))))

    assert isinstance(answers[1], Busy)
    assert {0, 1, 2} == set(answers)


def test_a_caller_that_is_slow_stops_the_reading():
    read: list[int] = []

    def jobs() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield str(number)

    async def main() -> int:
        answers = Stand(5).many(jobs())
        await anext(answers)
        for _ in range(200):
            await asyncio.sleep(0)
        await answers.aclose()
        return len(read)

    assert asyncio.run(main()) <= 5 + 2  # one is read ahead


def test_a_source_that_waits_keeps_no_answer_back():
    async def main() -> Any:
        more = asyncio.Event()

        async def jobs() -> AsyncIterator[str]:
            yield "1"
            await more.wait()
            yield "2"

        answers = Stand(5).many(jobs())
        first = await anext(answers)  # while the source waits
        more.set()
        return [first.result.text, (await anext(answers)).result.text, await anext(answers, None)]

    assert ["1", "2", None] == asyncio.run(main())


@pytest.mark.parametrize("jobs", [["1", "wrong"], map(int, ["1", "no number"])])
def test_a_mistake_of_the_callers_is_raised(jobs: Iterable[Any]):
    with pytest.raises((TypeError, ValueError)):
        asyncio.run(all_of(Stand(1).many(jobs)))


def test_what_is_under_way_is_cancelled():
    async def main() -> tuple[int, int]:
        stand = Stand(8)
        answers = stand.many(map(str, range(100)))
        await anext(answers)
        await answers.aclose()
        return stand.running, stand.begun

    running, begun = asyncio.run(main())

    assert 0 == running
    assert begun < 20

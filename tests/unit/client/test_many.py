"""The bounds and the order of `map`, without calls."""

from __future__ import annotations

import pytest

from leeward.client.many import AT_ONCE, Course, MapEnd, MapProgress, options_of
from leeward.errors import Busy


def ended(course: Course, *numbers: int) -> None:
    for number in numbers:
        course.end(MapEnd(number, b""))


def yielded(course: Course) -> list[int]:
    found = []
    while (one := course.next()) is not None:
        found.append(one.number)
    return found


@pytest.mark.parametrize(("ordered", "first", "then"), [(True, [], [0, 1, 2]), (False, [2, 1], [0])])
def test_ends_come_in_order_or_as_they_are(ordered: bool, first: list[int], then: list[int]) -> None:
    course = Course([1, 2, 3], ordered=ordered, at_once=3, progress=None)
    assert [0, 1, 2] == [course.send() for _ in range(3)]
    ended(course, 2, 1)
    assert first == yielded(course)
    ended(course, 0)
    assert then == yielded(course)


def test_no_more_is_sent_than_may_be_at_once_nor_than_is_yielded() -> None:
    course = Course((), ordered=False, at_once=2, progress=None)
    course.send()
    assert course.has_room
    course.send()
    assert not course.has_room
    ended(course, 0, 1)
    course.send()
    course.send()
    ended(course, 2, 3)
    assert (0, False) == (course.running, course.has_room)
    yielded(course)
    assert course.has_room


def test_progress_is_told_of_each_end() -> None:
    seen: list[MapProgress] = []
    course = Course(["a", "b"], ordered=True, at_once=None, progress=seen.append)
    course.send(), course.send()
    course.end(MapEnd(1, "b", error=Busy("no")))
    course.end(MapEnd(0, "a"))
    assert [MapProgress(1, 1, 2), MapProgress(2, 1, 2)] == seen


def test_a_generator_has_no_total() -> None:
    seen: list[MapProgress] = []
    course = Course((each for each in ()), ordered=True, at_once=None, progress=seen.append)
    for _ in range(AT_ONCE):
        assert course.has_room
        course.send()
    assert not course.has_room
    ended(course, 0)
    assert seen[0].total is None


def test_at_once_is_one_or_more() -> None:
    with pytest.raises(ValueError, match="at_once is 0"):
        Course([], ordered=False, at_once=0, progress=None)


def test_a_jobs_own_options_come_first() -> None:
    assert {"code": "1", "timeout": 3} == options_of("1", {"timeout": 3})
    assert {"code": b"1", "timeout": 2} == options_of({"code": b"1", "timeout": 2}, {"timeout": 3})
    with pytest.raises(TypeError, match="not int"):
        options_of(1, {})  # type: ignore[arg-type]  # what is refused

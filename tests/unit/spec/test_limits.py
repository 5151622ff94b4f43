"""Limits: what a request may ask for."""

from __future__ import annotations

import math

import pytest

from leeward.errors import BadRequest
from leeward.spec.limits import CEILINGS, GIB, MIB, OF_JOBS, Limits, adjusted, of_sandbox


def test_defaults_are_the_documented_ones():
    assert Limits(memory=256 * MIB, cpu=100, processes=32, time=30.0, files=64 * MIB, output=10 * MIB,
                  descriptors=1024) == Limits()
    assert (4 * GIB, 256, 600.0, 256 * MIB, 4096) == (
        CEILINGS.memory, CEILINGS.processes, CEILINGS.time, CEILINGS.output, CEILINGS.descriptors)


def test_a_request_changes_only_the_limits_that_it_names():
    got = adjusted(Limits(), CEILINGS, {"memory": 64 * MIB, "time": 2})

    assert Limits(memory=64 * MIB, time=2.0) == got


@pytest.mark.parametrize("asked", [
    {"memory": 5 * GIB}, {"processes": 257}, {"time": 601}, {"output": 257 * MIB}, {"descriptors": 4097},  # above the ceiling
    {"memory": 0}, {"processes": 0}, {"time": 0}, {"time": -1.0}, {"output": -1}, {"descriptors": 15},  # below the floor
    {"time": math.nan}, {"time": math.inf}, {"memory": True}, {"memory": "1G"}, {"memory": 1e9}, {"time": None},
    {"files": MIB}, {"cpu": 200}, {"colour": 1},                                     # not for a request
])
def test_anything_else_is_refused(asked: dict[str, object]):
    with pytest.raises(BadRequest):
        adjusted(Limits(), CEILINGS, asked)


@pytest.mark.parametrize(("asked", "files"), [
    ({}, 64 * MIB), ({"memory": 128 * MIB}, 64 * MIB), ({"memory": GIB}, 256 * MIB), ({"memory": 4 * GIB}, GIB),
    ({"memory": 4 * GIB, "files": 3 * GIB}, 3 * GIB), ({"files": 64 << 10}, 64 << 10)])
def test_a_sandboxs_files_grow_with_its_memory_unless_it_asks_for_some(asked: dict[str, int], files: int) -> None:
    assert files == of_sandbox(Limits(), CEILINGS, asked).files


def test_a_sandboxs_files_grow_up_to_their_ceiling_and_never_shrink() -> None:
    low = Limits(memory=4 * GIB, files=100 * MIB)

    assert 100 * MIB == of_sandbox(Limits(), low, {"memory": GIB}).files
    assert 200 * MIB == of_sandbox(Limits(files=200 * MIB), low, {"memory": GIB}).files
    with pytest.raises(BadRequest, match="limit files=101MiB is above this daemon's ceiling 100MiB, which `files` below"):
        of_sandbox(Limits(), low, {"files": 101 * MIB})


def test_a_job_is_told_who_can_ask_for_files() -> None:
    with pytest.raises(BadRequest, match="the opening of a live sandbox can ask for it"):
        adjusted(Limits(), CEILINGS, {"files": 128 * MIB})


def test_a_fresh_job_can_ask_for_both_clocks() -> None:
    """Up to the ceiling of time; nothing else can."""
    asked = adjusted(Limits(), CEILINGS, {"time": 1, "cpu_time": 2, "wall": 600}, OF_JOBS)
    assert (1.0, 2.0, 600.0) == (asked.time, asked.cpu_time, asked.wall)
    for limits, said in (({"wall": 601}, "ceiling 600"), ({"wall": 29}, "below the limit time=30"),
                         ({"cpu_time": 0}, "below the least"), ({"cpu_time": "1"}, "finite float")):
        with pytest.raises(BadRequest, match=said):
            adjusted(Limits(), CEILINGS, limits, OF_JOBS)
    with pytest.raises(BadRequest, match="a fresh job can ask for it"):
        adjusted(Limits(), CEILINGS, {"cpu_time": 1})

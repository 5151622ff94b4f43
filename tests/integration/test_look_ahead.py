"""
What a job writes that somebody waits for is copied by the call that makes it, and it finds what it would find
otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from integration.test_begin_early import hurried  # noqa: F401  # a fixture
from integration.test_rehearsal import state_in
from kit.box import Box, begins_with

pytestmark = [pytest.mark.needs("user-namespaces"), pytest.mark.usefixtures("hurried")]

OFF = "from leeward.crossing import keeper\nkeeper.COPY_BY_CLONE = False\n"
#: No page can be pinned: of root's keepers as well, which have no capability on the host.
NO_ROOM = "import resource\nresource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))\n"

FAULTS = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"


def faults(beginning: str, **settings: Any) -> int:
    with begins_with(beginning), Box(**settings) as box:
        return min(int(box.run(FAULTS).stdout) for _ in range(3))


@pytest.mark.needs("io-uring", "locked-memory")
def test_pages_of_a_runner_are_copied_by_the_clone() -> None:
    assert faults("") + 100 < faults(OFF)


@pytest.mark.needs("io-uring", "locked-memory")
def test_pages_of_a_runner_that_does_not_begin_in_c_are_copied_by_the_clone() -> None:
    """OpenSSL's generator is renewed by bytecode."""
    assert faults("", preload=("ssl",)) + 200 < faults(OFF, preload=("ssl",))


def test_a_runner_takes_page_faults_where_no_page_can_be_pinned() -> None:
    assert faults(NO_ROOM) + 50 > faults(OFF)


@pytest.mark.parametrize("beginning", ["", NO_ROOM])
def test_a_job_finds_the_same_state_with_and_without_pinned_pages(beginning: str) -> None:
    with begins_with(beginning), Box() as box:
        found = state_in(box)
    with begins_with(OFF), Box() as box:
        assert state_in(box) == found  # control


def test_no_job_finds_the_writes_of_another() -> None:
    """In memory of which both have copies: the interpreter's own."""
    code = "import sys\nprint(hasattr(sys, 'mark'), sys.getrecursionlimit())\nsys.mark = 1\nsys.setrecursionlimit(77)"
    with Box() as box:
        assert [b"False 1000\n"] * 4 == [box.run(code).stdout for _ in range(4)]


def test_numbers_that_two_jobs_draw_differ() -> None:
    code = "import random, ssl, uuid\nprint(random.random(), uuid.uuid4(), ssl.RAND_bytes(8))"
    for preload in ((), ("ssl", "multiprocessing")):
        with Box(preload=preload) as box:
            drawn = [box.run(code).stdout.split(maxsplit=2) for _ in range(8)]

        assert [8, 8, 8] == [len(set(each)) for each in zip(*drawn, strict=True)]

"""How many watches jobs get of what the kernel grants a user."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from leeward.isolation import rlimits
from leeward.spec.limits import CEILINGS, Limits


@pytest.mark.parametrize(("text", "most"), [("5491533\n", 2745766), ("2\n", 1), ("1\n", 1), ("0\n", 1)])
def test_half_of_the_watches_are_the_jobs(text: str, most: int) -> None:
    assert most == rlimits.half(text)


def test_half_of_the_kernels_watches_are_granted() -> None:
    most = int(Path("/proc/sys/fs/epoll/max_user_watches").read_text())

    assert max(1, most // 2) == rlimits.granted_watches()


@pytest.mark.parametrize(("most", "asked", "got"), [(4096, 1024, 1024), (1024, 1024, 512), (-1, 1024, 1024)])
def test_descriptors_in_flight_of_jobs_leave_as_many_to_the_daemon(most: int, asked: int, got: int,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda number: (most, most))

    assert got == rlimits.reachable(asked)
    assert 1 == len(rlimits.steps(rlimits.plan(Limits(), CEILINGS), late=True))


def test_the_hard_limit_on_descriptors_is_what_a_request_may_ask_for() -> None:
    assert (resource.RLIMIT_NOFILE, 1024, 4096) in rlimits.plan(Limits(), CEILINGS)
    assert (resource.RLIMIT_NOFILE, 1024, 1024) in rlimits.plan(Limits(), Limits(descriptors=512))

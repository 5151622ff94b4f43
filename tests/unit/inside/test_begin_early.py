"""Where a job may begin in C: all that each runner renews has to be one call."""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import pytest

from leeward.inside import main, reseeding


class Laid:
    """Pipes that nobody lays."""

    def __init__(self, *_given: int, **_named: Any) -> None:
        pass


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the modules with generators `random` alone is loaded, and no library has hooks."""
    for name, _ in reseeding.SOURCES:
        if "random" != name:
            monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(reseeding, "_registered", [])
    monkeypatch.setattr(main, "_laid", None)


def test_the_one_call_renews_all_of_the_state(alone: None) -> None:
    random.seed(1)
    random.gauss(0, 1)  # a second one waits now
    renew = reseeding.in_one_call()
    assert renew is not None
    before = random.getstate()

    renew()

    assert before != random.getstate()
    assert None is random.getstate()[2]
    assert isinstance(renew, types.BuiltinFunctionType)


def test_a_runner_that_begins_in_c_has_its_renewal_prepared(alone: None) -> None:
    assert main.begin_early(Laid, 3, 4) is not None  # type: ignore[arg-type]  # it's no more than made
    assert main._laid is not None


@pytest.mark.parametrize("name", [name for name, _ in reseeding.SOURCES if "random" != name])
def test_no_job_begins_in_c_where_another_generator_is_loaded(
        alone: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    assert main.begin_early(Laid, 3, 4) is None  # type: ignore[arg-type]  # as above
    assert main._laid is None


def test_no_job_begins_in_c_where_random_has_another_generator(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_inst", random.SystemRandom())

    assert main.begin_early(Laid, 3, 4) is None  # type: ignore[arg-type]  # as above


def test_no_job_begins_in_c_where_a_library_has_fork_hooks(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reseeding, "_registered", [(None, print)])

    assert main.begin_early(Laid, 3, 4) is None  # type: ignore[arg-type]  # as above

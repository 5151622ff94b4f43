"""The way of a process beside a runner's first: the same locks in the same order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leeward._native.steps import Call
from leeward.crossing import beside, birth
from leeward.isolation import landlock
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control
from leeward.wire.control import Kind
from unit.crossing.test_birth import VIEW, plan

__all__ = ["plan"]


@pytest.fixture
def open_plan(plan: WorkerPlan) -> WorkerPlan:
    return replace(plan, enterable=True)


def calls(plan: WorkerPlan, kind: Kind) -> list[tuple[str, Call]]:
    way, made = beside.way(plan, kind)
    return list(zip(made.layers, (step.call for step in way.table.steps), strict=True))


def test_every_layer_of_a_runner_has_one_here() -> None:
    """One that is added there has to be thought of here."""
    assert {name for name, _ in birth.ORDER} == set(beside.LAYERS) == set(control.LAYERS)


@pytest.mark.parametrize("kind", Kind)
def test_the_order_is_the_runners(open_plan: WorkerPlan, kind: Kind) -> None:
    order = [name for name, _ in birth.ORDER]
    layers = list(dict.fromkeys(layer for layer, _ in calls(open_plan, kind)))

    assert layers == [name for name in order if name in layers]
    assert {"descriptors", "namespaces", "rlimits", "privileges", "landlock", "seccomp", "self-check"} <= set(layers)


@pytest.mark.parametrize("kind", Kind)
def test_the_locks_make_the_same_calls_as_the_runners(open_plan: WorkerPlan, kind: Kind) -> None:
    """Limits, privileges and the filter, one by one; of Landlock the last call, with the ruleset that the first made."""
    first = birth.of(open_plan)
    steps = list(zip(first.layers, first.table.steps, strict=True))
    mine = calls(open_plan, kind)

    assert [step.call for layer, step in steps if layer == "rlimits"] == [
        call for layer, call in mine if layer == "rlimits"]
    theirs = [step.call for layer, step in steps if layer == "privileges"]
    assert theirs == [call for layer, call in mine if layer == "privileges"][:len(theirs)]
    assert [Call.LANDLOCK_RESTRICT_SELF, Call.CLOSE] == [call for layer, call in mine if layer == "landlock"]
    assert (Call.SECCOMP in [call for layer, call in mine if layer == "seccomp"])


def test_a_terminal_becomes_the_controlling_one(open_plan: WorkerPlan) -> None:
    for kind in Kind:
        made = [call for layer, call in calls(open_plan, kind) if layer == "namespaces"]

        assert [Call.SETSID, *([Call.IOCTL] if Kind.TERMINAL is kind else []), Call.UNSHARE] == made


@pytest.mark.parametrize("kind", [Kind.PROGRAM, Kind.TERMINAL])
def test_no_step_of_a_program_waits_for_the_daemon(open_plan: WorkerPlan, kind: Kind) -> None:
    """The keeper sleeps meanwhile. What the supervisor answers is a call that would wait for it."""
    proof = [call for layer, call in calls(open_plan, kind) if layer == "self-check"]

    assert Call.CHROOT not in proof
    assert Call.SECCOMP in proof
    assert Call.CHROOT in [call for layer, call in calls(open_plan, Kind.INTERPRETER) if layer == "self-check"]


@pytest.mark.parametrize("kind", Kind)
def test_without_landlock_no_ruleset_is_asked_for(open_plan: WorkerPlan, kind: Kind) -> None:
    without = replace(open_plan, landlock=landlock.plan(VIEW, 0, allow_missing=True))
    way, made = beside.way(without, kind)

    assert beside.RULESET not in way.ends
    assert "landlock" not in made.layers
    assert 4 == len(birth.entrances(without))
    assert 5 == len(birth.entrances(open_plan))


def test_a_runner_without_further_processes_sends_no_namespaces(plan: WorkerPlan) -> None:
    assert [] == birth.entrances(plan)
    assert "entrances" not in birth.of(plan).layers

"""Turns of jobs."""

from __future__ import annotations

import asyncio

import pytest

from leeward.apps.serve import turns
from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.turns import Turns


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def test_tenants_have_their_turns_one_after_the_other(monkeypatch):
    """However many one of them has waiting."""
    monkeypatch.setattr(turns, "BRIEF_S", 0.0)

    async def run():
        found, order, may_end = Turns(1, 60), [], asyncio.Event()

        async def job(tenant):
            async with found.turn(tenant):
                order.append(tenant)
                await may_end.wait()

        jobs = [asyncio.ensure_future(job(tenant)) for tenant in ["a"] * 5 + ["b"] * 2 + ["c"]]
        await settled()
        assert ["a"] == order
        may_end.set()
        await asyncio.gather(*jobs)
        return order

    assert ["a", "a", "b", "c", "a", "b", "a", "a"] == asyncio.run(run())


def test_a_share_is_kept_for_a_tenant_who_had_a_job_lately(monkeypatch):
    monkeypatch.setattr(turns, "LATELY_S", 3600.0)

    async def run():
        found, order = Turns(2, 60), []

        async def job(tenant, may_end):
            async with found.turn(tenant):
                order.append(tenant)
                await may_end.wait()

        async with found.turn("b"):
            pass
        may_end = asyncio.Event()
        jobs = [asyncio.ensure_future(job("a", may_end)) for _ in range(3)]
        await settled()
        assert ["a"] == order
        async with found.turn("b"):  # at once
            assert ["a"] == order
        monkeypatch.setattr(turns, "LATELY_S", 0.0)
        found._pass_on()
        await settled()
        assert ["a", "a"] == order  # all turns again
        may_end.set()
        await asyncio.gather(*jobs)
        return found._free, found._count

    assert (2, 0) == asyncio.run(run())


def test_short_jobs_of_one_leave_processors_to_the_others(monkeypatch):
    """Those that last get the tenant's share of the turns all the same."""
    monkeypatch.setattr(turns, "LATELY_S", 3600.0)
    monkeypatch.setattr(turns, "BRIEF_S", 3600.0)

    async def run():
        found, running, may_end = Turns(8, 60, processors=2), [], asyncio.Event()

        async def job():
            async with found.turn("a"):
                running.append("a")
                await may_end.wait()

        jobs = [asyncio.ensure_future(job()) for _ in range(2)]
        await settled()
        async with found.turn("b"):
            jobs += [asyncio.ensure_future(job()) for _ in range(6)]
            await settled()
        assert ["a"] * 2 == running  # those that ran before b came
        monkeypatch.setattr(turns, "BRIEF_S", 0.0)
        found._pass_on()
        await settled()
        assert ["a"] * 4 == running
        may_end.set()
        await asyncio.gather(*jobs)
        return found._free, found._count

    assert (8, 0) == asyncio.run(run())


@pytest.mark.parametrize("alone", [True, False])
def test_a_job_that_waited_begins_when_the_one_before_is_cleared_away(monkeypatch, alone):
    """That takes as long as the job, and slows those of others. A tenant who is alone waits for nothing."""
    monkeypatch.setattr(turns, "LATELY_S", 3600.0)
    now = 1000.0
    monkeypatch.setattr(turns.time, "monotonic", lambda: now)

    async def run():
        nonlocal now
        found, ended = Turns(2, 60), []
        if not alone:
            async with found.turn("b"):
                pass

        async def job(number):
            async with found.turn("a"):
                await may_end[number].wait()
            ended.append(number)

        may_end = [asyncio.Event() for _ in range(2)]
        monkeypatch.setattr(found, "_at_once", 1)
        jobs = [asyncio.ensure_future(job(number)) for number in range(2)]
        await settled()
        may_end[1].set()
        now += 0.01
        may_end[0].set()
        await settled()
        before = list(ended)
        async with found.turn("a" if alone else "b"):  # what hasn't waited isn't late
            pass
        now += 0.01
        found._pass_on()
        await asyncio.gather(*jobs)
        return before, ended

    assert ([0, 1] if alone else [0], [0, 1]) == asyncio.run(run())


def test_a_turn_that_does_not_come_is_504():
    async def run():
        found = Turns(1, 0.01)
        async with found.turn("a"):
            with pytest.raises(ServeProblem) as caught:
                async with found.turn("b"):
                    raise AssertionError
        async with found.turn("b"):  # and nothing of it is left
            return caught.value.status, found._count

    assert (504, 0) == asyncio.run(run())


@pytest.mark.parametrize("handed", [False, True])
def test_a_turn_that_is_given_up_is_the_next_ones(handed):
    """Also if it came at the moment when it was given up."""
    async def run():
        found, may_end = Turns(1, 60), asyncio.Event()

        async def job(tenant):
            async with found.turn(tenant):
                await may_end.wait()

        first, second, third = (asyncio.ensure_future(job(tenant)) for tenant in "abc")
        await settled()
        if handed:
            may_end.set()
            await first
            second.cancel()
        else:
            second.cancel()
            may_end.set()
        await asyncio.gather(first, second, third, return_exceptions=True)
        return third.done() and not third.cancelled(), found._free, found._count

    assert (True, 1, 0) == asyncio.run(run())


def test_waiting_jobs_are_bounded(monkeypatch):
    monkeypatch.setattr(turns, "MOST_WAITING", 2)

    async def run():
        found = Turns(1, 60)
        async with found.turn("a"):
            waiting = [asyncio.ensure_future(found.turn("a").__aenter__()) for _ in range(2)]
            await settled()
            with pytest.raises(ServeProblem):
                async with found.turn("b"):
                    pass
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_more_turns_are_given_at_once_and_fewer_when_jobs_end():
    async def run():
        found, running, ends = Turns(1, 60), set[int](), [asyncio.Event() for _ in range(4)]

        async def job(number):
            async with found.turn("a"):
                running.add(number)
                await ends[number].wait()
                running.discard(number)

        jobs = [asyncio.ensure_future(job(number)) for number in range(4)]
        await settled()
        seen = [(set(running), found.waiting)]
        found.resize(3)
        await settled()
        seen.append((set(running), found.waiting))
        found.resize(1)
        for number in range(3):
            ends[number].set()
            await settled()
            seen.append((set(running), found.waiting))
        ends[3].set()
        await asyncio.gather(*jobs)
        return seen

    assert [({0}, 3), ({0, 1, 2}, 1), ({1, 2}, 1), ({2}, 1), ({3}, 0)] == asyncio.run(run())


def test_nodes_that_come_bring_processors():
    """Where these aren't known they are as many as the jobs at once: a server that began with one node isn't bound by it."""
    async def run():
        found, began = Turns(1, 60), []
        found.resize(8)

        async def job(tenant):
            async with found.turn(tenant):
                began.append(tenant)
                await asyncio.Event().wait()

        jobs = [asyncio.ensure_future(job(tenant)) for tenant in "abaaaaa"]
        await settled()
        for each in jobs:
            each.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        return began.count("a")

    assert 4 == asyncio.run(run())

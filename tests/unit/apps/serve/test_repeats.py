"""Calls with an Idempotency-Key."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from starlette.datastructures import Headers

from leeward.apps.serve import repeats
from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.repeats import Repeats


def repeats_of():
    return Repeats(lambda row: "failed" in row)


def call(key="k", tenant="t", use=None, held=0):
    request = SimpleNamespace(url=SimpleNamespace(path="/run_code"))
    return SimpleNamespace(headers=Headers({"idempotency-key": key} if key else {}), tenant=SimpleNamespace(id=tenant),
                           use=use or used(), request=request, held=held)


def used(held=0):
    return SimpleNamespace(tasks=set(), held=held)


class Work:
    """Counts how often it was begun; each time ends when it may."""

    def __init__(self, error=None):
        self.begun, self.may_end, self.error = 0, asyncio.Event(), error

    async def __call__(self):
        self.begun += 1
        number = self.begun
        await self.may_end.wait()
        if self.error:
            raise self.error
        return {"number": number}


def run(test):
    asyncio.run(test())


def test_calls_at_the_same_time_and_later_have_one_answer():
    async def test():
        found, work = repeats_of(), Work()
        both = [asyncio.ensure_future(found.once(call(), {}, work)) for _ in range(2)]
        await asyncio.sleep(0)
        work.may_end.set()
        assert [{"number": 1}] * 2 == await asyncio.gather(*both)
        assert {"number": 1} == await found.once(call(), {}, work)
        assert {"number": 2} == await found.once(call(key="other"), {}, work)
        assert {"number": 3} == await found.once(call(tenant="other"), {}, work)
        assert [{"number": 4}, {"number": 5}] == [await found.once(call(key=""), {}, work) for _ in range(2)]

    run(test)


def test_a_key_is_for_one_body():
    async def test():
        found, work = repeats_of(), Work()
        work.may_end.set()
        await found.once(call(), {"code": "1"}, work)
        with pytest.raises(ServeProblem) as refused:
            await found.once(call(), {"code": "2"}, work)
        assert 422 == refused.value.status

    run(test)


def test_work_goes_on_without_its_client_and_ends_with_its_token():
    async def test():
        found, work, use = repeats_of(), Work(), used()
        first = asyncio.ensure_future(found.once(call(use=use), {}, work))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = asyncio.ensure_future(found.once(call(use=use), {}, work))
        await asyncio.sleep(0)
        [task] = use.tasks
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await again
        work.may_end.set()
        assert {"number": 2} == await found.once(call(use=use), {}, work)
        assert not use.tasks

    run(test)


def test_what_has_failed_may_be_tried_again():
    async def test():
        found, work = repeats_of(), Work(ServeProblem(504, "late"))
        work.may_end.set()
        for number in (1, 2):
            with pytest.raises(ServeProblem):
                await found.once(call(), {}, work)
            assert number == work.begun

    run(test)


def test_answers_are_bounded(monkeypatch):
    async def test():
        found, work = repeats_of(), Work()
        work.may_end.set()
        for number in range(10):
            await found.once(call(key=str(number)), {}, work)
        assert 3 == len(found._kept["t"])
        monkeypatch.setattr(repeats, "KEEP_S", -1.0)
        await found.once(call(key="last"), {}, work)
        assert not found._kept["t"]

    monkeypatch.setattr(repeats, "MOST", 3)
    run(test)


def test_an_answer_that_says_that_it_failed_may_be_tried_again():
    """As a lost worker does, of which trainers learn in an answer."""
    async def test():
        found, work = repeats_of(), Work()
        work.may_end.set()

        async def failing():
            return {"failed": await work()}

        assert [{"failed": {"number": 1}}, {"failed": {"number": 2}}] == [await found.once(call(), {}, failing) for _ in "12"]

    run(test)


def test_answers_are_forgotten_also_of_tenants_who_do_not_call_again(monkeypatch):
    async def test():
        found, work = repeats_of(), Work()
        work.may_end.set()
        await found.once(call(), {}, work)
        await found.forget()
        assert {"number": 1} == await found.once(call(), {}, work)
        monkeypatch.setattr(repeats, "KEEP_S", -1.0)
        await found.forget()
        assert not found._kept

    run(test)


def test_a_body_counts_until_its_work_has_ended():
    """And not only while its client waits: who goes and comes again would have the server keep any number."""
    async def test():
        found, work, use = repeats_of(), Work(), used(held=100)
        mine = call(use=use, held=100)
        first = asyncio.ensure_future(found.once(mine, {}, work))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        use.held -= mine.held  # as at each call's end
        assert 100 == use.held
        work.may_end.set()
        await found.once(call(use=use), {}, work)
        await asyncio.sleep(0)
        assert 0 == use.held

    run(test)


@pytest.mark.parametrize(("value", "least"), [([""] * 1000, 8000), ("\U0001f600" * 1000, 4000), ([{}] * 1000, 64000)])
def test_a_size_is_that_of_the_memory(value, least):
    assert least <= repeats._size({"a": value})

"""Calls of tenants: how many, how fast, over how many connections, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant, TenantQuota

pytestmark = pytest.mark.needs("extra-serve")


@pytest.fixture
def calls():
    from leeward.apps.serve import calls

    return calls


def tenant(**quota):
    return ServeTenant("one", "1", TenantQuota(**quota))


async def answered(calls, handler, owner, use, **scope):
    """The status of the answer to a call."""
    from starlette.responses import Response

    statuses, over = list[int](), asyncio.Event()

    async def knows(_request):
        return owner, use

    async def receive():
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        statuses.append(message.get("status"))

    endpoint = calls.ServeEndpoint("GET /", knows, lambda problem: Response(status_code=problem.status), handler)
    await endpoint({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", **scope}, receive, send)
    return statuses[0]


async def good(_call):
    from starlette.responses import Response

    return Response()


def test_calls_that_come_too_fast_are_refused_after_a_pause(calls, monkeypatch):
    """So that a flood doesn't keep the server from the calls of others."""
    monkeypatch.setattr(calls, "PAUSE_S", 0.01)
    slept = list[float]()

    async def run():
        sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda seconds: slept.append(seconds) or sleep(0))
        use = calls.Use()
        return [await answered(calls, good, tenant(rate=2), use) for _ in range(3)], use.calls

    statuses, counted = asyncio.run(run())
    assert [200, 200, 429] == statuses
    assert [0.01] == slept
    assert {200: 2, 429: 1} == counted


def test_lines_of_refused_calls_are_bounded_by_tenant(calls, monkeypatch):
    """Else who has no token could fill the disk, or hide in it what others did."""
    lines = list[dict]()
    monkeypatch.setattr(calls, "tell", lambda **row: lines.append(row))
    monkeypatch.setattr(calls, "_refused", calls.LogBound(3))

    def told(times, tenant="", status=401, use=None):
        for _ in range(times):
            with calls.call_told("GET /") as call:
                call.tenant, call.use, call.status = tenant, use, status
        found = [row.get("left_out", "") for row in lines]
        lines.clear()
        return found

    assert ["", "", "others for 60 s"] == told(100)
    assert [] == told(100, status=502)  # nobody's, whatever the answer
    assert ["", "", "others for 60 s"] == told(100, "a", 429, calls.Use())
    assert [""] * 100 == told(100, "a", 200, calls.Use())
    assert [""] == told(1, "b", 429, calls.Use())


def test_large_bodies_of_a_tenant_are_read_one_at_a_time_with_rests(calls, monkeypatch):
    """Each holds up the loop: without rests they would take all of it, and others' calls would wait."""
    from starlette.requests import Request

    def slow(body):
        time.sleep(0.005)
        return {"bytes": len(body)}

    monkeypatch.setattr(calls, "json_of", slow)
    body, use = b" " * (calls.SMALL + 1), calls.Use()

    def call():
        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        return calls.ServeCall(Request({"type": "http", "method": "POST", "headers": []}, receive), tenant(), use)

    async def run():
        began = time.monotonic()
        found = await asyncio.gather(*(call().fields() for _ in range(10)))
        return found, time.monotonic() - began

    found, took = asyncio.run(run())
    assert 10 * [{"bytes": len(body)}] == found
    assert took >= 19 * 0.005


def test_calls_at_once_are_bounded(calls):
    async def run():
        use, go = calls.Use(), asyncio.Event()

        async def waits(call):
            await go.wait()
            return await good(call)

        first = asyncio.ensure_future(answered(calls, waits, tenant(streams=1), use))
        await asyncio.sleep(0)
        second = await answered(calls, good, tenant(streams=1), use)
        go.set()
        return await first, second, use.streams, use.tasks

    assert (200, 429, 0, set()) == asyncio.run(run())


@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_call_under_way_is_ended_with_its_token_alone(calls, is_revoked):
    async def run():
        use = calls.Use()

        async def waits(_call):
            use.is_revoked = is_revoked
            for task in use.tasks:
                task.cancel()
            await asyncio.Event().wait()

        return await answered(calls, waits, tenant(), use)

    if is_revoked:
        assert 401 == asyncio.run(run())
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())


def test_a_connection_is_its_first_tenants(calls):
    async def run():
        use, connections = calls.Use(), [SimpleNamespace(use=None) for _ in range(2)]
        return [await answered(calls, good, tenant(connections=1), use, **{calls.CONNECTION: connection})
                for connection in (connections[0], connections[0], connections[1])], use.connections

    assert ([200, 200, 429], 1) == asyncio.run(run())


def test_the_server_ends_calls_of_tokens_that_are_revoked_or_unreadable(calls, tmp_path, monkeypatch):
    from leeward.apps.serve.door import Door, DoorOptions
    from leeward.apps.serve.tokens import TokenFile
    from leeward.errors import BadRequest

    async def run():
        tokens = TokenFile(str(tmp_path / "tokens"))
        kept, gone = (tokens.create(name) for name in ("kept", "gone"))
        door = Door(tokens, DoorOptions())
        uses = [door.with_token(token)[1] for token in (kept, gone)]
        tasks = [asyncio.ensure_future(asyncio.Event().wait()) for _ in uses]
        for use, task in zip(uses, tasks, strict=True):
            use.tasks.add(task)
        tokens.revoke("gone")
        tokens.look()
        door._end_revoked()
        await asyncio.sleep(0)
        found = [task.cancelled() or task.cancelling() > 0 for task in tasks]
        monkeypatch.setattr(tokens, "fresh", lambda: (_ for _ in ()).throw(BadRequest("unreadable")))
        door._end_revoked()
        return found, tasks[0].cancelling() > 0

    assert ([False, True], True) == asyncio.run(run())


def test_metrics_are_of_tenants_that_are_known(calls, tmp_path):
    from leeward.apps.serve.door import Door, DoorOptions
    from leeward.apps.serve.metrics import text_of
    from leeward.apps.serve.tokens import TokenFile

    async def run():
        tokens = TokenFile(str(tmp_path / "tokens"))
        token, gone = tokens.create("kept"), tokens.create("gone")
        door = Door(tokens, DoorOptions())
        (owner, use), _ = door.with_token(token), door.with_token(gone)
        use.calls[200], use.seconds, use.jobs = 3, 1.5, 2
        door.count_sandboxes({owner.id: 4})
        tokens.revoke("gone")
        tokens.look()
        return text_of(door)

    text = asyncio.run(run())
    assert 'leeward_serve_calls_total{tenant="kept",status="200"} 3\n' in text
    assert 'leeward_serve_call_seconds_total{tenant="kept"} 1.5\n' in text
    assert 'leeward_serve_jobs{tenant="kept"} 2\n' in text
    assert 'leeward_serve_sandboxes{tenant="kept"} 4\n' in text
    assert "gone" not in text



@pytest.mark.parametrize("ends", ["done", "gone", "cancelled", "both"])
def test_work_ends_with_its_client_and_nothing_else_does(calls, ends):
    async def run():
        gone, done, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work():
            try:
                await done.wait()
                return "done"
            finally:
                ended.append("work")

        async def caller():
            try:
                found = await calls.unless_gone(receive, work())
            except calls.ClientGone:
                found = "gone"
            assert 0 == asyncio.current_task().cancelling()
            await asyncio.sleep(0)
            return found

        task = asyncio.ensure_future(caller())
        await asyncio.sleep(0)
        if ends in ("gone", "both"):
            gone.set()
        if ends == "both":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if ends in ("cancelled", "both"):
            task.cancel()
        if ends == "done":
            done.set()
        found = (await asyncio.gather(task, return_exceptions=True))[0]
        return found if isinstance(found, str) else type(found).__name__, ended

    assert ({"both": "CancelledError", "cancelled": "CancelledError"}.get(ends, ends), ["work"]) == asyncio.run(run())


@pytest.mark.parametrize(("body", "is_refused"), [
    (b'{"a": [' + b"1," * 49_000 + b"1]}", False), (b'{"a": [' + b"1," * 51_000 + b"1]}", True),
    (b'{"a": [' + b"[]," * 51_000 + b"1]}", True), (b'{"a": "' + b"[,{" * 200_000 + b'"}', False),
    (b'{"a": "' + b'\\",[' * 200_000 + b'"}', False), (b"[" * 60_000, True), (b'{"a": "' + b"," * 60_000, False),
])
def test_values_in_json_are_bounded(calls, body, is_refused):
    """Those in texts aren't values. An empty list of two bytes takes sixty."""
    if is_refused:
        with pytest.raises(ServeProblem) as refused:
            calls.check_values(body)
        assert 413 == refused.value.status
    else:
        calls.check_values(body)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * (8 << 20), b'"' * (16 << 20), b"\\" * (16 << 20), b'"x' * (8 << 20),
                                  b'"\\\\"' * (4 << 20)])
def test_values_of_hostile_texts_are_counted_in_one_pass(calls, body):
    began = time.process_time()
    with contextlib.suppress(ServeProblem):
        calls.check_values(body)
    assert time.process_time() - began < 2


def test_who_holds_up_the_loop_rests_as_long_while_others_work(calls):
    async def run():
        one, other, order = calls.Use(), calls.Use(), list[str]()

        def work(name):
            order.append(name)
            time.sleep(0.02)  # the loop stands still
            return name

        began = time.monotonic()
        given = [(one, "a"), (one, "b"), (other, "c"), (other, "d")]
        assert ["a", "b", "c", "d"] == await asyncio.gather(*(calls.in_turn(use, work, name) for use, name in given))
        assert time.monotonic() - began >= 0.08  # four works; each rest is another's work
        assert ["a", "c"] == order[:2]
        with pytest.raises(ZeroDivisionError):
            await calls.in_turn(one, lambda: 1 // 0)
        assert not one.working.locked()

    asyncio.run(run())


def test_a_body_that_drips_is_ended_but_for_a_terminals(calls, monkeypatch):
    """Each piece comes in time, all of them too late."""
    from starlette.requests import Request

    monkeypatch.setattr(calls, "PIECE_S", 0.5)

    async def read(most, rate):
        monkeypatch.setattr(calls, "LEAST_RATE", rate)
        left = 20

        async def receive():
            nonlocal left
            left -= 1
            await asyncio.sleep(0.03)
            return {"type": "http.request", "body": b"x", "more_body": left > 0}

        return [piece async for piece in calls.pieces_of(Request({"type": "http", "headers": []}, receive), most)]

    assert 20 == len(asyncio.run(read(100, 1))) == len(asyncio.run(read(calls.ENDLESS, 1 << 20)))
    with pytest.raises(ServeProblem, match="slowly"):
        asyncio.run(read(100, 1 << 20))

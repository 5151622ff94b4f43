"""Nodes behind a server: their marks, and what callers learn of them."""

from __future__ import annotations

import asyncio
import re

import pytest

from leeward.errors import Busy, DaemonAway, DaemonError, NoAnswer, RequestRejected, SandboxOver

pytestmark = pytest.mark.needs("extra-serve")


def nodes_of(*nodes):
    from leeward.apps.serve.door import DoorOptions
    from leeward.apps.serve.nodes import DoorNodes

    return DoorNodes(DoorOptions(nodes=nodes))


def test_a_mark_is_letters_of_ids():
    from leeward.apps.serve.nodes import ID, mark_of

    marks = {mark_of(f"https://node-{number}") for number in range(1000)}

    assert 1000 == len(marks)
    assert all(re.fullmatch(ID, "a" * 26 + mark) for mark in marks)
    assert not re.fullmatch(ID, "a" * 30)


def test_an_id_names_a_node_of_this_server_or_nothing():
    from leeward.apps.serve.nodes import mark_of

    found = nodes_of({"address": "unix:/a", "name": "a"}, {"address": "https://b", "name": "b", "token": "t"})

    assert ("b", "s" * 26) == found._place("s" * 26 + mark_of("b"))
    for identity in ("s" * 26, "s" * 26 + mark_of("c"), mark_of("b"), ""):
        with pytest.raises(SandboxOver):
            found._place(identity)


def test_two_nodes_of_one_name_are_refused():
    with pytest.raises(RequestRejected, match="two nodes are called"):
        nodes_of("unix:/a", "unix:/a")


@pytest.mark.parametrize(("reasons", "kind", "text"), [
    ({"secret": "is draining", "b": "has 3 requests waiting for 1 workers"}, Busy, "no node has room (draining: 1, full: 1)"),
    ({"secret": "is draining", "b": "doesn't answer"}, DaemonAway, "no node has room (away: 1, draining: 1)")])
def test_callers_learn_how_many_and_no_name(reasons, kind, text):
    from leeward.apps.fleet.errors import NoNodeFits
    from leeward.apps.serve.nodes import _told
    from leeward.apps.serve.problems import problem_of

    with pytest.raises(kind) as told, _told():
        raise NoNodeFits(reasons)

    problem = problem_of(told.value)
    assert (429 if kind is Busy else 503, {"Retry-After": "1"}, text) == (problem.status, problem.headers, problem.message)


@pytest.mark.parametrize("may_have_run", [False, True])
def test_a_lost_job_says_whether_it_may_have_run(may_have_run):
    from leeward.apps.fleet.errors import NodeLost
    from leeward.apps.serve.nodes import _told

    with pytest.raises(DaemonError, match=r"^node_lost: ") as told, _told():
        raise NodeLost("secret", may_have_run)

    assert may_have_run == told.value.may_have_run == ("Idempotency-Key" in str(told.value))
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("reason", ["node_lost", "drained"])
def test_a_sandbox_that_is_over_names_no_node(reason):
    from leeward.apps.serve.problems import problem_of

    problem = problem_of(SandboxOver(f"{reason}: 'secret' doesn't answer any more", reason))

    assert 404 == problem.status
    assert problem.message.startswith(f"{reason}: the sandbox's node")


def test_who_asks_for_health_asks_the_daemon_once_a_second():
    async def main():
        nodes, asked = nodes_of("unix:/a"), []

        async def workers():
            asked.append(1)
            return 2

        nodes.workers = workers
        return [await nodes.healthy() for _ in range(100)], len(asked)

    assert ([True] * 100, 1) == asyncio.run(main())


@pytest.mark.parametrize("slow", [False, True])
def test_a_node_that_does_not_list_in_time_has_what_it_had(monkeypatch, slow):
    """Else a tenant could open more, and its connections there would be closed with their state; until it is lost."""
    from leeward.apps.serve import nodes as module

    class Client:
        fails = False

        async def sandboxes(self, timeout):
            if self.fails and slow:  # one page after the other, say
                await asyncio.Event().wait()
            elif self.fails:
                raise DaemonError("late")
            return [{"sandbox": "s" * 26, "age": 1.0}]

    async def main():
        nodes, client, up = nodes_of("unix:/a", "unix:/b"), Client(), {"/a": Client()}

        async def those_up():
            return up

        nodes.fleet.up = those_up
        up["/b"] = client
        both = await nodes.rows()
        client.fails = True
        monkeypatch.setattr(module, "ASK_S", 0.01)
        late = await nodes.rows()
        del up["/b"]
        return both, late, await nodes.rows()

    both, late, lost = asyncio.run(main())
    assert (2, both, both[:1]) == (len(both), late, lost)


@pytest.mark.parametrize(("error", "text"), [
    (NoAnswer("no answer from 'https://secret' before the deadline"), "no answer from the daemon in time"),
    (DaemonAway("no daemon answers at https://secret (gone)"), "no daemon answers")])
def test_an_error_names_no_place_of_a_daemon(error, text):
    from leeward.apps.serve.problems import for_caller, problem_of

    assert (503, text) == (problem_of(error).status, problem_of(error).message)
    assert (type(error), text) == (type(for_caller(error)), str(for_caller(error)))


@pytest.mark.parametrize(("status", "kind"), [(400, RequestRejected), (429, Busy), (503, Busy), (500, RequestRejected)])
def test_a_port_that_is_not_reached_names_no_node(monkeypatch, status, kind):
    """Whoever asks a server before the nodes for it. What passes closes no published port."""
    from leeward.client import over_websocket
    from leeward.spec.paths import RemoteHost

    async def way(host, path):
        raise over_websocket._Unopened(host, status)

    monkeypatch.setattr(over_websocket, "way", way)
    host = RemoteHost("https://secret", "t")
    with pytest.raises(kind) as told:
        asyncio.run(over_websocket.WebSocketWay(host, None).port("s" * 26, 80))
    assert "secret" not in str(told.value)


def test_a_list_has_the_oldest_of_all_nodes_first():
    class Client:
        def __init__(self, *ages):
            self.ages = ages

        async def sandboxes(self, timeout):
            return [{"sandbox": "s" * 26, "age": age} for age in self.ages]

    async def main():
        nodes = nodes_of("unix:/a", "unix:/b")

        async def those_up():
            return {"/a": Client(3.0, 1.0), "/b": Client(4.0, 2.0)}

        nodes.fleet.up = those_up
        return [row["age"] for row in await nodes.rows()]

    assert [4.0, 3.0, 2.0, 1.0] == asyncio.run(main())

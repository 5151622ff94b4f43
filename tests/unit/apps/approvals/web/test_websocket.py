"""The WebSocket: what who looks on is told, what he may do, and how long anybody waits for him."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from kit.approvals_page import PageService, as_caller, browser
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.apps.approvals.web.feed import MOST_BEGUN, MOST_VIEWERS, MOST_WAITING, LiveFeed
from leeward.apps.approvals.web.gate import Operator
from leeward.errors import Busy

URL = "ws://127.0.0.1:3700/api/live"


def push(service: PageService, name: str, **more: str) -> int:
    return service.queue.submit(NewRequest(branch(name), "push", sandbox="box", **more)).id


def told(socket: WebSocketTestSession, kind: str) -> dict[str, object]:
    found: dict[str, object] = socket.receive_json()
    assert kind == found["type"], found
    return found


def test_a_live_client_is_told_of_requests_and_decisions(app: Starlette, service: PageService) -> None:
    client = TestClient(as_caller(app, Operator("cli")))
    first = push(service, "a")
    with client.websocket_connect("/api/live") as socket:
        begun = told(socket, "init")
        assert (1, [first]) == (begun["pending"], [each["id"] for each in begun["requests"]])  # type: ignore[attr-defined]
        second = push(service, "b")
        assert second == told(socket, "request")["request"]["id"]  # type: ignore[index]
        service.queue.decide([second], False, "cli")
        assert "denied" == told(socket, "resolve")["request"]["status"]  # type: ignore[index]
        client.post("/api/rules", json={"rule": "git(x)", "effect": "deny"})
        assert "git(x)" == told(socket, "rules")["rules"]["deny"][-1]["rule"]  # type: ignore[index]
        app.state.parts.feed.output(first, "stdout", b"x" * 10_000)
        assert 10_000 == sum(len(told(socket, "output")["data"]) for _ in range(2))  # type: ignore[arg-type]
        app.state.parts.feed.shut_down("time is over")
        assert "time is over" == told(socket, "shutdown")["reason"]
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()


def test_a_page_decides_with_its_token_alone(app: Starlette, service: PageService) -> None:
    client, csrf = browser(app)
    number = push(service, "a")
    with client.websocket_connect(URL) as socket:
        told(socket, "init")
        for wrong in ({}, {"csrf": "x"}, {"csrf": 7}, {"csrf": [csrf]}):
            socket.send_json({"type": "approve", "id": number, **wrong})
            assert "forbidden" == told(socket, "error")["error"]
        assert "pending" == service.queue.recent()[0].status
        socket.send_json({"type": "approve", "id": number, "csrf": csrf})
        done = told(socket, "resolve")["request"]
        assert ("approved", "page") == (done["status"], done["decided_by"])  # type: ignore[index]
        socket.send_json({"type": "deny", "id": number, "csrf": csrf})
        refused = told(socket, "error")
        assert ("decided", number) == (refused["error"], refused["id"])


@pytest.mark.parametrize("message", ["", "[]", "{", "7", '{"type": "approve"}', '{"type": "x", "id": 1}',
                                     '{"type": "approve", "id": "x"}', '{"type": "approve", "id": 1.5}',
                                     '{"type": "approve", "id": true}', '{"type": "approve", "id": 1, "always": 7}',
                                     '{"type": "approve", "id": -1}', "[" * 60000, "x" * 70000])
def test_a_malformed_message_is_answered_and_the_connection_goes_on(app: Starlette, service: PageService,
                                                                    message: str) -> None:
    number = push(service, "a")
    with TestClient(as_caller(app, Operator("cli"))).websocket_connect("/api/live") as socket:
        told(socket, "init")
        socket.send_text(message)
        assert "bad_request" == told(socket, "error")["error"]
        socket.send_bytes(b"\xff")
        assert "bad_request" == told(socket, "error")["error"]
        socket.send_json({"type": "deny", "id": number})
        assert "denied" == told(socket, "resolve")["request"]["status"]  # type: ignore[index]


def test_an_ended_session_can_decide_no_request(app: Starlette, service: PageService) -> None:
    client, csrf = browser(app)
    number = push(service, "a")
    with client.websocket_connect(URL) as socket:
        told(socket, "init")
        assert 303 == client.post("/logout", headers={"X-CSRF-Token": csrf}).status_code
        socket.send_json({"type": "approve", "id": number, "csrf": csrf})
        assert "forbidden" == told(socket, "error")["error"]
    assert "pending" == service.queue.recent()[0].status


def test_c331_a_client_that_does_not_read_is_dropped_and_holds_nobody_up(service: PageService) -> None:
    async def look() -> None:
        feed = LiveFeed(service.queue)
        slow, quick = feed.look(), feed.look()
        for number in range(MOST_WAITING + 1):
            push(service, f"x{number}")
            if 0 == number % 100:
                await asyncio.sleep(0)
                await quick.take()
        await asyncio.sleep(0)
        assert (True, False) == (slow.dropped, quick.dropped)
        assert [] == await slow.take()
        assert 12 == len(await quick.take())  # of 513, what has come since the 501st
        for _ in range(MOST_WAITING):
            feed.output(1, "stdout", b"x")
        await asyncio.sleep(0)
        assert MOST_WAITING // 2 == len(await quick.take())
        assert not quick.dropped
        feed.leave(slow)
        feed.leave(quick)
        many = [feed.look() for _ in range(MOST_VIEWERS)]
        with pytest.raises(Busy):
            feed.look()
        for each in many:
            feed.leave(each)
        feed.close()

    asyncio.run(look())


def test_characters_are_whole_wherever_output_is_cut(service: PageService) -> None:
    """Within one message and between two, of each stream and command apart; what a command has begun isn't kept for ever."""
    async def look() -> None:
        feed, euro = LiveFeed(service.queue), "€".encode()
        viewer, said = feed.look(), dict[tuple[int, str], str]()
        feed.output(1, "stdout", euro * 10_000 + euro[:1])
        feed.output(1, "stderr", euro[:2])
        feed.output(2, "stdout", b"a")
        feed.output(1, "stdout", euro[1:])
        feed.output(1, "stderr", euro[2:])
        await asyncio.sleep(0)
        for message in map(json.loads, await viewer.take()):
            where = message["id"], message["stream"]
            said[where] = said.get(where, "") + message["data"]
        for number in range(2 * MOST_BEGUN):
            feed.output(number, "stdout", euro[:1])

        assert {(1, "stdout"): "€" * 10_001, (1, "stderr"): "€", (2, "stdout"): "a"} == said
        assert MOST_BEGUN == len(feed._begun)
        feed.leave(viewer)
        feed.close()

    asyncio.run(look())


def test_a_closed_feed_is_not_notified(service: PageService) -> None:
    queue: ApprovalQueue = service.queue
    before = len(queue._notices._subscribers)
    feed = LiveFeed(queue)
    assert before + 1 == len(queue._notices._subscribers)
    feed.close()
    assert before == len(queue._notices._subscribers)

"""What a rule of `ask` names: what waits, and how each wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leeward.egress.asking import MOST_OF_LEASE, Asking, LeaseAsks
from leeward.egress.policy import Request
from leeward.egress.tenancy import NotAllowed, Tenancy
from leeward.spec.egress_policy import parse_policy
from leeward.wire.egress_asks import MAX_ASKED, check_ask
from leeward.wire.egress_control import Ask, AskAnswer, Unask, decode, encode

POLICY = parse_policy({"allow": ["http://open.example.org"], "ask": ["*"], "limits": {"ask": 20}})


class LiveSandboxes:
    """Asks of one sandbox, and what the daemon is told."""

    def __init__(self, listening: bool = True) -> None:
        self.told: list[Ask | Unask] = []
        self.heard = asyncio.Event()
        self.asking = Asking(self._tell)
        self.asking.listen(listening)
        self.asks = LeaseAsks(self.asking, 5)

    def _tell(self, message: Ask | Unask) -> None:
        self.told.append(message)
        self.heard.set()

    def begin(self, path: str = "/", policy: Any = POLICY) -> asyncio.Task[bool]:
        request = Request("a.example.org", None, 80, "http", "GET", path)
        return asyncio.ensure_future(self.asks.approval(policy, request))

    async def asked(self) -> Ask:
        await self.heard.wait()
        self.heard.clear()
        last = self.told[-1]
        assert isinstance(last, Ask)
        return last


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_c343_a_long_rule_of_a_clients_is_an_ask_still() -> None:
    """The daemon would take an ask with a longer text for a broker gone wrong, and end it with everybody's connections."""
    async def test() -> None:
        desk, path = LiveSandboxes(), "/" + "a" * 900
        waits = desk.begin(path, parse_policy({"ask": [f"http://a.example.org{path}"]}))
        found = check_ask(decode(encode(await desk.asked())).about)  # type: ignore[union-attr]  # it is an Ask
        assert (path, MAX_ASKED) == (found["path"], len(found["rule"]))
        waits.cancel()

    run(test)


def test_an_answer_ends_the_wait() -> None:
    async def test() -> None:
        desk = LiveSandboxes()
        yes, ask = desk.begin(), await desk.asked()
        assert (5, "a.example.org", 80, "http", "GET", "/", "*", 20.0) == (ask.lease, *(ask.about[name] for name in (
            "name", "port", "protocol", "method", "path", "rule", "seconds")))
        desk.asking.answered(AskAnswer(ask.number, 1, ""))
        assert await yes
        no, ask = desk.begin(), await desk.asked()
        desk.asking.answered(AskAnswer(ask.number, 0, "Blocked by rule"))
        with pytest.raises(NotAllowed, match=r"^Blocked by rule$"):
            await no
        desk.asking.answered(AskAnswer(ask.number, 1, ""))  # it comes too late
        assert 2 == len(desk.told)
    run(test)


def test_a_decided_request_is_not_asked() -> None:
    async def test() -> None:
        desk = LiveSandboxes()
        for name in ("open.example.org", "other.example.org"):
            policy = POLICY if name.startswith("open") else parse_policy({"deny": ["*"], "ask": ["*"]})
            assert not await desk.asks.approval(policy, Request(name, None, 80, "http", "GET", "/"))
        assert [] == desk.told
    run(test)


def test_no_request_waits_without_a_listening_client() -> None:
    """Waiting ones are answered when the last listening client has gone."""
    async def test() -> None:
        silent = LiveSandboxes(listening=False)
        with pytest.raises(NotAllowed, match=r"waits for approval, and nobody is there to answer$"):
            await silent.begin()
        assert [] == silent.told

        desk = LiveSandboxes()
        waits = desk.begin()
        await desk.asked()
        desk.asking.listen(False)
        with pytest.raises(NotAllowed, match=r"nobody is there to answer any more"):
            await waits
    run(test)


def test_the_same_request_asks_once() -> None:
    """All that wait get the one answer, and the last one that gives up takes the ask back."""
    async def test() -> None:
        desk = LiveSandboxes()
        first, second = desk.begin(), desk.begin()
        ask = await desk.asked()
        await asyncio.sleep(0)
        assert 1 == len(desk.told)
        first.cancel()
        await asyncio.sleep(0)
        desk.asking.answered(AskAnswer(ask.number, 1, ""))
        assert await second

        first, second = desk.begin(), desk.begin()
        ask = await desk.asked()
        for each in (first, second):
            each.cancel()
        await asyncio.wait([first, second])
        assert Unask(ask.number) == desk.told[-1]
    run(test)


def test_time_ends_the_wait() -> None:
    async def test() -> None:
        desk = LiveSandboxes()
        with pytest.raises(NotAllowed, match=r"nobody has answered within 0\.01 s"):
            await desk.begin(policy=parse_policy({"ask": ["*"], "limits": {"ask": "10ms"}}))
        assert [Ask, Unask] == [type(each) for each in desk.told]
    run(test)


def test_a_sandbox_has_so_many() -> None:
    async def test() -> None:
        desk = LiveSandboxes()
        waits = [desk.begin(f"/{at}") for at in range(MOST_OF_LEASE)]
        await asyncio.sleep(0)
        with pytest.raises(NotAllowed) as caught:
            await desk.begin("/one/more")
        assert 429 == caught.value.status
        last = waits.pop()
        last.cancel()
        await asyncio.wait([last])
        with pytest.raises(NotAllowed, match=r"a path of 9000 characters"):
            await desk.begin("/" * 9000)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
        assert MOST_OF_LEASE == sum(isinstance(each, Unask) for each in desk.told)
    run(test)


def test_a_name_that_could_be_allowed_has_an_address() -> None:
    async def test() -> None:
        rows: list[Any] = []
        tenancy = Tenancy(5, POLICY, bytes(32), rows.append)
        assert not tenancy.reachable("a.example.org")
        assert "a.example.org waits for approval, and nobody is there to answer" == rows[0].reason
        tenancy.asks = LiveSandboxes().asks
        assert tenancy.reachable("a.example.org")
    run(test)

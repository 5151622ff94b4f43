"""
Sessions under whatever clients do, in any order, faster than the daemon hears of it.

Several connections send requests at random, without waiting for answers: short jobs, which go by the fast path and are
counted when they are over, and everything that takes them off it. Each request gets one answer, a session's state is
what its jobs made of it, and in the end the books are empty.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kit import reactors
from kit.box import Box
from kit.sessions import Peer, Wire
from leeward.daemon.loop.native import NativeReactor

WORKERS, PEERS, SESSIONS = 6, 3, 5
STEPS = 40_000 if os.environ.get("LEEWARD_LONG") else 3000
#: Requests of one connection on their way, at most.
BEHIND = 6
#: A job that counts, in the state that it finds; and what else there is to run.
COUNT = b"n = globals().get('n', 0) + 1\nprint(n)"
OTHERS = {
    "raises": b"1 / 0", "leaves": b"import os; os._exit(3)", "waits": b"import time; time.sleep(0.004)",
    "floods": b"print('x' * 100_000)", "denied": b"import ctypes; ctypes.CDLL(None).unshare(0x10000000)",
    "speaks out of turn": b"import os; os.write(4, bytes(8))",
}


@pytest.fixture(params=[reactors.REFERENCE, "uring", "socket"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    io = request.param
    if io == "uring" and "uring" not in reactors.WAYS:
        io = "auto"
    reactor = reactors.reactor(io) if io == reactors.REFERENCE else NativeReactor(io, fast_path=True)
    with Box(pool_size=WORKERS, spares=1, max_sessions=SESSIONS, reactor=reactor) as box, Wire(box) as made:
        yield made


class Client:
    """One connection, and what it may expect."""

    def __init__(self, wire: Wire, dice: random.Random) -> None:
        self._wire, self._dice = wire, dice
        self._peer: Peer = wire.peer()
        self._sent: dict[int, tuple[str, int]] = {}  # request -> what it is, of which session
        self._counts: dict[int, int] = {}  # session -> what its last count was
        self._sessions: list[int] = []
        self._lost: list[int] = []  # some of those whose state is gone
        self._last = 0
        self.answered = Counter[str]()

    def step(self) -> None:
        self.hear()
        if len(self._sent) >= BEHIND:
            return
        opening = sum(what == "session_open" for what, _ in self._sent.values())
        busy = {session for _, session in self._sent.values()}
        free = [session for session in self._sessions if session not in busy]
        choice = self._dice.random()
        if choice < 0.004:
            self._vanish()
        elif len(self._sessions) + opening < 1 + (choice < 0.05):
            self._send("session_open", 0)
        elif not self._sessions:
            return
        elif self._lost and choice < 0.5:
            self._send("session_reset", self._lost.pop())
        elif choice < 0.85:
            if free:
                self._send("execute", self._dice.choice(free), "counts", code=COUNT)
        elif choice < 0.89:
            name = self._dice.choice(sorted(OTHERS))
            self._send("execute", self._dice.choice(free or self._sessions), name, code=OTHERS[name])
        elif choice < 0.91:
            self._send("execute", self._dice.choice(self._sessions), "counts", code=COUNT)  # busy, it may be
        elif choice < 0.93:
            self._send("execute", 0, "fresh", code=b"print('fresh')")
        elif choice < 0.95:
            self._send("interrupt", self._dice.choice(self._sessions))
        elif choice < 0.96 and self._sent:
            self._send("cancel", 0, target=self._dice.choice(sorted(self._sent)))
        elif choice < 0.985 or choice >= 0.995:
            self._send("session_reset", self._dice.choice(self._sessions))
        else:
            session = self._sessions.pop(self._dice.randrange(len(self._sessions)))
            self._lost.clear()
            self._send("session_close", session)

    def _send(self, op: str, session: int, what: str = "", **fields: Any) -> None:
        where = {"session": session} if session else {}
        self._last = self._peer.send(op, **where, **fields)
        self._sent[self._last] = (what or op, session)

    def _vanish(self) -> None:
        self._peer.close()
        self._peer = self._wire.peer()
        self._sent.clear()
        self._counts.clear()
        self._sessions.clear()
        self._lost.clear()

    def hear(self) -> None:
        """Take the answers that are there."""
        self._peer.has(0)
        while self._peer.order:
            number = self._peer.order.pop(0)
            what, session = self._sent.pop(number)  # there is none that nobody asked for, nor a second one
            self._judge(what, session, self._peer.wait(number))

    def _judge(self, what: str, session: int, reply: dict[str, Any]) -> None:
        kind = reply["error"]["kind"] if "error" in reply else ""
        assert kind in ("", "busy", "session_over", "cancelled"), reply
        self.answered[kind or what] += 1
        if kind == "session_over" and session in self._sessions:
            self._lost = [session]
        if kind or what == "cancel":
            return
        said = reply["ok"]
        if what == "session_open":
            self._sessions.append(said["session"])
        elif what == "session_reset":
            self._counts.pop(session, None)
        elif what == "fresh":
            assert (b"fresh\n", "finished") == (said["stdout"], said["outcome"])
        elif what == "counts" and said["outcome"] == "finished" and said["exit_code"] == 0:
            # What an interrupted job counted is told by nobody; else a state is never lost, nor another's.
            count = int(said["stdout"])
            assert count == 1 or count > self._counts.get(session, 0), (count, self._counts)
            self._counts[session] = count

    def is_idle(self) -> bool:
        self.hear()
        return not self._sent


@pytest.mark.parametrize("seed", range(2))
def test_every_request_has_one_answer_and_the_tables_are_empty_afterwards(wire: Wire, seed: int):
    pool = wire.box.engine.main.pool
    dice = random.Random(seed)
    clients = [Client(wire, dice) for _ in range(PEERS)]
    steps = 0
    while steps < STEPS or sum(client.answered["counts"] for client in clients) <= STEPS / 10:
        assert steps < 20 * STEPS, [client.answered for client in clients]  # on a busy machine more of them wait
        dice.choice(clients).step()
        wire.box.reactor.turn(0.001 if dice.random() < 0.5 else 0.0)
        steps += 1
    wire.until(lambda: all(client.is_idle() for client in clients))
    answered = Counter[str]()
    for client in clients:
        answered += client.answered
        client._vanish()

    wire.until(lambda: not (pool.sessions or pool.running or any(
        account.jobs for account in pool.ledger._accounts.values())))
    assert pool.done + pool.failed >= sum(count for what, count in answered.items()
                                          if what in ("counts", "fresh", *OTHERS))

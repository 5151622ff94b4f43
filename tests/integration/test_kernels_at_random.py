"""
Kernels under whatever clients do, in any order, faster than the daemon hears of it.

Several connections of one user send requests at random to kernels that all of them share, without waiting for answers:
code by a kernel's name, and by the number to which the connection has bound it, which goes by the fast path; and
everything that takes it off that. Each request gets one answer, which is its own; a kernel runs what one connection
asks of it in that order, and once; and in the end the books are empty.
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
from leeward.daemon.run.lease import Lease

PEERS, BOXES, KERNELS = 3, 2, 3
STEPS = 20_000 if os.environ.get("LEEWARD_LONG") else 1500
#: Requests of one connection on their way, at most.
BEHIND = 6
#: A job that says which it is, in which process it runs, and how many ran there before.
COUNT = "import os; n = globals().get('n', 0) + 1; print({tag}, os.getpid(), n)"
OTHERS = {
    "raises": "1 / 0", "shows": "6 * 7", "leaves": "import os; os._exit(3)", "waits": "import time; time.sleep(0.004)",
    "floods": "print('x' * 100_000)", "denied": "import ctypes; ctypes.CDLL(None).unshare(0x10000000)",
    "speaks out of turn": "import os; os.write(4, bytes(8))",
}
EXPECTED = ("", "busy", "session_over", "sandbox_over", "cancelled")


@pytest.fixture(params=["uring", "socket"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    io = request.param
    if io == "uring" and "uring" not in reactors.WAYS:
        io = "auto"
    reactor = NativeReactor(io, fast_path=True)
    with Box(pool_size=BOXES + 2, spares=1, max_sessions=BOXES, reactor=reactor) as box, Wire(box) as made:
        yield made


class World:
    """
    What all connections share.

    Attributes:
        kernels: those that weren't closed, by their sandboxes.
        ran: (sandbox, pid, count) of each job that told it.
    """

    def __init__(self, boxes: list[str]) -> None:
        self.kernels: dict[str, list[int]] = {box: [] for box in boxes}
        self.ran: set[tuple[str, int, int]] = set()
        self.answered = Counter[str]()
        self.by_number = 0

    def all(self) -> list[tuple[str, int]]:
        return [(box, kernel) for box, kernels in self.kernels.items() for kernel in kernels]


class Client:
    """One connection, and what it may expect."""

    def __init__(self, wire: Wire, world: World, dice: random.Random) -> None:
        self._wire, self._world, self._dice = wire, world, dice
        self._peer: Peer = wire.peer()
        self._sent: dict[int, tuple[str, str, int]] = {}  # request -> what it is, of which sandbox and kernel
        self._numbers: dict[tuple[str, int], int] = {}
        self._counts: dict[tuple[str, int, int], dict[int, int]] = {}  # sandbox, kernel, pid -> count by request

    def step(self) -> None:
        self.hear()
        if len(self._sent) >= BEHIND:
            return
        world, dice = self._world, self._dice
        choice = dice.random()
        box = dice.choice(list(world.kernels))
        opening = sum(what in ("kernel_open", "kernel_fork") for what, _, _ in self._sent.values())
        if not world.kernels[box] or (choice < 0.01 and len(world.kernels[box]) + opening < KERNELS):
            if not opening:
                self._send("kernel_open", box)
            return
        kernel = dice.choice(world.kernels[box])
        if choice < 0.015:
            self.vanish()
        elif choice < 0.83:
            self._execute(box, kernel, "counts")
        elif choice < 0.87:
            self._execute(box, kernel, dice.choice(sorted(OTHERS)))
        elif choice < 0.89:
            self._send("kernel_interrupt", box, kernel)
        elif choice < 0.90 and self._sent:
            self._send("cancel", target=dice.choice(sorted(self._sent)))
        elif choice < 0.94 and len(world.kernels[box]) + opening < KERNELS:
            self._send("kernel_fork", box, kernel)
        elif choice < 0.965:
            self._send("kernel_reset", box, kernel)
        elif choice < 0.97:
            world.kernels[box].remove(kernel)
            self._send("kernel_close", box, kernel)
        elif choice < 0.98:
            self._send("process_run", box, argv=["true"])
        else:
            self._send("kernel_bind", box, kernel)

    def _execute(self, box: str, kernel: int, what: str) -> None:
        number = self._numbers.get((box, kernel))
        if number is None and self._dice.random() < 0.7:
            self._send("kernel_bind", box, kernel)
            return
        code = COUNT.format(tag=self._peer.next) if what == "counts" else OTHERS[what]
        if number is None or self._dice.random() < 0.15:
            self._send("sandbox_execute", box, kernel, what, code=code.encode())
        else:
            self._world.by_number += 1
            self._note(self._peer.send("execute", session=number, code=code.encode()), what, box, kernel)

    def _send(self, op: str, box: str = "", kernel: int = 0, what: str = "", **fields: Any) -> None:
        where = ({"sandbox": box} if box else {}) | ({"kernel": kernel} if kernel else {})
        self._note(self._peer.send(op, **where, **fields), what or op, box, kernel)

    def _note(self, number: int, what: str, box: str, kernel: int) -> None:
        self._sent[number] = what, box, kernel

    def vanish(self) -> None:
        self._peer.close()
        self._peer = self._wire.peer()
        self._sent.clear()
        self._numbers.clear()
        self._counts.clear()

    def hear(self) -> None:
        """Take the answers that are there."""
        self._peer.has(0)
        while self._peer.order:
            number = self._peer.order.pop(0)
            assert number in self._sent, self._peer.wait(number)  # nobody asked for it, or it is the second one
            self._judge(number, *self._sent.pop(number), self._peer.wait(number))
        assert not self._peer.closed

    def _judge(self, number: int, what: str, box: str, kernel: int, reply: dict[str, Any]) -> None:
        kind = reply["error"]["kind"] if "error" in reply else ""
        assert kind in EXPECTED, reply
        self._world.answered[kind or what] += 1
        if kind == "session_over" and what != "kernel_close" and self._dice.random() < 0.5 \
                and kernel in self._world.kernels[box]:
            self._send("kernel_reset", box, kernel)
        if kind:
            return
        said = reply["ok"]
        if what in ("kernel_open", "kernel_fork"):
            self._world.kernels[box].append(said["kernel"])
        elif what == "kernel_bind":
            self._numbers[box, kernel] = said["session"]
        elif what == "shows" and said["outcome"] == "finished" and not said["exit_code"]:
            assert all({"text/plain": "42"} == dict(each) for each in said.get("results", [])), said
        elif what == "counts" and said["outcome"] == "finished" and said["exit_code"] == 0:
            self._judge_count(number, box, kernel, said["stdout"])

    def _judge_count(self, number: int, box: str, kernel: int, stdout: bytes) -> None:
        # What threads of no job's wrote may come with it, so the last line counts.
        tag, pid, count = map(int, stdout.splitlines()[-1].split())
        assert tag == number
        assert (box, pid, count) not in self._world.ran
        self._world.ran.add((box, pid, count))
        counts = self._counts.setdefault((box, kernel, pid), {})
        counts[number] = count
        in_order = [counts[each] for each in sorted(counts)]
        assert in_order == sorted(in_order), (number, counts)

    def is_idle(self) -> bool:
        self.hear()
        return not self._sent


@pytest.mark.parametrize("seed", [3])
def test_every_request_has_one_answer_and_the_tables_are_empty_afterwards(wire: Wire, seed: int) -> None:
    pool = wire.box.engine.main.pool
    dice = random.Random(seed)
    first = wire.peer()
    world = World([first.box() for _ in range(BOXES)])
    clients = [Client(wire, world, dice) for _ in range(PEERS)]
    steps = 0
    while steps < STEPS or world.answered["counts"] <= STEPS / 10 or world.by_number <= STEPS / 5:
        assert steps < 20 * STEPS, (world.answered, world.by_number)  # on a busy machine more of them wait
        dice.choice(clients).step()
        wire.box.reactor.turn(0.001 if dice.random() < 0.5 else 0.0)
        steps += 1
    wire.until(lambda: all(client.is_idle() for client in clients))
    for client in clients:
        client.vanish()
    wire.until(lambda: all(1 >= each["calls"] for each in first.ask("sandbox_list")["sandboxes"]))
    for box in world.kernels:
        first.ask("sandbox_kill", sandbox=box)
    wire.until(lambda: not (pool.sessions or pool.running))
    fast_path = wire.box.reactor.fast_path
    assert fast_path is not None
    assert ({}, {}) == (fast_path._jobs, fast_path.held)
    assert not [each for each in fast_path._givers.values() if isinstance(each, Lease)]

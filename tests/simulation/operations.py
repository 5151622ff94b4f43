"""
What clients and the operator do in one run, drawn from a seed.

Operations are data, so that some can be left out to see whether a failure needs them. What depends on the moment, which
request to cancel say, is a number that the client makes use of then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.pool.quotas import Quota

from .host import Behaviour
from .kernel import choose

OWNER = 1000
USERS = (OWNER, OWNER, 2000, 3000)
#: How often what is asked of sandboxes.
SANDBOXES = {
    "sandbox_open": 3, "sandbox_list": 1, "sandbox_info": 2, "sandbox_extend": 2, "sandbox_kill": 1, "process_run": 9,
    "process_start": 7, "process_list": 1, "process_read": 7, "process_write": 2, "process_signal": 1,
    "process_kill": 3, "process_wait": 4,
}
#: Clients at once.
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Request:
    """
    Attributes:
        op: of the wire, or "bad ...": a request, or a frame, that is wrong in some way.
        where: which session, request or answered number is meant, of those that there are.
        number: "new", or "again" for one in flight, or "old" for one that was answered.
    """

    op: str
    where: int = 0
    behaviour: Behaviour | None = None
    size: int = 0
    in_session: bool = False
    number: str = "new"
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """
    Attributes:
        after: seconds since the one before.
        pieces: into so many reads what is sent is cut.
        what: new quotas, or how to stop.
    """

    after: float
    kind: str
    client: int = 0
    requests: tuple[Request, ...] = ()
    pieces: int = 1
    what: Any = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The daemon's configuration, and its transport: "reference", "shim" or "ring"."""

    reactor: str
    fast_path: bool
    needs_ticks: bool
    workers: int
    spares: int
    recycle_after: int
    queue_size: int
    queue_timeout: float
    queue_delay: float
    seconds: float
    max_sessions: int
    session_idle: float
    session_lifetime: float
    idle_timeout: float
    results: str
    quota: Quota
    faulty: bool
    calm: bool
    room: int
    grace: float
    jobs: int


def setting(dice: random.Random) -> Setting:
    return Setting(
        reactor=dice.choice(("reference", "shim", "shim", "ring")), fast_path=dice.random() < 0.85,
        needs_ticks=dice.random() < 0.15, workers=dice.randint(1, 4), spares=dice.randint(0, 2),
        recycle_after=dice.choice((1, 2, 5, 1000)), queue_size=dice.choice((0, 1, 3, 8)),
        queue_timeout=dice.choice((0.05, 0.5, 3.0)),
        queue_delay=dice.choice((0.0, 0.01, 0.1)), seconds=dice.choice((0.02, 0.2, 1.0)),
        max_sessions=dice.choice((-1, 1, 2, 4)), session_idle=dice.choice((0.5, 2.0, 30.0)),
        session_lifetime=dice.choice((2.0, 30.0)), idle_timeout=dice.choice((0.0, 3.0)),
        results=dice.choice(("auto", "auto", "inline", "memfd")), quota=_quota(dice), faulty=dice.random() < 0.5,
        calm=dice.random() < 0.3, room=dice.choice((0, 0, 1, 3)), grace=dice.choice((0.0, 0.0, 0.05, 0.3)),
        jobs=dice.choice((0, 1, 4, 9)))


def _quota(dice: random.Random) -> Quota:
    return dice.choice((Quota(), Quota(jobs=1), Quota(jobs=2, connections=2), Quota(memory=300 << 20),
                        Quota(rate=5.0), Quota(jobs=2, memory=600 << 20, rate=50.0)))


def operations(dice: random.Random, count: int) -> tuple[Operation, ...]:
    made = []
    stops = dice.random() < 0.4
    pace = dice.choice((0.0005, 0.003, 0.02, 0.1))
    boxes = dice.random() < 0.4  # a run that is about sandboxes
    if boxes:
        opening = Request("sandbox_open")
        made += [Operation(0.3, "send", client, (opening, opening)) for client in range(CLIENTS - 1)]
    for number in range(count):
        if stops and number == count - 8:
            made.append(Operation(pace * dice.random(), "stop", what=dice.choice(("parts", "drains"))))
        made.append(_operation(dice, pace, boxes=boxes))
    return tuple(made)


def _operation(dice: random.Random, pace: float, *, boxes: bool) -> Operation:
    after = pace * dice.random() * (10 if dice.random() < 0.05 else 1)
    client = dice.randrange(CLIENTS)
    kind = choose(dice, {"send": 80, "vanish": 3, "deaf": 4, "hear": 6, "govern": 1, "reload": 1, "half": 1,
                         "sleep": 2, "zygote": 0.5, "renew": 1})
    if kind == "zygote":
        return Operation(after, kind, what=dice.choice((0.01, 0.3, 2.0)))
    if kind == "govern":
        return Operation(after, kind, what=(_quota(dice), dice.choice((0, 2, 8)), dice.choice((-1, 0, 3))))
    if kind == "reload":
        return Operation(after, kind, what=dice.choice((0.02, 0.1, 0.5)))
    if kind == "sleep":
        return Operation(dice.choice((0.3, 1.5, 8.0)), kind)
    if kind == "half":
        return Operation(after, kind, client, (_execute(dice, False),), what=dice.choice((1, 3, 4, 20, 70_000)))
    if kind != "send":
        return Operation(after, kind, client)
    many = dice.choice((1, 1, 1, 1, 2, 2, 3, 6, 12))
    requests = tuple(_request(dice, boxes=boxes) for _ in range(many))
    return Operation(after, "send", client, requests, pieces=1 if dice.random() < 0.8 else dice.randint(2, 5))


def _request(dice: random.Random, *, boxes: bool) -> Request:
    op = choose(dice, {**SANDBOXES, "execute": 4, "cancel": 5, "session_open": 1} if boxes else {
        "execute": 30, "turn": 25, "session_open": 9, "session_reset": 5, "session_close": 5, "interrupt": 4,
        "cancel": 8, "ping": 3, "status": 2, "bad": 1, "sandbox_open": 1, "process_run": 1})
    number = "new" if dice.random() < 0.96 else dice.choice(("again", "old", "old", "old", "old", "old"))
    where = dice.randrange(1 << 16)
    if op in ("execute", "turn"):
        return _execute(dice, op == "turn", number)
    if op == "bad":
        return Request("bad " + dice.choice(("op", "field", "version", "limits", "idle", "id", "frame", "type")))
    if op in SANDBOXES:
        return _of_sandbox(dice, op, where, number)
    if op == "session_open":
        fields = dice.choice(({}, {}, {}, {"idle": 0.3}, {"limits": {"memory": 400 << 20}}, {"limits": {"time": 0.01}}))
        return Request(op, number=number, fields=fields)
    return Request(op, where, number=number)


def _of_sandbox(dice: random.Random, op: str, where: int, number: str) -> Request:
    fields: dict[str, Any] = {}
    if op == "sandbox_open":
        fields = dice.choice(({}, {}, {"idle": 0.3}, {"lifetime": 0.5}, {"limits": {"processes": 2}}))
    elif op == "sandbox_extend":
        fields = dice.choice(({"idle": 1.0}, {"lifetime": 1.0}, {"idle": 0.1, "lifetime": 3.0}, {}))
    elif op in ("process_run", "process_start"):
        seconds = dice.choice((0.0, 0.001, 0.02, 0.3, 3.0))
        out = dice.choice((0, 0, 10, 3000, 90_000, 300_000))
        fields = {"argv": ["sim", str(seconds), str(out), dice.choice(("exit", "exit", "kill", "missing"))],
                  **dice.choice(({}, {}, {"limits": {"time": 0.01}}, {"limits": {"output": 2000}},
                                {"limits": {"output": 2000, "overflow": "end"}}))}
        if op == "process_start" and dice.random() < 0.3:
            fields["bounded"] = True
    elif op in ("process_read", "process_wait"):
        fields = {"wait": dice.choice((0, 0.05, 1.0, 20.0))}
        if op == "process_read":
            fields["after"] = dice.choice((0, 0, 1, 2, 3, 100))
    elif op == "process_write":
        fields = {"data": b"x" * dice.choice((0, 10)), "end": dice.random() < 0.3}
    elif op == "process_signal":
        fields = {"signal": 15}
    return Request(op, where, number=number, fields=fields)


def _execute(dice: random.Random, in_session: bool, number: str = "new") -> Request:
    end = choose(dice, {"reply": 60, "raise": 8, "exit": 3, "signal": 3, "oom": 2, "hang": 4, "garbage": 1, "huge": 1,
                        "half": 1, "closes": 1})
    seconds = dice.choice((0.0001, 0.0003, 0.0007, 0.002, 0.008, 0.05, 0.3))
    output = dice.choice((0, 0, 0, 0, 10, 3000, 40_000, 65_000, 90_000, 300_000))
    behaviour = Behaviour(
        seconds, end, out=output, err=5 if dice.random() < 0.1 else 0, denied=int(dice.random() < 0.04),
        forks=int(dice.random() < 0.02), late=int(in_session and dice.random() < 0.02), deaf=dice.random() < 0.3)
    size = dice.choice((0,) * 12 + (1000, 33_000, 70_000))
    fields: dict[str, Any] = dice.choice(({},) * 9 + ({"args": ["a"]}, {"limits": {"time": 0.015}},
                                                     {"limits": {"output": 20_000}},
                                                     {"limits": {"output": 20_000, "overflow": "cut"}}))
    return Request("execute", dice.randrange(1 << 16), behaviour, size, in_session, number, fields)

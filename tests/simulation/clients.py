"""Clients that speak frames of the wire, and judge each answer that they get."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass
from leeward.daemon.run.verdict import _WHY, Stop
from leeward.errors import PeerError
from leeward.wire.frames import FrameReader, decode, encode

from .operations import SANDBOXES, Operation, Request
from .sockets import Far, Near

if TYPE_CHECKING:
    from .world import World

#: Words of refusals, by what was asked. "internal" is never right.
_JOBS = {"busy", "queue_timeout", "shutting_down", "cancelled", "bad_request"}
KINDS = {
    "execute": _JOBS, "turn": _JOBS | {"session_over"}, "session_open": _JOBS,
    "session_reset": _JOBS | {"session_over"}, "session_close": {"session_over", "busy"},
    "interrupt": {"session_over", "busy"}, "cancel": set(), "ping": set(), "status": set(),
    "bad": {"bad_request", "version", "busy"},
    **{op: {"sandbox_over", "process_over", "busy", "cancelled"} for op in SANDBOXES},
    "sandbox_open": _JOBS | {"sandbox_over"}, "sandbox_list": {"busy"},
}
_TAKEN_BACK = _WHY[Stop.CANCELLED]
#: For requests that are answered at once.
_AT_ONCE_S = 2.0


@dataclass(slots=True)
class Asked:
    """A request without an answer; *outs* is shared with those of the same id, of which any may be answered first."""

    op: str
    request: Request
    session: int
    target: int
    due: float
    outs: set[int]
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox that somebody has opened."""

    name: str
    user: int


class Client:
    """One that connects, and connects anew when it was cut off."""

    def __init__(self, world: World, name: int, user: int) -> None:
        self.world, self.name, self.user = world, name, user
        self.connection: Connection | None = None

    def do(self, operation: Operation) -> None:
        connection = self.connection
        if connection is None or connection.over:
            if operation.kind not in ("send", "half"):
                return
            connection = self.connection = Connection(self.world, self)
        if operation.kind == "vanish":
            connection.close()
        elif operation.kind == "deaf":
            connection.reading = False
        elif operation.kind == "hear":
            connection.hear()
        elif operation.kind == "half":
            connection.send(operation, part=operation.what)
        else:
            connection.send(operation)


class Connection:
    """
    Attributes:
        pending: what was asked and not answered, by id; the same id twice where a client can't know better.
        over: it was closed, by either.
        halfway: a frame was begun and will not be completed.
    """

    def __init__(self, world: World, client: Client) -> None:
        self.world, self.client = world, client
        self._kernel = world.kernel
        self.number = next(world.numbers)
        self.pending: dict[int, deque[Asked]] = {}
        self.answered: list[tuple[int, str]] = []
        self.over = False
        self.reading = True
        self.halfway = False
        self._ids = itertools.count(1)
        self._last = 0
        self._opens = 0
        self._opened: list[int] = []
        self._cut = ""  # why the daemon said that it closes the connection
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._pumping = False
        self._listening = False
        room = self._kernel.dice.choice((300, 20_000, 200_000))
        self._far = Far(self._kernel, room)
        self._near = self._far.near = Near(self._kernel, self._far, client.user, self._kernel.dice)
        self._far.heard = self._wake
        world.connections.append(self)
        self._note(f"connects as {client.user}")
        near = self._near
        world.ring(lambda: world.meet(near))

    def _note(self, text: str) -> None:
        self._kernel.note(f"client {self.client.name}.{self.number} {text}")

    # --- asking ---------------------------------------------------------------

    def send(self, operation: Operation, part: int | None = None) -> None:
        if self.halfway:
            return  # whatever it sent now would be inside the frame that it left
        data = b""
        for request in operation.requests:
            frame = self._frame(request, whole=part is None)
            data += frame
        if part is not None:
            part = min(part, len(data) - 1)
            data, self.halfway = data[:part], True
            self._note(f"sends {part} bytes of a frame, and no more")
        cuts = sorted(self._kernel.dice.randrange(len(data) + 1) for _ in range(operation.pieces - 1))
        self._out += [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        self._pump()

    def _pump(self) -> None:
        if self._pumping or self.over:
            return
        if not self._out:
            return
        self._pumping = True
        if not self._far.send(self._out.pop(0)):
            # The daemon parts: what it has taken is answered, the rest is for the next daemon, and the connection ends.
            self._out.clear()
            for asked in self._all_asked():
                asked.due = max(asked.due, self._kernel.time + self.world.bound)
        self._kernel.soon(0.002, self._pumped)

    def _pumped(self) -> None:
        self._pumping = False
        self._pump()

    def _frame(self, request: Request, *, whole: bool) -> bytes:
        number = self._number(request)
        message: dict[str, Any] = {"v": 1, "id": number, "op": request.op}
        op, session, target = request.op, 0, 0
        box: Box | None = None
        if op.startswith("bad "):
            message, op, bad = _bad(op[4:], number), "bad", op[4:]
            if bad == "frame":
                self._note("sends what is no frame")
                return b"\xff\xff\xff\xff" + b"x" * 10
            if bad in ("type", "id"):
                self._note(f"sends a request with a wrong {bad}")
                return encode(message)
        elif op == "execute":
            assert request.behaviour is not None
            if request.in_session:
                op, session = "turn", self._session(request)
                message["session"] = session
            message["code"] = request.behaviour.code(request.size)
            message.update(request.fields)
        elif op == "session_open":
            message.update(request.fields)
            self._opens += 1
        elif op in ("session_reset", "session_close", "interrupt"):
            session = message["session"] = self._session(request)
        elif op in SANDBOXES:
            message.update(request.fields)
            box = self._name_box(op, request, message)
        elif op == "cancel":
            known = sorted(self.pending) or [1]
            target = self._last + 77 if request.where % 7 == 0 else known[request.where % len(known)]
            message["target"] = target
        self._note(f"asks {number}: {op}{f' in {session}' if session else ''}{f' of {target}' if target else ''}"
                   f" {request.behaviour or ''} {dict(request.fields) or ''}")
        if whole:
            waits = self.pending.setdefault(number, deque())
            outs = waits[0].outs if waits else set()
            outs.add(0 if request.behaviour is None else request.behaviour.out)
            waits.append(Asked(op, request, session, target, self._due(op) + request.fields.get("wait", 0.0), outs, box))
        return encode(message)

    def _number(self, request: Request) -> int:
        if request.number == "again" and self.pending:
            return sorted(self.pending)[request.where % len(self.pending)]
        if request.number == "old" and self.answered:
            return self.answered[-1 - request.where % min(4, len(self.answered))][0]
        self._last = next(self._ids)
        return self._last

    def _session(self, request: Request) -> int:
        # One that there is, most of the time; the next one, which a client may know before it has it; or none.
        if self._opened and request.where % 4:
            return self._opened[request.where % len(self._opened)]
        return 1 + request.where % (self._opens + 2)

    def _name_box(self, op: str, request: Request, message: dict[str, Any]) -> Box | None:
        """One of the user's, most of the time; a stranger's, or none that there is; perhaps one that is over."""
        if op in ("sandbox_open", "sandbox_list"):
            return None
        boxes = self.world.boxes
        mine = [box for box in boxes if box.user == self.client.user]
        some = mine[-3:] if mine and request.where % 8 else boxes
        box = some[request.where % len(some)] if some else Box("a" * 26, -1)
        message["sandbox"] = box.name
        if op.startswith("process_") and op not in ("process_run", "process_start", "process_list"):
            message["process"] = 1 + request.where // 8 % 4
        return box

    def _due(self, op: str) -> float:
        bound = self.world.bound if op in ("execute", "turn", "session_open", "session_reset", "sandbox_open",
                                           "process_run") else _AT_ONCE_S
        return self._kernel.time + bound

    # --- hearing --------------------------------------------------------------

    def _wake(self) -> None:
        if not self._listening:
            self._listening = True
            self._kernel.soon(0.001, self._listen)

    def hear(self) -> None:
        self.reading = True
        for asked in self._all_asked():
            asked.due = max(asked.due, self._due(asked.op))
        self._wake()

    def _listen(self) -> None:
        self._listening = False
        if self.over or not self.reading:
            return
        data = self._far.read(1 << 16)
        if data:
            self._take(data)
            self._wake()
        elif self._near.closed:
            self._end("was closed by the daemon")

    def _take(self, data: bytes) -> None:
        try:
            for payload in self._reader.feed(data):
                self._judge(decode(payload))
        except PeerError as error:
            self._kernel.violate(f"connection {self.number} was sent what is no frame: {error}")
            self.close()

    def _judge(self, reply: Mapping[str, Any]) -> None:
        number = reply["id"]
        kind = reply["error"]["kind"] if "error" in reply else ""
        self._note(f"hears {number}: {kind or _short(reply['ok'])}")
        if self._cut:
            self._kernel.violate(f"connection {self.number} was told {number} after it was refused")
        if not number:
            self._cut = kind
            return
        waits = self.pending.get(number)
        if waits is None:
            self._kernel.violate(f"connection {self.number} doesn't wait for an answer to {number}: {reply}")
            return
        asked = waits.popleft()
        if not waits:
            del self.pending[number]
        self.answered.append((number, kind))
        if kind:
            if kind not in KINDS[asked.op] and not (kind == "busy" and asked.op in ("execute", "turn")):
                self._kernel.violate(f"{asked.op} was refused as {kind}: {reply['error']['message']}")
        else:
            self._accept(asked, reply["ok"])

    def _accept(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        violate = self._kernel.violate
        if asked.op == "bad":
            violate("a bad request was done")
        elif asked.op == "session_open":
            if answer["session"] in self._opened or answer["session"] > self._opens:
                violate(f"session {answer['session']} was opened twice, or never")
            self._opened.append(answer["session"])
        elif asked.op == "sandbox_open":
            if any(box.name == answer["sandbox"] for box in self.world.boxes):
                violate("a sandbox was opened twice")
            self.world.boxes.append(Box(answer["sandbox"], self.client.user))
        elif asked.op in SANDBOXES:
            self._accept_of_sandbox(asked, answer)
        elif asked.op == "cancel" and answer["cancelled"]:
            if (asked.target, "cancelled") not in self.answered:
                violate(f"{asked.target} was cancelled, and isn't told so")
        elif asked.op in ("execute", "turn"):
            self._check_result(asked, answer)

    def _accept_of_sandbox(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        if asked.op == "sandbox_list":
            known = {box.name for box in self.world.boxes if box.user == self.client.user}
            others = {box.name for box in self.world.boxes} - known
            if others & {row["sandbox"] for row in answer["sandboxes"]}:
                self._kernel.violate(f"user {self.client.user} is shown another's sandbox")
            return
        assert asked.box is not None
        if asked.box.user != self.client.user:
            self._kernel.violate(f"user {self.client.user} was served of user {asked.box.user}'s sandbox: {asked}")
        if asked.op == "process_run" and answer["outcome"] == "finished":
            size = _written(answer)
            if answer["exit_code"] == 0 and size != int(asked.request.fields["argv"][2]):
                self._kernel.violate(f"{size} bytes of output of {asked.request.fields['argv']}")
        if asked.op == "process_read":
            numbers = [chunk[0] for chunk in answer["chunks"]]
            if numbers != sorted(set(numbers)) or (numbers and numbers[0] <= asked.request.fields["after"]):
                self._kernel.violate(f"chunks {numbers} behind {asked.request.fields['after']}")

    def _check_result(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        does = asked.request.behaviour
        assert does is not None
        outcome = answer["outcome"]
        if outcome == "internal" and answer["error"]["message"] == _TAKEN_BACK:
            self._kernel.violate(f"who took a job back was told of its end: {asked}")
        if asked.op == "turn" or outcome != "finished" or does.end != "reply" or self.world.faults:
            return
        size = _written(answer)
        if size not in asked.outs:
            self._kernel.violate(f"{size} bytes of output of {does.out}")

    # --- the end --------------------------------------------------------------

    def late(self) -> list[str]:
        """What should have been answered by now."""
        if self.over or not self.reading:
            return []
        return [f"connection {self.number}: a request has no answer: {asked}" for asked in self._all_asked()
                if self._kernel.time > asked.due]

    def _all_asked(self) -> Iterator[Asked]:
        return itertools.chain.from_iterable(self.pending.values())

    def close(self) -> None:
        if not self.over:
            self._end("closes")
            self._far.close()

    def _end(self, why: str) -> None:
        self._note(why)
        self.over = True
        self.pending.clear()
        self._far.close()


def _bad(what: str, number: int) -> dict[str, Any]:
    """A request that is wrong in one way."""
    good = {"v": 1, "id": number, "op": "ping"}
    return {
        "op": {**good, "op": "pong"}, "field": {**good, "more": 1}, "version": {**good, "v": 2}, "frame": good,
        "limits": {**good, "op": "execute", "code": b"", "limits": {"time": -1}}, "id": {**good, "id": 0},
        "idle": {**good, "op": "session_open", "idle": 1e5}, "type": {**good, "id": "1"},
    }[what]


def _short(answer: Mapping[str, Any]) -> str:
    if "outcome" in answer:
        return f"{answer['outcome']} {answer.get('exit_code')}"
    return str({name: value for name, value in answer.items() if name != "workers"})[:60]


def _written(answer: Mapping[str, Any]) -> int:
    """How much was written to stdout, by what the answer has, and what it says is left out."""
    out, omitted = answer["stdout"], answer.get("omitted", (0, 0))[0]
    size = len(out) if isinstance(out, bytes) else out[2]
    return int(size + omitted - (len(b"\n[%d bytes left out]\n" % omitted) if omitted else 0))

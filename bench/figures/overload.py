"""
A daemon that is sent three times as many jobs as it can run: latency of accepted calls and refusals, and throughput.

First one client with pauses, which nearly always finds a runner armed, and one without, for which a call waits for the
end of the runner before and the arming of the next: either's p99 is what "unloaded" can mean. Then as many calls at once
as there are workers, twice over: the saturated rate. Then several connections that together send LOAD times that rate
whatever comes back (open loop); the first WARM_S, of a daemon that has just become overloaded, aren't counted. Calls, not
jobs: the time from the write of a request to the read of its answer, by one process.

That process takes processor time, too, which the daemon then lacks where there are few processors. So the last row has
what the daemon and its workers spent on each call that was answered well, saturated and overloaded: their ratio is the
goodput where the client runs elsewhere.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.figures.row import FigureSettings, Row, missing, times
from leeward.errors import LeewardError
from leeward.wire.frames import FrameReader, decode
from leeward.wire.requests import Execute, encode_request
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import daemon, daemon_pid
from leeward_cli.bench.spent import spent

LOAD, CLIENTS, WORKERS = 3.0, 6, 4
WARM_S, GAP_S = 1.0, 0.02
#: Seconds after the last request in which all must be answered; and those after which a refusal is late.
PATIENCE_S, LATE_S = 60.0, 0.05


@dataclass
class TimedRequest:
    sent: float
    answered: float = 0.0
    kind: str = ""  # "ok", or of its refusal

    @property
    def took(self) -> float:
        return self.answered - self.sent


@dataclass
class LoadConnection:
    """One connection, and every call on it by its id."""

    sock: socket.socket
    frames: list[bytes] = field(default_factory=list)  # of requests that were encoded in advance
    sent: list[float] = field(default_factory=list)
    answers: list[tuple[float, bytes]] = field(default_factory=list)
    reader: FrameReader = field(default_factory=FrameReader)
    waiting: int = 0

    def prepare(self, count: int) -> None:
        """Encode so many requests beforehand, so that encoding takes no time while they are sent."""
        first = len(self.frames) + 1
        self.frames += [encode_request(Execute(number, code=b"pass")) for number in range(first, first + count)]

    def send(self) -> None:
        if len(self.sent) == len(self.frames):
            self.prepare(1)
        frame = self.frames[len(self.sent)]
        self.sent.append(time.monotonic())
        self.waiting += 1
        self.sock.sendall(frame)

    def take(self) -> int:
        data = self.sock.recv(1 << 16)
        now = time.monotonic()
        if not data:
            raise LeewardError("bench: the daemon closed a connection")
        answers = self.reader.feed(data)
        self.answers += [(now, bytes(payload)) for payload in answers]
        self.waiting -= len(answers)
        return len(answers)

    @property
    def calls(self) -> list[TimedRequest]:
        calls = [TimedRequest(sent) for sent in self.sent]
        for now, payload in self.answers:
            answer = decode(payload)
            call = calls[answer["id"] - 1]
            if call.kind:
                raise LeewardError("bench: a call was answered twice")
            call.answered, call.kind = now, answer["error"]["kind"] if "error" in answer else "ok"
            if call.kind == "ok" and answer["ok"]["outcome"] != "finished":
                raise LeewardError(f"bench: a job ended as {answer['ok']}")
        return calls


def connected(path: str) -> LoadConnection:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return LoadConnection(sock)


def unloaded(path: str, count: int, gap: float) -> list[float]:
    """Seconds of each call of one client, with *gap* seconds before each."""
    one = connected(path)
    with one.sock:
        for _ in range(count):
            if gap:
                time.sleep(gap)
            one.send()
            while one.waiting:
                one.take()
    return [call.took for call in one.calls]


def saturated(path: str, seconds: float, at_once: int) -> tuple[float, int]:
    """Jobs per second with so many of them always in flight; and their number."""
    selector = selectors.DefaultSelector()
    connections = [connected(path) for _ in range(at_once)]
    for each in connections:
        selector.register(each.sock, selectors.EVENT_READ, each)
        each.send()
    start, done = time.monotonic(), 0
    while time.monotonic() < start + WARM_S + seconds:
        for key, _ in selector.select(1.0):
            taken = key.data.take()
            done += taken if time.monotonic() > start + WARM_S else 0
            for _ in range(taken):
                key.data.send()
    for each in connections:
        while each.waiting:
            each.take()
        each.sock.close()
    return done / seconds, sum(len(each.sent) for each in connections)


def overloaded(path: str, seconds: float, rate: float, clients: int) -> list[TimedRequest]:
    """Every call of *clients* that send *rate* calls a second in turn, whatever comes back."""
    selector = selectors.DefaultSelector()
    connections = [connected(path) for _ in range(clients)]
    for each in connections:
        selector.register(each.sock, selectors.EVENT_READ, each)
        each.prepare(int(rate * seconds / clients) + 1)
    start, sent, total = time.monotonic(), 0, int(rate * seconds)
    while sent < total or any(each.waiting for each in connections):
        now = time.monotonic()
        if now > start + seconds + PATIENCE_S:
            raise LeewardError("bench: a call was never answered")
        while sent < total and start + sent / rate <= now:
            connections[sent % clients].send()
            sent += 1
        due = start + sent / rate - time.monotonic() if sent < total else 1.0
        for key, _ in selector.select(max(0.0, due)):
            key.data.take()
    for each in connections:
        each.sock.close()
    return [call for each in connections for call in each.calls]


@contextlib.contextmanager
def cost(path: str) -> Iterator[list[float]]:
    """A context at whose end its list has the processor seconds of the daemon and its workers, if a group counts them."""
    pid, used = daemon_pid(path), list[float]()
    before = spent(pid)
    yield used
    after = spent(pid)
    both = None if before is None or after is None else after.since(before).both
    used += [] if both is None else [both]


def measure_overload(settings: FigureSettings) -> Sequence[Row]:
    count, seconds = settings.some(300), settings.some(10)
    with daemon(None, f"--pool-size={WORKERS}") as path:
        calm = unloaded(path, count, GAP_S)
        time.sleep(WARM_S)
        busy = unloaded(path, count, 0.0)
        time.sleep(WARM_S)
        with cost(path) as full:
            rate, done = saturated(path, min(5.0, seconds), 2 * WORKERS)
        time.sleep(WARM_S)
        with cost(path) as over:
            calls = overloaded(path, seconds + WARM_S, LOAD * rate, CLIENTS)
    start = min(call.sent for call in calls) + WARM_S
    good = [call.took for call in calls if call.sent >= start and call.kind == "ok"]
    bad = [call.took for call in calls if call.sent >= start and call.kind != "ok"]
    accepted, refused = times("accepted", [good or [0.0]]), times("refused", [bad or [0.0]])

    def beside(words: str, alone: Sequence[float], target: float | None) -> Row:
        return Row(f"p99 of accepted calls at {LOAD:g} times the load over that of a single client {words}",
                   round(percentile(good or [0.0], 99) / percentile(alone, 99), 2), "x", target,
                   measured=[accepted, times(f"a single client {words}", [alone])])

    processor = "processor time of an accepted call, saturated over overloaded"
    accepted_calls = sum(call.kind == "ok" for call in calls)
    return [
        beside("with pauses", calm, 5), beside("without pauses", busy, None),
        Row(f"refusals after {LATE_S * 1e3:g} ms", sum(took > LATE_S for took in bad), f"of {len(bad)}", 0,
            measured=[refused]),
        Row("accepted calls a second over the saturated rate", round(len(good) / seconds / rate, 2), "x", 0.9,
            at_most=False, note=f"{rate:.0f} jobs a second saturated"),
        Row(processor, round(full[0] / done / (over[0] / accepted_calls), 2), "x", 0.9, at_most=False)
        if full and over else missing(processor, 0.9, "no cgroup counts the workers' time", at_most=False),
    ]

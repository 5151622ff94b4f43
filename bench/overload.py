"""
A daemon that is sent three times as many jobs as it can run: latency of accepted calls and refusals, and throughput.

    .venv/bin/python bench/overload.py [--seconds S] [--load L] [--clients N] [--code CODE] [--config F]

First one client with pauses, which nearly always finds a runner armed, and one without, for which a call waits for the
end of the runner before and the arming of the next: either's p99 is what "unloaded" can mean. Then as many calls at once
as there are workers, twice over: the saturated rate. Then several connections that together send L times that rate
whatever comes back (open loop), for S seconds, the first WARM of which are told by themselves: a daemon that has just
become overloaded. Calls, not jobs: the time from the write of a request to the read of its answer, by one process.

That process takes processor time, too, which the daemon then lacks where there are few processors. So the last line has
what the daemon and its workers spent on each call that was answered well, saturated and overloaded: their ratio is the
goodput where the client runs elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from leeward.wire.frames import FrameReader, decode
from leeward.wire.requests import Execute, encode_request
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import daemon, daemon_pid
from leeward_cli.bench.spent import spent

WARM_S = 1.0
GAP_S = 0.02
#: Seconds after the last request in which all must be answered.
PATIENCE_S = 60.0


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
    code: bytes
    frames: list[bytes] = field(default_factory=list)  # of requests that were encoded in advance
    sent: list[float] = field(default_factory=list)
    answers: list[tuple[float, bytes]] = field(default_factory=list)
    reader: FrameReader = field(default_factory=FrameReader)
    waiting: int = 0

    def prepare(self, count: int) -> None:
        """Encode so many requests beforehand, so that encoding takes no time while they are sent."""
        first = len(self.frames) + 1
        self.frames += [encode_request(Execute(number, code=self.code)) for number in range(first, first + count)]

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
            raise SystemExit("the daemon closed a connection")
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
                raise SystemExit("a call was answered twice")
            call.answered, call.kind = now, answer["error"]["kind"] if "error" in answer else "ok"
            if call.kind == "ok" and answer["ok"]["outcome"] != "finished":
                raise SystemExit(f"a job ended as {answer['ok']}")
        return calls


def connected(path: str, code: bytes) -> LoadConnection:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return LoadConnection(sock, code)


def ms(times: Sequence[float], p: int) -> float:
    return 1e3 * percentile(times, p) if times else 0.0


def unloaded(path: str, code: bytes, count: int, gap: float) -> list[float]:
    """Seconds of each call of one client, with *gap* seconds before each."""
    one = connected(path, code)
    with one.sock:
        for _ in range(count):
            if gap:
                time.sleep(gap)
            one.send()
            while one.waiting:
                one.take()
    return [call.took for call in one.calls]


def saturated(path: str, code: bytes, seconds: float, at_once: int) -> tuple[float, int]:
    """Jobs per second with so many of them always in flight; and their number."""
    selector = selectors.DefaultSelector()
    connections = [connected(path, code) for _ in range(at_once)]
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


def overloaded(path: str, code: bytes, seconds: float, rate: float, clients: int) -> list[TimedRequest]:
    """Every call of *clients* that send *rate* calls a second in turn, whatever comes back."""
    selector = selectors.DefaultSelector()
    connections = [connected(path, code) for _ in range(clients)]
    for each in connections:
        selector.register(each.sock, selectors.EVENT_READ, each)
        each.prepare(int(rate * seconds / clients) + 1)
    start, sent, total = time.monotonic(), 0, int(rate * seconds)
    while sent < total or any(each.waiting for each in connections):
        now = time.monotonic()
        if now > start + seconds + PATIENCE_S:
            raise SystemExit("a call was never answered")
        while sent < total and start + sent / rate <= now:
            connections[sent % clients].send()
            sent += 1
        due = start + sent / rate - time.monotonic() if sent < total else 1.0
        for key, _ in selector.select(max(0.0, due)):
            key.data.take()
    for each in connections:
        each.sock.close()
    return [call for each in connections for call in each.calls]


def told(calls: list[TimedRequest], seconds: float) -> dict[str, float]:
    good = [call.took for call in calls if call.kind == "ok"]
    bad = [call.took for call in calls if call.kind != "ok"]
    return {"accepted": len(good), "refused": len(bad), "goodput": len(good) / seconds,
            **{f"accepted p{part:g}": ms(good, part) for part in (50, 90, 99)},
            **{f"refused p{part:g}": ms(bad, part) for part in (50, 99)},
            "refused most": 1e3 * max(bad, default=0.0), "refused after 50 ms": sum(took > 0.05 for took in bad)}


@contextlib.contextmanager
def cost(path: str) -> Iterator[list[float | None]]:
    """A context at whose end its list has the processor seconds: of the daemon with its workers, and of this process."""
    pid, used = daemon_pid(path), list[float | None]()
    before, own = spent(pid), time.process_time()
    yield used
    after = spent(pid)
    used += [None if before is None or after is None else after.since(before).both, time.process_time() - own]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--calls", type=int, default=300, help="of the unloaded client")
    parser.add_argument("--code", default="pass")
    parser.add_argument("--socket", help="of a daemon that runs already, with --pool-size workers")
    parser.add_argument("--pool-size", type=int, default=4)
    parser.add_argument("--config", help="of the daemon: with queue_delay = 0 it is bounded by number alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    code = options.code.encode()
    told_to = ("--pool-size", str(options.pool_size), *(("--config", options.config) if options.config else ()))
    with daemon(options.socket, *(() if options.socket else told_to)) as path:
        calm = unloaded(path, code, options.calls, GAP_S)
        time.sleep(WARM_S)
        busy = unloaded(path, code, options.calls, 0.0)
        time.sleep(WARM_S)
        with cost(path) as full:
            rate, done = saturated(path, code, min(5.0, options.seconds), 2 * options.pool_size)
        time.sleep(WARM_S)
        with cost(path) as over:
            calls = overloaded(path, code, options.seconds + WARM_S, options.load * rate, options.clients)
    start = min(call.sent for call in calls)
    p99, busy_p99 = ms(calm, 99), ms(busy, 99)
    first = told([call for call in calls if call.sent < start + WARM_S], WARM_S)
    rest = told([call for call in calls if call.sent >= start + WARM_S], options.seconds)
    good = sum(call.kind == "ok" for call in calls)
    costs = [None if used is None or not count else 1e3 * used / count
             for used, count in ((full[0], done), (over[0], good))]
    row = {"unloaded p50": ms(calm, 50), "unloaded p99": p99,
           "without pauses p50": ms(busy, 50), "without pauses p99": busy_p99, "saturated": rate,
           "p99 ratio": rest["accepted p99"] / p99, "p99 ratio without pauses": rest["accepted p99"] / busy_p99,
           "goodput ratio": rest["goodput"] / rate,
           "processor ms of a call": costs, "client's processor s": [full[1], over[1]],
           "kinds": Counter(call.kind for call in calls), "first second": first, "then": rest}
    if options.json:
        print(json.dumps(row))
        return 0
    print(f"unloaded            p50 {row['unloaded p50']:.2f} ms, p99 {p99:.2f} ms\n"
          f"without pauses      p50 {row['without pauses p50']:.2f} ms, p99 {busy_p99:.2f} ms\n"
          f"saturated           {rate:.0f} jobs a second")
    for name, part in ((f"load {options.load:g}, first s", first), (f"load {options.load:g}, then", rest)):
        print(f"{name:18}  accepted {part['accepted']:6.0f}: p50 {part['accepted p50']:.1f} ms,"
              f" p99 {part['accepted p99']:.1f} ms = {part['accepted p99'] / p99:.1f} x"
              f" or {part['accepted p99'] / busy_p99:.1f} x;"
              f" goodput {part['goodput'] / rate:.2f}\n"
              f"{'':18}  refused  {part['refused']:6.0f}:"
              f" p50 {part['refused p50']:.1f} ms, p99 {part['refused p99']:.1f} ms,"
              f" most {part['refused most']:.1f} ms;"
              f" {part['refused after 50 ms']:.0f} after 50 ms")
    if costs[0] and costs[1]:
        print(f"processor time      of an answered call: {costs[0]:.2f} ms saturated, {costs[1]:.2f} overloaded:\n"
              f"{'':18}  goodput {costs[0] / costs[1]:.2f} where the client runs elsewhere; here it took"
              f" {(over[1] or 0.0) / (options.seconds + WARM_S):.2f} of a processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())

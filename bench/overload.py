"""
A daemon that is sent three times what it can run: what accepted calls wait, what refusals take, what still gets done.

    .venv/bin/python bench/overload.py [--seconds S] [--load L] [--clients N] [--code CODE] [--config F]

First one client with pauses: the unloaded p99. Then as many calls at once as there are workers, twice over: the
saturated rate. Then several connections that together send L times that rate whatever comes back (open loop), for S
seconds, the first WARM of which are told by themselves: a daemon that has just become overloaded. Calls, not jobs:
the time from the write of a request to the read of its answer, by one process that does little else.

That process takes processor time, too, and three times the calls three times as much, which the daemon then lacks
where there are few processors. So the last line has what the daemon and its workers spent on each call that was
answered well, saturated and overloaded: their ratio is the goodput where the client runs elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import selectors
import socket
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from leeward.wire.frames import FrameReader, decode
from leeward.wire.requests import Execute, encode_request
from leeward_cli.bench.ours import daemon, daemon_pid
from leeward_cli.bench.spent import Spent, spent

WARM_S = 1.0
GAP_S = 0.02
#: After the last request, until all have their answer.
PATIENCE_S = 60.0


@dataclass
class Call:
    """
    Attributes:
        sent, answered: seconds, CLOCK_MONOTONIC.
        kind: "ok", or of its refusal.
    """

    sent: float
    answered: float = 0.0
    kind: str = ""

    @property
    def took(self) -> float:
        return self.answered - self.sent


@dataclass
class Connection:
    """
    One connection, and every call on it by its id.
    """

    sock: socket.socket
    code: bytes
    calls: dict[int, Call] = field(default_factory=dict)
    reader: FrameReader = field(default_factory=FrameReader)
    waiting: int = 0

    def send(self) -> None:
        number = len(self.calls) + 1
        self.calls[number] = Call(time.monotonic())
        self.waiting += 1
        self.sock.sendall(encode_request(Execute(number, code=self.code)))

    def take(self) -> int:
        """
        Read answers; how many there were.
        """
        data = self.sock.recv(1 << 16)
        now = time.monotonic()
        if not data:
            raise SystemExit("the daemon closed a connection")
        answers = self.reader.feed(data)
        for payload in answers:
            answer = decode(payload)
            call = self.calls[answer["id"]]
            call.answered, call.kind = now, answer["error"]["kind"] if "error" in answer else "ok"
            if "ok" == call.kind and answer["ok"]["outcome"] != "finished":
                raise SystemExit(f"a job ended as {answer['ok']}")
        self.waiting -= len(answers)
        return len(answers)


def connected(path: str, code: bytes) -> Connection:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return Connection(sock, code)


def percentile(times: list[float], part: float) -> float:
    """
    Milliseconds, by the nearest rank.
    """
    return 1e3 * sorted(times)[max(0, math.ceil(part * len(times)) - 1)] if times else 0.0


def unloaded(path: str, code: bytes, count: int) -> list[float]:
    one = connected(path, code)
    with one.sock:
        for _ in range(count):
            time.sleep(GAP_S)
            one.send()
            while one.waiting:
                one.take()
    return [call.took for call in one.calls.values()]


def saturated(path: str, code: bytes, seconds: float, at_once: int) -> tuple[float, int]:
    """
    Jobs a second with so many of them always under way; and how many there were in all.
    """
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
    return done / seconds, sum(len(each.calls) for each in connections)


def overloaded(path: str, code: bytes, seconds: float, rate: float, clients: int) -> list[Call]:
    """
    Every call of *clients* that send *rate* calls a second in turn, whatever comes back.
    """
    selector = selectors.DefaultSelector()
    connections = [connected(path, code) for _ in range(clients)]
    for each in connections:
        selector.register(each.sock, selectors.EVENT_READ, each)
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
    return [call for each in connections for call in each.calls.values()]


def told(calls: list[Call], seconds: float) -> dict[str, float]:
    good = [call.took for call in calls if "ok" == call.kind]
    bad = [call.took for call in calls if "ok" != call.kind]
    return {"accepted": len(good), "refused": len(bad), "goodput": len(good) / seconds,
            **{f"accepted p{part:g}": percentile(good, part / 100) for part in (50, 90, 99)},
            **{f"refused p{part:g}": percentile(bad, part / 100) for part in (50, 99)},
            "refused most": 1e3 * max(bad, default=0.0), "refused after 50 ms": sum(took > 0.05 for took in bad)}


class Cost:
    """
    Processor seconds of a phase: of the daemon with its workers, and of this process.
    """

    def __init__(self, path: str) -> None:
        self._pid = daemon_pid(path)
        self._before, self._own_before = spent(self._pid), time.process_time()
        self.daemon: float | None = None
        self.own = 0.0

    def over(self) -> None:
        after = spent(self._pid)
        self.own = time.process_time() - self._own_before
        if after is not None and self._before is not None:
            used: Spent = after.since(self._before)
            self.daemon = None if used.workers is None else used.daemon + used.workers


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
        calm = unloaded(path, code, options.calls)
        full = Cost(path)
        rate, done = saturated(path, code, min(5.0, options.seconds), 2 * options.pool_size)
        full.over()
        time.sleep(WARM_S)
        over = Cost(path)
        calls = overloaded(path, code, options.seconds + WARM_S, options.load * rate, options.clients)
        over.over()
    start = min(call.sent for call in calls)
    p99 = percentile(calm, 0.99)
    first = told([call for call in calls if call.sent < start + WARM_S], WARM_S)
    rest = told([call for call in calls if call.sent >= start + WARM_S], options.seconds)
    good = sum("ok" == call.kind for call in calls)
    costs = [None if cost.daemon is None or not count else 1e3 * cost.daemon / count
             for cost, count in ((full, done), (over, good))]
    row = {"unloaded p50": 1e3 * statistics.median(calm), "unloaded p99": p99, "saturated": rate,
           "p99 ratio": rest["accepted p99"] / p99, "goodput ratio": rest["goodput"] / rate,
           "processor ms of a call": costs, "client's processor s": [full.own, over.own],
           "kinds": Counter(call.kind for call in calls), "first second": first, "then": rest}
    if options.json:
        print(json.dumps(row))
        return 0
    print(f"unloaded            p50 {row['unloaded p50']:.2f} ms, p99 {p99:.2f} ms\n"
          f"saturated           {rate:.0f} jobs a second")
    for name, part in ((f"load {options.load:g}, first s", first), (f"load {options.load:g}, then", rest)):
        print(f"{name:18}  accepted {part['accepted']:6.0f}: p50 {part['accepted p50']:.1f} ms,"
              f" p99 {part['accepted p99']:.1f} ms = {part['accepted p99'] / p99:.1f} x;"
              f" goodput {part['goodput'] / rate:.2f}\n"
              f"{'':18}  refused  {part['refused']:6.0f}:"
              f" p50 {part['refused p50']:.1f} ms, p99 {part['refused p99']:.1f} ms,"
              f" most {part['refused most']:.1f} ms;"
              f" {part['refused after 50 ms']:.0f} after 50 ms")
    if costs[0] and costs[1]:
        print(f"processor time      of an answered call: {costs[0]:.2f} ms saturated, {costs[1]:.2f} overloaded:\n"
              f"{'':18}  goodput {costs[0] / costs[1]:.2f} where the client runs elsewhere; here it took"
              f" {over.own / (options.seconds + WARM_S):.2f} of a processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())

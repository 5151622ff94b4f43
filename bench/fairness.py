"""
The effect of a guest's flood of requests on another user's calls: the calls' times beside the flood, and beside the
same load on another daemon.

    sudo .venv/bin/python bench/fairness.py [--pairs P] [--kinds K,K] [--connections N,N] [--io W]

Two daemons run. A process of a guest's floods one of them by so many connections. Another process calls as the owner,
one call after the other, in turn the daemon that is flooded and the one that isn't. So each call has the same load
on the processors beside it, and what differs is the flood. A row is of P pairs of blocks of calls, with the medians
and p99 of both. It needs root, for the guest's uid.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

from leeward.wire.frames import FrameReader, decode, encode
from leeward_cli.bench.ours import daemon

GROUP, GUEST = 47110, 47111
#: Calls of one block, and seconds between two of them.
BLOCK, GAP_S = 50, 0.002
#: Seconds from the start of a flood to the first measured call.
WARM_S = 0.5

KINDS = {
    "ping": encode({"v": 1, "id": 1, "op": "ping"}),
    "status": encode({"v": 1, "id": 1, "op": "status"}),
    "refused": encode({"v": 1, "id": 1, "op": "execute", "code": b"1", "limits": {"memory": 1 << 45}}),
    "malformed": b"\0\0\0\1\xc1",
    "connect": b"",
    "jobs": encode({"v": 1, "id": 1, "op": "execute", "code": b"1"}),
}
#: Bytes of one send.
_MANY = 1 << 16


def as_guest(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.setblocking(False)
    return sock


def flood(path: str, kind: str, connections: int, stop: Event) -> None:
    """Send as much as the daemon takes over each of *connections* connections, and read the answers, until *stop*."""
    os.setgroups([])
    os.setgid(GROUP)
    os.setuid(GUEST)
    one = KINDS[kind]
    data = one * max(1, _MANY // len(one)) if one else b""
    if kind == "jobs":
        data = b"".join(encode({**decode(one[4:]), "id": number}) for number in range(1, 200))
    selector = selectors.DefaultSelector()
    rest: dict[socket.socket, memoryview] = {}
    sock: socket.socket

    def begin() -> None:
        try:
            made = as_guest(path)
        except OSError:
            return
        rest[made] = memoryview(data)
        selector.register(made, selectors.EVENT_READ | selectors.EVENT_WRITE, made)

    while not stop.is_set():
        while len(rest) < connections and not stop.is_set():
            begin()
            if kind == "connect" and len(rest) == connections:
                for sock in rest:
                    selector.unregister(sock)
                    sock.close()
                rest.clear()
        for key, events in selector.select(0.05):
            sock = key.data
            try:
                if events & selectors.EVENT_READ and not sock.recv(1 << 16):
                    raise ConnectionResetError
                if events & selectors.EVENT_WRITE:
                    sent = sock.send(rest[sock])
                    rest[sock] = rest[sock][sent:] or memoryview(data)
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(sock)
                sock.close()
                del rest[sock]


def call(sock: socket.socket, reader: FrameReader, number: int) -> float:
    """Make one call. Returns its seconds."""
    start = time.monotonic()
    sock.sendall(encode({"v": 1, "id": number, "op": "execute", "code": b"pass"}))
    while not (payloads := reader.feed(sock.recv(1 << 16))):
        pass
    took = time.monotonic() - start
    answer = decode(payloads[0])
    if answer.get("ok", {}).get("outcome") != "finished":
        raise SystemExit(f"a call was answered {answer}")
    return took


def percentile(times: list[float], part: float) -> float:
    """Milliseconds, by the nearest rank."""
    return 1e3 * sorted(times)[max(0, math.ceil(part * len(times)) - 1)]


def measured(flooded: str, calm: str, pairs: int) -> tuple[list[float], list[float]]:
    """The seconds of single calls, to the flooded daemon and to the calm one."""
    times: tuple[list[float], list[float]] = ([], [])
    socks = []
    for path in (flooded, calm):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        socks.append((sock, FrameReader()))
    number = 0
    for _ in range(pairs):
        for (sock, reader), got in zip(socks, times, strict=True):
            for _ in range(BLOCK):
                number += 1
                got.append(call(sock, reader, number))
                time.sleep(GAP_S)
    for sock, _ in socks:
        sock.close()
    return times


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--kinds", default="ping,status,refused,malformed,connect,jobs")
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--io", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "c.toml").write_text(f'group = "{GROUP}"\nlog_level = "error"\n')
        os.chmod(Path(folder, "c.toml"), 0o600)
        told = ("--config", f"{folder}/c.toml", "--pool-size", "4", "--io", options.io)
        paths = [stack.enter_context(daemon(None, *told)) for _ in range(2)]
        for path in paths:
            os.chmod(os.path.dirname(path), 0o755)
            os.chmod(path, 0o666)
        for kind in options.kinds.split(","):
            for count in map(int, options.connections.split(",")):
                stop = multiprocessing.Event()
                flooder = multiprocessing.Process(target=flood, args=(paths[0], kind, count, stop))
                flooder.start()
                time.sleep(WARM_S)
                try:
                    times = measured(paths[0], paths[1], options.pairs)
                finally:
                    stop.set()
                    flooder.join()
                row = {"kind": kind, "connections": count, **{
                    f"{name} {what}": value for name, got in zip(("flooded", "calm"), times, strict=True)
                    for what, value in (("p50", 1e3 * statistics.median(got)), ("p99", percentile(got, 0.99)))}}
                rows.append(row)
                if not options.json:
                    print(f"{kind:10} by {count:3} connections: p50 {row['flooded p50']:7.2f} ms beside"
                          f" {row['calm p50']:6.2f}; p99 {row['flooded p99']:7.2f} ms beside {row['calm p99']:6.2f},"
                          f" {row['flooded p99'] / row['calm p99']:.1f} x", flush=True)
                time.sleep(WARM_S)
    if options.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

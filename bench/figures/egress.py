"""
Connections through the broker, beside the same client without it: bytes, connections one by one, many at once; and the
cost of a policy for the jobs that have none. The client is the same Python on both sides, a job of ours and a process
outside; the server is another process on loopback.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figures.row import FigureSettings, Row, compared, in_turn, missing, quotient, times
from leeward.client.blocking import Client
from leeward.daemon.pool.broker import check
from leeward.errors import LeewardError
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import daemon, daemon_pid, fresh, good, rate
from leeward_cli.bench.rounds import CALLERS
from leeward_cli.bench.spent import clock

_BYTES = 1 << 30
_CONNECTIONS, _AT_ONCE, _PROCESSES = 200, 1000, 5
#: Jobs of a turn of the last pair.
_JOBS = 100
_WORDS = "1 GiB from a host on loopback, over that of the same client without the broker"

#: Sends as many bytes as it is asked for, by eight bytes in big-endian; 0 asks for an echo of each byte that follows.
_SERVER = """
import socket, socketserver, threading
block = memoryview(bytes(1 << 20))
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        left = int.from_bytes(self.request.recv(8, socket.MSG_WAITALL), "big")
        while left:
            left -= self.request.send(block[:left])
        while got := self.request.recv(1):
            self.request.sendall(got)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024
threading.stack_size(256 << 10)
with Server(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""

_TAKE = f"""
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    sock.sendall(({_BYTES}).to_bytes(8, "big"))
    buffer, left, start = bytearray(1 << 20), {_BYTES}, time.perf_counter()
    while left:
        left -= sock.recv_into(buffer)
    print([time.perf_counter() - start])
"""

#: As barely as a process between the two can do it: a copy by splice(2), with the broker's options, and nothing else.
_RELAY = f"""
import fcntl, os, socket, sys
read, write = os.pipe()
fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        with near, far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 << 10)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            far.sendall(near.recv(8, socket.MSG_WAITALL))
            left = {_BYTES}
            while left:
                got = os.splice(far.fileno(), write, 1 << 20)
                left -= got
                while got:
                    got -= os.splice(read, near.fileno(), got)
            near.recv(1)
"""

_CONNECT = f"""
import socket, sys, time
seconds = []
for _ in range({_CONNECTIONS}):
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
        sock.sendall(bytes(8) + b"x")
        assert b"x" == sock.recv(1)
        seconds.append(time.perf_counter() - start)
print(seconds)
"""

#: By several processes, since a job has some 256 descriptors; all connections are open before the first one is used.
_CROWD = f"""
import os, socket, sys
def hold(ready, go, done):
    held = []
    for _ in range({_AT_ONCE} // {_PROCESSES}):
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
        held[-1].sendall(bytes(8))
    os.write(ready, b"r")
    os.read(go, 1)
    for sock in held:
        sock.sendall(b"y")
    os.write(done, sum(b"y" == sock.recv(1) for sock in held).to_bytes(4, "big"))
(ready, isready), (go, goes), (done, isdone) = os.pipe(), os.pipe(), os.pipe()
for _ in range({_PROCESSES}):
    if not os.fork():
        hold(isready, go, isdone)
        os._exit(0)
for _ in range({_PROCESSES}):
    os.read(ready, 1)
os.write(goes, bytes({_PROCESSES}))
print([sum(int.from_bytes(os.read(done, 4), "big") for _ in range({_PROCESSES}))])
"""


def measure(settings: FigureSettings) -> Sequence[Row]:
    try:
        check()
    except LeewardError as error:
        return [missing(_WORDS, 0.8, str(error), at_most=False)]
    with _server() as port, _policy(port) as options, daemon(None, *options) as path, Client(path) as client:
        rows = [*_throughput(settings, client, port), _connections(settings, client, port), _crowd(client, port)]
        with daemon(None) as bare, Client(bare) as plain:
            rows += [_idle(settings, client, plain), _idle_processor(settings, path, bare)]
    return rows


def measure_rate(settings: FigureSettings) -> Sequence[Row]:
    """The first two rows."""
    try:
        check()
    except LeewardError as error:
        return [missing(_WORDS, 0.8, str(error), at_most=False)]
    with _server() as port, _policy(port) as options, daemon(None, *options) as path, Client(path) as client:
        return _throughput(settings, client, port)


@contextlib.contextmanager
def _server(code: str = _SERVER, *arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def _policy(port: int) -> Iterator[Sequence[str]]:
    """The options of a daemon with a policy for that port of this host."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.toml")
        config.write_text(f'[egress.bench]\nallow = ["127.0.0.1:{port}"]\n'
                          'limits = { connections = 2000, per_minute = 1000000, response = "2G" }\n')
        config.chmod(0o600)
        yield ["--config", str(config)]


def _inside(client: Client, code: str, port: int) -> list[float]:
    got = good(client.execute(code, args=[str(port)], egress="bench", timeout=60))
    return [float(each) for each in json.loads(got.stdout)]


def _outside(code: str, port: int) -> list[float]:
    got = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(port)], capture_output=True, check=False)
    if got.returncode:
        raise LeewardError(f"bench: the client outside failed: {got.stderr[-200:]!r}")
    return [float(each) for each in json.loads(got.stdout)]


def _in_turn(settings: FigureSettings, client: Client, code: str, port: int, rounds: int,
             *others: int) -> tuple[list[list[float]], ...]:
    """Seconds of the client inside, of the same one outside, and there by each of the ports *others*."""
    found: tuple[list[list[float]], ...] = tuple([] for _ in range(2 + len(others)))
    _inside(client, code, port)
    for _ in range(settings.some(rounds)):
        found[0].append(_inside(client, code, port))
        for seconds, each in zip(found[1:], (port, *others), strict=True):
            seconds.append(_outside(code, each))
    return found


def _throughput(settings: FigureSettings, client: Client, port: int) -> Sequence[Row]:
    with _server(_RELAY, str(port)) as relay:
        ours, outside, relayed = _in_turn(settings, client, _TAKE, port, 10, relay)
    rates = [[_BYTES / seconds / 1e6 for (seconds,) in each] for each in (ours, outside, relayed)]
    medians = [f"{percentile(each, 50):.0f}" for each in rates]
    return [Row(_WORDS, quotient(rates[0], rates[1]), "x", 0.8, at_most=False,
                measured=[times("through the broker", ours), times("without it", outside)],
                note=f"medians of {medians[0]} and {medians[1]} MB/s", floor=quotient(rates[2], rates[1])),
            Row("the same by a process outside that does nothing but splice(2): the floor", quotient(rates[2], rates[1]), "x",
                None, measured=[times("by splice(2) alone", relayed)], note=f"a median of {medians[2]} MB/s")]


def _connections(settings: FigureSettings, client: Client, port: int) -> Row:
    ours, outside = _in_turn(settings, client, _CONNECT, port, 10)
    added = [(percentile(one, 50) - percentile(other, 50)) * 1e3 for one, other in zip(ours, outside, strict=True)]
    return Row("a connection and an answer of one byte, more than without the broker", round(percentile(added, 50), 3),
               "ms", 1.5, measured=[times("through the broker", ours), times("without it", outside)])


def _crowd(client: Client, port: int) -> Row:
    words = "connections of one sandbox at once"
    try:
        alive, = _inside(client, _CROWD, port)
    except (LeewardError, ValueError) as error:
        return missing(words, _AT_ONCE, str(error)[:200], at_most=False)
    return Row(words, alive, "connections", _AT_ONCE, at_most=False, note="each gets an answer while all are open")


def _idle_processor(settings: FigureSettings, beside_policy: str, without: str) -> Row:
    """Compare the daemons' own processor clocks, on which other processes have little effect; turns of callers, in pairs."""
    paths, pids = (beside_policy, without), (daemon_pid(beside_policy), daemon_pid(without))
    for path in paths:
        rate(path, CALLERS, _JOBS)
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(settings.some(20)):
        for at in (0, 1) if number % 2 else (1, 0):
            before = clock(pids[at])
            rate(paths[at], CALLERS, _JOBS)
            spent[at].append((clock(pids[at]) - before) / _JOBS)
    ours, other = (percentile(each, 50) * 1e6 for each in spent)
    return Row("processor time of the daemon for a job without egress, beside a policy over without any",
               quotient(*spent), "x", 1.05, note=f"medians of {ours:.0f} and {other:.0f} us, {_JOBS} jobs a turn,"
                                                  f" {len(spent[0])} pairs")


def _idle(settings: FigureSettings, client: Client, plain: Client) -> Row:
    """Measure a job without egress while the broker and a worker with egress are there."""
    ours, other = fresh(client, "beside a policy"), fresh(plain, "without any policy")
    return compared("a job without egress, in a daemon with a broker over one without",
                    in_turn([ours, other], settings.rounds, 10), ours.name, other.name, 1.05)

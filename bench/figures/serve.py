"""
What `leeward serve` costs over the client: a program, a cell, a sandbox with its first command; programs in a second; a
program beside another tenant's, and calls beside many connections that are idle.

The requests are E2B's, SandboxFusion's and Jupyter's over one connection that stays open; and E2B's own client as it is
makes sandboxes with a first command, if there is its environment. Everything runs on the same processors.
LEEWARD_BENCH_SANDBOXFUSION is the URL of SandboxFusion's own server, if there is one to compare with: its turns and these
are of one run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.figures.row import FigureSettings, Found, Row, in_turn, spread, times
from leeward.apps.serve.tokens import TenantQuota, TokenFile
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward.spec.outcome import Result
from leeward_cli.bench.figures import percentile, ratio
from leeward_cli.bench.floors import CODE, CalledSubject
from leeward_cli.bench.ours import armed, daemon, daemon_pid, good, program
from leeward_cli.bench.rounds import row
from leeward_cli.bench.spent import clock, spent

#: Programs of a turn for the rate, and connections at once; connections of a flood; those that are idle;
#: files in a folder.
_PROGRAMS, _CALLERS, _FLOOD, _IDLE, _FILES = 400, 4, 32, 2000, 9000
_NOTHING = "a call that does nothing"
#: The least that such a call can take: a route that reads the same JSON and has the same answer, on uvicorn as it is.
_BARE, _BARE_SOURCE = "a bare route of Starlette's", """
import socket, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def run_code(request):
    body = await request.json()
    return JSONResponse({"status": "Success", "message": "", "compile_result": None, "run_result": {
        "status": "Finished", "execution_time": 0.001, "cpu_time": 0.001, "return_code": 0, "stdout": "", "stderr": ""},
        "executor_pod_name": None, "files": {}, "code": body["code"]})
listener = socket.socket(proto=socket.IPPROTO_TCP)  # of others asyncio sends each piece late
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
app = Starlette(routes=[Route("/run_code", run_code, methods=["POST"])])
uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run([listener])
"""
#: Programs of a turn with SandboxFusion's own server; sandboxes of E2B's client that don't count.
_THEIRS, _WARM = 60, 5
_FRAME = json.dumps({"process": {"cmd": "/bin/true"}}).encode()
#: E2B's own client for Python, and what it does for each line: a sandbox with its first command, and then its end.
_SDK, _SDK_PYTHON = """
import sys
from e2b import Sandbox
for _ in sys.stdin:
    box = Sandbox.create()
    assert box.commands.run("echo hi").stdout == "hi\\n"
    print(flush=True)
    box.kill()
    print(flush=True)
""", Path(__file__).parents[2] / ".venv-client-e2b/bin/python"


class _Served:
    """A connection to the server, of a tenant's."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._token = token

    def send(self, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body)
        self._connection.request(method, path, content, {"X-API-KEY": self._token, **{
            name.replace("_", "-"): value for name, value in headers.items()}})
        return self._connection.getresponse()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        answer = self.send(method, path, body, **headers)
        found = answer.read()
        if answer.status >= 300:
            raise LeewardError(f"bench: the server answered {answer.status}: {found[:200]!r}")
        return json.loads(found) if answer.headers.get("content-type") == "application/json" else found

    def close(self) -> None:
        self._connection.close()

    def run(self) -> None:
        answer = self.ask("POST", "/run_code", {"code": CODE, "language": "python"})
        if answer["status"] != "Success":
            raise LeewardError(f"bench: a program ended as {answer['status']}")

    def nothing(self) -> None:
        """A call that needs no daemon: what any server like this one takes."""
        self.ask("GET", "/v2/sandboxes?state=paused")

    def cell(self, headers: dict[str, str]) -> None:
        self.ask("POST", "/execute", {"code": "1"}, **headers)

    def create(self) -> dict[str, str]:
        made = self.ask("POST", "/sandboxes", {"timeout": 600})
        return {"E2b_Sandbox_Id": made["sandboxID"], "X_Access_Token": made["envdAccessToken"]}

    def notebook(self) -> Callable[[], None]:
        """What runs a cell over the WebSocket of a new kernel."""
        from websockets.sync.client import connect  # as the server's

        kernel, url = self.ask("POST", "/api/kernels")["id"], f"ws://{self._connection.host}:{self._connection.port}"
        socket = connect(f"{url}/api/kernels/{kernel}/channels?token={self._token}", compression=None)
        request = json.dumps({"header": {"msg_type": "execute_request", "msg_id": "1"}, "content": {"code": "1"}})

        def cell() -> None:
            socket.send(request)
            while json.loads(socket.recv())["content"] != {"execution_state": "idle"}:
                pass
        return cell

    def begin(self) -> None:
        """A sandbox, its first command and its end."""
        headers = self.create()
        self.ask("POST", "/process.Process/Start", len(_FRAME).to_bytes(5, "big") + _FRAME,
                 Content_Type="application/connect+json", **headers)
        self.ask("DELETE", f"/sandboxes/{headers['E2b_Sandbox_Id']}")


def _ran(result: Result) -> None:
    good(result)


def _begin(path: str) -> None:
    with Sandbox(socket=path, profile="workdir") as box:
        box.run(["/bin/true"])


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    pid: int
    tokens: Sequence[str]  # of two tenants

    def connection(self, tenant: int = 0) -> _Served:
        return _Served(self.url, self.tokens[tenant])


@contextlib.contextmanager
def _serving(path: str) -> Iterator[_Server]:
    with tempfile.TemporaryDirectory(prefix="leeward-bench-") as folder:
        file = TokenFile(os.path.join(folder, "tokens"))
        quota = TenantQuota(rate=1_000_000, jobs=1000, connections=2 * _IDLE)
        tokens = [file.create(name, quota) for name in ("one", "other")]
        process = subprocess.Popen(
            [program(), "serve", "run-code", "e2b", "jupyter", "--listen", "127.0.0.1:0", "--socket", path, "--tokens",
             file.path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if " at http" not in line:
                raise LeewardError(f"bench: the server doesn't start: {line}{process.stderr.read()}")
            yield _Server(line.split()[-1], process.pid, tokens)
        finally:
            process.terminate()
            process.communicate()


@contextlib.contextmanager
def _bare() -> Iterator[_Server]:
    with subprocess.Popen([sys.executable, "-c", _BARE_SOURCE], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield _Server(f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid, [""])
        finally:
            process.terminate()


def measure(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path, _serving(path) as server, _bare() as bare, Client(path) as client, \
            Sandbox(socket=path, profile="workdir") as box:
        served, kernel = server.connection(), box.kernel()
        inside = served.create()
        works: dict[str, Callable[[], None]] = {
            _NOTHING: served.nothing, _BARE: bare.connection().run,
            "a program by the client": lambda: _ran(client.execute(CODE)), "a program by /run_code": served.run,
            "a cell by the client": lambda: _ran(kernel.execute("1")),
            "a cell by E2B's /execute": lambda: served.cell(inside), "a cell by Jupyter's WebSocket": served.notebook(),
            "a sandbox and a command by the client": lambda: _begin(path),
            "a sandbox and a command by E2B's calls": served.begin}
        spending: dict[str, list[float]] = {name: [] for name in works}
        found = in_turn([CalledSubject(name, _spending(bare if name == _BARE else server, work, spending[name]))
                         for name, work in works.items()],
                        settings.rounds, 4)
        over = partial(_over, found, spending)
        return [*over("a program by /run_code", "a program by the client", 1.5),
                *over("a cell by E2B's /execute", "a cell by the client", 3.0),
                *over("a cell by Jupyter's WebSocket", "a cell by the client", 3.0),
                *over("a sandbox and a command by E2B's calls", "a sandbox and a command by the client", 8.0),
                _by_its_client(server, path, settings.some(40)),
                *_rates(server, path, settings.some(5)), *_beside_its_own(server, settings.some(5)),
                _beside(server, settings.some(10), "programs"), _beside_lists(server, settings.some(10)),
                _idle(path)]


def _spending(server: _Server, work: Callable[[], None], spent_: list[float]) -> Callable[[], None]:
    """*work*, which tells the processor seconds of the server and of its caller, one after the other, to *spent_*."""
    def call() -> None:
        before = clock(server.pid) + time.thread_time()
        work()
        spent_.append(clock(server.pid) + time.thread_time() - before)
    return call


def _over(found: Found, spending: Mapping[str, Sequence[float]], over: str, under: str, target: float) -> list[Row]:
    """By the clock, which other processes move; and by the processor time between caller and daemon, which they hardly do."""
    values = [1e3 * percentile([each for row in found[name] for each in row], 50) for name in (over, under, _BARE)]
    own = [1e3 * percentile(spending[name], 50) for name in (over, under, _BARE)]
    return [Row(f"{over}, over the client", round(values[0] - values[1], 2), "ms", target,
                measured=[times(name, found[name]) for name in (over, under, _NOTHING, _BARE)],
                note=f"the difference of the medians; {values[2]:.2f} is {_BARE}, the least for a server like this one"),
            Row(f"{over}, over the client, by processor time", round(own[0] - own[1], 2), "ms", target,
                note=f"of server and caller, and not of the daemon: {own[0]:.2f}, and {own[1]:.2f} by the client; "
                     f"{own[2]:.2f} is {_BARE}")]


def _by_its_client(server: _Server, path: str, turns: int) -> Row:
    """A sandbox and its first command by E2B's own client, over the same by leeward's; each ends before the next begins."""
    words = "a sandbox and its first command by E2B's own client, over the client"
    if not _SDK_PYTHON.exists():
        return Row(words, None, "ms", 8.0, note="not measured: .venv-client-e2b isn't there")
    env = {**os.environ, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.tokens[0]}
    theirs, ours = list[float](), list[float]()
    with subprocess.Popen([_SDK_PYTHON, "-W", "ignore", "-c", _SDK], env=env, text=True, bufsize=1, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(turns + _WARM):
            began = time.perf_counter()
            process.stdin.write("\n")
            if not process.stdout.readline():
                raise LeewardError("bench: E2B's client has failed")
            theirs.append(time.perf_counter() - began)
            process.stdout.readline()
            began = time.perf_counter()
            with Sandbox(socket=path, profile="workdir") as box:
                good(box.run(["/bin/bash", "-l", "-c", "echo hi"]))
                ours.append(time.perf_counter() - began)
        process.stdin.close()
    middle = [1e3 * percentile(each[_WARM:], 50) for each in (theirs, ours)]
    return Row(words, round(middle[0] - middle[1], 2), "ms", 8.0, note="the difference of the medians",
               measured=[times("its client", [theirs[_WARM:]]), times("the client", [ours[_WARM:]])])


@contextlib.contextmanager
def _running(server: _Server, callers: int, goes_on: Callable[[], bool],
             call: Callable[[_Served], None] = _Served.run) -> Iterator[None]:
    """Calls of the first tenant, one after the other over each connection, while the block runs and until its end."""
    def work() -> None:
        served = server.connection()
        while goes_on():
            call(served)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _rate(server: _Server, programs: int) -> float:
    left, began = iter(range(programs)), time.perf_counter()
    with _running(server, _CALLERS, lambda: next(left, None) is not None):
        pass
    return programs / (time.perf_counter() - began)


def _rates(server: _Server, path: str, turns: int) -> list[Row]:
    """Programs in a second; and how many the processors could serve by the time that one takes of them, all of it counted."""
    rates, possible, parts, processors = list[float](), list[float](), list[list[float]](), len(os.sched_getaffinity(0))
    daemon_process = daemon_pid(path)
    for _ in range(turns):
        began, before = [clock(server.pid), time.process_time()], spent(daemon_process)
        rates.append(_rate(server, _PROGRAMS))
        ours = [now - then for now, then in zip([clock(server.pid), time.process_time()], began, strict=True)]
        armed(path, 1)  # what follows a program belongs to it
        after = spent(daemon_process)
        took = after.since(before) if after is not None and before is not None else None
        if took is not None and took.workers is not None:
            parts.append([1e3 * each / _PROGRAMS for each in (*ours, took.daemon, took.workers)])
            possible.append(1e3 * processors / sum(parts[-1]))
    words = f"programs by /run_code, over {_CALLERS} connections"
    rows = [Row(words, round(percentile(rates, 50), 1), "1/s", 250.0, at_most=False,
                measured=[spread(words, "1/s", rates, 1, at_most=False)])]
    if possible:
        each = [percentile(part, 50) for part in zip(*parts, strict=True)]
        words = f"programs by /run_code that {processors} processors serve, by their time"
        rows.append(Row(words, round(percentile(possible, 50), 1), "1/s", 250.0, at_most=False,
                        measured=[spread(words, "1/s", possible, 1, at_most=False)],
                        note="ms of one: server {:.2f}, its caller {:.2f}, daemon {:.2f}, workers {:.2f}".format(*each)))
    return rows


def _beside_its_own(server: _Server, turns: int) -> list[Row]:
    """The rate over that of SandboxFusion's own server, in turn."""
    url = os.environ.get("LEEWARD_BENCH_SANDBOXFUSION")
    if not url:
        return []
    theirs = _Server(url, 0, server.tokens)
    found = [(_rate(server, _PROGRAMS), _rate(theirs, _THEIRS)) for _ in range(turns)]
    ratios = [ours / others for ours, others in found]
    words = "programs by /run_code, over those of SandboxFusion's own server"
    return [Row(words, round(percentile(ratios, 50), 1), "x", 5.0, at_most=False, measured=[
        spread("here", "1/s", [ours for ours, _ in found], 1, at_most=False),
        spread("its own server", "1/s", [others for _, others in found], 1, at_most=False)])]


def _beside_lists(server: _Server, turns: int) -> Row:
    maker = server.connection()
    headers = maker.create()
    code = f"import os\nos.mkdir('many')\nfor n in range({_FILES}): open(f'many/{{n}}', 'w')"
    if b'"error"' in maker.ask("POST", "/execute", {"code": code}, **headers):
        raise LeewardError("bench: the files can't be made")

    def listed(served: _Served) -> None:
        # As the bytes they are: reading JSON in this process would hold up who is measured.
        answer = served.send("POST", "/filesystem.Filesystem/ListDir", {"path": "/workspace/many"},
                             Content_Type="application/json", **headers).read()
        if answer.count(b'"name"') != _FILES:
            raise LeewardError("bench: a list of a folder is not whole")

    return _beside(server, turns, f"lists of {_FILES} files", _FLOOD // 2, listed)


def _beside(server: _Server, turns: int, what: str, callers: int = _FLOOD,
            call: Callable[[_Served], None] = _Served.run) -> Row:
    served = server.connection(1)
    alone, beside = list[list[float]](), list[list[float]]()
    served.run()
    for _ in range(turns):
        alone.append(row(served.run, 10, 0.0))
        over = threading.Event()
        with _running(server, callers, lambda over=over: not over.is_set(), call):  # type: ignore[misc]
            try:
                served.run()
                beside.append(row(served.run, 10, 0.0))
            finally:
                over.set()
    words = f"a program beside {what} of another tenant over {callers} connections, over one alone"
    return Row(words, ratio(beside, alone), "x", 2.0, measured=[times("beside", beside), times("alone", alone)])


def _idle(path: str) -> Row:
    with _serving(path) as server:  # which has no memory to use again, as one that floods have made grow
        return _beside_idle(server)


def _beside_idle(server: _Server) -> Row:
    def resident() -> int:
        with open(f"/proc/{server.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle = [server.connection()]
    idle[0].ask("GET", "/sandboxes")
    before = resident()
    try:
        for _ in range(_IDLE):
            idle.append(server.connection())
            idle[-1].ask("GET", "/sandboxes")
        seconds = row(lambda: idle[0].ask("GET", "/sandboxes") and None, 50, 0.0)
        grown = (resident() - before) / _IDLE / 1024
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    words = f"memory of the server for each of {_IDLE} idle connections"
    return Row(words, round(grown, 1), "KiB", None, measured=[times("a call beside them", [seconds])])

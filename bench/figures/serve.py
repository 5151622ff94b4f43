"""
What `leeward serve` costs over the client: a program, a cell, a sandbox with its first command; and programs in a second.

The requests are E2B's and SandboxFusion's over one connection that stays open, by the standard library; E2B's own client
takes some milliseconds more for itself. Everything runs on the same processors.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from bench.figures.row import FigureSettings, Found, Row, in_turn, spread, times
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward.spec.outcome import Result
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE, CalledSubject
from leeward_cli.bench.ours import daemon, good, program

#: Programs of a turn of the last figure, and connections at once.
_PROGRAMS, _CALLERS = 400, 4
_FRAME = json.dumps({"process": {"cmd": "/bin/true"}}).encode()


class _Served:
    """A connection to the server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body)
        self._connection.request(method, path, content, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status >= 300:
            raise LeewardError(f"bench: the server answered {answer.status}: {found[:200]!r}")
        return json.loads(found) if answer.headers.get("content-type") == "application/json" else found

    def run(self) -> None:
        answer = self.ask("POST", "/run_code", {"code": CODE, "language": "python"})
        if answer["status"] != "Success":
            raise LeewardError(f"bench: a program ended as {answer['status']}")

    def cell(self, headers: dict[str, str]) -> None:
        self.ask("POST", "/execute", {"code": "1"}, **headers)

    def create(self) -> dict[str, str]:
        made = self.ask("POST", "/sandboxes", {"timeout": 600})
        return {"E2b_Sandbox_Id": made["sandboxID"], "X_Access_Token": made["envdAccessToken"]}

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


@contextlib.contextmanager
def _serving(path: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="leeward-bench-") as folder:
        process = subprocess.Popen(
            [program(), "serve", "run-code", "e2b", "--open", "--listen", "127.0.0.1:0", "--socket", path,
             "--tokens", os.path.join(folder, "tokens")], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if " at http" not in line:
                raise LeewardError(f"bench: the server doesn't start: {line}{process.stderr.read()}")
            yield line.split()[-1]
        finally:
            process.terminate()
            process.communicate()


def measure(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path, _serving(path) as url, Client(path) as client, \
            Sandbox(socket=path, profile="workdir") as box:
        served, kernel = _Served(url), box.kernel()
        inside = served.create()
        found = in_turn([
            CalledSubject("a program by the client", lambda: _ran(client.execute(CODE))),
            CalledSubject("a program by /run_code", served.run),
            CalledSubject("a cell by the client", lambda: _ran(kernel.execute("1"))),
            CalledSubject("a cell by E2B's /execute", lambda: served.cell(inside)),
            CalledSubject("a sandbox and a command by the client", lambda: _begin(path)),
            CalledSubject("a sandbox and a command by E2B's calls", served.begin)], settings.rounds, 4)
        return [_over(found, "a program by /run_code", "a program by the client", 1.5),
                _over(found, "a cell by E2B's /execute", "a cell by the client", 3.0),
                _over(found, "a sandbox and a command by E2B's calls", "a sandbox and a command by the client", 8.0),
                _rates(url, settings.some(5))]


def _over(found: Found, over: str, under: str, target: float) -> Row:
    values = [1e3 * percentile([each for row in found[name] for each in row], 50) for name in (over, under)]
    return Row(f"{over}, over the client", round(values[0] - values[1], 2), "ms", target,
               measured=[times(name, found[name]) for name in (over, under)], note="the difference of the medians")


def _rates(url: str, turns: int) -> Row:
    def work() -> None:
        served = _Served(url)
        for _ in range(_PROGRAMS // _CALLERS):
            served.run()

    rates = list[float]()
    for _ in range(turns):
        threads, began = [threading.Thread(target=work) for _ in range(_CALLERS)], time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(_PROGRAMS / (time.perf_counter() - began))
    words = f"programs by /run_code, over {_CALLERS} connections"
    return Row(words, round(percentile(rates, 50), 1), "1/s", 250.0, at_most=False,
               measured=[spread(words, "1/s", rates, 1, at_most=False)])

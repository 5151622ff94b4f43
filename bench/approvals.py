"""
Approvals: the time from a decision until the waiting program has it, and the time until the page shows something.

    .venv/bin/python bench/approvals.py [--rounds N] [--json]

An approval: the time from the operator's call that decides to the return of the call that waits. The waiting call is
that of a thread of the program's own (`ApprovalQueue.wait`); that of a program by REST (`GET /api/requests/ID?wait=`),
where the decision comes by REST as well; and that of an agent in a real sandbox (`Agent.request_permission`), whose
answer comes by the sandbox's bridge.
The page: Chromium's own first contentful paint, from the start of the navigation, of the queue with 16 and with 10,000
pending requests, and the answer of the server alone. The browser is Debian's; if it isn't installed, the bench leaves
its rows out and says so.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the app as the tests serve it

from kit.approvals import ServedApprovals
from kit.approvals_browser import ServedPage, chromium, logged_in
from kit.approvals_page import PageService, fill, page_service
from kit.live_daemon import LiveDaemon
from leeward.approvals.requests import NewRequest
from leeward.approvals.subjects import branch

Times = list[float]


def _waited(service: PageService, wait: Callable[[int], object], decide: Callable[[int], object], rounds: int) -> Times:
    """Return the milliseconds from a decision to the return of *wait*."""
    took: Times = []
    for number in range(rounds):
        request = service.queue.submit(NewRequest(branch(f"bench{number}"), "push", sandbox="bench"))
        done = list[float]()

        def waiting(request: int = request.id, done: list[float] = done) -> None:
            wait(request)
            done.append(time.perf_counter())

        thread = threading.Thread(target=waiting)
        thread.start()
        time.sleep(0.05)  # until it waits
        begun = time.perf_counter()
        decide(request.id)
        thread.join()
        took.append((done[0] - begun) * 1000)
    return took


def _called(served: ServedPage, token: str, method: str, path: str, body: str = "") -> bytes:
    made = http.client.HTTPConnection("127.0.0.1", served.port)
    try:
        made.request(method, path, body or None, {"Authorization": f"Bearer {token}",
                                                  "Content-Type": "application/json"})
        answer = made.getresponse()
        data = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {data!r:.200}")
        return data
    finally:
        made.close()


#: Prints the time at which each of its requests was decided.
_AGENT = """
import sys, time
from leeward.approvals import Agent
agent = Agent()
for number in range(int(sys.argv[1])):
    agent.request_permission("sandbox", action=f"bench {number}")
    print(time.time(), flush=True)
"""


def _inside(rounds: int) -> Times:
    """Return the milliseconds from the operator's call to the return of a call in a sandbox, by the host's clock."""
    took: Times = []
    with tempfile.TemporaryDirectory(prefix="lw-bench-") as name:
        folder = Path(name)
        for each in ("daemon", "project"):
            (folder / each).mkdir()
        with LiveDaemon(folder / "daemon", "--pool-size", "2") as daemon, ServedApprovals(daemon, folder) as service:
            box = service.open(folder / "project")
            agent = box.start(["python3", "-c", _AGENT, str(rounds)])
            for _ in range(rounds):
                while not (pending := service.pending()):
                    time.sleep(0.01)
                time.sleep(0.05)  # until it waits
                begun = time.time()
                service.decide(pending[0]["id"])
                took.append((float(agent.read(20.0)[0].text) - begun) * 1000)
            service.link.close_sandbox(box.detach())
    return took


def _served(served: ServedPage, token: str, path: str, rounds: int) -> Times:
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        _called(served, token, "GET", path)
        took.append((time.perf_counter() - begun) * 1000)
    return took


def _painted(served: ServedPage, rounds: int) -> Times:
    took: Times = []
    with chromium() as browser, browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = logged_in(context, served)
        for _ in range(rounds):
            page.reload()
            page.wait_for_selector("#rows li")
            took.append(float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")))
    return took


def measure(rounds: int) -> dict[str, Times]:
    """Return all measured times in milliseconds, by name."""
    found: dict[str, Times] = {"approval to a waiting agent in a sandbox": _inside(rounds)}
    drives = shutil.which("chromium") and importlib.util.find_spec("playwright")
    with tempfile.TemporaryDirectory(prefix="lw-bench-") as folder, page_service(Path(folder)) as service:
        served = ServedPage(service)
        token = served.app.state.parts.access.program_token()
        try:
            queue = service.queue
            found["approval to a waiting thread"] = _waited(
                service, queue.wait, lambda number: queue.decide([number], True, "cli"), rounds)
            found["approval to a waiting program by REST"] = _waited(
                service, lambda number: _called(served, token, "GET", f"/api/requests/{number}?wait=60"),
                lambda number: _called(served, token, "POST", f"/api/requests/{number}/approve", "{}"), rounds)
            for count in (16, 10_000):
                fill(service, count - sum(queue.counts().values()))
                found[f"the queue's page, served, {count:,} pending"] = _served(served, token, "/queue", rounds)
                if drives:
                    found[f"first paint, {count:,} pending"] = _painted(served, rounds)
        finally:
            served.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: {"p50": statistics.median(took), "p90": sorted(took)[len(took) * 9 // 10], "least": min(took)}
             for name, took in measure(options.rounds).items()}
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, each in found.items():
        print(f"{name:52}" + "".join(f"{which:>7} {value:7.1f} ms" for which, value in each.items()))
    if not any("paint" in name for name in found):
        print("left out: the browser's rows, because chromium or playwright is missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())

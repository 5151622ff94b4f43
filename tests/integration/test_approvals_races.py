"""
Races and ends in between, through the real service: several who decide at once, and SIGKILL at every step between an
approval and what it lets be done.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.approvals import ServedApprovals
from kit.dying_service import FILE_STEPS, OTHER_STEPS
from kit.live_daemon import PATIENCE, LiveDaemon, command, first_line
from kit.loopback import free_port
from kit.waiting import poll_until
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, LeewardError, Stale

pytestmark = pytest.mark.needs("extra-web")

#: An id that no request has.
NOBODYS = 1 << 40

GIT = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def connections(path: str) -> int:
    """How many are connected, or wait to be taken, on the socket *path*, and that which listens."""
    with open("/proc/net/unix", encoding="utf-8") as file:
        return sum(line.rstrip().endswith(f" {path}") for line in file)


def by_cli(served: ServedApprovals, number: int, word: str) -> str:
    """What `leeward approvals approve` or `deny` says; "" if it has won."""
    done = subprocess.run(command("approvals", word, str(number)), env=served.env, capture_output=True, text=True,
                          timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
    return "" if 0 == done.returncode else done.stderr


def by_rest(port: int, token: str, number: int, word: str) -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/requests/{number}/{word}", b"{}",
                                   {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE):
            return ""
    except urllib.error.HTTPError as answer:
        with answer:
            status, said = answer.code, json.load(answer)
    assert (409, "decided", number) == (status, said["error"], said["request"]["id"])
    return str(said["detail"])


def by_websocket(live: Any, number: int) -> str:
    """
    What a WebSocket that has decided is told; "" if it has won. It is answered in order, so the answer about a request
    that there is none of is its last one.
    """
    live.send(json.dumps({"type": "deny", "id": NOBODYS}))
    found = ""
    while True:
        told = json.loads(live.recv(PATIENCE))
        if "error" == told["type"]:
            if NOBODYS == told["id"]:
                return found
            assert (number, "decided") == (told["id"], told["error"])
            found = str(told["detail"])


def test_of_simultaneous_decisions_one_counts_and_the_others_are_told_whose(daemon: LiveDaemon, tmp_path: Path) -> None:
    """
    The command line, REST and a WebSocket: each sends its decision while the service is stopped, and none hears the
    others.
    """
    from websockets.sync.client import connect

    port = free_port()
    with ServedApprovals(daemon, tmp_path, "--port", str(port)) as served, ThreadPoolExecutor(3) as threads:
        token = served.connection.call("POST", "/api/tokens", {})["token"]
        address, head = f"ws://127.0.0.1:{port}/api/live", {"Authorization": f"Bearer {token}"}
        with connect(address, additional_headers=head) as live:
            for words in [("approve", "deny", "deny"), ("deny", "approve", "approve")] * 3:
                _race(served, threads, live, port, token, words)


def _race(served: ServedApprovals, threads: ThreadPoolExecutor, live: Any, port: int, token: str,
          words: tuple[str, str, str]) -> None:
    number = served.connection.call("POST", "/api/requests", {"category": "sandbox", "action": "race"})["id"]
    poll_until(lambda: 1 == connections(served.socket), "the end of the connections before")
    served.process.send_signal(signal.SIGSTOP)
    try:
        by = {"cli": threads.submit(by_cli, served, number, words[0])}
        poll_until(lambda: 2 == connections(served.socket), "a command line that has connected")
        by["rest"] = threads.submit(by_rest, port, token, number, words[1])
        live.send(json.dumps({"type": words[2], "id": number}))
    finally:
        served.process.send_signal(signal.SIGCONT)
    by["websocket"] = threads.submit(by_websocket, live, number)
    told = {who: each.result(PATIENCE) for who, each in by.items()}

    found = served.request(number)
    winner, = [who for who, text in told.items() if not text]
    word = dict(zip(told, words, strict=True))[winner]
    assert {"approve": "approved", "deny": "denied"}[word] == found["status"]
    assert {"cli": "cli"}.get(winner, "page") == found["decided_by"]
    for who in told.keys() - {winner}:
        assert f"is {found['status']} already, by {found['decided_by']}" in told[who]
    poll_until(lambda: any(str(number) == row["id"] for row in served.audit()), "a line of the record")
    assert [found["status"]] == [row["decision"] for row in served.audit() if str(number) == row["id"]]


def lives(daemon: LiveDaemon, folder: Path, project: Path, steps: tuple[str, ...],
          ask: Callable[[ServedApprovals, str], int], check: Callable[[ServedApprovals, str, int], None],
          ended: Callable[[str], None] = lambda step: None) -> None:
    """
    For each of *steps* a service that ends itself there, once what *ask* has made is approved; the next one sees to
    what it left, and *check* to that. *ended* is called in between.
    """
    left: tuple[str, int] | None = None
    for step in (*steps, ""):
        with ServedApprovals(daemon, folder, str(project), dies_at=step) as served:
            if left is not None:
                before, number = left
                if "deciding" == before:
                    assert "pending" == served.request(number)["status"]
                    served.decide(number)
                check(served, before, number)
            if not step:
                return
            number = ask(served, step)
            left = step, number
            served.die(functools.partial(served.decide, number))
            ended(step)


def stage(served: ServedApprovals, number: int, *wanted: str) -> dict[str, Any]:
    poll_until(lambda: served.request(number)["stage"] in wanted, f"a request that is {wanted}")
    return served.request(number)


def test_an_end_at_any_step_writes_a_file_once(daemon: LiveDaemon, tmp_path: Path, project: Path) -> None:
    for step in FILE_STEPS:
        (project / step).write_text("old\n")
    before = {step: (project / step).stat() for step in FILE_STEPS}
    after = dict[str, int]()

    def ask(served: ServedApprovals, step: str) -> int:
        made = served.connection.call("POST", "/api/requests", {"category": "filesystem", "action": "write", "path": step,
                                                          "content": "new\n"})
        return int(made["id"])

    def ended(step: str) -> None:
        """Until it is placed the file is untouched, and from then on it is the same one."""
        about = (project / step).stat()
        if FILE_STEPS.index(step) < FILE_STEPS.index("clean"):
            assert (before[step].st_ino, before[step].st_ctime_ns) == (about.st_ino, about.st_ctime_ns)
        else:
            after[step] = about.st_ino

    def check(served: ServedApprovals, step: str, number: int) -> None:
        assert "approved" == stage(served, number, "applied")["status"]
        assert "new\n" == (project / step).read_text()
        assert after.get(step, (project / step).stat().st_ino) == (project / step).stat().st_ino

    lives(daemon, tmp_path / "s", project, FILE_STEPS, ask, check, ended)
    assert sorted(FILE_STEPS) == sorted(os.listdir(project))


@pytest.mark.needs("usr-git")
def test_an_end_at_any_step_pushes_once(daemon: LiveDaemon, tmp_path: Path, project: Path) -> None:
    """As the remote counts it, by a hook of its own."""
    remote, count = tmp_path / "remote.git", tmp_path / "count"
    subprocess.run([*GIT, "init", "-q", "--bare", str(remote)], check=True)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"],
                  ["remote", "add", "origin", str(remote)], ["push", "-q", "origin", "main"]):
        subprocess.run([*GIT, *words], cwd=project, check=True)
    hook = remote / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncut -d' ' -f3 >> {count}\n")
    hook.chmod(0o755)
    boxes = list[str]()

    def ask(served: ServedApprovals, step: str) -> int:
        box = served.open(project)
        boxes.append(box.id)
        done = box.shell("git config --global user.name a; git config --global user.email a@example.org;"
                         f"git commit -q --allow-empty -m {step} && git push -q origin HEAD:{step}")
        assert 0 == done.exit_code, done.stderr_text
        row, = served.connection.call("POST", "/api/sync/git", {"sandbox": box.detach()})["requests"]
        return int(row["id"])

    def check(served: ServedApprovals, step: str, number: int) -> None:
        assert "applied" == stage(served, number, "applied", "failed")["stage"]

    lives(daemon, tmp_path / "s", project, OTHER_STEPS, ask, check)
    kill_all(daemon, boxes)
    assert [f"refs/heads/{step}" for step in OTHER_STEPS] == count.read_text().split()


def kill_all(daemon: LiveDaemon, boxes: list[str]) -> None:
    for box in boxes:
        with contextlib.suppress(LeewardError):
            Sandbox.attach(box, socket=daemon.socket).close()  # which ends it


def test_an_end_at_any_step_runs_no_command_twice(daemon: LiveDaemon, tmp_path: Path, project: Path) -> None:
    boxes = dict[str, str]()
    code = ("from leeward.approvals import Agent\n"
            "print(Agent().request_exec('sh count', wait=False)['id'])")

    def ask(served: ServedApprovals, step: str) -> int:
        box = served.open(project)
        boxes[step] = box.id
        box.files.write("count", "echo ran >> /workspace/ran\n")
        done = box.run(["python3", "-c", code])
        assert 0 == done.exit_code, done.stderr_text
        box.detach()
        return int(done.stdout_text)

    def check(served: ServedApprovals, step: str, number: int) -> None:
        found = stage(served, number, "applied", "failed")
        box = Sandbox.attach(boxes[step], socket=daemon.socket)
        ran = box.shell("cat ran 2>/dev/null").stdout_text.count("ran")
        box.detach()
        if step in ("decided", "finished"):
            assert (1, "applied") == (ran, found["stage"])
        else:
            assert ran == ("finish" == step)  # nobody knows, so it isn't run again
            assert ("failed", True) == (found["stage"], "isn't known" in found["note"])

    lives(daemon, tmp_path / "s", project, OTHER_STEPS, ask, check)
    kill_all(daemon, list(boxes.values()))


SUPERSEDE = """
import sys
from leeward.approvals import Agent, AskError
agent = Agent()
print("begun", flush=True)
for number in range(100):
    try:
        agent.request_permission("filesystem", action="write", path="file", content=f"{number}\\n", wait=False)
    except AskError as error:
        if error.status != 429:
            raise
        break
"""


def test_c361_cannot_have_something_else_approved_than_was_shown(daemon: LiveDaemon, tmp_path: Path,
                                                                 project: Path) -> None:
    """
    A program supersedes its own request as fast as it may, while the operator looks at what waits and approves it. What
    is written is what stood under the id that was approved; what was superseded first isn't written. The control: the
    last one, which nothing supersedes, is.
    """
    (project / "file").write_text("old\n")
    shown, won, refused = dict[int, str](), list[int](), list[str]()
    with ServedApprovals(daemon, tmp_path / "s") as served, ThreadPoolExecutor(1) as threads:
        box = served.open(project)
        racer = box.start(["python3", "-c", SUPERSEDE], timeout=60)
        assert b"begun\n" == first_line(racer)
        over = threads.submit(racer.result)
        while not over.done() or served.pending():
            for row in served.pending():
                shown[row["id"]] = served.connection.call("GET", f"/api/requests/{row['id']}/detail").get("after", "")
                try:
                    served.decide(row["id"])
                    won.append(row["id"])
                except (BadRequest, Stale) as error:
                    refused.append(str(error))
        assert 0 == over.result().exit_code
        rows = served.connection.call("GET", "/api/requests?which=recent&limit=500")["requests"]
        served.connection.close_sandbox(box.detach())

    assert won
    assert [] == [text for text in refused if "is superseded already" not in text and "isn't on the host" not in text]
    applied = [row["id"] for row in sorted(rows, key=lambda row: row["id"]) if "applied" == row["stage"]]
    assert sorted(won) == applied
    assert shown[applied[-1]] == (project / "file").read_text()
    assert {"superseded", "approved"} <= {row["status"] for row in rows} <= {"superseded", "approved", "denied"}
    for row in rows:
        assert ("applied" == row["stage"]) == ("approved" == row["status"])

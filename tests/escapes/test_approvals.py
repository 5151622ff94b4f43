"""
Attacks on the service for approvals by real sandboxes: on the operator's socket, the queue's files, the bridge, and
git on the operator's side.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kit.approvals import ServedApprovals
from kit.box import control
from kit.live_daemon import PATIENCE, LiveDaemon, first_line
from kit.waiting import poll_until
from leeward.apps.approvals.bridge.bridge import BridgeEnd, BridgeRequest
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Stale

pytestmark = pytest.mark.needs("extra-web")

SERVICE = pytest.mark.no_single_lock("what holds it is a process on the host, which no lock of a job's is about")

KNOCK = """
import json, os, socket, sys
said = []
def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)
for path in sys.argv[1:]:
    for do in (connect, open, os.listdir):
        try:
            do(path)
            said.append(path)
        except OSError:
            pass
print(json.dumps(said))
"""

#: Requests straight to the bridge, as no client of ours would write them.
FORGE = """
import json, os, socket, sys
said = []
for asked in json.load(sys.stdin):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(os.environ["LEEWARD_APPROVALS"])
        made.sendall(json.dumps(asked).encode() + b"\\n")
        answer = made.makefile("rb").readline()
    said.append(json.loads(answer)["status"] if answer else 0)
print(json.dumps(said))
"""

FLOOD = """
import sys, threading
from leeward.approvals import Agent, AskError
agent, said = Agent(), []
def ask(part):
    for number in range(60):
        try:
            agent.request_permission("sandbox", action=f"flood {part} {number}", wait=False)
        except AskError as error:
            said.append(error.status)
threads = [threading.Thread(target=ask, args=(part,)) for part in range(6)]
for thread in threads: thread.start()
print("begun", flush=True)
for thread in threads: thread.join()
print(sorted(set(said)))
"""

#: A folder and a link that leads out, and a file and such a link, change places for ever.
SWAP = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
def swap(one, two):
    libc.renameat2(-100, one.encode(), -100, two.encode(), 2)
top = sys.argv[1]
print("begun", flush=True)
while True:
    swap(top + "/sub", top + "/out")
    swap(top + "/sub", top + "/out")
    swap(top + "/sub/file", top + "/sub/evil")
    swap(top + "/sub/file", top + "/sub/evil")
"""

#: The same inside, where a link and a folder have one name in turn.
SWAP_INSIDE = """
while :; do ln -s {outside} x; rm x; mkdir x; echo evil > x/file; rm -r x;
ln -s {outside}/file sub/new; rm sub/new; done
"""

#: What isn't a frame of a request.
HOSTILE = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\3nul", b"\0\0\0\x0e[1,2,3,4,5,6,7]",
           b"\0\0\0\x16[0, \"GET\", \"/\", null]  ", b"\0\0\0\x1b[true, \"GET\", \"/api\", null]",
           b"\0\1\x86\xa0" + b"[" * 100_000, b"\0\0\0\x19[1, \"GET\", \"no path\", {}]"]

DAEMON = ("--pool-size", "3")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def box(service: ServedApprovals, project: Path) -> Iterator[Sandbox]:
    made = service.open(project)
    yield made
    service.connection.close_sandbox(made.detach())


def said(box: Sandbox, code: str, *argv: str, stdin: str = "") -> Any:
    done = box.run(["python3", "-c", code, *argv], stdin=stdin, timeout=60)
    assert 0 == done.exit_code, done.stderr_text
    return json.loads(done.stdout_text)


@pytest.mark.smoke
@SERVICE
def test_c305_cannot_reach_the_operators_socket_or_the_queues_files(service: ServedApprovals, box: Sandbox) -> None:
    """By their paths, and by those of their folders."""
    state = service.folder / "state" / "leeward"
    paths = [service.socket, str(state / "approvals" / "requests.sqlite"), str(state / "audit" / "audit.jsonl"),
             str(state), str(service.folder)]
    with control():
        done = subprocess.run(["python3", "-c", KNOCK, *paths], capture_output=True, text=True, check=True)
        assert set(paths) == set(json.loads(done.stdout))

    assert [str(service.folder)] == said(box, KNOCK, *paths)
    assert "state" in os.listdir(service.folder)
    assert "" == box.shell(f"ls -A {service.folder}").stdout_text  # at that path the sandbox has a home of its own


@SERVICE
def test_c306_cannot_decide_by_the_bridge(service: ServedApprovals, box: Sandbox) -> None:
    """
    By each route that isn't marked for a sandbox, with each method, by other ways of writing a path, and with fields
    that say who asks.
    """
    asked = service.connection.call("POST", "/api/requests", {"category": "sandbox", "action": "the operator's own"})
    with control():
        own = service.connection.call("POST", "/api/requests", {"category": "sandbox", "action": "another one"})
        assert [own["id"]] == [row["id"] for row in service.decide(own["id"])["decided"]]

    number = asked["id"]
    from leeward.apps.approvals.web.application import ROUTES  # of the extra `web`

    body = {"id": number, "ids": [number], "approved": True, "by": "cli", "category": "sandbox", "upto": number,
            "rule": "sandbox", "effect": "allow", "leeward.credential": {"by": "cli"}, "sandbox": ""}
    forged = [{"method": route.method, "path": route.path.replace("{id:int}", str(number)).replace("{sandbox}", box.id),
               "body": body} for route in ROUTES
              if "operator" == route.who and not route.page and "WEBSOCKET" != route.method]
    strange = list[dict[str, Any]]()
    for path in (f"/api/requests/{number}/approve/", f"//api/requests/{number}/approve", "/api/status/../bulk",
                 f"/api/requests/{number}%2fapprove", f"/API/requests/{number}/approve", "/login",
                 f"/api/requests/{number};/approve", "/api/requests/../bulk", "http://127.0.0.1/api/bulk",
                 f"/api/requests/{number}/approve?\n"):
        strange += [{"method": method, "path": path, "body": body} for method in ("POST", "PUT", "DELETE", "approve")]

    assert 15 < len(forged)
    assert [403] * len(forged) == said(box, FORGE, stdin=json.dumps(forged))
    answers = said(box, FORGE, stdin=json.dumps(strange))
    assert len(strange) == len(answers)
    assert not [status for status in answers if status < 400]
    assert "pending" == service.request(number)["status"]
    assert [] == service.connection.call("GET", "/api/rules")["allow"]
    service.decide(number, "deny")


@SERVICE
def test_c307_cannot_cost_more_than_its_own_bridge_by_hostile_frames(daemon: LiveDaemon) -> None:
    """In place of the bridge a program writes what is no frame: that bridge ends, with one typed error."""
    taken = list[BridgeRequest]()

    def answering(request: BridgeRequest) -> Future[tuple[int, Any]]:
        taken.append(request)
        done: Future[tuple[int, Any]] = Future()
        done.set_result((200, {}))
        return done

    with Sandbox(socket=daemon.socket) as box:
        def end_of(frames: bytes) -> BridgeEnd:
            box.files.write("frames", frames)
            return BridgeEnd(box.start(["sh", "-c", "cat frames; exec sleep 60"], stdin=None), answering, None)

        honest = b'[7, "GET", "/api/status", null]'
        with control():
            good = end_of(len(honest).to_bytes(4, "big") + honest)
            assert good.wait(PATIENCE)
            assert [7] == [request.number for request in taken]

        for frames in HOSTILE:
            bad = end_of(frames)
            bad.join(PATIENCE)
            assert not bad.is_alive
            assert "broke the protocol" in bad.fault, frames[:40]
        assert good.is_alive
        assert 1 == len(taken)
        good.close()


@SERVICE
def test_c308_cannot_flood_the_queue_or_hold_another_sandbox_up(service: ServedApprovals, box: Sandbox,
                                                                project: Path) -> None:
    """As fast as it can, by six threads: what it may ask is bounded, and another one is answered meanwhile."""
    other = service.open(project)
    try:
        with control():  # one that asks as others do is taken
            assert 1 == len(_asks_once(service, other))
        flood = box.start(["python3", "-c", FLOOD])
        assert b"begun\n" == first_line(flood)
        begun = time.monotonic()
        assert 1 == len(_asks_once(service, other))
        assert time.monotonic() - begun < PATIENCE / 2
        assert "429" in flood.result().stdout_text
        rows = service.connection.call("GET", f"/api/requests?limit=500&sandbox={box.id}")["requests"]
        assert len(rows) <= 100
    finally:
        service.connection.close_sandbox(other.detach())
        service.run("deny", "--all", "sandbox")


def _asks_once(service: ServedApprovals, box: Sandbox) -> list[int]:
    code = ("import json, os; from leeward.approvals import Agent\n"
            "made = Agent().request_permission('sandbox', action=os.urandom(8).hex(), wait=False)\n"
            "print(json.dumps([made['id']]))")
    found: list[int] = said(box, code)
    return found


@SERVICE
@pytest.mark.needs("usr-git")
def test_c309_cannot_run_a_program_on_the_host_by_a_push(service: ServedApprovals, project: Path,
                                                         tmp_path: Path) -> None:
    """
    By hooks, by keys of git's configuration that name programs, by alternates and attributes of the repository that it
    pushes to.
    """
    canary, remote = tmp_path / "canary", tmp_path / "remote.git"
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", "--bare", str(remote)], check=True)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"],
                  ["remote", "add", "origin", str(remote)], ["push", "-q", "origin", "main"]):
        subprocess.run([*git, *words], cwd=project, check=True)
    hooks = "pre-push post-checkout reference-transaction post-update pre-receive update"
    trap = (f"mkdir -p hooks; for hook in {hooks}; do "
            f"printf '#!/bin/sh\\ntouch {canary}\\n' > hooks/$hook; chmod +x hooks/$hook; done;"
            f"git config core.fsmonitor 'touch {canary}'; git config uploadpack.packObjectsHook 'touch {canary};';"
            f"git config diff.external 'touch {canary}'; git config core.sshCommand 'touch {canary}';"
            f"git config core.pager 'touch {canary}'; git config core.alternateRefsCommand 'touch {canary};'")
    with control():
        careless = tmp_path / "careless"
        subprocess.run([*git, "clone", "-q", str(remote), str(careless)], check=True)
        subprocess.run(["sh", "-c", f"cd .git && {trap} && cd .. && git push -q origin main:other"], cwd=careless,
                       check=True)
        assert canary.exists()
        canary.unlink()

    box = service.open(project)
    try:
        done = box.shell("git config --global user.name a; git config --global user.email a@example.org;"
                         "git checkout -qb work;"
                         "echo '* diff=trap filter=trap' > .gitattributes; git add .; git commit -qm two;"
                         f"git push -q origin work; cd /tmp/.leeward/origin.git && {trap}")
        assert 0 == done.exit_code, done.stderr_text
        [row] = service.connection.call("POST", "/api/sync/git", {"sandbox": box.id})["requests"]
        service.connection.call("GET", f"/api/requests/{row['id']}/detail")
    finally:
        service.connection.close_sandbox(box.detach())
    service.decide(row["id"])
    poll_until(lambda: service.request(row["id"])["stage"] in ("applied", "failed"), "a push")

    assert "applied" == service.request(row["id"])["stage"]
    assert not canary.exists()


@SERVICE
def test_c310_cannot_have_a_program_of_another_user_decide(service: ServedApprovals) -> None:
    """
    The kernel says whose a connection is: one of another user's is closed before a byte is read, also where the file's
    mode would let it.
    """
    knock = f"""
import socket
made = socket.socket(socket.AF_UNIX)
made.connect({service.socket!r})
try:
    made.sendall(b"GET /api/status HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    print(len(made.recv(10)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""
    if os.geteuid():
        with control():
            assert "10\n" == subprocess.run(["python3", "-c", knock], capture_output=True, text=True, check=True).stdout
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(service.socket)
        assert 0o600 == os.stat(service.socket).st_mode & 0o777
        return
    with control():
        assert "10\n" == subprocess.run(["python3", "-c", knock], capture_output=True, text=True, check=True).stdout
    os.chmod(service.socket, 0o666)
    folders = [folder for folder in Path(service.socket).parents if folder.stat().st_mode & 0o005 != 0o005]
    modes = [folder.stat().st_mode for folder in folders]
    try:
        for folder in folders:
            folder.chmod(folder.stat().st_mode | 0o005)
        done = subprocess.run(["/usr/bin/python3", "-c", knock], capture_output=True, text=True, check=True, user=65534,
                              group=65534)
        assert "0\n" == done.stdout
    finally:
        os.chmod(service.socket, 0o600)
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)


@SERVICE
def test_c435_cannot_read_secrets_of_the_project_by_name(service: ServedApprovals, project: Path) -> None:
    """
    Those that are there, ones that the host makes or saves while the sandbox runs, and one whose entry in git's index
    claims to be unchanged.
    """
    secret, names = "the-secret-of-the-project", [".env", "sub/.env.local", "prod.env", "tracked.env", "later/.envrc"]
    for argv in (["init", "-q"], ["add", "tracked.env"], ["update-index", "--assume-unchanged", "tracked.env"]):
        (project / "tracked.env").write_text("x" * len(secret))
        subprocess.run(["git", *argv], cwd=project, check=True)
    for name in names[:-1]:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(secret)
    (project / "plain").write_text(secret)
    box = service.open(project)
    read = f"cat {' '.join(names)} plain | grep -o {secret} | wc -l"
    try:
        with control():  # the file beside them is read
            assert "1\n" == box.shell(read).stdout_text
        fresh = project / "fresh"
        fresh.write_text(secret)
        fresh.rename(project / ".env")  # as editors save
        (project / "later").mkdir()
        (project / "later/.envrc").write_text(secret)
        poll_until(lambda: "1\n" == box.shell(read).stdout_text, "new names that are covered")
        assert "1\n" == box.shell(f"{read}; mv later now 2>/dev/null; ln .env other 2>/dev/null;"
                                  f" cat now/.envrc other 2>/dev/null").stdout_text
    finally:
        service.connection.close_sandbox(box.detach())


@SERVICE
def test_c359_cannot_have_an_approved_change_written_elsewhere(daemon: LiveDaemon, project: Path,
                                                               tmp_path: Path) -> None:
    """
    While approved changes are written, folders and files of the project and of the copy that live sync looks at change
    places with links that lead out.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("canary\n")
    (project / "sub").mkdir()
    (project / "sub" / "file").write_text("0\n")
    (project / "sub" / "evil").symlink_to(outside / "file")
    (project / "out").symlink_to(outside)
    with ServedApprovals(daemon, tmp_path / "s", str(project)) as service:
        stages = _raced(service, project, outside)
        service.run("deny", "--all", "filesystem")

    assert "applied" in stages
    assert {"applied", "stale", "refused"} >= set(stages)
    assert ["file"] == os.listdir(outside)
    assert "canary\n" == (outside / "file").read_text()


def _raced(service: ServedApprovals, project: Path, outside: Path) -> list[str]:
    """What became of writes that were approved meanwhile."""
    box = service.open(project, sync=True)
    racer = subprocess.Popen(["python3", "-c", SWAP, str(project)], stdout=subprocess.PIPE)
    try:
        assert racer.stdout is not None
        assert b"begun\n" == racer.stdout.readline()
        with control():
            def careless() -> bool:
                (project / "sub" / "file").write_text("careless\n")
                return "careless\n" == (outside / "file").read_text()
            poll_until(careless, "a careless write that is led out")
            assert "careless\n" == (outside / "file").read_text()
            (outside / "file").write_text("canary\n")

        inside = box.start(["sh", "-c", SWAP_INSIDE.format(outside=outside)])
        stages = list[str]()
        end = time.monotonic() + PATIENCE
        while (len(stages) < 60 or "applied" not in stages) and time.monotonic() < end:
            stages.append(_written(service, len(stages)))
        inside.kill()
    finally:
        racer.kill()
        racer.wait()
        racer.stdout.close()  # type: ignore[union-attr]  # it was a pipe
        service.connection.close_sandbox(box.detach())

    return stages


def _written(service: ServedApprovals, number: int) -> str:
    """What became of a write that was asked for and approved."""
    try:
        made = service.connection.call("POST", "/api/requests", {"category": "filesystem", "action": "write",
                                                           "path": "sub/file", "content": f"{number}\n"})
        service.decide(made["id"])
    except BadRequest:
        return "refused"
    except Stale:
        return "stale"
    return str(service.request(made["id"])["stage"])


@pytest.mark.no_single_lock("the operator's program decides, outside of any sandbox")
@pytest.mark.parametrize("path", ["bare/config", "bare/hooks/pre-commit", "half/refs/heads/x", "new/HEAD", ".hg/hgrc",
                                  "link/config"])
def test_c429_cannot_have_a_repository_written_by_a_mode(service: ServedApprovals, project: Path, path: str) -> None:
    """By a request, and by live sync: a person's next `git status` there would run what the sandbox says."""
    for name in ("objects", "refs"):
        (project / "bare" / name).mkdir(parents=True)
    (project / "half").mkdir()
    (project / "link").symlink_to("bare")
    for name in ("bare", "half"):
        (project / name / "HEAD").write_text("ref: refs/heads/x\n")
    assert 0 == service.run("config", "mode.filesystem", "allow-all").returncode
    box = service.open(project, sync=True)
    try:
        code = ("import sys; from leeward.approvals import Agent\n"
                "made = Agent().request_permission('filesystem', action='write', path=sys.argv[1], content='evil',"
                " wait=False)\nprint(made['status'])")
        with control():
            assert "approved" in box.run(["python3", "-c", code, "ordinary"], timeout=60).stdout_text
        assert "pending" in box.run(["python3", "-c", code, path], timeout=60).stdout_text
        box.shell(f"mkdir -p $(dirname {path}); echo evil >{path}; echo seen >seen")
        poll_until((project / "seen").exists, "a round of live sync")
        assert "evil" not in ((project / path).read_text() if (project / path).exists() else "")
    finally:
        service.connection.close_sandbox(box.detach())
        service.run("config", "mode.filesystem", "approve-each")
    assert "evil" not in ((project / path).read_text() if (project / path).exists() else "")

"""
The service for approvals, with a real daemon and real sandboxes: what a program inside asks for, what the operator
decides from outside, and what is carried out.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from kit.approvals import ServedApprovals
from kit.live_daemon import PATIENCE, LiveDaemon, command, first_line
from kit.loopback import free_port
from kit.waiting import poll_until
from leeward.apps.approvals.box_rows import LOOK_S, last_counts
from leeward.apps.approvals.operator_connection import ApprovalsAway
from leeward.client.process import Process
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, SandboxOver, Stale

pytestmark = pytest.mark.needs("extra-web")

BEGIN = "import json\nfrom leeward.approvals import Agent, AskError\nagent = Agent()\n"
GIT = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "file").write_text("".join(f"{number}\n" for number in range(1, 21)))
    return made


@pytest.fixture
def box(service: ServedApprovals, project: Path) -> Iterator[Sandbox]:
    made = service.open(project)
    yield made
    name = made.detach()
    try:
        service.connection.close_sandbox(name)
    except BadRequest:
        pass  # the test has ended it


def python(box: Sandbox, code: str) -> Any:
    """What *code* leaves in `found`, run by a program in *box*."""
    done = box.run(["python3", "-c", f"{BEGIN}{code}\nprint(json.dumps(found))"], timeout=60)
    assert 0 == done.exit_code, done.stderr_text
    return json.loads(done.stdout_text)


def started(box: Sandbox, code: str) -> Process:
    """A program that prints JSON."""
    return box.start(["python3", "-c", f"{BEGIN}{code}"], timeout=60)


def read_json(process: Process) -> Any:
    done = process.result()
    assert 0 == done.exit_code, done.stderr_text
    return json.loads(done.stdout_text)


def next_pending(service: ServedApprovals, category: str) -> dict[str, Any]:
    """The first that waits of *category*, once there is one: a program inside asks for it some time."""
    found = list[dict[str, Any]]()

    def look() -> bool:
        found[:] = [row for row in service.pending() if row["category"] == category]
        return bool(found)
    poll_until(look, f"a request of {category}")
    return found[0]


def test_a_program_waits_until_the_operator_has_decided(service: ServedApprovals, box: Sandbox) -> None:
    asks = started(box, "found = agent.request_permission('network', host='a.example.org', port=443, reason='a look')\n"
                        "print(json.dumps(found))")
    row = next_pending(service, "network")
    assert {"host": "a.example.org", "port": 443} == row["subject"]
    assert "a look" == row["reason"]
    service.decide(row["id"])

    found = read_json(asks)
    assert ("approved", "cli") == (found["status"], found["decided_by"])
    assert [] == service.pending()


def test_a_sandbox_sees_its_own_requests_alone(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    own = python(box, 'found = agent.request_permission("sandbox", action="mine", wait=False)["id"]')
    other = service.open(project)
    try:
        assert [] == python(other, "found = agent.list_pending()")
        assert 404 == python(other, f"""
try:
    found = agent.wait({own}, 0)
except AskError as error:
    found = error.status""")
        assert [own] == python(box, 'found = [row["id"] for row in agent.list_pending()]')
    finally:
        service.connection.close_sandbox(other.detach())
        service.decide(own, "deny")


def test_a_file_reaches_the_host_once_it_is_approved(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    before = (project / "file").stat()
    box.shell("sed -i s/^2$/two/ file; echo new > more; mkdir -p .git/hooks node_modules; echo x > .git/hooks/pre-push")
    found = service.connection.call("POST", "/api/sync/files", {"sandbox": box.id})

    assert ["file", "more"] == sorted(row["subject"]["path"] for row in found["requests"])
    assert found["left_out"] >= 2
    assert before.st_mtime_ns == (project / "file").stat().st_mtime_ns
    for row in found["requests"]:
        service.decide(row["id"])
    assert "two" in (project / "file").read_text()
    assert "new\n" == (project / "more").read_text()
    assert not (project / ".git").exists()


def test_a_person_takes_some_pieces_of_a_change(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    box.shell("sed -i -e s/^2$/two/ -e s/^15$/fifteen/ file")
    row = service.connection.call("POST", "/api/sync/files", {"sandbox": box.id})["requests"][0]
    detail = service.connection.call("GET", f"/api/requests/{row['id']}/detail")
    assert [(2, ["two\n"]), (15, ["fifteen\n"])] == [(hunk["old_start"], hunk["new"]) for hunk in detail["hunks"]]
    shown = service.run("show", "--no-color", str(row["id"]))
    assert "+fifteen" in shown.stdout
    assert service.run("sandboxes").stdout.startswith(f"{box.id}  {project}  ")
    assert (1, "leeward: the service serves no page: start it with --port\n") == (
        (done := service.run("page")).returncode, done.stderr)

    done = service.run("approve", "--hunks", "2", str(row["id"]))
    assert 0 == done.returncode, done.stderr
    assert "superseded" == service.request(row["id"])["status"]
    poll_until(lambda: "fifteen" in (project / "file").read_text(), "a file that is written")
    assert "two" not in (project / "file").read_text()


def test_a_request_for_a_file_that_the_host_has_changed_is_stale(service: ServedApprovals, box: Sandbox,
                                                                 project: Path) -> None:
    number = python(box, 'found = agent.request_permission("filesystem", action="edit", path="file", old="2\\n3\\n", '
                         'new="x\\n", wait=False)["id"]')
    (project / "file").write_text("mine\n")

    with pytest.raises(Stale):
        service.decide(number)
    assert ("denied", "stale") == tuple(service.request(number)[name] for name in ("status", "decided_by"))
    assert "mine\n" == (project / "file").read_text()


def test_a_command_runs_in_the_sandbox_that_asked(service: ServedApprovals, box: Sandbox) -> None:
    box.shell("echo inside > note")
    asks = started(box, 'print(json.dumps(agent.request_exec("cat note; echo oh >&2; exit 3", reason="to see")))')
    service.decide(next_pending(service, "exec")["id"])
    found = read_json(asks)

    assert ("completed", 3) == (found["status"], found["exit_code"])
    assert ["inside", "oh"] == sorted(found["output"].split())


def test_broken_requests_do_not_fill_the_log(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Of a program that anybody has started, on the page's port."""
    port = free_port()
    with ServedApprovals(daemon, tmp_path, "--port", str(port)) as service:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", port)) as made:
                made.sendall(b"GET \0 / broken\r\n\r\n")
                made.recv(1000)
        service.process.terminate()
        assert service.process.stderr is not None
        lines = service.process.stderr.read().splitlines()
    assert 0 < sum("Invalid HTTP" in line for line in lines) <= 20


def test_serve_prints_a_link_to_the_page_and_takes_its_time_from_the_environment(
        daemon: LiveDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare number is of milliseconds. The link works once."""
    monkeypatch.setenv("MAX_UPTIME", "3600000")
    port = free_port()
    with ServedApprovals(daemon, tmp_path, "--port", str(port)) as service:
        assert service.process.stderr is not None
        link = service.process.stderr.readline().split(" ")[-1].strip()
        assert link.startswith(f"http://127.0.0.1:{port}/login?token=")
        with urllib.request.urlopen(link) as answer:
            assert "leeward" in answer.read().decode()
        with pytest.raises(HTTPError) as raised:
            urllib.request.urlopen(link)
        assert 403 == raised.value.code
        raised.value.close()
        assert 3500 < service.connection.call("GET", "/api/status")["remaining"] <= 3600


def test_git_works_in_a_project_with_secrets(service: ServedApprovals, project: Path) -> None:
    """What is tracked and unchanged, and examples, are shown; a changed one and what git doesn't have is hidden."""
    for argv in (["init", "-q"], ["config", "user.name", "n"], ["config", "user.email", "n@example.org"]):
        subprocess.run([*GIT, *argv], cwd=project, check=True)
    (project / ".gitignore").write_text(".env\n")
    for name in (".env.example", "sub/.env.dist", "tracked.env", "changed.env"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("KEY=\n")
    subprocess.run([*GIT, "add", "-A"], cwd=project, check=True)
    subprocess.run([*GIT, "commit", "-qm", "one"], cwd=project, check=True)
    for name in (".env", "sub/.env", "changed.env"):
        (project / name).write_text("KEY=secret\n")
    box = service.open(project)
    try:
        seen = box.shell("cat .env sub/.env changed.env; cat tracked.env .env.example; echo $HOME")
        assert f"KEY=\nKEY=\n{service.folder}\n" == seen.stdout_text
        subprocess.run([*GIT, "checkout", "-q", "changed.env"], cwd=project, check=True)
        os.link(project / ".env", project / "settings")  # of that name git knows nothing
    finally:
        service.connection.close_sandbox(box.detach())
    box = service.open(project)
    try:
        refused = box.shell("cat settings; git add -A")
        assert (128, "") == (refused.exit_code, refused.stdout_text)
        assert "'settings'" in refused.stderr_text
        for line in ("echo settings >> .git/info/exclude", "git status", "git diff --exit-code", "echo x >> file; git add -A",
                     "git commit -qm two",
                     "echo NEW= >> .env.example; git commit -qam three", "echo y >> file; git stash -q",
                     "git stash pop -q", "git show --stat HEAD~1 HEAD"):
            done = box.shell(line)
            assert 0 == done.exit_code, line + done.stderr_text
        assert ".env.example | 1 +" in done.stdout_text
        assert "secret" not in box.shell("cat .env sub/.env").stdout_text
    finally:
        service.connection.close_sandbox(box.detach())


def test_a_profile_that_can_hide_nothing_is_refused(service: ServedApprovals, project: Path) -> None:
    with pytest.raises(BadRequest, match="can't hide files such as"):
        service.open(project, profile="workdir")


def test_a_hidden_name_that_is_no_text_is_refused(service: ServedApprovals, project: Path) -> None:
    """With what helps, as of `leeward agent`."""
    with open(os.fsencode(project) + b"/\xff.env", "w") as file:
        file.write("SECRET")
    with pytest.raises(BadRequest, match="has to be hidden, and can't be, because its name isn't UTF-8: rename it"):
        service.open(project)


def test_what_the_users_settings_exclude_is_hidden(service: ServedApprovals, project: Path) -> None:
    """The project's own settings may exclude more; what these show counts only once the user has accepted it."""
    settings = service.folder / ".config/leeward/agents.toml"
    settings.parent.mkdir(parents=True)
    (project / ".leeward").mkdir()
    for name in ("mine", "theirs", ".env"):
        (project / name).write_text("secret\n")
    try:
        settings.write_text('files.exclude = ["mine"]\n')
        (project / ".leeward/agent.toml").write_text('files.exclude = ["theirs"]\nfiles.include = [".env"]\n')
        box = service.open(project)
        try:
            done = box.shell("cat mine theirs .env")
            assert (1, "") == (done.exit_code, done.stdout_text)
        finally:
            service.connection.close_sandbox(box.detach())
        settings.write_text('files.include = [".env", 7]\n')
        with pytest.raises(BadRequest, match=r"agents\.toml"):
            service.open(project)
    finally:
        settings.unlink()


def test_a_command_that_takes_too_long_is_124(service: ServedApprovals, box: Sandbox) -> None:
    asks = started(box, 'print(json.dumps(agent.request_exec(["sh", "-c", "echo begun; sleep 60"], timeout=1)))')
    service.decide(next_pending(service, "exec")["id"])
    found = read_json(asks)

    assert ("failed", 124) == (found["status"], found["exit_code"])
    assert found["output"].startswith("begun\n")
    assert found["output"].endswith("[timed out]\n")


def test_a_sandbox_does_not_choose_where_a_command_runs(service: ServedApprovals, box: Sandbox) -> None:
    code = """
try:
    found = agent.call("POST", "/api/exec", {"command": "ls", "profile": "shell"})
except AskError as error:
    found = error.status"""

    assert 400 == python(box, code)


def test_packages_are_asked_for_one_by_one(service: ServedApprovals, box: Sandbox) -> None:
    found = python(box, 'found = agent.request_packages("npm install -D left-pad@1.3.0 @types/node", wait=False)')
    shown = [service.connection.call("GET", f"/api/requests/{row['id']}/detail")["argv"] for row in found]

    assert ["npm install --save-dev left-pad@1.3.0", "npm install --save-dev @types/node"] == list(map(" ".join, shown))
    for row in found:
        service.decide(row["id"], "deny")
    assert ["denied", "denied"] == [service.connection.call("GET", f"/api/exec/{row['id']}")["status"] for row in found]


def test_a_person_decides_about_the_configuration_and_no_rule(service: ServedApprovals, box: Sandbox) -> None:
    service.run("allow", "sandbox(set *)")
    number = python(box, 'found = agent.propose_config("exec.timeout", 7, wait=True)["id"]')
    poll_until(lambda: "failed" == service.request(number)["stage"], "a proposal that is refused")
    assert 300.0 == service.connection.call("GET", "/api/config")["exec.timeout"]
    service.run("remove-rule", "sandbox(set *)")

    number = python(box, 'found = agent.propose_config("exec.timeout", 8)["id"]')
    service.decide(number)
    poll_until(lambda: 8.0 == service.connection.call("GET", "/api/config")["exec.timeout"], "a key that is set")
    service.connection.call("PUT", "/api/config", {"key": "exec.timeout", "value": 300})


@pytest.mark.needs("usr-git")
def test_a_branch_is_pushed_by_the_operators_git(service: ServedApprovals, project: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    subprocess.run([*GIT, "init", "-q", "--bare", str(remote)], check=True)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["remote", "add", "origin", str(remote)],
                  ["push", "-q", "origin", "main"]):
        subprocess.run([*GIT, *words], cwd=project, check=True)
    box = service.open(project)
    try:
        done = box.shell("git config --global user.name a; git config --global user.email a@example.org;"
                         "git checkout -qb work; echo 21 >> file; chmod +x file; git commit -qam more;"
                         "git push -q origin work && git push -q origin main")
        assert 0 == done.exit_code, done.stderr_text
        found = service.connection.call("POST", "/api/sync/git", {"sandbox": box.id})
    finally:
        service.connection.close_sandbox(box.detach())

    [row] = found["requests"]
    whole = service.request(row["id"])
    assert "work" == row["subject"]["branch"]
    assert "+21" in whole["description"]
    assert "'file' can be run" in whole["metadata"]["remarks"]
    assert "work" not in _branches(remote)
    service.decide(row["id"])
    poll_until(lambda: "applied" == service.request(row["id"])["stage"], "a push")
    assert ["main", "work"] == _branches(remote)
    assert "1\n" == subprocess.run([*GIT, "rev-list", "--count", "main..work"], cwd=remote, check=True, text=True,
                                   capture_output=True).stdout
    assert not (project / "file").read_text().endswith("21\n")


def _branches(repository: Path) -> list[str]:
    done = subprocess.run([*GIT, "branch", "--format=%(refname:short)"], cwd=repository, check=True, text=True,
                          capture_output=True)
    return done.stdout.split()


def test_watch_shows_new_requests_and_decides_by_a_key(service: ServedApprovals) -> None:
    """On a terminal; a request that comes while it waits is shown by the service's event."""
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(command("approvals", "watch"), env={**service.env, "TERM": "xterm"}, stdin=theirs,
                                stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    screen = bytearray()

    def shows(text: bytes) -> None:
        def look() -> bool:
            while select.select([ours], [], [], 0)[0]:
                screen.extend(os.read(ours, 65536))
            return text in screen
        poll_until(look, f"a screen with {text!r}")
        screen.clear()

    shows(b"nothing waits")
    asked = service.connection.call("POST", "/api/requests", {"category": "sandbox", "action": "evil \\ name"})
    shows(b"evil")
    os.write(ours, b"d")
    poll_until(lambda: "denied" == service.request(asked["id"])["status"], "a key that decides")
    shows(b"1 decided")
    os.write(ours, b"q")
    assert 0 == watching.wait(PATIENCE)
    os.close(ours)


def test_run_leaves_requests(service: ServedApprovals, project: Path) -> None:
    done = service.run("run", str(project), "--", "sh", "-c", "echo changed > file; cat file")

    assert (0, "changed\n") == (done.returncode, done.stdout), done.stderr
    assert "1 requests about files wait" in done.stderr
    listed = service.run("list", "--category", "filesystem")
    assert "file" in listed.stdout
    assert 0 == service.run("deny", "--all", "filesystem").returncode
    assert 1 == service.run("deny", "1000000").returncode


def test_the_record_has_decisions_sandboxes_and_denied_calls(service: ServedApprovals, project: Path) -> None:
    box = service.open(project)
    box.run(["python3", "-c", "import ctypes; ctypes.CDLL(None).mount(0, 0, 0, 0, 0)"])
    service.connection.close_sandbox(box.detach())
    wanted = {("sandbox", "open", "started"), ("sandbox", "end", "ended"), ("syscall", "mount", "denied")}

    poll_until(lambda: wanted <= words_of(service, box.id), "lines of the record, which a thread writes")
    assert [] == [row for row in service.audit() if "bad" in row]
    verified = subprocess.run(command("audit", "verify"), env=service.env, capture_output=True, check=False)
    assert 0 == verified.returncode, verified.stdout


def words_of(service: ServedApprovals, sandbox: str) -> set[tuple[str, str, str]]:
    return {(row["category"], row["action"], row["decision"]) for row in service.audit() if row["sandbox"] == sandbox}


def test_the_record_has_sandboxes_of_the_profile_that_other_programs_open(
        service: ServedApprovals, daemon: LiveDaemon) -> None:
    """One that is open when the service looks, and one that has come and gone between two looks."""
    seconds = 2 * LOOK_S + PATIENCE
    with Sandbox(socket=daemon.socket, profile="approved") as box:
        box.run(["python3", "-c", "import ctypes; ctypes.CDLL(None).mount(0, 0, 0, 0, 0)"])
        poll_until(lambda: ("syscall", "mount", "denied") in words_of(service, box.id), "the service looks", seconds)
        with Sandbox(socket=daemon.socket, profile="approved") as brief, Sandbox(socket=daemon.socket) as other:
            names = box.id, brief.id, other.id
    wanted = {("sandbox", "open", "started"), ("sandbox", "end", "ended")}
    poll_until(lambda: all(wanted <= words_of(service, name) for name in names[:2]), "their ends", seconds)

    assert set() == words_of(service, names[2])


def test_sigterm_denies_pending_requests_and_ends_the_services_sandboxes(daemon: LiveDaemon, project: Path,
                                                                         tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        box = service.open(project)
        asks = started(box, 'agent.request_permission("network", host="example.org")')
        number = next_pending(service, "network")["id"]
        assert 0 == service.end()
        assert asks.number
        with pytest.raises(SandboxOver):
            box.run(["true"])
        with pytest.raises(ApprovalsAway, match="leeward approvals serve"):
            service.pending()
        box.detach()
    with ServedApprovals(daemon, tmp_path) as again:
        assert ("denied", "shutdown") == tuple(again.request(number)[name] for name in ("status", "decided_by"))


def test_the_service_ends_by_itself_when_its_time_is_over(daemon: LiveDaemon, tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path, "--max-uptime", "2s") as service:
        assert 0 == service.process.wait(PATIENCE)


def test_a_watchdog_ends_a_program_when_the_bridge_is_gone(service: ServedApprovals, box: Sandbox) -> None:
    watched = box.start(["python3", "-c", f"{BEGIN}Agent(watchdog=True); print('up', flush=True)\nwhile 1: pass"])
    assert b"up\n" == first_line(watched)
    for row in box.processes():
        if "leeward approvals" == row["title"]:
            box.process(row["process"]).kill()

    done = watched.wait(PATIENCE)
    assert done is not None
    assert 128 + signal.SIGTERM == done.exit_code


def test_a_killed_service_carries_out_at_its_next_start(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path, str(project)) as service:
        box = service.open(project)
        box.shell("echo late > file")
        number = service.connection.call("POST", "/api/sync/files", {"sandbox": box.id})["requests"][0]["id"]
        service.process.send_signal(signal.SIGSTOP)
        service.process.kill()
        service.process.wait(PATIENCE)
        box.close()
    with ServedApprovals(daemon, tmp_path) as again:
        assert "pending" == again.request(number)["status"]
        again.decide(number)
        assert "late\n" == (project / "file").read_text()


def test_another_user_gets_neither_the_socket_nor_the_folder(service: ServedApprovals, daemon: LiveDaemon) -> None:
    assert 0o600 == os.stat(service.socket).st_mode & 0o777
    second = service.run("serve")
    assert 1 == second.returncode
    assert "another program decides" in second.stderr


def rows_of(service: ServedApprovals, sandbox: str) -> list[dict[str, Any]]:
    """The lines of the record about *sandbox*, the oldest first."""
    return [row for row in reversed(service.audit()) if row.get("sandbox") == sandbox]


def opened_for(service: ServedApprovals, number: int) -> str:
    """The sandbox that was opened for the command of request *number*, once the record has its end."""
    found = list[str]()

    def look() -> bool:
        rows = [row for row in service.audit() if "sandbox" == row["category"]]
        found[:] = [row["sandbox"] for row in rows if number == row["metadata"].get("request")]
        return bool(found) and any("ended" == row["decision"] and row["sandbox"] == found[0] for row in rows)
    poll_until(look, f"the end of the sandbox of request {number}")
    return found[0]


def test_a_person_says_in_which_profile_a_command_runs(service: ServedApprovals, box: Sandbox) -> None:
    """What it does there is in the record as well: its sandbox's start, what it was denied, and its end."""
    code = "import ctypes, os; ctypes.CDLL(None).mount(0, 0, 0, 0, 0); print(os.path.exists('note'))"
    box.shell("echo here > note")
    asks = started(box, f"print(json.dumps(agent.request_exec(['python3', '-c', {code!r}])))")
    row = next_pending(service, "exec")
    done = service.run("approve", "--profile", "python", str(row["id"]))
    assert 0 == done.returncode, done.stderr
    made = int(done.stdout.split()[0])
    assert made > row["id"]
    assert "superseded" == service.request(row["id"])["status"]
    ran = service.connection.call("GET", f"/api/exec/{made}?wait=30")
    assert ("completed", "False\n") == (ran["status"], ran["output"])  # another sandbox, without the project
    heard = read_json(asks)  # whoever asked hears what became of it
    assert (made, "completed", "False\n") == (heard["id"], heard["status"], heard["output"])
    assert made == service.request(row["id"])["replaced_by"]

    found = rows_of(service, opened_for(service, made))
    assert [("sandbox", "open", "started"), ("syscall", "mount", "denied"), ("sandbox", "end", "ended")] == [
        (each["category"], each["action"], each["decision"]) for each in found]
    assert {"profile": "python", "request": made} == found[0]["metadata"]

    service.decide(python(box, "found = agent.request_exec('true', wait=False)['id']"), profile="none-of-this-name")
    failed = next(each for each in service.connection.call("GET", "/api/requests?which=recent")["requests"])
    ran = service.connection.call("GET", f"/api/exec/{failed['id']}?wait=30")
    assert "failed" == ran["status"]
    assert "no sandbox to run it in" in ran["note"]


def test_a_key_says_in_which_profile_commands_run(service: ServedApprovals, box: Sandbox) -> None:
    assert "exec.profile = python\n" == service.run("config", "exec.profile", "python").stdout
    try:
        number = python(box, "found = agent.request_exec('pwd', wait=False)['id']")
        service.decide(number)
        ran = service.connection.call("GET", f"/api/exec/{number}?wait=30")
        assert ("completed", 0) == (ran["status"], ran["exit_code"])
        assert "started" == rows_of(service, opened_for(service, number))[0]["decision"]
    finally:
        service.run("config", "exec.profile", "")


def test_limits_that_processes_reach_are_in_the_record(service: ServedApprovals, project: Path) -> None:
    """A process that is killed for want of memory, in a sandbox that goes on; and a sandbox that its lifetime ends."""
    box = service.open(project, memory="128M", lifetime=8)
    done = box.run(["python3", "-c", "x = bytearray(1 << 30)"])
    assert "cgroup" in done.degraded or "out_of_memory" == done.outcome

    def has(decision: str, limit: str) -> bool:
        return any(decision == row["decision"] and limit == row["metadata"].get("limit")
                   for row in rows_of(service, box.id) if ("sandbox", "limit") == (row["category"], row["action"]))
    if "out_of_memory" == done.outcome:  # without controllers the allocation itself is refused
        poll_until(lambda: has("killed", "memory") or has("ended", "memory"), "the row of a process out of memory")
    poll_until(lambda: has("ended", "time") or has("ended", "memory"), "the row of the end of a lifetime")
    box.detach()


def test_the_daemon_remembers_the_refused_calls_of_an_ended_sandbox(daemon: LiveDaemon) -> None:
    """By a program that ran up to the end, so that no look of the service's came after it."""
    box = Sandbox(socket=daemon.socket, lifetime=2)
    code = "import ctypes, time; ctypes.CDLL(None).mount(0, 0, 0, 0, 0); print('tried', flush=True); time.sleep(60)"
    program = box.start(["python3", "-c", code])
    assert b"tried\n" == first_line(program)
    assert 1 == box.info()["denied"]["mount"]  # while it runs
    poll_until(lambda: last_counts(daemon.socket, box.id), "the end of a lifetime")

    assert 1 == last_counts(daemon.socket, box.id)["denied"]["mount"]
    box.close()


def test_no_rule_allows_what_the_operator_forbids(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    policy = tmp_path / "approvals.toml"
    policy.write_text("forbidden = ['exec(curl **)']\nendpoints = ['example.org']\n")
    with ServedApprovals(daemon, tmp_path, "--config", str(policy)) as service:
        assert "forbid exec(curl **)" in service.run("rules").stdout
        service.run("allow", "exec(curl *)")
        box = service.open(project)
        found = python(box, "found = [agent.request_exec(['curl', 'x'])['status'], "
                            "agent.request_permission('network', host='a.example.org', port=443)['status']]")
        assert ["denied", "approved"] == found
        box.detach()
    policy.write_text("forbidden = ['exec']\nforbiden = []\n")
    refused = subprocess.run(command("approvals", "serve", "--config", str(policy)), capture_output=True, text=True,
                             env=service.env, timeout=PATIENCE, check=False)
    assert 1 == refused.returncode
    assert "no such keys: 'forbiden'" in refused.stderr


def test_the_operator_sees_how_the_service_stands(service: ServedApprovals) -> None:
    assert "record     written" in service.run("status").stdout
    assert 0 == service.run("mode", "git", "deny-all").returncode
    try:
        assert "mode   git = deny-all" in service.run("rules").stdout
        assert "mode.git = deny-all\n" == service.run("config", "mode.git").stdout
    finally:
        service.run("mode", "git", "approve-each")
    assert 1 == service.run("config", "mode.exec", "allow-all").returncode
    assert 2 == service.run("mode", "exec", "sometimes").returncode
    acts = [(row["action"], row["decision"], row["by"]) for row in service.audit() if "service" == row["category"]]
    assert ("mode", "set", "cli") in acts

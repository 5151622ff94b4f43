"""REST: what each route does, and what it answers where it doesn't."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kit.approvals_page import PageService, as_caller, page_service
from leeward.apps.approvals.queue.approval_request import IntakeBounds, NewRequest
from leeward.apps.approvals.queue.subjects import branch
from leeward.apps.approvals.sync.changes import SyncOutcome
from leeward.apps.approvals.web.application import application
from leeward.apps.approvals.web.bodies import MOST_BODY
from leeward.apps.approvals.web.gate import AskingSandbox, Operator
from leeward.apps.approvals.web.http_call import MOST_CALLS
from leeward.errors import BadRequest, Busy


@pytest.fixture
def sandbox(app: Starlette) -> TestClient:
    return TestClient(as_caller(app, AskingSandbox("box")))


def push(service: PageService, name: str, sandbox: str = "box") -> int:
    return service.queue.submit(NewRequest(branch(name), "push", sandbox=sandbox)).id


def test_a_request_is_asked_seen_and_approved(operator: TestClient, sandbox: TestClient) -> None:
    made = sandbox.post("/api/requests", json={"category": "network", "host": "Example.ORG", "port": 443,
                                               "reason": "because"})
    assert (201, {"host": "example.org", "port": 443}, "box") == (
        made.status_code, made.json()["subject"], made.json()["sandbox"])
    number = made.json()["id"]

    assert [number] == [each["id"] for each in operator.get("/api/requests").json()["requests"]]
    done = operator.post(f"/api/requests/{number}/approve")

    assert [(number, "approved", "cli")] == [
        (each["id"], each["status"], each["decided_by"]) for each in done.json()["decided"]]
    assert "approved" == sandbox.get(f"/api/requests/{number}").json()["status"]
    assert {"network": 0} != operator.get("/api/status").json()["pending_by_category"]


def test_c333_a_sandbox_sees_its_own_requests_alone(operator: TestClient, sandbox: TestClient,
                                                    service: PageService) -> None:
    own, other = push(service, "a"), push(service, "b", "other")

    for query in ("", "?sandbox=other", "?which=recent", "?which=recent&sandbox=other"):
        assert [own] == [each["id"] for each in sandbox.get(f"/api/requests{query}").json()["requests"]]
    assert 404 == sandbox.get(f"/api/requests/{other}").status_code
    assert 404 == sandbox.get(f"/api/exec/{other}").status_code
    assert 404 == sandbox.get("/api/requests/99").status_code
    assert "pending" not in sandbox.get("/api/status").json()
    assert [own, other] == [each["id"] for each in operator.get("/api/requests").json()["requests"]]
    made = sandbox.post("/api/requests", json={"category": "git", "branch": "c", "sandbox": "other"})
    assert 400 == made.status_code


def test_a_waiting_request_is_answered_at_the_decision(operator: TestClient, sandbox: TestClient,
                                                       service: PageService) -> None:
    number = push(service, "a")
    begun, found = threading.Event(), list[str]()

    def wait() -> None:
        begun.set()
        found.append(sandbox.get(f"/api/requests/{number}?wait=60").json()["status"])

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    operator.post(f"/api/requests/{number}/deny", json={})
    thread.join(30)

    assert ["denied"] == found
    assert "denied" == sandbox.get(f"/api/requests/{number}?wait=60").json()["status"]


def test_a_waiting_request_is_told_that_it_has_expired(tmp_path: Path) -> None:
    with page_service(tmp_path) as service:
        service.queue._lasting = {"git": 0.05}
        number = push(service, "a")
        client = TestClient(as_caller(application(service), Operator("cli")))

        assert "expired" == client.get(f"/api/requests/{number}?wait=60").json()["status"]


def test_a_second_decision_is_refused_and_names_the_first(operator: TestClient, service: PageService) -> None:
    number = push(service, "a")
    service.queue.decide([number], False, "page")

    refused = operator.post(f"/api/requests/{number}/approve", json={})

    assert (409, "decided") == (refused.status_code, refused.json()["error"])
    assert "denied already, by page" in refused.json()["detail"]
    assert "denied" == refused.json()["request"]["status"]
    assert 404 == operator.post("/api/requests/99/approve", json={}).status_code
    assert 404 == operator.post(f"/api/requests/{2**63}/approve", json={}).status_code


def test_an_approval_of_a_file_answers_when_it_is_there_or_stale(operator: TestClient, service: PageService,
                                                                 tmp_path: Path) -> None:
    first, second = service.write("a", "1\n"), service.write("b", "2\n")
    (tmp_path / "project" / "b").write_text("meanwhile\n")

    assert 200 == operator.post(f"/api/requests/{first.id}/approve", json={}).status_code
    stale = operator.post(f"/api/requests/{second.id}/approve", json={})

    assert "1\n" == (tmp_path / "project" / "a").read_text()
    assert (409, "stale", "denied") == (stale.status_code, stale.json()["error"], stale.json()["request"]["status"])
    assert "meanwhile\n" == (tmp_path / "project" / "b").read_text()


def test_single_hunks_of_a_change_can_be_approved(operator: TestClient, service: PageService, tmp_path: Path) -> None:
    file = tmp_path / "project" / "a"
    lines = [str(number) for number in range(30)]
    file.write_text("\n".join(lines) + "\n")
    request = service.write("a", "\n".join(["first", *lines[1:-1], "last"]) + "\n")
    assert 2 == len(operator.get(f"/api/requests/{request.id}/detail").json()["hunks"])

    assert 400 == operator.post(f"/api/requests/{request.id}/approve", json={"hunks": [7]}).status_code
    assert 400 == operator.post(f"/api/requests/{request.id}/deny", json={"hunks": [0]}).status_code
    done = operator.post(f"/api/requests/{request.id}/approve", json={"hunks": [1]})

    assert 200 == done.status_code
    assert "\n".join([*lines[:-1], "last"]) + "\n" == file.read_text()


def test_a_sandbox_that_asks_without_end_does_not_prevent_the_choice_of_hunks(tmp_path: Path) -> None:
    with page_service(tmp_path, IntakeBounds(each_minute=2)) as service:
        (tmp_path / "project" / "f").write_text("a\nb\nc\n")
        number = service.write("f", "x\nb\ny\n").id
        service.write("g", "")
        with pytest.raises(Busy):
            service.write("h", "")
        operator = TestClient(as_caller(application(service), Operator("cli")))
        answer = operator.post(f"/api/requests/{number}/approve", json={"hunks": [1]})

        assert 200 == answer.status_code
        assert "a\nb\ny\n" == (tmp_path / "project" / "f").read_text()


def test_always_stores_a_rule_that_decides_the_others(operator: TestClient, service: PageService) -> None:
    first, second, third = push(service, "a"), push(service, "a", "other"), push(service, "b")

    done = operator.post(f"/api/requests/{first}/approve", json={"always": True, "everywhere": True}).json()

    assert ("git(a)", "") == (done["rule"], done["project"])
    assert [first, second] == [each["id"] for each in done["decided"]]
    assert [third] == [each["id"] for each in operator.get("/api/requests").json()["requests"]]
    assert ["git(a)"] == [each["rule"] for each in operator.get("/api/rules").json()["allow"]]
    assert 200 == operator.request("DELETE", "/api/rules", json={"rule": "git(a)"}).status_code
    assert 404 == operator.request("DELETE", "/api/rules", json={"rule": "git(a)"}).status_code


def test_a_rule_holds_in_its_project(operator: TestClient, service: PageService) -> None:
    number = service.write("a", "1\n").id
    service.queue.submit(NewRequest(branch("x"), "push", sandbox="box", project="/p"))
    assert service.project is not None
    done = operator.post(f"/api/requests/{number}/approve", json={"always": True}).json()
    assert service.project.path == done["project"]
    assert 400 == operator.post(f"/api/requests/{push(service, 'b')}/deny", json={"always": True}).status_code
    made = operator.post("/api/rules", json={"rule": "git(x)", "effect": "allow", "project": "/p"}).json()
    assert ("/p", 1) == (made["project"], made["resolution"]["decided_count"])
    assert 400 == operator.post("/api/rules", json={"rule": "git(x)", "effect": "allow", "project": "p"}).status_code
    assert {"", "/p", service.project.path} == {each["project"] for effect in ("allow", "deny")
                                                for each in operator.get("/api/rules").json()[effect]}
    remove = {"rule": "git(x)", "project": ""}
    assert 404 == operator.request("DELETE", "/api/rules", json=remove).status_code
    assert 200 == operator.request("DELETE", "/api/rules", json={**remove, "project": "/p"}).status_code


def test_a_person_says_where_a_command_is_run(operator: TestClient, sandbox: TestClient) -> None:
    asked = sandbox.post("/api/exec", json={"command": "make", "cwd": "sub"}).json()
    assert "sub" == asked["subject"]["cwd"]
    path = f"/api/requests/{asked['id']}/approve"
    assert 400 == operator.post(path, json={"profile": "no profile"}).status_code
    assert 400 == operator.post(path, json={"profile": "build", "always": True}).status_code
    made, = operator.post(path, json={"profile": "build"}).json()["decided"]
    assert ("approved", "build", "/workspace/sub") == (made["status"], made["metadata"]["profile"],
                                                       made["metadata"]["cwd"])
    assert asked["id"] == made["metadata"]["in_place_of"]
    assert "superseded" == operator.get(f"/api/requests/{asked['id']}").json()["status"]
    late = operator.post(path, json={"profile": "shell"})
    assert (409, "decided") == (late.status_code, late.json()["error"])


def test_a_category_is_decided_up_to_the_last_shown_request(operator: TestClient, service: PageService) -> None:
    numbers = [push(service, name) for name in "abcd"]

    done = operator.post("/api/bulk", json={"approved": False, "category": "git", "upto": numbers[2]})
    assert numbers[:3] == [each["id"] for each in done.json()["decided"]]
    done = operator.post("/api/bulk", json={"approved": True, "ids": [numbers[0], numbers[3], 99]})

    assert [numbers[3]] == [each["id"] for each in done.json()["decided"]]
    assert ([numbers[0]], [99]) == ([each["id"] for each in done.json()["before"]], done.json()["unknown"])


def test_of_several_files_it_is_told_what_happened_to_each(operator: TestClient, service: PageService,
                                                           tmp_path: Path) -> None:
    first, second = service.write("a", "1\n"), service.write("b", "1\n")
    (tmp_path / "project" / "b").write_text("meanwhile\n")

    done = operator.post("/api/bulk", json={"approved": True, "ids": [first.id, second.id]})

    assert [("approved", "applied"), ("denied", "failed")] == [(each["status"], each["stage"])
                                                               for each in done.json()["decided"]]


def test_rules_modes_and_configuration(operator: TestClient, sandbox: TestClient) -> None:
    made = operator.post("/api/rules", json={"rule": "exec", "effect": "allow"})
    assert (201, True) == (made.status_code, made.json()["never_matches"])
    assert 400 == operator.post("/api/rules", json={"rule": "nothing(x)", "effect": "allow"}).status_code
    assert 400 == operator.post("/api/rules", json={"rule": "git(x)", "effect": "maybe"}).status_code

    assert 200 == operator.put("/api/modes", json={"category": "git", "mode": "deny-all"}).status_code
    assert "deny-all" == operator.get("/api/rules").json()["modes"]["git"]
    assert 400 == operator.put("/api/modes", json={"category": "exec", "mode": "allow-all"}).status_code

    assert 200 == operator.put("/api/config", json={"key": "exec.timeout", "value": 60}).status_code
    assert 60 == sandbox.get("/api/config").json()["exec.timeout"]
    assert 403 == sandbox.put("/api/config", json={"key": "exec.timeout", "value": 1}).status_code
    assert 400 == operator.put("/api/config", json={"key": "mode.exec", "value": "allow-all"}).status_code
    proposed = sandbox.post("/api/propose", json={"key": "exec.timeout", "value": 120})
    assert (201, "pending") == (proposed.status_code, proposed.json()["status"])


def test_commands_packages_and_changes_of_a_sandbox_are_served(operator: TestClient, sandbox: TestClient) -> None:
    run = sandbox.post("/api/exec", json={"command": ["make", "all"], "cwd": "/workspace"})
    assert (201, "exec") == (run.status_code, run.json()["category"])
    assert "pending" == sandbox.get(f"/api/exec/{run.json()['id']}").json()["status"]
    assert 400 == sandbox.post("/api/exec", json={"command": 7}).status_code
    assert [] == operator.get("/api/exec").json()["runs"]
    added = sandbox.post("/api/packages", json={"command": "npm install left-pad@1.0.0 react"})
    assert (201, 2) == (added.status_code, len(added.json()["requests"]))
    synced = sandbox.post("/api/sync/files", json={"sandbox": "other"}).json()
    assert "box" == synced["requests"][0]["sandbox"]
    assert ([{"path": "fifo", "reason": "it is a FIFO"}], 2) == (synced["refused"], synced["left_out"])
    assert 400 == operator.post("/api/sync/git", json={}).status_code
    assert "other" == operator.post("/api/sync/git", json={"sandbox": "other"}).json()["requests"][0]["sandbox"]
    assert "box" == operator.get("/api/sandboxes").json()["sandboxes"][0]["sandbox"]
    assert 200 == operator.delete("/api/sandboxes/box").status_code
    assert 400 == operator.delete("/api/sandboxes/x").status_code


def test_a_sandbox_that_stalls_its_own_diff_does_not_delay_others(app: Starlette, sandbox: TestClient,
                                                                  service: PageService,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Its git can be stopped from inside."""
    begun, over = threading.Event(), threading.Event()

    def stalled(sandbox: str, reason: str = "", asker: str = "") -> SyncOutcome:
        begun.set()
        over.wait(60.0)
        return SyncOutcome()

    monkeypatch.setattr(service, "sync_git", stalled)
    with sandbox, ThreadPoolExecutor(1) as pool:
        first = pool.submit(sandbox.post, "/api/sync/git", json={})
        try:
            assert begun.wait(60.0)
            second = sandbox.post("/api/sync/git", json={})
        finally:
            over.set()

    assert (429, 201) == (second.status_code, first.result().status_code)
    assert 201 == sandbox.post("/api/sync/git", json={}).status_code


def test_no_thread_waits_for_a_command_that_runs(sandbox: TestClient, service: PageService,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    def run(number: int, wait: float = 0.0) -> dict[str, Any]:
        waits.append(wait)
        return {}

    monkeypatch.setattr(service, "run", run)
    number = service.submit_exec("make", sandbox="box").id
    sandbox.get(f"/api/exec/{number}?wait=0.01")
    service.queue.decide([number], False, "cli")
    sandbox.get(f"/api/exec/{number}?wait=0.01")

    assert [0.0, 1.0] == waits


def test_a_sandbox_gets_so_many_rows_at_once(sandbox: TestClient, operator: TestClient, service: PageService) -> None:
    for place in range(60):
        push(service, f"b{place}")

    assert [50, 60] == [len(client.get("/api/requests?limit=500").json()["requests"]) for client in (sandbox, operator)]


def test_a_sandbox_that_is_over_asks_for_no_file_of_another_ones_project(service: PageService) -> None:
    with pytest.raises(BadRequest, match="no project"):
        service.ask({"category": "filesystem", "action": "write", "path": "f", "content": "x"}, "over")


def test_the_record_is_shown(operator: TestClient, service: PageService) -> None:
    service.queue.decide([push(service, "a")], True, "cli")
    service.journal.close()

    rows = operator.get("/api/audit?limit=10").json()["rows"]

    assert ("git", "approved", "cli") == (rows[0]["category"], rows[0]["decision"], rows[0]["by"])


@pytest.mark.parametrize(("body", "kind", "status"), [
    (b"[]", "application/json", 400), (b"{", "application/json", 400), (b"\xff", "application/json", 400),
    (b'{"category": NaN}', "application/json", 400), (b"[" * 60000, "application/json", 400),
    (b'{"a": "\\ud800"}', "application/json", 400), (b"{}", "text/plain", 415), (b"{}", "", 415),
    (b'{"rule": 7, "effect": "allow"}', "application/json", 400), (b"", "application/json", 400),
    (b"x" * (MOST_BODY + 1), "application/json", 413)])
def test_a_body_that_is_none_is_refused(operator: TestClient, body: bytes, kind: str, status: int) -> None:
    answer = operator.post("/api/rules", content=body, headers={"content-type": kind})

    assert status == answer.status_code
    assert {"error", "detail"} <= set(answer.json())


def test_a_body_that_doesnt_say_its_length_is_bounded_as_well(operator: TestClient) -> None:
    pieces = (b" " * 10_000 for _ in range(10))

    assert 413 == operator.post("/api/rules", content=pieces,
                                headers={"content-type": "application/json"}).status_code


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=501", "after=-1", "after=1e400", "after=nan",
                                   "limit=1.5", "category=x", "which=x"])
def test_a_query_that_is_none_is_refused(operator: TestClient, query: str) -> None:
    assert 400 == operator.get(f"/api/requests?{query}").status_code


def test_a_sandbox_that_asks_too_much_is_told_when_to_retry(tmp_path: Path) -> None:
    with page_service(tmp_path, IntakeBounds(each_minute=2)) as service:
        app = application(service)
        client = TestClient(as_caller(app, AskingSandbox("box")))
        for name in "ab":
            assert 201 == client.post("/api/requests", json={"category": "git", "branch": name}).status_code
        refused = client.post("/api/requests", json={"category": "git", "branch": "c"})
        assert (429, "busy") == (refused.status_code, refused.json()["error"])
        assert 1 <= int(refused.headers["retry-after"]) <= 60

        app.state.parts.calls["box"] = MOST_CALLS
        assert 429 == client.get("/api/requests").status_code
        assert MOST_CALLS == app.state.parts.calls["box"]


def test_no_request_is_decided_after_the_end(operator: TestClient, service: PageService) -> None:
    number = push(service, "a")
    service.stop()

    refused = operator.post(f"/api/requests/{number}/approve", json={})

    assert (503, "shutting_down") == (refused.status_code, refused.json()["error"])


def test_an_unknown_route_is_an_error(operator: TestClient) -> None:
    assert (404, "not_found") == ((found := operator.get("/api/x")).status_code, found.json()["error"])
    assert (405, "no_method") == ((found := operator.delete("/api/status")).status_code, found.json()["error"])
    assert 404 == operator.get("/static/..%2fapp.py").status_code
    assert 404 == operator.get("/api/requests/").status_code

"""The page without a script: what it shows, and what its forms do."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kit.approvals_page import PageService, browser, fill, page_service
from kit.approvals_pictures import daemon_look
from kit.waiting import poll_until
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.subjects import branch, endpoint, invocation
from leeward.apps.approvals.web.application import DECIDING, application
from leeward.apps.approvals.web.gate import HEADERS
from leeward.apps.approvals.web.rendering import drawn

STRANGE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'>&lt;\u202e\x1b[31m\u200b{{7*7}}{% raw %}"


@pytest.fixture
def window(app: Starlette) -> tuple[TestClient, str]:
    return browser(app)


def test_a_form_approves_and_denies(window: tuple[TestClient, str], service: PageService) -> None:
    client, csrf = window
    for name in "abc":
        service.queue.submit(NewRequest(branch(name), "push"))
    shown = client.get("/queue").text
    assert f'name="csrf" value="{csrf}"' in shown
    assert 'action="/queue/1/decide"' in shown

    done = client.post("/queue/1/decide", data={"csrf": csrf, "answer": "approve"})
    assert (303, "/queue?said=approved&about=1") == (done.status_code, done.headers["location"])
    assert "Request #1 was approved." in client.get(done.headers["location"]).text
    client.post("/queue/2/decide", data={"csrf": csrf, "answer": "deny"})
    late = client.post("/queue/2/decide", data={"csrf": csrf, "answer": "approve"})
    assert 409 == late.status_code
    assert "already" in late.text
    assert 400 == client.post("/queue/3/decide", data={"csrf": csrf, "answer": "maybe"}).status_code

    assert ["pending", "denied", "approved"] == [each.status for each in service.queue.recent()]
    assert ["", "page", "page"] == [each.decided_by for each in service.queue.recent()]


def test_forms_of_rules_modes_categories_and_hunks(window: tuple[TestClient, str], service: PageService,
                                                   tmp_path: Path) -> None:
    client, csrf = window
    assert 303 == client.post("/rules", data={"csrf": csrf, "rule": "git(x)", "effect": "allow"}).status_code
    assert "git(x)" in client.get("/rules").text
    assert 303 == client.post("/rules", data={"csrf": csrf, "rule": "git(x)", "answer": "remove"}).status_code
    assert "git(x)" not in client.get("/rules").text
    assert 400 == client.post("/rules", data={"csrf": csrf, "rule": "x", "effect": "allow"}).status_code
    client.post("/rules", data={"csrf": csrf, "rule": "git(y)", "effect": "allow", "project": "/home/me/y"})
    assert "/home/me/y" in client.get("/rules").text
    assert 303 == client.post("/modes", data={"csrf": csrf, "category": "git", "mode": "approve-bulk"}).status_code
    assert 303 == client.post("/config", data={"csrf": csrf, "key": "exec.timeout", "value": "60"}).status_code
    assert 400 == client.post("/config", data={"csrf": csrf, "key": "mode.exec", "value": "allow-all"}).status_code
    assert 'value="60"' in client.get("/config").text
    for name in "abc":
        service.queue.submit(NewRequest(branch(name), "push"))
    file = tmp_path / "project" / "a"
    file.write_text("".join(f"{number}\n" for number in range(20)))
    request = service.write("a", file.read_text().replace("0\n", "zero\n", 1).replace("19\n", "last\n"))
    assert 2 == client.get(f"/queue/{request.id}").text.count('type="checkbox" autocomplete="off" name="hunk-')
    form = {"csrf": csrf, "answer": "approve", "hunks": "ticked", "digest": request.digest}
    assert 400 == client.post(f"/queue/{request.id}/decide", data=form).status_code  # none is ticked
    client.post(f"/queue/{request.id}/decide", data={**form, "hunk-0": "1"})
    assert file.read_text().startswith("zero\n")
    assert file.read_text().endswith("19\n")


def test_c510_a_change_is_approved_by_what_was_shown_and_chosen(window: tuple[TestClient, str], service: PageService,
                                                               tmp_path: Path) -> None:
    """By a form, by a script and over the WebSocket; the control is a request that shows no hunks."""
    client, csrf = window
    file = tmp_path / "project" / "a"
    file.write_text("1\n2\n3\n")
    request = service.write("a", "one\n2\nthree\n")
    form, path = {"csrf": csrf, "answer": "approve"}, f"/queue/{request.id}/decide"
    whole = {"hunks": "ticked", "hunk-0": "1", "hunk-1": "1"}
    for more in ({}, whole, {"digest": request.digest}, {**whole, "digest": "0" * 64}):
        assert 400 == client.post(path, data=form | more).status_code, more
        assert 400 == client.post(path, data=form | more | {"answer": "always-allow"}).status_code, more
    headers = {"X-CSRF-Token": csrf}
    for said in ({}, {"hunks": [0, 1]}, {"digest": request.digest}, {"hunks": [0], "digest": "0"},
                 {"hunks": [7], "digest": request.digest}, {"hunks": [0], "digest": request.digest, "always": True}):
        assert 400 == client.post(f"/api/requests/{request.id}/approve", json=said, headers=headers).status_code, said
    with client.websocket_connect("ws://127.0.0.1:3700/api/live") as socket:
        socket.receive_json()
        socket.send_json({"type": "approve", "id": request.id, "csrf": csrf})
        assert "bad_request" == socket.receive_json()["error"]
    assert ("pending", "1\n2\n3\n") == (service.queue.recent()[0].status, file.read_text())

    done = client.post(f"/api/requests/{request.id}/approve", json={"hunks": [1], "digest": request.digest}, headers=headers)
    assert (200, "1\n2\nthree\n") == (done.status_code, file.read_text())
    number = service.queue.submit(NewRequest(branch("x"), "push")).id
    assert 303 == client.post(f"/queue/{number}/decide", data=form).status_code


def test_files_of_a_run_are_decided_together(window: tuple[TestClient, str], app: Starlette,
                                             service: PageService) -> None:
    """Those that are ticked, of this sandbox alone, all or of one folder; the decision can be taken back."""
    client, csrf = window
    held = app.state.parts.held
    held.seconds = 60.0
    for name in ("src/a", "src/b", "top", "Makefile"):
        service.write(name, "1\n")
    other = service.write("other", "1\n", sandbox="another").id
    push = service.queue.submit(NewRequest(branch("x"), "push", sandbox="box")).id
    shown = client.get("/together?sandbox=box").text
    assert [f'name="r-{number}" value="1"{checked}' in shown for number, checked in (
        (1, " checked"), (2, " checked"), (3, " checked"), (4, " aria"))] == [True] * 4  # one with a warning isn't ticked
    assert "obeyed on the host by make" in shown
    ticked = {"csrf": csrf, "sandbox": "box", **{f"r-{number}": "1" for number in (1, 3, 4, other, push, 99)}}

    assert 303 == client.post("/together", data={**ticked, "approve": "src"}).status_code
    assert [((1,), True)] == [(each.numbers, each.approved) for each in held.all()]
    shown = client.get("/queue").text
    assert "1 request will be approved in" in shown
    assert '<li data-id="1"' not in shown
    undone = client.post("/undo", data={"csrf": csrf, "key": held.all()[0].key})
    assert "taken back" in client.get(undone.headers["location"]).text
    assert "too late" in client.get(client.post("/undo", data={"csrf": csrf, "key": "x"}).headers["location"]).text
    assert {"pending"} == {each.status for each in service.queue.recent()}

    held.seconds = 0.01
    client.post("/together", data={**ticked, "deny": "*"})
    poll_until(lambda: ["denied", "pending", "denied", "denied", "pending", "pending"] == [
        each.status for each in reversed(service.queue.recent())], "the time is over")
    assert 400 == client.post("/together", data={"csrf": csrf, "sandbox": "box", "approve": "*"}).status_code
    assert 403 == client.post("/together", data={**ticked, "csrf": "x", "approve": "*"}).status_code
    client.post("/bulk", data={"csrf": csrf, "category": "git", "answer": "deny", "upto": str(push)})
    poll_until(lambda: "denied" == service.queue.recent()[0].status, "the time is over")


@pytest.mark.parametrize("path", [
    "/together?sandbox=box", "/queue",
    "/queue/1", "/queue/1?full=1", "/queue/2", "/queue/3", "/queue/4", "/queue/5", "/queue?part=list",
    "/queue/1?part=detail", "/history", "/config", "/rules", "/queue?said=%3Cscript%3E&about=%3Cscript%3E",
    "/sandboxes", "/daemon", "/daemon?part=now"])
def test_c330_no_text_of_a_request_becomes_html(window: tuple[TestClient, str], service: PageService,
                                                path: str) -> None:
    client, _ = window
    strange = {"description": STRANGE, "reason": STRANGE, "metadata": {STRANGE: STRANGE, "remarks": [STRANGE]},
               "sandbox": STRANGE[:90], "asker": STRANGE}
    service.queue.submit(NewRequest(endpoint("example.org"), "connect", **strange))  # type: ignore[arg-type]
    service.queue.submit(NewRequest(invocation(["echo", STRANGE]), "run", **strange))  # type: ignore[arg-type]
    service.queue.submit(NewRequest(invocation(f"echo {STRANGE}; x"), "run", **strange))  # type: ignore[arg-type]
    service.submit_exec(f"echo {STRANGE}", reason=STRANGE, sandbox="box")
    service.write("<b>.py", f"# {STRANGE}\nx = \"{STRANGE}\"\n", description=STRANGE)
    service.queue.decide([2], False, "cli")
    service.daemon.found = daemon_look(1.0, STRANGE)

    shown = client.get(path).text

    assert "<script>" not in shown
    assert "<img" not in shown
    for hidden in "\u202e\x1b\u200b":
        assert hidden not in shown


def test_a_megabyte_is_cut_and_can_be_loaded(window: tuple[TestClient, str], service: PageService) -> None:
    client, _ = window
    service.queue.submit(NewRequest(branch("a"), "push", "x" * 65_000))
    service.write("big", "line\n" * 200_000)

    assert "61,000 characters more" in client.get("/queue/1").text
    assert "x" * 65_000 in client.get("/queue/1?full=1").text
    assert len(client.get("/queue").text) < 100_000
    assert len(client.get("/queue/2").text) < 1_500_000


def test_a_flood_of_one_sandbox_is_one_row(window: tuple[TestClient, str], service: PageService) -> None:
    client, _ = window
    for number in range(50):
        service.queue.submit(NewRequest(branch(f"x{number}"), "push", sandbox="flood"))
    service.queue.submit(NewRequest(branch("quiet"), "push", sandbox="other"))

    shown = client.get("/queue").text

    assert 7 == shown.count("<li data-id=")
    assert "and 44 more of this sandbox" in shown
    assert "quiet" in shown
    assert 51 == client.get("/queue?all=1").text.count("<li data-id=")


def test_a_page_says_that_its_request_is_stale_decided_or_gone(window: tuple[TestClient, str], service: PageService,
                                                               tmp_path: Path) -> None:
    client, _ = window
    request = service.write("a", "1\n")
    (tmp_path / "project" / "a").write_text("2\n")
    assert "An approval will fail" in client.get(f"/queue/{request.id}").text
    service.queue.decide([request.id], False, "cli")
    shown = client.get(f"/queue/{request.id}").text
    assert "command line" in shown
    assert 'id="decide"' not in shown
    assert 404 == client.get("/queue/99").status_code
    assert 404 == client.get(f"/queue/{2**64}").status_code
    assert "Nothing waits for you" in client.get("/queue").text


def test_every_style_and_script_is_served_by_the_service(window: tuple[TestClient, str], service: PageService) -> None:
    client, _ = window
    service.write("a.py", "if 1: pass\n")
    for path in ("/queue", "/rules", "/config", "/sandboxes", "/history", "/daemon", "/login"):
        shown = client.get(path).text
        assert set(re.findall(r'(?:src|href)="(?!/(?:queue|rules|config|sandboxes|history|daemon)|#|\?)([^"]*)"', shown)) <= {
            "/static/page.css", "/static/page.js", "/static/daemon.js", "/static/icon.svg"}
        assert not re.search(r"<script(?! src)|<style| style=| on[a-z]+=|javascript:", shown)
    for name in ("page.css", "page.js", "daemon.js", "icon.svg"):
        text = client.get(f"/static/{name}").text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
    assert "script-src 'self'" in HEADERS["Content-Security-Policy"]


def test_a_template_escapes_every_value() -> None:
    shown = drawn("problem.html", {"problem": Told, "frame": DECIDING, "tab": STRANGE, "pending": 0, "session": None})

    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert "[RLO]" in shown


class Told:
    status, message = 400, STRANGE


def test_an_incomplete_record_is_reported_on_every_page_and_in_status(tmp_path: Path) -> None:
    """As where its folder can't be written. Nobody is kept from deciding."""
    (tmp_path / "audit").write_text("a file where the folder is to be")
    with page_service(tmp_path) as service:
        client, csrf = browser(application(service))
        number = service.queue.submit(NewRequest(branch("a"), "push", sandbox="box")).id
        done = client.post(f"/queue/{number}/decide", data={"csrf": csrf, "answer": "approve"})
        assert 303 == done.status_code
        poll_until(lambda: service.journal.lost, "the writer's thread")

        for path in ("/queue", "/rules", "/config", "/sandboxes", "/history", "/daemon"):
            assert "The record lacks 1 line:" in client.get(path).text, path
        found = client.get("/api/status").json()
        assert (1, True) == (found["lost"], bool(found["trouble"]))
        assert {"started", "uptime", "until", "remaining"} <= set(found)


def test_the_first_rows_of_ten_thousand_take_no_longer_than_those_of_a_few(app: Starlette,
                                                                          service: PageService) -> None:
    """By processor time, so that another program's work has no part in it: 200 ms at most."""
    client, _ = browser(app)
    fill(service, 10_000)
    took = []
    for _ in range(3):
        before = time.process_time()
        found = client.get("/queue")
        took.append(time.process_time() - before)
    assert 200 == found.status_code
    assert "(10000)" in found.text
    assert min(took) < 0.2

"""What `leeward approvals` shows, and what its keys do."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest
from click.testing import CliRunner

from leeward.apps.approvals.operator_connection import OperatorConnection
from leeward_cli import approvals as approvals_command
from leeward_cli import approvals_watch
from leeward_cli.approvals_watch import MOST_LINES, WatchKeys, WatchState, line_of, lines_of, paired
from leeward_cli.approved_sandboxes import note_lines
from leeward_cli.full import cli

HOSTILE = "evil\x1b]52;c;x\x07\u202ename\r\nmore"


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "category": "exec", "action": "run", "title": "ls", "status": "pending", "expires": None,
            "reason": "", "repeats": 0, "stage": "", "created": 0.0, "metadata": {}, **more}


def test_text_of_a_sandbox_is_shown_as_one_escaped_line() -> None:
    shown = line_of(row(1, title=HOSTILE, reason=HOSTILE))

    assert shown.isprintable()
    assert "\\x1b]52" in shown
    assert "\\u202e" in shown


@pytest.mark.parametrize("color", [True, False])
def test_a_diff_is_escaped(color: bool) -> None:
    detail = {"kind": "file", "path": HOSTILE, "stale": "", "type": "file", "base_type": "file", "link": "",
              "base_link": "", "mode": 0o755, "base_mode": 0o644, "before": "a\nb\n", "after": "a\n" + HOSTILE,
              "hunks": [{"old_start": 2, "new_start": 2, "old": ["b\n"], "new": [HOSTILE]}]}

    found = lines_of(row(1, metadata={"remarks": [HOSTILE]}), detail, color)

    for line in found:
        for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[1m", "\x1b[0m") if color else ():
            line = line.replace(code, "")
        assert line.isprintable(), line
    text = "\n".join(found)
    assert "mode        rw-r--r-- becomes rwxr-xr-x" in text
    assert "(no newline)" in text


def test_a_diff_has_an_end() -> None:
    detail = {"kind": "push", "commit": "c", "branch": "b", "remote": "r", "commits": [], "diff": "+x\n" * 10_000}

    assert MOST_LINES + 1 == len(lines_of(row(1), detail, False))


def test_the_mark_stays_on_its_request() -> None:
    state = WatchState()
    state.take([row(1), row(2), row(3)])
    state.move(1)
    assert 2 == state.selected
    state.take([row(2), row(3), row(4)])
    assert 2 == state.selected
    state.take([row(3), row(4)])
    assert 3 == state.selected
    state.move(9)
    assert 4 == state.selected
    state.take([])
    assert 0 == state.selected
    assert any("nothing waits" in line for line in state.screen(20, 80))


def test_the_screen_is_no_larger_than_the_terminal() -> None:
    state = WatchState()
    state.take([row(number, title="x" * 500) for number in range(100)])
    state.move(60)
    lines = state.screen(20, 40)

    assert len(lines) <= 20
    assert any("   60  " in line for line in lines)


@pytest.mark.parametrize(("typed", "after", "keys"), [
    ("ad", "", ["a", "d"]), ("aa", "", ["aa"]), ("a", "a", ["aa"]), ("a", "", ["a"]), ("a", "q", ["a", "q"]),
    ("aaa", "", ["aa", "a"]), ("Aa", "", ["A", "a"]),
])
def test_two_a_are_one_key(typed: str, after: str, keys: list[str]) -> None:
    rest = list(after)

    assert keys == paired(list(typed), lambda: rest.pop() if rest else "")


class PlayedConnection:
    def __init__(self) -> None:
        self.rows, self.calls = [row(1), row(2)], list[tuple[str, str, Any]]()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.calls.append((method, path, body))
        if "POST" == method:
            return {"decided": [row(1)], "before": [], "unknown": [], "rule": "exec(ls)"}
        return {"kind": "none"} if path.endswith("detail") else row(1) if path[-1].isdigit() and "?" not in path else {
            "requests": self.rows}


@pytest.mark.parametrize(("key", "path", "body"), [
    ("a", "/api/requests/2/approve", {}), ("A", "/api/requests/2/approve", {"always": True}),
    ("d", "/api/requests/2/deny", {}), ("D", "/api/requests/2/deny", {"always": True}),
    ("aa", "/api/bulk", {"approved": True, "ids": [1, 2]}),
])
def test_a_key_decides_the_marked_request(key: str, path: str, body: dict[str, Any]) -> None:
    connection = PlayedConnection()
    desk = WatchKeys(cast("OperatorConnection", connection))
    desk.reload()
    desk.press("j")

    assert desk.press(key)
    assert [("POST", path, body)] == [call for call in connection.calls if "POST" == call[0]]
    assert "1 decided; rule exec(ls), everywhere" == desk.state.message


def test_a_key_is_about_the_request_that_is_shown() -> None:
    """Its sandbox asks anew meanwhile, and the mark goes to another one."""
    connection = PlayedConnection()
    desk = WatchKeys(cast("OperatorConnection", connection))
    desk.reload()
    desk.press("\r")
    connection.rows = [row(2), row(3)]
    desk.reload()
    assert (2, "one") == (desk.state.selected, desk.state.view)

    for key in ("d", "\r", "q", "?", "a", "l", "a", "q"):
        desk.press(key)

    assert ["/api/requests/1/deny"] == [path for method, path, _ in connection.calls if "POST" == method]


def test_a_request_that_has_just_been_marked_cannot_be_decided_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, now = PlayedConnection(), [100.0]
    monkeypatch.setattr(approvals_watch.time, "monotonic", lambda: now[0])
    desk = WatchKeys(cast("OperatorConnection", connection))
    desk.reload()
    connection.rows = [row(2), row(3)]
    desk.reload()

    desk.press("a")
    desk.press("aa")
    assert not [call for call in connection.calls if "POST" == call[0]]
    assert "look at it first" in desk.state.message
    now[0] += approvals_watch.LOOK_S
    desk.press("a")

    assert ["/api/requests/2/approve"] == [path for method, path, _ in connection.calls if "POST" == method]


def test_views_come_and_go() -> None:
    desk = WatchKeys(cast("OperatorConnection", PlayedConnection()))
    desk.reload()
    for key, view in (("?", "help"), ("?", "pending"), ("l", "recent"), ("q", "pending"), ("\r", "one"),
                      ("q", "pending"), ("x", "pending")):
        assert desk.press(key)
        assert view == desk.state.view
    assert not desk.press("q")


class Routes:
    """A service that answers each route with what a test has put there."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[tuple[str, str, Any]]()

    def __call__(self, socket: str | None) -> Routes:
        return self

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, path, body))
        return self.answers[path]


def said(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], *words: str) -> tuple[int, str, Routes]:
    routes = Routes(answers)
    monkeypatch.setattr(approvals_command, "OperatorConnection", routes)
    result = CliRunner().invoke(cli, ["approvals", *words])
    return result.exit_code, result.output, routes


STATUS = {"uptime": 61.2, "remaining": None, "port": None, "pending": 3, "pending_by_category": {"git": 1, "exec": 2},
          "sandboxes": 1, "lost": 0, "trouble": "", "asks": ""}


def test_status_shows_the_state_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = said(monkeypatch, {"/api/status": STATUS}, "status")
    assert ["up         1m1s, no end", "page       none", "pending    3 (1 git, 2 exec)", "sandboxes  1",
            "record     written"] == out.splitlines()
    told = STATUS | {"remaining": 59.9, "port": 3700, "lost": 4, "trouble": "no space\x1b[2J", "asks": "no daemon"}
    _, out, _ = said(monkeypatch, {"/api/status": told}, "status")
    for line in ("up         1m1s, 1m left", "page       port 3700", "record     lacks 4 lines: no space\\x1b[2J",
                 "connections  not heard of: no daemon"):
        assert line in out.splitlines()
    assert told == json.loads(said(monkeypatch, {"/api/status": told}, "status", "--json")[1])


def test_modes_and_keys_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"exec.timeout": 60.0, "exec.profile": ""}
    assert "exec.timeout = 60\nexec.profile = \n" == said(monkeypatch, {"/api/config": config}, "config")[1]
    _, out, routes = said(monkeypatch, {"/api/config": config}, "config", "exec.timeout", "60")
    assert ("exec.timeout = 60\n", [("PUT", "/api/config", {"key": "exec.timeout", "value": 60.0})]) == (
        out, routes.asked)
    assert 0 != said(monkeypatch, {"/api/config": config}, "config", "exec.timeuot")[0]
    _, _, routes = said(monkeypatch, {"/api/modes": {}}, "mode", "git", "deny-all")
    assert [("PUT", "/api/modes", {"category": "git", "mode": "deny-all"})] == routes.asked
    assert 2 == said(monkeypatch, {}, "mode", "git", "sometimes")[0]


def test_rules_are_shown_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"rule": "exec(ls)", "project": "", "never_matches": False}
    found = {"forbidden": [one], "endpoints": ["example.org"], "deny": [one | {"project": "/p"}],
             "allow": [one | {"never_matches": True}], "modes": {"git": "deny-all"}}
    assert ["forbid exec(ls)  for good, by the configuration",
            "allow  example.org and what is below it, by the configuration", "deny   exec(ls)  in /p",
            "allow  exec(ls)  everywhere  (never matches)", "mode   git = deny-all"] == said(
        monkeypatch, {"/api/rules": found}, "rules")[1].splitlines()


def test_a_rule_that_never_matches_is_reported(monkeypatch: pytest.MonkeyPatch,
                                               capfd: pytest.CaptureFixture[str]) -> None:
    made = {"never_matches": True, "resolution": {"rule": "exec(*)", "project": ""}}
    for never_matches in (True, False):
        code, _, _ = said(monkeypatch, {"/api/rules": made | {"never_matches": never_matches}}, "allow", "exec")
        assert (0, never_matches) == (code, "this rule never matches" in capfd.readouterr().err)


def test_a_failed_request_says_why() -> None:
    assert line_of(row(1, title="b", status="approved", stage="failed", note="fatal: no such remote")).endswith(
        " d  b  - fatal: no such remote")


def test_a_row_says_project_agent_what_and_how_long_ago() -> None:
    said = line_of(row(7, title="src/a.py", category="filesystem", action="rename", project="/home/me/shop", asker="claude",
                       created=time.time() - 185))
    assert "    7  filesystem  rename    pending     shop, claude, 3 min  src/a.py" == said
    ended = line_of(row(8, status="approved", stage="applied", note="exit status 1"))
    assert 1 == ended.count("  exit status 1  ") == ended.count("exit status")


def test_requests_are_not_shown_twice() -> None:
    """At the end of a run: its notes are those of a moment before, and its requests are new."""
    notes = [{"path": f"a{number}", "kind": kind, "why": "so\x1b[2J", "request": number or None}
             for number, kind in enumerate(("conflict", "asked", "denied", "refused"))]
    sandbox = {"sandbox": "box", "sync": {"notes": notes, "more": 2, "trouble": ""}}

    assert ["conflict: a0: so\\x1b[2J", "denied: a2: so\\x1b[2J (request 2)", "2 more"] == note_lines(
        sandbox, ("conflict", "denied"))
    assert 5 == len(note_lines(sandbox))
    assert [] == note_lines({"sandbox": "box", "sync": None})


def test_all_pending_requests_of_a_category_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those beyond one answer of the service, and behind many of another category."""
    pending = [row(number, category="exec" if number <= 600 else "filesystem") for number in range(1, 1801)]
    decided = list[Any]()

    def call(_self: object, method: str, path: str, body: Any = None) -> Any:
        if method == "POST":
            decided.append(body)
            return {}
        given = dict(each.split("=") for each in path.partition("?")[2].split("&"))
        found = [each for each in pending if each["id"] > int(given["after"])
                 and given.get("category") in (None, each["category"])]
        return {"requests": found[:min(500, int(given["limit"]))]}

    monkeypatch.setattr(OperatorConnection, "call", call)
    got = CliRunner().invoke(cli, ["approvals", "approve", "--all", "filesystem"])
    assert (0, [{"approved": True, "category": "filesystem", "upto": 1800}]) == (got.exit_code, decided), got.output
    got = CliRunner().invoke(cli, ["approvals", "list"])
    assert 1800 == len(got.output.splitlines())


def test_of_each_request_it_is_said_what_happened(monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    said = list[str]()
    monkeypatch.setattr(approvals_command, "complain", said.append)
    decided = [row(1, action="add", title="a\x1b", status="approved", stage="applied"),
               row(2, action="change", title="b", status="denied", stage="failed", note="the file was changed"),
               row(3, status="denied")]
    assert 1 == approvals_command.resolved({"decided": decided, "before": [row(4, status="denied", decided_by="page")],
                                            "unknown": [5]})
    out = capsys.readouterr().out
    assert ["    1  approved, done  add a\\x1b", "    2  failed  change b: the file was changed",
            "    3  denied  run ls"] == out.splitlines()
    assert ["4 was denied before, by page", "there is no request 5"] == said
    assert 0 == approvals_command.resolved({"decided": decided[:1], "decided_count": 301})
    assert capsys.readouterr().out.endswith("\nand 300 more\n")


@pytest.mark.parametrize(("argv", "env", "lasts"), [
    (["--max-uptime", "90000"], {}, 90.0), ([], {"MAX_UPTIME": "1500"}, 1.5), ([], {"MAX_UPTIME": "4h"}, 14400.0),
    (["--max-uptime", "1h"], {"MAX_UPTIME": "4h"}, 3600.0), ([], {}, None)])
def test_the_time_of_the_service_is_also_in_milliseconds_and_in_the_environment(
        monkeypatch: pytest.MonkeyPatch, argv: list[str], env: dict[str, str], lasts: float | None) -> None:
    serving = pytest.importorskip("leeward.apps.approvals.serving")
    found = list[Any]()
    monkeypatch.delenv("MAX_UPTIME", raising=False)
    monkeypatch.setattr(serving, "serve", lambda options, ready: found.append(options.lasts) or 0)
    assert 0 == CliRunner().invoke(cli, ["approvals", "serve", *argv], env=env).exit_code
    assert [lasts] == found
    assert 2 == CliRunner().invoke(cli, ["approvals", "serve"], env={"MAX_UPTIME": "soon"}).exit_code

"""The command line of `leeward agent start`."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.errors import BadRequest, RequestRejected
from leeward_cli import agent_start, denied_hosts, passing
from leeward_cli.main import main
from leeward_cli.options import UsageError

NOTHING: dict[str, Any] = {
    "path": ".", "arguments": (), "socket": None, "debug": False, "overlay": False, "applied": None, "approved": False,
    "profile": "", "image": "", "rebuild": False, "unrestricted_network": False, "dump_network_access": None, "libraries": (),
    "ports": (), "persist": False,
    "egress": "", "trust_project": False, "timeout": None, "memory": "", "terminal": None, "raw": False}

RIGHT: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (["claude"], {}),
    (["claude", "dir", "--", "-p", "do it", "--debug"], {"path": "dir", "arguments": ("-p", "do it", "--debug")}),
    (["claude", "--", "--memory"], {"arguments": ("--memory",)}),
    (["claude", "--", "--", "x"], {"arguments": ("--", "x")}),
    (["claude", "dir", "word", "--", "more"], {"path": "dir", "arguments": ("word", "more")}),
    (["--debug", "claude", "--raw"], {"debug": True, "raw": True}),
    (["claude", "--apply", "--no-apply"], {"applied": False}),
    (["claude", "--library", "a", "--library=b:/c:rw"], {"libraries": ("a", "b:/c:rw")}),
    (["claude", "--publish", "3000", "--publish=8080:80"], {"ports": ((3000, 0), (80, 8080))}),
    ([], {"name": ""}),
    (["."], {"name": ""}),
    (["~/dir/project"], {"name": "", "path": "~/dir/project"}),
    (["./claude", "word", "--", "more"], {"name": "", "path": "./claude", "arguments": ("word", "more")}),
    (["--debug", "--", "claude"], {"name": "", "debug": True, "arguments": ("claude",)}),
    (["claude", "--timeout=90", "--memory", "8G", "--no-terminal"],
     {"timeout": 90.0, "memory": "8G", "terminal": False}),
)

WRONG = (
    ["claude", "--publish", "0"], ["claude", "--publish", "1:2:3"], ["claude", "--publish", "65536"],
    ["claude", "--publish", ":1"], ["claude", "--publish", "\u0661"], ["claude", "-p"], ["claude", "--bug"],
    ["claude", "--debug=1"], ["claude", "--memory"],
    ["claude", "--timeout", "soon"], ["claude", "--timeout", "0"], ["claude", "--no-debug"],
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def start(name: str, path: str, arguments: tuple[str, ...], **options: Any) -> int:
        found.append({"name": name, "path": path, "arguments": arguments, **options})
        return 7

    monkeypatch.setattr(agent_start, "start", start)
    return found


@pytest.mark.parametrize(("argv", "given"), RIGHT, ids=[" ".join(argv) for argv, _ in RIGHT])
def test_a_valid_line_starts_the_agent_with_its_parameters(
        argv: list[str], given: dict[str, Any], started: list[dict[str, Any]]) -> None:
    assert 7 == main(["agent", "start", *argv])
    assert [NOTHING | {"name": "claude"} | given] == started


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_an_invalid_line_starts_nothing(argv: list[str], started: list[dict[str, Any]],
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["agent", "start", *argv])
    assert not started
    assert 1 == capsys.readouterr().err.count("Error: ")


ENDS: tuple[tuple[BaseException, int, str], ...] = (
    (UsageError("--rebuild: nothing"), 2, """Usage: leeward agent start [OPTIONS] [AGENT] [PATH] [-- ARGUMENTS...]
Try 'leeward agent start --help' for help.

Error: --rebuild: nothing
"""),
    (BadRequest("no such folder"), 1, "leeward: no such folder\n"),
)


@pytest.mark.parametrize(("error", "status", "said"), ENDS, ids=["usage", "refused"])
def test_a_refused_start_is_explained(error: Exception, status: int, said: str, monkeypatch: pytest.MonkeyPatch,
                                      capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def start(*_words: object, **_options: object) -> int:
        calls.append(1)
        raise error

    monkeypatch.setattr(agent_start, "start", start)
    assert status == main(["agent", "start", "claude"])
    assert ("", said) == capfd.readouterr()
    assert [1] == calls


def test_ctrl_c_ends_the_command_by_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_words: object, **_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent_start, "start", start)
    monkeypatch.setattr("leeward_cli.click_options.die_by", lambda name: (name, 130)[1])
    assert 130 == main(["agent", "start", "claude"])


def test_a_start_imports_no_other_command() -> None:
    program = ("import sys; from leeward_cli.main import main; main(['agent', 'start', '--help']);"
               " print(*sys.modules, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("Usage: leeward agent start")
    assert not {"leeward_cli.agent", "leeward_cli.full", "leeward_cli.agent_start"} & set(done.stderr.split())


def test_a_start_that_leaves_at_once_has_printed_everything() -> None:
    program = """
import click
from leeward_cli import agent_start, main

def start(*_words, **_options):
    print("x" * 200_000)
    click.echo("told", err=True)
    return 7

agent_start.start = start
main.main()
"""
    done = subprocess.run([sys.executable, "-I", "-c", program, "agent", "start", "claude"], capture_output=True,
                          text=True, check=False, timeout=60)
    assert (7, "x" * 200_000 + "\n", "told\n") == (done.returncode, done.stdout, done.stderr)


def test_the_collector_is_enabled_once_the_agent_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program looks for new names in the project for as long as the agent runs."""
    seen: list[bool] = []

    def start(*_words: object, **_options: object) -> int:
        seen.append(gc.isenabled())
        run: Any = SimpleNamespace(start=lambda *_: None, given_up=False, settings=SimpleNamespace(limits={}),
                                   box=SimpleNamespace(id="abc"), asks=False)
        return agent_start._attended(run, None, False, False, None, None, keep=False)

    def pass_on(_process: object, _raw: bool) -> int:
        seen.append(gc.isenabled())
        return 3

    monkeypatch.setattr(agent_start, "start", start)
    monkeypatch.setattr(passing, "pass_on", pass_on)
    monkeypatch.setattr(denied_hosts, "DeniedHosts", lambda *_: SimpleNamespace(follow=seen.count, sum_up=seen.copy))
    assert 3 == main(["agent", "start", "claude"])
    assert [False, True, True] == [*seen, gc.isenabled()]


def test_a_copy_whose_changes_can_not_be_listed_stays(capfd: pytest.CaptureFixture[str]) -> None:
    """As when they are more than are listed."""
    def diff() -> None:
        raise RequestRejected("more has changed than 100000 entries")

    run: Any = SimpleNamespace(box=SimpleNamespace(diff=diff), end_processes=lambda: None, keep_copy=lambda: "abc")
    with pytest.raises(RequestRejected):
        agent_start._changes(run, True)

    assert "the agent's copy stays for 10 minutes: `leeward diff abc`" in capfd.readouterr().err


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """A PATH with the programs *names*, and a home without anything."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o700)
    for variable, value in (("PATH", str(folder)), ("HOME", str(folder)), ("XDG_CONFIG_HOME", str(folder / "config"))):
        monkeypatch.setenv(variable, value)


def test_the_only_agent_that_is_installed_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, "codex", "bash")
    assert "codex" == agent_start.only_agent()


@pytest.mark.parametrize(("names", "why"), [(("codex", "claude"), "name one of claude, codex"), ((), "is installed")])
def test_none_or_several_agents_need_one(names: tuple[str, ...], why: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, *names)
    with pytest.raises(BadRequest, match=why):
        agent_start.only_agent()

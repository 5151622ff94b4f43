"""
The command line of `leeward agent start`: what is right is read as click reads it, and all else is left to click.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from leeward_cli import agent_start, passing
from leeward_cli.agent import agent
from leeward_cli.agent_line import START, parse_start
from leeward_cli.main import main

RIGHT = (
    ["claude"], ["claude", "."], ["claude", "dir", "--", "-p", "do it", "--debug"], ["claude", "--", "--version"],
    ["--debug", "claude", "."], ["claude", "--debug", "dir", "--raw"], ["claude", "-"],
    ["claude", ".", "--apply", "--overlay"], ["claude", ".", "--no-apply", "--overlay"],
    ["claude", "--apply", "--no-apply"],
    ["claude", ".", "--library", "a", "--library=b:/c:rw"], ["claude", "--timeout", "1.5"], ["claude", "--timeout=90"],
    ["claude", "--memory", "8G", "--memory=2G"], ["claude", "--terminal"], ["claude", "--no-terminal"],
    ["claude", "--profile", "big", "--egress", "e", "--socket", "/s", "--dump-network-access", "f"],
    ["claude", "--approved", "--unrestricted-network", "--trust-project", "--rebuild"], ["claude", "--", "--", "x"],
    ["claude", "dir", "word", "--", "more"], ["claude", "--library", "--debug"], ["claude", "", "--", ""],
)

WRONG = (
    [], ["--debug"], ["claude", "-p"], ["claude", "--debu"], ["claude", "--debug=1"], ["claude", "--memory"],
    ["claude", "--timeout", "soon"], ["claude", "--timeout", "0"], ["claude", "--timeout", "-1"], ["--help"], ["-h"],
    ["claude", ".", "--help"], ["claude", "--no-debug"], ["claude", "--no-apply=x"], ["--", "claude"],
)


def by_click(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}

    def start(name: str, path: str, arguments: tuple[str, ...], **options: Any) -> int:
        found.update(options, name=name, path=path, arguments=arguments)
        return 0

    monkeypatch.setattr(agent_start, "start", start)
    return found, CliRunner().invoke(agent, ["start", *argv]).exit_code


@pytest.mark.parametrize("argv", RIGHT, ids=" ".join)
def test_a_valid_line_is_parsed_as_click_parses_it(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found, status = by_click(argv, monkeypatch)
    assert 0 == status
    assert found == parse_start(argv)


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_an_invalid_line_is_left_to_click(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_start(argv) is None
    found, status = by_click(argv, monkeypatch)
    assert {} == found
    assert (0 if "-h" in argv or "--help" in argv else 2) == status or "-h" in argv


def test_the_agents_own_arguments_are_not_parsed() -> None:
    given = parse_start(["claude", "--", "--debug", "--memory"])
    assert given is not None
    assert (("--debug", "--memory"), ".", False, "") == (given["arguments"], given["path"], given["debug"],
                                                         given["memory"])


def test_the_help_has_each_option() -> None:
    text = CliRunner().invoke(agent, ["start", "--help"]).output
    for option in START:
        assert option.name in text


def test_garbage_is_collected_once_the_agent_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its program looks for new names in the project for as long as the agent runs.
    """
    seen: list[bool] = []

    def start(**_given: object) -> int:
        seen.append(gc.isenabled())
        run: Any = SimpleNamespace(start=lambda *_: None, given_up=False, settings=SimpleNamespace(limits={}))
        return agent_start._attended(run, False, False, False, None)

    def pass_on(_process: object, _raw: bool) -> int:
        seen.append(gc.isenabled())
        return 3

    monkeypatch.setattr(agent_start, "start", start)
    monkeypatch.setattr(passing, "pass_on", pass_on)
    assert 3 == main(["agent", "start", "claude"])
    assert [False, True, True] == [*seen, gc.isenabled()]

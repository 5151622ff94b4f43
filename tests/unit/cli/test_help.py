"""The help: commands in groups, each with a whole sentence; `leeward help`."""

from __future__ import annotations

import pytest

from leeward_cli import full
from leeward_cli.click_options import sentence
from leeward_cli.main import main


def test_every_command_is_in_one_group() -> None:
    grouped = [name for _, names in full.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(full.commands())


def test_each_command_is_told_by_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for _, title in ((name, title) for name, (title, _) in full.GROUPS.items()):
        assert f"{title}: " in said
    for command in full.commands().values():
        assert sentence(command).endswith(".")
        assert sentence(command) in said
    assert "..." not in said.replace("[ARGS]...", "")


@pytest.mark.parametrize(("topic", "begins"), [
    ((), "Usage: leeward [OPTIONS]"), (("agents",), "Agents and approvals:"),
    (("sandbox",), "Usage: leeward sandbox [OPTIONS]"),
    (("agent", "start"), "Usage: leeward agent start [OPTIONS] [AGENT]"), (("exec",), "Usage: leeward exec [OPTIONS]")])
def test_help_of_a_group_and_a_command(topic: tuple[str, ...], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["help", *topic])
    assert capsys.readouterr().out.startswith(begins)


@pytest.mark.parametrize(("topic", "why"), [
    (("sanbox",), "'sanbox'; did you mean sandbox?"), (("agent", "strat"), "'agent strat'; did you mean start?"),
    (("exec", "x"), "no command 'exec x'")])
def test_what_is_no_topic_is_named(topic: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["help", *topic])
    assert why in capsys.readouterr().err

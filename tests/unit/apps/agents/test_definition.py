"""Definitions of agents: ours, and a user's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from leeward.apps.agents.definition import OURS, definition_names, load_definition, parse_definition
from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError

NAMES = ("aider", "claude", "codex", "copilot", "gemini", "goose", "opencode", "qwen", "shell")


def test_the_package_has_all_built_in_definitions():
    assert NAMES == definition_names("/none")


@pytest.mark.parametrize("name", NAMES)
def test_built_in_definitions_load(name):
    found = load_definition(name, "/none")

    assert name == found.name
    assert found.about
    assert found.command
    for secret in found.secrets:
        # Where it can't go it is of no use.
        assert set(secret.hosts) <= set(found.hosts)
        # What the broker keeps isn't passed by the side.
        assert not any(secret.variable == each or (each.endswith("*") and secret.variable.startswith(each[:-1]))
                       for each in found.pass_environment)
    for entry in found.hosts:
        # With a port, anything that isn't HTTP or TLS would pass on it.
        assert all(not rule.port for rule in parse_entry(entry))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "shell"])
def test_built_in_definitions_date_their_facts(name):
    text = (Path(OURS) / name / "agent.toml").read_text()

    assert text.startswith("# ")
    assert "as of 20" in text or "of 2026-" in text.replace("\n# ", " ")
    assert load_definition(name, "/none").install.page.startswith("https://")


def test_the_definition_of_claude_has_its_hosts_and_state():
    found = load_definition("claude", "/none")

    assert {"api.anthropic.com", "claude.ai", "platform.claude.com"} == set(found.hosts)
    assert ("~/.claude",) == found.state
    assert ("~/.claude.json",) == found.staged
    assert {each.file for each in found.answers} == {*found.staged}
    assert {"CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY"} <= {secret.variable for secret in found.secrets}


def test_a_folder_makes_an_agent(tmp_path):
    (tmp_path / "agents" / "mine").mkdir(parents=True)
    (tmp_path / "agents" / "mine" / "agent.toml").write_text(
        'command = ["mine", "--fast"]\nhosts = ["api.example.org"]\nstate = ["~/.mine"]\n'
        '[secrets]\nMY_KEY = ["api.example.org"]\n[hooks]\nsetup = "x"\n')

    found = load_definition("mine", str(tmp_path))

    assert ("mine", "--fast") == found.command
    assert ("x",) == found.hooks.setup
    assert "mine" in definition_names(str(tmp_path))


def test_a_users_definition_replaces_a_built_in_one(tmp_path):
    (tmp_path / "agents" / "claude").mkdir(parents=True)
    (tmp_path / "agents" / "claude" / "agent.toml").write_text('command = ["my-claude"]')

    assert ("my-claude",) == load_definition("claude", str(tmp_path)).command


@pytest.mark.parametrize(("name", "said"), [
    ("claud", "did you mean claude?"), ("zzz", "there are aider, claude"), ("../claude", "there is no agent"),
    ("a/b", "there is no agent"), ("", "there is no agent"), ("x\n", "there is no agent 'x\\n'"),
])
def test_an_unknown_agent_is_named_with_the_nearest(name, said):
    with pytest.raises(SettingsError) as error:
        load_definition(name, "/none")

    assert said in str(error.value)


@pytest.mark.parametrize(("text", "said"), [
    ("", "command: is missing"),
    ("command = []", "command: is missing"),
    ('comand = ["x"]', "comand: unknown; did you mean command?"),
    ('command = ["x"]\nhosts = ["*.com"]', "public suffix"),
    ('command = ["x"]\nstate = ["~"]', "a valid path"),
    ('command = ["x"]\nstate = ["~/"]', "a valid path"),
    ('command = ["x"]\nstate = ["~/../x"]', "a valid path"),
    ('command = ["x"]\nstate = ["x"]', "a valid path"),
    ('command = ["x"]\nstaged = ["~other/x"]', "a valid path"),
    ('command = ["x"]\nprograms = ["/"]', "a valid path"),
    ('command = ["x"]\nprograms = ["/proc/self"]', "never shown"),
    ('command = ["x"]\nbase_urls = ["a b"]', "the name of a variable"),
    ('command = ["x"]\n[[answers]]\nfile = "x"\nkeys = ["a"]', "answers[0]: 'x' isn't a valid path"),
    ('command = ["x"]\n[[answers]]\nfile = "~/x"\nat = "~"\nkeys = ["a"]', "a valid path"),
    ('command = ["x"]\n[[answers]]\nfile = "~/x"', "tables with `file` and `keys`"),
    ('command = ["x"]\nanswers = ["~/x"]', "tables with `file` and `keys`"),
    ('command = ["x"]\npass_environment = ["*"]', "the name of a variable"),
    ('command = ["x"]\npass_environment = ["A-B"]', "the name of a variable"),
    ('command = ["x"]\n[secrets]\nA = ["a:443"]', "the name of a host"),
    ('command = ["x"]\n[secrets]\nA = ["10.0.0.1"]', "the name of a host"),
    ('command = ["x"]\n[secrets]\n"A B" = ["a"]', "the name of a variable"),
    ('command = ["x"]\n[hooks]\nsetup_hosts = []', "did you mean hooks.setup_host?"),
])
def test_a_definition_that_cant_be_used_says_why(text, said):
    with pytest.raises(SettingsError) as error:
        parse_definition("x", tomllib.loads(text), "/c/agents/x/agent.toml")

    assert said in str(error.value)
    assert str(error.value).startswith("/c/agents/x/agent.toml: ")

"""docs/agents-settings.md says what there is: its examples are read, and its tables are tried."""

from __future__ import annotations

import re
import tomllib

import pytest

from kit.features import ROOT
from leeward.apps.agents import definition, settings
from leeward.apps.agents.definition import parse_definition
from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.settings import merged_settings
from leeward.spec.folders import SECRET_FILES

PAGE = (ROOT / "docs" / "agents-settings.md").read_text()
DEFINITION, SETTINGS = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[:2])


def keys(table, place=""):
    for name, value in table.items():
        yield from keys(value, f"{place}{name}.") if isinstance(value, dict) else [place + name]


def test_the_definition_of_the_page_is_one():
    found = parse_definition("mine", DEFINITION, "/f")

    assert {*definition.KEYS} == {*DEFINITION}
    assert found.secrets


def test_the_settings_of_the_page_are_some():
    found = merged_settings({}, SETTINGS, "/u", "/p/.leeward/agent.toml", "/p", {"HOME": "/h", "MY_TOKEN": "x"})

    assert () == found.warnings
    assert {*keys(settings.KEYS)} == set(keys({**SETTINGS, "environment": 1, "agents": 1}))


def rows(heading):
    table = PAGE.partition(heading)[2].partition("\n\n")[2].partition("\n\n")[0]
    return [re.findall(r"`([^`]*)`", line.split(" | ")[0]) for line in table.splitlines()[2:]]


@pytest.mark.parametrize("entry", [entry for row in rows("### Network entries") for entry in row])
def test_an_entry_of_the_page_is_good(entry):
    assert parse_entry(entry)


@pytest.mark.parametrize("entry", [
    entry.strip('"') for row in rows("These entries are refused:") for entry in row])
def test_an_entry_of_the_page_is_bad(entry):
    with pytest.raises(SettingsError):
        parse_entry(entry)


def test_the_page_names_the_hidden_patterns():
    assert "`.env`, `.env.*`, `.env[~_-]*`, `.envrc`, `*.env`, `*.env.*` and `*.env~` are hidden" in PAGE
    assert {".env", ".env.*", ".env[~_-]*", ".envrc", "*.env", "*.env.*", "*.env~"} == {
        each.replace("ENV", "env").replace("Env", "env") for each in SECRET_FILES}  # the page says so of other spellings

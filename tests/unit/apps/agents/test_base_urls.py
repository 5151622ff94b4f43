"""Variables that lead an agent to another host."""

from __future__ import annotations

import pytest

from leeward.apps.agents.base_urls import unlisted
from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.settings import AgentSettings

DEFINITION = AgentDefinition("a", hosts=("api.example.org", "*.near.example.org"), base_urls=("BASE",))


def rules(value: str, *allowed: str, definition: AgentDefinition = DEFINITION, **own: str) -> list[str]:
    settings = AgentSettings(allow=tuple(rule for each in allowed for rule in parse_entry(each)), environment=own)
    return [rule.text for _, rule in unlisted(definition, settings, {"BASE": value})]


@pytest.mark.parametrize(("value", "rule"), [
    ("https://proxy.example.net", "proxy.example.net"), ("https://proxy.example.net:443/v1", "proxy.example.net"),
    ("HTTP://proxy.example.net:8080/?a=b", "proxy.example.net:8080"), ("http://10.0.0.1:8080", "10.0.0.1:8080"),
    ("http://[::1]:8080/", "[::1]:8080"), ("http://[::1]", "::1"),
    ("https://user:word@evil.example.net/", "evil.example.net"),
    ("https://api.example.org:8443", "api.example.org:8443"), ("https://near.example.org", "near.example.org"),
])
def test_a_host_that_is_not_listed_is_named(value: str, rule: str) -> None:
    assert [rule] == rules(value)


@pytest.mark.parametrize("value", ["", "https://api.example.org/v1", "http://API.example.org:80", "https://x.near.example.org"])
def test_a_host_of_the_agents_own_is_not(value: str) -> None:
    assert [] == rules(value)


def test_hosts_and_values_of_the_settings_count() -> None:
    assert [] == rules("http://10.1.2.3:8080", "10.0.0.0/8:8080")
    assert ["10.1.2.3:8080"] == rules("http://10.1.2.3:8080", "10.0.0.0/8")
    assert [] == rules("https://proxy.example.net", BASE="")
    assert ["other.example.net"] == rules("https://api.example.org", BASE="https://other.example.net")


@pytest.mark.parametrize("value", ["proxy.example.net", "ftp://a.example.org", "https://", "https:///x", "https://*",
                                   "https://a b/"])
def test_what_is_no_url_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="BASE"):
        rules(value)

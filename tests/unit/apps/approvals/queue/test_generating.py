"""The rule that "always" stores for a request."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.apps.approvals.queue.rules import generate_rule, parse_rule
from leeward.apps.approvals.queue.subjects import (
    RuleSubject,
    branch,
    endpoint,
    invocation,
    package,
    project_path,
    sandbox_action,
)
from leeward.errors import BadRequest, Unsupported
from leeward.spec import domains
from leeward.spec.domains import registrable, shared_below

ROWS: tuple[tuple[RuleSubject, str], ...] = (
    (endpoint("a.example.co.uk", 443), "network(*.example.co.uk)"),
    (endpoint("example.com"), "network(*.example.com)"),
    (endpoint("x.y.alice.github.io"), "network(*.alice.github.io)"),  # others' pages are others'
    (endpoint("github.io"), "network(github.io)"),
    (endpoint("co.uk"), "network(co.uk)"),
    (endpoint("localhost"), "network(localhost)"),
    (endpoint("a.b\u00fccher.example"), "network(*.xn--bcher-kva.example)"),
    (endpoint("192.0.2.7", 80), "network(192.0.2.7)"),
    (endpoint("2001:db8::7", 80), "network([2001:db8::7])"),
    (project_path("src/a.py"), "filesystem(/src/*)"),
    (project_path("README.md"), "filesystem(/README.md)"),
    (invocation("bun test 'a  b'"), "exec(bun test a\\ \\ b)"),
    (invocation(["ls", "", "*", "a'b"]), "exec(ls '' \\* a\\'b)"),
    (package("npm", "@types/node", "1.2"), "packages(npm:@types/node@1.2)"),
    (package("pip", "Flask"), "packages(pip:flask)"),
    (branch("feature/a"), "git(feature/a)"),
    (sandbox_action("open data"), "sandbox(open data)"),
)


@pytest.mark.parametrize(("subject", "text"), ROWS, ids=[row[1] for row in ROWS])
def test_always_generates_a_rule_that_matches_the_subject(subject: RuleSubject, text: str) -> None:
    for effect in ("allow", "deny"):
        rule = generate_rule(subject, effect)
        assert text == rule.text
        assert rule.matches(subject)
        assert rule == parse_rule(text, effect)


@pytest.mark.parametrize(("name", "allowed", "denied"), [
    ("lh3.googleusercontent.com", "lh3.googleusercontent.com", None), ("a.trycloudflare.com", None, None),
    ("storage.googleapis.com", "storage.googleapis.com", None), ("hooks.slack.com", "hooks.slack.com", "*.slack.com"),
    ("x.azure.com", "x.azure.com", "*.azure.com"), ("a.nip.io", "a.nip.io", None),
    ("e.example.com", "*.example.com", "*.example.com")])
def test_always_allows_no_names_that_are_anybodys(name: str, allowed: str | None, denied: str | None) -> None:
    """The list is that of agents' settings."""
    rule = generate_rule(endpoint(name), "allow")
    assert allowed is None or f"network({allowed})" == rule.text
    assert denied is None or f"network({denied})" == generate_rule(endpoint(name), "deny").text
    assert rule.matches(endpoint(name))
    domain = registrable(name)
    if not (domain and not shared_below(domain)):
        assert not rule.matches(endpoint(f"other.{domain or name}"))


@pytest.mark.parametrize("path", [".git/config", ".git/hooks/pre-commit", "sub/.git/config", "x/.GIT/a", ".git"])
def test_always_allows_no_file_of_gits(path: str) -> None:
    with pytest.raises(BadRequest, match="git runs or obeys"):
        generate_rule(project_path(path), "allow")
    assert generate_rule(project_path(path), "deny").matches(project_path(path))


@pytest.mark.parametrize("subject", [invocation("a; b"), invocation(["a", "b\n"]), invocation(["a", "\u202eb"]),
                                     project_path("a/b\x1b[2J/c"), project_path("a*/b"), project_path("a/*.py"),
                                     project_path("a/b\u3164/c"), sandbox_action("a\u2800b")])
def test_an_unreadable_rule_is_not_stored(subject: RuleSubject) -> None:
    with pytest.raises(BadRequest):
        generate_rule(subject, "allow")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.text(alphabet="ab '\"\\*$;-", max_size=5), min_size=1, max_size=4),
       st.lists(st.text(alphabet="ab '\"\\*$;-", max_size=5), min_size=1, max_size=4))
def test_a_generated_command_is_that_command_alone(first: list[str], second: list[str]) -> None:
    try:
        one, other = invocation(first), invocation(second)
        rule = generate_rule(one, "allow")
    except BadRequest:
        return

    assert rule.matches(one)
    assert rule.matches(other) is (first == second)


def test_a_domain_can_be_registered() -> None:
    """No rule that is made covers a whole public suffix."""
    for suffix in ("com", "co.uk", "github.io", "s3.amazonaws.com", "kawasaki.jp", "appspot.com"):
        assert suffix != registrable(f"x.y.{suffix}")
        assert str(registrable(f"x.y.{suffix}")).endswith(f".{suffix}")
    assert "city.kawasaki.jp" == registrable("x.y.city.kawasaki.jp")  # the list's own exception


def test_without_the_list_of_suffixes_no_domain_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "publicsuffixlist", None)
    domains._suffixes.cache_clear()
    try:
        with pytest.raises(Unsupported, match="leeward\\[approvals\\]"):
            generate_rule(endpoint("a.example.org"), "allow")
        assert "network(192.0.2.7)" == generate_rule(endpoint("192.0.2.7"), "allow").text
    finally:
        domains._suffixes.cache_clear()

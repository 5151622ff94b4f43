"""Subjects: every way to write one thing gives one thing, and what is none is refused."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.apps.approvals.queue.subjects import (
    Invocation,
    NamedPackage,
    branch,
    endpoint,
    invocation,
    package,
    plain_words,
    project_path,
    sandbox_action,
)
from leeward.errors import BadRequest

LINKS = {"link": "src", "src/up": "../docs", "loop": "loop", "a": "b/c", "b/c": "../src/./x", "out": "../..",
         "root": "/etc", "two": "link/up", "self": "."}


@pytest.mark.parametrize(("path", "found"), [
    ("a.txt", "a.txt"), ("./a.txt", "a.txt"), ("x/../a.txt", "a.txt"), ("x//y/./z", "x/y/z"), ("x/y/", "x/y"),
    ("link/f", "src/f"), ("link/up/f", "docs/f"), ("a/f", "src/x/f"), ("two/f", "docs/f"), ("self/self/f", "f"),
    ("link/../f", "f"), ("\udcff/f", "\udcff/f")])
def test_a_path_has_one_form(path: str, found: str) -> None:
    assert found == project_path(path, LINKS.get).path
    assert found == project_path(found, LINKS.get).path


@pytest.mark.parametrize("path", ["", ".", "/", "/etc/passwd", "..", "a/../..", "x/../../y", "../project/a", "loop",
                                  "loop/x", "out/x", "root/passwd", "self", "a\0b", "x" * 4097])
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        project_path(path, LINKS.get)


def test_many_links_come_to_an_end() -> None:
    """Also those that double at each step."""
    doubling = {f"l{place}": f"l{place + 1}/l{place + 1}" for place in range(60)}

    with pytest.raises(BadRequest, match="no end"):
        project_path("l0", doubling.get)


@pytest.mark.parametrize(("line", "words"), [
    ("ls -l", ("ls", "-l")), ("  ls\t-l ", ("ls", "-l")), ("echo 'a  b' \"c d\"", ("echo", "a  b", "c d")),
    ("echo ''", ("echo", "")), ("a'b'\"c\"", ("abc",)),
    ("echo 'a;b$(c)'", ("echo", "a;b$(c)")), ("x a=b", ("x", "a=b")),
    ("echo \u00e9", ("echo", "\u00e9"))])
def test_a_plain_line_is_its_words(line: str, words: tuple[str, ...]) -> None:
    assert Invocation(words) == invocation(line)
    assert list(words) == shlex.split(line)


@pytest.mark.parametrize("line", ["a; b", "a && b", "a | b", "a $x", "a `b`", "a \"$x\"", "a > b", "a < b", "a & b",
                                  "a *", "a ?", "a [b]", "a {b,c}", "~/x", "a # b", "A=b c",
                                  "a\nb", "a 'b\nc'", "a\\ b",
                                  "a 'b", "a\rb", "'' a", "!x", "a\x1bb"])
def test_any_other_line_stays_one(line: str) -> None:
    assert Invocation((), line) == invocation(line)


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="ab '\"\\$`;*\n\t=-", max_size=12))
def test_a_plain_line_is_read_as_a_shell_would(line: str) -> None:
    """By the standard library's reading, which knows quotes and nothing else."""
    words = plain_words(line)
    if words is not None:
        assert list(words) == shlex.split(line, comments=False)


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "x" * 70000, [], [""], ["a\0"],
                                     ["a"] * 1025, ["a", "x" * 70000]])
def test_a_malformed_command_is_refused(command: str | list[str]) -> None:
    with pytest.raises(BadRequest):
        invocation(command)


def test_arguments_stay_as_they_are() -> None:
    assert Invocation(("a b", "; c")) == invocation(["a b", "; c"])


@pytest.mark.parametrize(("manager", "name", "version"), [
    ("apt", "x", ""), ("npm", "", ""), ("npm", "-g", ""), ("npm", "../x", ""), ("npm", "a/b", ""),
    ("npm", "@a/b/c", ""),
    ("npm", "x y", ""), ("npm", "https://x", ""), ("npm", "git+ssh://x", ""),
    ("npm", "x" * 215, ""), ("pip", "a/b", ""),
    ("pip", "-r", ""), ("pip", "a[b]", ""), ("pip", "./x", ""), ("cargo", "a.b", ""), ("cargo", "--git", ""),
    ("npm", "x", "latest; x"), ("npm", "x", "-1"), ("npm", "x", "1" * 200), ("npm", "x\n", ""), ("npm", "\u0430", "")])
def test_a_malformed_package_is_refused(manager: str, name: str, version: str) -> None:
    with pytest.raises(BadRequest):
        package(manager, name, version)


def test_packages_have_one_form() -> None:
    assert NamedPackage("pip", "foo-bar") == package("pip", "Foo__Bar") == package("pip", "foo.-bar")
    assert package("npm", "JSONStream") != package("npm", "jsonstream")


@pytest.mark.parametrize("name", ["", "-x", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/",
                                  "a//b",
                                  "a.lock", ".a", "a/.b", "@", "a@{1}", "refs/tags/x", "a\n", "a\x7f", "x" * 256, "a."])
def test_a_malformed_branch_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        branch(name)


def test_no_endpoint_and_no_action() -> None:
    for host, port in (("", 0), ("a b", 0), ("x", 70000), ("x", -1), ("1.2.3.4.5", 0)):
        with pytest.raises(BadRequest):
            endpoint(host, port)
    for text in ("", "a\nb", "a\u202eb", "x" * 5000):
        with pytest.raises(BadRequest):
            sandbox_action(text)

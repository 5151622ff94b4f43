"""
Random states of programs, taken and loaded: a copy goes on as the process goes on that it is a copy of.

With LEEWARD_LONG=1 a thousand of them.
"""

from __future__ import annotations

import ast
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import leeward
from kit import packages, states
from kit.live_daemon import LiveDaemon

pytestmark = pytest.mark.needs("x86-64")

LONG = bool(os.environ.get("LEEWARD_LONG"))
SEEDS = 1000 if LONG else 6

DAEMON = ("--pool-size", "3")


def differences(one: leeward.Result, other: leeward.Result) -> list[tuple[object, object]]:
    assert one.ok, one.stderr_text
    assert other.ok, other.stderr_text
    pairs = zip(ast.literal_eval(str(one.value)), ast.literal_eval(str(other.value)), strict=True)
    return [(left, right) for left, right in pairs if left != right]


def check(daemon: LiveDaemon, make: str, look: str) -> None:
    """What *make* has made: in a copy, in a copy of that, and after a rollback, for several looks."""
    before, _, last = look.rpartition("\n")
    look = f"{before}\n[(name, repr(value)) for name, value in {last}]"
    with leeward.Sandbox(socket=daemon.socket, memory="1G") as box:
        kernel = box.kernel()
        made = kernel.execute(make, timeout=60)
        assert made.ok, made.stderr_text
        with kernel.snapshot() as snapshot:
            copy = box.kernel(snapshot=snapshot)
            with copy.snapshot() as second:
                again = box.kernel(snapshot=second)
            for _ in range(3):
                mine = kernel.execute(look)
                assert not differences(mine, copy.execute(look))
                assert not differences(mine, again.execute(look))
            kernel.rollback(snapshot)
            first = kernel.execute(look)
            kernel.rollback(snapshot)
            assert not differences(first, kernel.execute(look))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_copy_goes_on_like_its_original(daemon: LiveDaemon, seed: int) -> None:
    """Of states of the standard library."""
    check(daemon, *states.program(seed, 24))


@pytest.mark.needs("real-packages")
def test_a_copy_of_packages_goes_on_like_its_original(shown_packages: Callable[..., Path], tmp_path: Path) -> None:
    """With numpy and pandas."""
    config = tmp_path / "config.toml"
    config.write_text(f'python_env = "{shown_packages(packages.PACKAGES)}"\n')
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon:
        for seed in range(SEEDS // 3):
            check(daemon, *states.program(seed, 12, {**states.PACKAGES, **dict(list(states.KINDS.items())[seed % 7::7])}))


def test_every_kind_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state can be made and looked at by itself, and looks don't raise."""
    monkeypatch.chdir(tmp_path)
    for make, look in states.KINDS.values():
        space = {"__name__": "__main__", "n": 3}
        exec(make, space)
        for _ in range(2):
            assert eval(look, space) is not None
        for each in space.values():
            if isinstance(each, (io.IOBase, sqlite3.Connection)):
                each.close()

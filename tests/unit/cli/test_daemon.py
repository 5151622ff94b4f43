"""
`leeward daemon run` without click: what it takes means what it means to click; click has all the rest.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from leeward_cli import full
from leeward_cli.daemon import OPTIONS, Option, plain

RUN: Any = full.daemon.commands["run"]


def by_click(argv: list[str]) -> dict[str, Any]:
    """
    The parameters that click finds, but for the one that this way doesn't know.
    """
    found: dict[str, Any] = dict(RUN.make_context("run", list(argv)).params)
    assert not found.pop("print_config")
    return found


def examples(option: Option) -> list[list[str]]:
    if bool is option.kind:
        return [[option.name], *([[f"--no-{option.name[2:]}"]] if option.off else [])]
    values = ["7"] if int is option.kind else list(option.kind) if isinstance(option.kind, tuple) else ["a b", "/x=y"]
    return [words for value in values for words in ([option.name, value], [f"{option.name}={value}"])]


@pytest.mark.parametrize("argv", [
    [], *(argv for option in OPTIONS for argv in examples(option)), ["--ready-fd=3"],
    ["--allow-degraded=landlock", "--allow-degraded", "cgroup"], ["--pool-size=1", "--pool-size=2"],
    ["--no-express", "--express"], ["--socket=", "--spares=0", "--log-json", "--no-rehearse"],
], ids=" ".join)
def test_it_means_what_it_means_to_click(argv: list[str]) -> None:
    """
    Each option, in each way to write it.
    """
    assert by_click(argv) == plain(argv)


@pytest.mark.parametrize("argv", [
    ["--help"], ["-h"], ["--print-config"], ["--pool"], ["--pool-siz=3"], ["--pool-size"], ["--io", "--log-json"],
    ["--pool-size=-1"], ["--pool-size=x"], ["--pool-size="], ["--io=epoll"], ["--io="], ["--log-json=yes"],
    ["--no-express=no"], ["--no-log-json"], ["--no-io"], ["word"], ["--"], ["-"], [""], ["--allow-degraded=seccomp"],
    ["--pool-size=\u0663"],
], ids=" ".join)
def test_the_rest_is_clicks(argv: list[str]) -> None:
    """
    Help, and whatever is to be complained of.
    """
    assert plain(argv) is None


def test_a_daemon_imports_little(tmp_path: Any) -> None:
    """
    What takes long to import, and isn't needed to serve.
    """
    heavy = ("click", "dataclasses", "inspect", "asyncio", "ssl", "ctypes", "logging", "leeward.isolation.host",
             "leeward.client")
    program = ("import sys; from leeward_cli.daemon import plain, configuration; import leeward.daemon.main;"
               f"configuration(**{{k: v for k, v in plain(['--socket={tmp_path}/s']).items() if k != 'ready_fd'}});"
               f"print([name for name in {heavy} if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "[]\n" == done.stdout

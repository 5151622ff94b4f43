"""The program `leeward` beside the Python command line: which options it takes by itself, and what they mean."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from leeward_cli.options import OPTIONS

#: A value of each kind.
VALUES = {"PATH": "/nowhere", "MODULE": "json", "S": "1.5", "SIZE": "64MiB", "K=V": "K=v", "N": "4",
          "HOST[:INSIDE]": "/nowhere", "PATTERN": "*", "REQUIREMENT": "x", "NAME": "x", "FOLDER": "/nowhere",
          "USER": "root"}

@pytest.fixture(scope="module")
def alone(c_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program where no Python one is beside it, so that a line that it hands over fails."""
    return Path(shutil.copy(c_build / "leeward", tmp_path_factory.mktemp("alone") / "leeward"))


def taken(program: Path, *words: str, **more: str) -> bool:
    """Does the C program serve this line? No daemon answers it."""
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, "LEEWARD_SOCKET": "/nowhere/leeward.sock", **more})
    assert 1 == done.returncode
    assert ("no daemon answers" in done.stderr) != ("which serves this command" in done.stderr), done.stderr
    return "no daemon answers" in done.stderr


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("command", ["exec", "ping"])
def test_every_option_is_taken_as_the_table_says(alone: Path, command: str, tmp_path: Path) -> None:
    """Once; in both forms of its value; no flag with a value, no value left out; twice where it may be repeated."""
    (tmp_path / "f").write_text("1")
    for option in OPTIONS[command]:
        is_source = option.name in ("--file", "-m")
        code = ("1",) if "exec" == command and not is_source else ()
        if not option.value:
            assert option.in_c == taken(alone, command, *code, option.name)
            assert not taken(alone, command, *code, f"{option.name}=yes")
            once = (option.name,)
        else:
            once = (option.name, str(tmp_path / "f") if "--file" == option.name else VALUES[option.value])
            assert option.in_c == taken(alone, command, *code, *once)
            assert option.in_c == taken(alone, command, *code, "=".join(once))
            assert not taken(alone, command, *code, option.name)
        assert (option.many and option.in_c) == taken(alone, command, *code, *once, *once)
        if option.short:
            assert taken(alone, command, *code, option.short, once[1])
            assert not taken(alone, command, *code, option.short, once[1], *once)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("line", [("exec", "1"), ("ping",)])
def test_another_machine_is_the_python_programs(alone: Path, line: tuple[str, ...]) -> None:
    host = {"LEEWARD_HOST": "https://lw.example"}

    assert taken(alone, *line, LEEWARD_HOST="")
    assert not taken(alone, *line, **host)
    assert taken(alone, *line, "--socket", "/nowhere", **host)
    assert taken(alone, *line, "--socket", "")
    assert not taken(alone, *line, "--socket", "ssh://lw.example")


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("line", [
    ("status",), ("status", "--json"), ("exec", "--json", "1"), ("ping", "--json"), ("ping", "word"),
    ("ping", "--", "x"),
    ("exec",), ("exec", "1", "2"), ("exec", "1", "--help"), ("exec", "1", "--timeout", "soon"),
    ("exec", "1", "--timeout", "1e1"), ("exec", "1", "--timeout", "0"), ("exec", "1", "--memory", "1.5G"),
    ("exec", "1", "--memory", "0"), ("exec", "1", "--env", "A"), ("exec", "1", "--env", "=b"), ("exec", "-", "--stdin"),
    ("exec", "--file", "/nowhere"), ("exec", "-m", "64"), ("exec", "1", "-h"), ("ping", "-t", "1"),
    ("exec", "job.py"), ("exec", "/etc/passwd"),
    ("ping", "--timeout", "1"), ("--version",), (),
])
def test_all_other_lines_are_pythons(alone: Path, line: tuple[str, ...]) -> None:
    """Other commands, JSON, mistakes, and values that only Python reads."""
    assert not taken(alone, *line)

"""The program `leeward` beside the Python command line: which options it takes by itself, and what they mean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.c_client import CLIENT
from leeward_cli.options import OPTIONS

#: What line.c calls the kind of value that options.py calls so.
KINDS = {"": "FLAG", "NAME": "TEXT", "PATH": "PATH", "MODULE": "TEXT", "S": "SECONDS", "SIZE": "SIZE", "K=V": "SETTING"}

#: The C type of a kind's field in struct lw_line. One of many is in an array.
TYPES = {"FLAG": "bool ", "PATH": "const char *", "TEXT": "const char *", "SECONDS": "double ", "SIZE": "uint64_t ",
         "SETTING": "const char **"}

#: A value of each kind.
VALUES = {"PATH": "/nowhere", "MODULE": "json", "S": "1.5", "SIZE": "64MiB", "K=V": "K=v", "N": "4",
          "HOST[:INSIDE]": "/nowhere", "PATTERN": "*", "REQUIREMENT": "x", "NAME": "x", "FOLDER": "/nowhere"}

#: Options that only the Python command line serves.
PYTHONS = {"--profile", "--package", "--show-secrets", "--egress", "--network", "--environment", "--json",
           "--processes", "--output", "--put", "--collect", "--into"}


def rows() -> list[tuple[str, str, str, str]]:
    """The table of line.c: name, kind, whether ping has it, field."""
    source = (CLIENT / "command" / "line.c").read_text()
    table = source.partition("} OPTIONS[] = {\n")[2].partition("\n};")[0]
    found = [re.fullmatch(r'\t\{"(.+)", ([A-Z]+), (true|false), offsetof\(struct lw_line, (\w+)\)\},', line)
             for line in table.splitlines()]
    assert found
    return [match.group(1, 2, 3, 4) for match in found if match is not None or pytest.fail(table)]


@pytest.mark.parametrize("command", ["exec", "ping"])
def test_the_table_is_that_of_python(command: str) -> None:
    """Every option of exec and ping but Python's own, by name, kind of value and whether it may be repeated."""
    wanted = {(option.name, KINDS[option.value], option.many) for option in OPTIONS[command]
              if option.name not in PYTHONS}
    ours = [(name, kind, "SETTING" == kind) for name, kind, of_ping, _ in rows()
            if "exec" == command or "true" == of_ping]

    assert wanted == set(ours)
    assert len(wanted) == len(ours)


def test_a_field_has_the_type_of_its_kind() -> None:
    """offsetof takes any: a double written over a pointer would go unseen."""
    declared = {}
    struct = (CLIENT / "command" / "exec.h").read_text().partition("struct lw_line {\n")[2].partition("\n};")[0]
    for line in struct.splitlines():
        names = re.fullmatch(r"\t((?:const )?\w+)\s([^;]+);.*", line)
        assert names is not None, line
        for name in names[2].split(", "):
            stars = re.match(r"\**", name.strip())
            assert stars is not None
            declared[name.strip().lstrip("*")] = f"{names[1]} {stars[0]}"

    assert {field: TYPES[kind] for _, kind, _, field in rows()} == {field: declared[field] for *_, field in rows()}
    assert len(rows()) == len({field for *_, field in rows()})


@pytest.fixture(scope="module")
def alone(c_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program where no Python one is beside it, so that a line that it hands over fails."""
    return Path(shutil.copy(c_build / "leeward", tmp_path_factory.mktemp("alone") / "leeward"))


def taken(program: Path, *words: str) -> bool:
    """Does the C program serve this line? No daemon answers it."""
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, "LEEWARD_SOCKET": "/nowhere/leeward.sock"})
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
            assert (option.name not in PYTHONS) == taken(alone, command, *code, option.name)
            assert not taken(alone, command, *code, f"{option.name}=yes")
            once = (option.name,)
        else:
            once = (option.name, str(tmp_path / "f") if "--file" == option.name else VALUES[option.value])
            assert (option.name not in PYTHONS) == taken(alone, command, *code, *once)
            assert (option.name not in PYTHONS) == taken(alone, command, *code, "=".join(once))
            assert not taken(alone, command, *code, option.name)
        assert (option.many and option.name not in PYTHONS) == taken(alone, command, *code, *once, *once)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("line", [
    ("status",), ("status", "--json"), ("exec", "--json", "1"), ("ping", "--json"), ("ping", "word"),
    ("ping", "--", "x"),
    ("exec",), ("exec", "1", "2"), ("exec", "1", "--help"), ("exec", "1", "--timeout", "soon"),
    ("exec", "1", "--timeout", "1e1"), ("exec", "1", "--timeout", "0"), ("exec", "1", "--memory", "1.5G"),
    ("exec", "1", "--memory", "0"), ("exec", "1", "--env", "A"), ("exec", "1", "--env", "=b"), ("exec", "-", "--stdin"),
    ("exec", "--file", "/nowhere"), ("exec", "job.py"), ("exec", "/etc/passwd"),
    ("ping", "--timeout", "1"), ("--version",), (),
])
def test_all_other_lines_are_pythons(alone: Path, line: tuple[str, ...]) -> None:
    """Other commands, JSON, mistakes, and values that only Python reads."""
    assert not taken(alone, *line)

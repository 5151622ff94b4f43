"""What a process is started with, as its keeper reads it; and what an end is told as."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.run.launch import (
    MOST_BYTES,
    MOST_STRING,
    MOST_STRINGS,
    Command,
    block,
    candidates,
    unstarted,
)
from leeward.errors import BadRequest

TEXT = st.binary(max_size=20).filter(lambda text: b"\0" not in text)


def test_a_block_has_the_folder_the_paths_the_arguments_and_the_environment() -> None:
    made = block(Command((b"ls", b"", b"-l"), {b"PATH": b"/a::/b", b"X": b""}, b"/tmp"))

    numbers = [int.from_bytes(made[at:at + 4], "little") for at in (0, 4, 8, 12)]
    strings = made[16:].split(b"\0")
    assert [3, 3, 2, len(made) - 16] == numbers
    assert [b"/tmp", b"/a/ls", b"./ls", b"/b/ls", b"ls", b"", b"-l", b"PATH=/a::/b", b"X=", b""] == strings


@pytest.mark.parametrize(("program", "env", "paths"), [
    (b"/bin/ls", {b"PATH": b"/a"}, [b"/bin/ls"]),
    (b"./ls", {}, [b"./ls"]),
    (b"ls", {}, [b"/bin/ls", b"/usr/bin/ls"]),
    (b"ls", {b"PATH": b""}, [b"./ls"]),
    (b"ls", {b"PATH": b"/a:/b/"}, [b"/a/ls", b"/b//ls"]),
])
def test_a_program_is_searched_in_path(program: bytes, env: dict[bytes, bytes], paths: list[bytes]) -> None:
    assert paths == list(candidates(program, env))


@pytest.mark.parametrize(("command", "says"), [
    (Command(()), "no program"),
    (Command((b"",)), "no program"),
    (Command((b"a",), cwd=b"b"), "absolute"),
    (Command((b"a",), cwd=b""), "absolute"),
    (Command((b"a",), {b"": b""}), "variable's name"),
    (Command((b"a",), {b"a=b": b""}), "variable's name"),
    (Command((b"a\0",)), "NUL"),
    (Command((b"a",), {b"a": b"\0"}), "NUL"),
    (Command((b"a",), cwd=b"/\0"), "NUL"),
    (Command((b"a",) * (MOST_STRINGS + 1)), f"{MOST_STRINGS} are taken"),
    (Command((b"a",), {b"PATH": b":" * MOST_STRINGS}), "PATH"),
    (Command((b"a", b"b" * (MOST_STRING + 1))), f"{MOST_STRING} are taken"),
    (Command((b"a", *((b"b" * MOST_STRING,) * 33))), f"{MOST_BYTES} are taken"),
])
def test_arguments_that_execve_cannot_take_are_a_bad_request(command: Command, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        block(command)


@given(st.lists(TEXT, min_size=1).filter(lambda argv: bool(argv[0])),
       st.dictionaries(TEXT.filter(lambda name: bool(name) and b"=" not in name), TEXT))
def test_no_string_runs_into_another(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    made = block(Command(tuple(argv), env))

    strings = made[16:].split(b"\0")
    paths = int.from_bytes(made[:4], "little")
    assert argv == strings[1 + paths:1 + paths + len(argv)]
    assert [name + b"=" + value for name, value in env.items()] == strings[1 + paths + len(argv):-1]


@pytest.mark.parametrize(("number", "layer", "code"), [
    (errno.ENOENT, "exec", 127), (errno.ENOTDIR, "exec", 127), (errno.EACCES, "exec", 126),
    (errno.ENOEXEC, "exec", 126), (errno.ENOENT, "cwd", 126),
])
def test_a_program_that_cannot_be_started_ends_as_in_a_shell(number: int, layer: str, code: int) -> None:
    end = unstarted(number, layer)

    assert (code, number, layer) == (os.waitstatus_to_exitcode(end.status or 0), end.refused, end.layer)

"""Command lines: what they mean, and which make no sense."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from leeward.spec.sizes import parse_size, size_text
from leeward_cli import job
from leeward_cli.messages import escape
from leeward_cli.options import OPTIONS, USAGE, UsageError, parse


def fields(*argv: str) -> dict[str, Any]:
    return job.request(parse("exec", argv))


def test_code_and_arguments() -> None:
    """Options on either side of the code; after -- everything is the job's."""
    assert {"code": b"print(1)", "args": []} == fields("print(1)")
    assert {"code": b"x", "args": ["--json", "-m", "--"], "limits": {"time": 2.0}} == \
        fields("--timeout", "2", "x", "--", "--json", "-m", "--")
    assert {"code": b"x", "args": [], "limits": {"memory": 1 << 30}} == fields("x", "--memory=1G")
    assert {"code": b"\xff", "args": []} == fields(os.fsdecode(b"\xff"))


def test_the_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module, a file by its own name, standard input."""
    script = tmp_path / "job.py"
    script.write_bytes(b"print(2)")
    read, written = os.pipe()
    os.write(written, b"print(3)")
    os.close(written)
    saved = os.dup(0)
    os.dup2(read, 0)
    try:
        from_stdin = fields("-")
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(read)

    assert {"module": "json.tool", "args": ["x"]} == fields("-m", "json.tool", "--", "x")
    assert {"code": b"print(2)", "name": "job.py", "args": []} == fields("--file", str(script))
    assert {"code": b"print(3)", "name": "<stdin>", "args": []} == from_stdin


def test_short_flags() -> None:
    assert {"code": b"x", "args": [], "limits": {"time": 2.0}} == fields("-t", "2", "x") == fields("x", "-t=2")
    assert "/s" == parse("ping", ["-s", "/s"]).value("--socket")
    with pytest.raises(UsageError, match="given twice"):
        parse("exec", ["-t", "1", "--timeout", "2"])


@pytest.mark.parametrize("command", ["exec", "run"])
def test_a_size_is_no_module(command: str) -> None:
    """Whoever knows -m from docker means memory."""
    with pytest.raises(UsageError, match="'64' is no module's name; a limit of memory is --memory 64"):
        parse(command, ["x", "-m", "64"])


@pytest.mark.parametrize("command", ["ping", "status"])
@pytest.mark.parametrize("words", [("a",), ("--", "a")])
def test_words_where_there_are_none(command: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{command} takes no arguments, not 'a'"):
        parse(command, words)


def test_environment_may_be_repeated() -> None:
    """A value may be empty, or hold more of the sign."""
    assert {"A": "b=c", "B": ""} == fields("x", "--env", "A=b=c", "--env=B=")["env"]


def test_every_limit_of_a_request() -> None:
    """By the names that the wire has."""
    assert {"time": 1.5, "memory": 1 << 26, "output": 1 << 20, "processes": 4} == fields(
        "x", "--timeout", "1.5", "--memory", "64M", "--output", "1MiB", "--processes", "4")["limits"]


def test_files_in_and_out(tmp_path: Path) -> None:
    """Contents go with the request; patterns are the daemon's to read."""
    (tmp_path / "a").write_bytes(b"1")
    asked = fields("x", "--put", f"{tmp_path}/a:b/c", "--collect", "*.png", "--collect", "d/**")

    assert ({"b/c": b"1"}, ["*.png", "d/**"]) == (asked["files"], asked["collect"])


@pytest.mark.parametrize("word", ["job.py", "./no/such/job.py", "script", "a/script"])
def test_a_path_in_place_of_code(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the option that was meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("script", "a/script"):
        (tmp_path / name).write_text("1")

    with pytest.raises(UsageError, match=f"--file {word}"):
        fields(word)


@pytest.mark.parametrize("code", ["print", "1/2", "x.y", "print('job.py')", "open('a.py').read()\n", ""])
def test_code_that_is_no_path(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are no file's, and whatever has more than a name in it."""
    monkeypatch.chdir(tmp_path)

    assert {"code": code.encode(), "args": []} == fields(code)


WRONG = [
    (), ("a", "b"), ("a", "-"), ("a", "-m", "b"), ("--file", "x", "-m", "y"), ("--file", "/nonexistent"),
    ("-", "--stdin"), ("a", "--bogus"), ("a", "-x"), ("a", "--timeout"), ("a", "--timeout", "soon"),
    ("a", "--timeout", "0"), ("a", "--timeout", "-1"), ("a", "--timeout", "nan"), ("a", "--timeout", "inf"),
    ("a", "--memory", "lots"), ("a", "--memory", ""), ("a", "--env", "A"), ("a", "--env", "=b"), ("a", "--json=yes"),
    ("a", "--timeout", "1", "--timeout", "2"), ("--", "a"), ("a", "--processes", "0"), ("a", "--processes", "two"),
    ("a", "--output", "much"), ("a", "--processes", "9" * 5000), ("-m", "64M"),
    ("a", "--put", "/nonexistent"), ("a", "--into", "."), ("job.py",),
]


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_contradictory_options_are_usage_errors(argv: tuple[str, ...]) -> None:
    """A usage error each."""
    with pytest.raises(UsageError):
        fields(*argv)


def test_run_has_execs_options() -> None:
    """The same but for the socket, and with the daemon's own two."""
    both = {option.name for option in OPTIONS["exec"]} & {option.name for option in OPTIONS["run"]}

    assert {"--environment", "--package", "--egress", "--network", "--profile", "--image", "--user", "--show-secrets",
            "--socket"} == {
        option.name for option in OPTIONS["exec"]} - both
    assert {"--config", "--allow-degraded"} == {option.name for option in OPTIONS["run"]} - both
    assert set(OPTIONS) == set(USAGE)


@pytest.mark.parametrize(("text", "size"), [
    ("0", 0), ("1024", 1024), ("64M", 64 << 20), ("64m", 64 << 20), ("1G", 1 << 30), ("512MiB", 512 << 20),
    ("512 MiB", 512 << 20), ("2k", 2048), ("1.5G", 3 << 29), ("1T", 1 << 40), ("5B", 5), ("2MB", 2_000_000),
])
def test_a_bare_letter_in_a_size_is_a_power_of_1024(text: str, size: int) -> None:
    """A bare letter is a power of 1024."""
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "M", "-1", "1e3", "1X", "1 000", "0x10", "1.", ".5", "1..5", "1.M", "\u0661",
                                  "1_000", "9" * 30, "1MM"])
def test_malformed_sizes_are_refused(text: str) -> None:
    """Other scripts' digits, signs and exponents among it."""
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 256 << 20, 1 << 30, (1 << 30) + 1])
def test_a_size_as_text_comes_back(size: int) -> None:
    """Without rounding."""
    assert size == parse_size(size_text(size))


def test_c114_escape_shows_control_characters() -> None:
    """All but newline and tab; ordinary text of any script stays."""
    hostile = "\x1b]52;c;QQ==\x07\r\x08\x7f\x9b31m\x00".encode() + b"\x9b\xff" + "é\t日本\n".encode()

    assert "\\x1b]52;c;QQ==\\x07\\x0d\\x08\\x7f\\x9b31m\\x00\\x9b\\xffé\t日本\n" == escape(hostile).decode()


def test_c114_escape_shows_invisible_characters() -> None:
    """
    Overrides of direction, marks without width and tags, with which a line reads as another one. Accents, scripts
    from right to left and emoji stay.
    """
    hostile = "if a\u202e\u2066 : b\u2069\u200b\u200d\ufeff\xad\u061c\u3164\U000e0041\U000e0100"

    assert ("if a\\u202e\\u2066 : b\\u2069\\u200b\\u200d\\ufeff\\u00ad\\u061c\\u3164\\U000e0041\\U000e0100"
            == escape(hostile.encode()).decode())
    plain = "e\u0301 שלום ❤\ufe0f 🎉"
    assert plain == escape(plain.encode()).decode()


def test_c114_no_character_of_format_is_shown_as_it_is() -> None:
    """All of Unicode's category Cf but the marks of a few scripts and notations that show something, or belong to them."""
    shown = [code for code in range(0x110000) if "Cf" == unicodedata.category(chr(code))
             and chr(code) == escape(chr(code).encode()).decode()]

    assert [] == [hex(code) for code in shown if not (
        0x600 <= code <= 0x8e2 or 0x110bd <= code <= 0x110cd or 0x13430 <= code <= 0x1343f
        or 0x1bca0 <= code <= 0x1bca3 or 0x1d173 <= code <= 0x1d17a)]


@pytest.mark.parametrize(("given", "hint"), [("--colect=x", "; did you mean --collect?"), ("--qqq", "")])
def test_an_option_that_there_is_not(given: str, hint: str) -> None:
    """With the one that was meant, if one is close."""
    with pytest.raises(UsageError) as caught:
        parse("exec", [given, "print(1)"])

    assert str(caught.value) == f"exec has no option {given.partition('=')[0]!r}{hint}"


def test_code_needs_no_option() -> None:
    with pytest.raises(UsageError, match=r"^the code is an argument of its own: leeward exec 'print\(1\)'$"):
        parse("exec", ["-c", "print(1)"])


def test_an_option_of_the_program_follows_two_hyphens() -> None:
    with pytest.raises(UsageError, match=r"^exec has no option '-c'; the program's own follow --$"):
        parse("exec", ["--profile", "shell", "sh", "-c", "true"])

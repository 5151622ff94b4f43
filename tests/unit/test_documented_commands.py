"""
Each `leeward ...` that a page names is one that can be typed: the command exists, takes these options and so many words.

What of it is run, and what it prints, is in the tests of the pages (integration/test_doc_examples.py names them).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kit.features import ROOT
from leeward_cli.full import cli

#: All pages that a reader has, and what models read. Decisions and measurements tell of the past, too.
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docs/llms.txt")
               if not {"decisions", "measurements", "runs"} & set(path.parts))

#: The words of one command: to the end of the line, a pipe, or what else a shell reads as an end.
_ENDS = re.compile(r"\|\|?|&&?|;|\)|#|[0-9]?>|<")
_COMMAND = re.compile(r"(?:^|[$|;&(`] ?|(?:uvx|npx|sudo|exec|--|-u \w+) |\w=\S* )leeward (?=\S)")


def commands(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The words of each command on a page, and whether it is a whole one, in a block of code."""
    fences = re.split(r"^```(\w*).*$", text, flags=re.MULTILINE)  # prose, language, block, "", prose, ...
    prose = "".join(fences[0::4])
    blocks = "\n".join(block for language, block in zip(fences[1::4], fences[2::4], strict=True)
                       if language in ("", "sh", "bash", "console", "text"))
    lines = blocks.replace("\\\n", " ").splitlines()
    lines += [line.strip() for line in re.findall(r"^    +[^`\n]+$", prose, re.MULTILINE)]  # a text of a list has `code`
    spans = re.findall(r"`(leeward [^`]+)`", prose)
    for is_whole, found in ((True, lines), (False, spans)):
        for line in found:
            for at in (match.end() for match in _COMMAND.finditer(line)):
                words = split(line[at:])
                if words:
                    yield is_whole, words


def split(line: str) -> list[str]:
    """The words of *line* as a shell has them, up to the end of the first command."""
    reader = shlex.shlex(re.sub(r"\[(-[^]]*|[A-Z]+)\]", r"\1", line), posix=True, punctuation_chars="|&;()<>")
    reader.whitespace_split = True
    words = list[str]()
    try:
        for word in reader:
            if _ENDS.fullmatch(word):
                break
            words.append(word)
    except ValueError:  # a quotation that goes on in the next line, or a text that is no command
        return []
    return words


def wrong(words: list[str], is_whole: bool) -> str:
    """Why *words* can't be typed behind `leeward`; "" if they can. Values in capitals stand for others."""
    command, name, ctx = cli, "leeward", click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(ctx, words[0])
        if found is None:
            if name == "serve":  # its words are faces
                break
            return "" if not is_whole and len(words) == 1 else f"no command {words[0]}"
        command, name, words = found, words[0], words[1:]
        ctx = click.Context(command, ctx, name)
    try:
        command.make_context(name, list(words), parent=ctx.parent)
    except click.exceptions.Exit:  # --help
        return ""
    except click.UsageError as error:
        is_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
        told = error.format_message()
        return told if not is_value and (is_whole or "option" in told) else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    assert {} == {" ".join(words): why for is_whole, words in commands(page.read_text()) if (why := wrong(words, is_whole))}


def test_commands_are_found_and_wrong_ones_told() -> None:
    """The control."""
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 350
    text = ("a `leeward exec --no` b\n\n    leeward nothing; x && leeward ping extra\n\n"
            "```console\n$ leeward cp A | head\n```\n")
    assert {"exec --no", "nothing", "ping extra", "cp A"} == {
        " ".join(words) for is_whole, words in commands(text) if wrong(words, is_whole)}

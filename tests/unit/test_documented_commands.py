"""
Each `leeward ...` that a page names is one that can be typed: the command exists, takes these options and so many words.
And each in a block of code is run: as it stands, by the test of its page, or with other names.
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

#: The pages whose commands are all typed as they stand, by a test that finds them there: "languages" is a folder.
TYPED = {"README": "readme", "SKILL": "doc_examples", "agents": "doc_examples", "languages": "languages", "moving": "moving",
         "sandboxes": "sandbox_docs", "shell": "sandbox_docs", "start": "installs", "using": "readme"}
#: What other pages show with somebody's own names (of hosts, projects, images), and the test that runs it with others.
ELSEWHERE = {
    "agent start": "agents", "approvals page": "approvals_service", "approvals run": "approvals_many",
    "approvals sandboxes": "approvals_service", "approvals serve": "approvals_service",
    "approvals watch": "approvals_service",
    "audit mend": "unit/cli/test_audit", "audit show": "unit/cli/test_audit", "audit verify": "approvals_service",
    "bench": "bench", "config": "languages", "daemon install": "vm/test_service", "daemon start": "daemon_life",
    "daemon uninstall": "vm/test_service", "doctor": "host", "egress log": "egress_daemon", "egress test": "doc_examples",
    "env create": "env_command", "env list": "env_command", "env prune": "env_command", "env remove": "env_command",
    "env setup": "unit/cli/test_env_setup", "env show": "env_command", "exec": "first_use", "fleet doctor": "fleet",
    "fleet drain": "fleet", "fleet prefetch": "env_command", "fleet status": "fleet", "image commit": "images",
    "image diff": "images", "image pull": "image_command", "sandbox new": "env_command", "serve": "serve_packaging",
    "serve token create": "installs", "snapshot import": "durable_snapshots", "snapshot keep": "durable_snapshots",
    "snapshot list": "snapshots", "ui": "ui",
}

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


def command_of(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that *words* name, in its context, and the words behind its name."""
    command, ctx = cli, click.Context(cli)
    while isinstance(command, click.Group) and words and (found := command.get_command(ctx, words[0])) is not None:
        command, ctx, words = found, click.Context(found, ctx, words[0]), words[1:]
    return command, ctx, words


def wrong(words: list[str], is_whole: bool) -> str:
    """Why *words* can't be typed behind `leeward`; "" if they can. Values in capitals stand for others."""
    command, ctx, words = command_of(words)
    name = ctx.info_name or "leeward"
    if isinstance(command, click.Group) and words and not words[0].startswith("-") and name != "serve":  # its words are faces
        return "" if not is_whole and len(words) == 1 else f"no command {words[0]}"
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


def test_every_command_in_a_block_is_run() -> None:
    """By a file of tests that has the page's name, or the command's words."""
    def test_file(name: str) -> str:
        return (ROOT / "tests" / (f"{name}.py" if "/" in name else f"integration/test_{name}.py")).read_text()

    assert [] == [page for page, name in TYPED.items() if page not in test_file(name)]
    assert [] == [words for words, name in ELSEWHERE.items() if not re.search(
        rf'"{words.split()[-1]}"|leeward {words} ', test_file(name))]
    assert set(ELSEWHERE) == {
        command_of(words)[1].command_path for page in PAGES if not {page.stem, page.parent.name} & set(TYPED)
        for is_whole, words in commands(page.read_text()) if is_whole}


def test_commands_are_found_and_wrong_ones_told() -> None:
    """The control."""
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 350
    text = ("a `leeward exec --no` b\n\n    leeward nothing; x && leeward ping extra\n\n"
            "```console\n$ leeward cp A | head\n```\n")
    assert {"exec --no", "nothing", "ping extra", "cp A"} == {
        " ".join(words) for is_whole, words in commands(text) if wrong(words, is_whole)}

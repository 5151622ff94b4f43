"""
The manual pages of all commands and the scripts by which shells complete them, made from the commands.

Runs in:   a developer's shell: `./dev generate`. `packaging/leeward.1` is written by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from leeward_cli import full
from leeward_cli.options import USAGE
from leeward_cli.shell_aids import script


def pages() -> dict[str, str]:
    """Return a page for each command, with its subcommands, by file name."""
    found = {}
    for name, command in full.commands().items():
        if not command.hidden:
            found[f"leeward-{name}.1"] = "\n".join(_page(name, command)) + "\n"
    return found


def completions() -> dict[str, str]:
    """Return the script for each shell, by file name."""
    names = {"bash": "leeward.bash", "zsh": "_leeward", "fish": "leeward.fish"}
    return {name: script(shell, full.cli) + "\n" for shell, name in names.items()}


def _page(name: str, command: click.Command) -> Iterator[str]:
    yield f'.TH {_text(f"leeward-{name}".upper())} 1 "" leeward "User Commands"'
    yield ".SH NAME"
    yield _text(f"leeward-{name} - {_short(command)}")
    yield ".SH SYNOPSIS"
    yield from _usage(f"leeward {name}", command)
    yield ".SH DESCRIPTION"
    yield from _prose(command)
    yield from _options(".SH OPTIONS", f"leeward {name}", command)
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for each, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from _inner(f"leeward {name} {each}", inner)
    yield ".SH SEE ALSO"
    yield r".BR leeward (1)"


def _inner(path: str, command: click.Command) -> Iterator[str]:
    yield f'.SS "{_text(path)}"'
    yield from _usage(path, command)
    yield ".PP"
    yield from _prose(command)
    yield from _options("", path, command)
    if isinstance(command, click.Group):
        for each, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from _inner(f"{path} {each}", inner)


def _usage(path: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, full.Described):
        yield _text(USAGE[command.name or ""])
        return
    ctx = click.Context(command, info_name=path)
    yield _text(" ".join([path, *command.collect_usage_pieces(ctx)]))


def _short(command: click.Command) -> str:
    first = inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")
    return first.split(". ")[0].rstrip(".")


def _prose(command: click.Command) -> Iterator[str]:
    """Paragraphs; one that begins with \\b keeps its lines, as click's own help has it."""
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.splitlines()
        kept = bool(lines) and lines[0].strip() == "\b"
        yield from ([".nf", *map(_text, lines[1:]), ".fi"] if kept else map(_text, lines))


def _options(heading: str, path: str, command: click.Command) -> Iterator[str]:
    ctx = click.Context(command, info_name=path)
    records = [record for param in command.params if isinstance(param, click.Option)
               and (record := param.get_help_record(ctx)) is not None]
    if records and heading:
        yield heading
    for names, said in records:
        yield ".TP"
        yield f".B {_text(names)}"
        yield _text(" ".join(said.split()) or "-")


def _text(text: str) -> str:
    """Return *text* with roff's special characters escaped."""
    shown = text.strip("\n").replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{shown}" if shown.startswith((".", "'")) else shown

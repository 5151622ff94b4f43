"""What is made from the commands: manual pages, the scripts by which shells complete them, and the C command's options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from leeward_cli import full
from leeward_cli.click_options import Tabled
from leeward_cli.full import script
from leeward_cli.options import OPTIONS

#: The C type of each kind of value that the C command reads.
C_TYPES = {"flag": "bool ", "path": "const char *", "text": "const char *", "module": "const char *",
           "seconds": "double ", "size": "uint64_t ", "setting": "const char **"}

C_HEAD = """\
/* The options of `exec` and `ping` that the C command reads: cli/leeward_cli/options.py has all of them, and their help. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Their values; those that aren't given are zero. */
"""


def pages() -> dict[str, str]:
    found = {}
    for name, command in full.commands().items():
        if not command.hidden:
            found[f"leeward-{name}.1"] = "\n".join(_page(name, command)) + "\n"
    return found


def completions() -> dict[str, str]:
    names = {"bash": "leeward.bash", "zsh": "_leeward", "fish": "leeward.fish"}
    return {name: script(shell, full.cli) + "\n" for shell, name in names.items()}


def c_options() -> str:
    fields, rows = [], []
    for option in OPTIONS["exec"]:
        if option.in_c:
            assert not isinstance(option.kind, tuple)
            kind, name = option.kind.__name__, option.parameter
            fields += [f"\t{C_TYPES[kind]}{name};", *([f"\tsize_t {name}_count;"] if option.many else [])]
            rows.append(f'\t{{"{option.name}", "{option.short}", {kind.upper()},'
                        f" {str(option in OPTIONS['ping']).lower()}, offsetof(struct lw_given, {name})}},")
    return "\n".join([f"{C_HEAD}struct lw_given {{", *fields, "};", "",
                      "/* Name, short name, kind of value, whether ping has it as well, field. */",
                      "#define LW_OPTIONS \\", *(f"{row} \\" for row in rows[:-1]), rows[-1], ""])


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
    ctx = click.Context(command, info_name=path)
    if isinstance(command, Tabled):
        yield _text(command.get_usage(ctx).removeprefix("Usage: "))
        return
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
    """*text* with roff's special characters escaped."""
    shown = text.strip("\n").replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{shown}" if shown.startswith((".", "'")) else shown

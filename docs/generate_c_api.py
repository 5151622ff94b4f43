"""
Writes the reference in docs/c-api.md from leeward.h.

Runs in:   a developer's shell: `./dev generate`.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "leeward" / "clients" / "c" / "leeward.h"
PAGE = HERE / "c-api.md"

#: What is above it is written by hand.
MARK = "<!-- From here on made by ./dev generate. -->\n"

FUNCTION = re.compile(r"/\* ((?:(?!\*/).)*?) \*/\nLEEWARD_API ([^;]+;)\n", re.DOTALL)


def page(header: str, written: str) -> str:
    """The page whose upper part is that of *written*."""
    parts = [written.partition(MARK)[0] + MARK, "## Functions\n"]
    parts += [_function(text, prototype) for text, prototype in FUNCTION.findall(header) if "#define" not in text]
    parts += [_struct(name, header) for name in (
        "options", "map_job", "result", "file", "left_out", "denied", "form", "shown", "sandbox_options", "sandbox_info",
        "sandboxes", "mount", "program", "chunk", "entry", "entries", "content", "names", "match", "matches")]
    parts += [_enum(name, header) for name in ("error", "outcome", "limit", "overflow", "kind", "grep_flags")]
    return "\n".join(parts)


def _function(comment: str, prototype: str) -> str:
    prototype = " ".join(prototype.split())
    found = re.search(r"(leeward_\w+)\(", prototype)
    assert found is not None, prototype
    lines = [re.sub(r"^ \*( |$|(?=\t))", "", line) for line in comment.splitlines()]
    paragraphs: list[str] = []
    for line in lines:
        label = re.match(r"(Args|Returns|Errors|Threads):(.*)", line)
        if label and label[1] != "Args":
            paragraphs.append(f"**{label[1]}:**{label[2]}")
        elif label:
            paragraphs.append("")
        elif re.match(r"\t\w+: ", line):
            name, _, text = line.strip().partition(": ")
            paragraphs.append(f"* `{name}`: {text}")
        elif not line.strip():
            paragraphs.append("")
        elif paragraphs and paragraphs[-1]:
            paragraphs[-1] += " " + line.strip()
        else:
            paragraphs.append(line.strip())
    errors = next((at for at, paragraph in enumerate(paragraphs) if paragraph.startswith("**Errors:")), None)
    if errors is not None and prototype.startswith("int ") and "\n * Returns:" not in comment:
        paragraphs.insert(errors, "**Returns:** LEEWARD_OK, or a negative leeward_error.")
    if "\n * Threads:" not in comment and re.search(r"leeward_(handle|sandbox) \*\w+[,)]|leeward_free_", prototype):
        paragraphs += ["", "**Threads:** any." if "leeward_free_" in prototype else "**Threads:** the handle's."]
    text = "\n\n".join(textwrap.fill(paragraph, 92, break_long_words=False, break_on_hyphens=False,
                                     subsequent_indent="  " if paragraph.startswith("* ") else "")
                       for paragraph in paragraphs if paragraph)
    return f"### `{found[1]}`\n\n```c\n{prototype}\n```\n\n{text}\n"


def _rows(title: str, head: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"## `leeward_{title}`\n", f"| {head} | |", "|---|---|",
                      *(f"| `{name}` | {text} |" for name, text in rows), ""])


def _struct(name: str, header: str) -> str:
    block = header.split(f"typedef struct leeward_{name} {{")[1].split("\n}")[0]
    return _rows(name, "field", re.findall(r"^\t(.+?);(?:\s*/\* (.*) \*/)?$", block, re.MULTILINE))


def _enum(name: str, header: str) -> str:
    block = header.split(f"typedef enum leeward_{name} {{")[1].split("\n}")[0]
    rows = re.findall(r"^\t(\w+ = -?\d+),?(?:\s*/\* (.*) \*/)?$", block, re.MULTILINE)
    return _rows(name, "value", rows)


def made() -> str:
    return page(HEADER.read_text(), PAGE.read_text())

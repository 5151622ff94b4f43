"""
Makes modules of the blocking client from those of the asyncio client.

leeward/client/aio_NAME.py gives leeward/client/NAME.py, and aio.py gives blocking.py. The words of WORDS are replaced,
in code and in texts alike, and continued lines stay below their bracket. Besides, in the source:

    a line that ends with `# asyncio`             is left out
    a comment `# blocking: CODE`                  gives the line CODE
    a docstring's paragraph that begins with
    "With asyncio, "                              is left out

What both shapes call by one name and do in their own way is in aio_waiting.py and waiting.py.
"""

from __future__ import annotations

import ast
import re
import tokenize
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "leeward" / "client"

#: What is replaced, with what.
WORDS = {
    r"\bawait ": "",
    r"\basync (?=(?:def|with|for)\b)": "",
    r"\b(_*)Async(?=[A-Z])": r"\1",
    r"\b__a(?=(?:enter|exit|iter)__)": "__",
    r"\baio_(?=[a-z])": "",
    r"\bclient\.aio\b": "client.blocking",
    r"\b([Tt])ask(?=s?\b)": r"\1hread",
    r"\bfor asyncio\b": "for blocking programs",
    r"\bawaited_by\b": "served_by",
    r"\bwith_environment_async\b": "with_environment",
}
_MARKED = re.compile(r"( *)# blocking: ?(.*)")
_PARAGRAPH = re.compile(r"\n( *)With asyncio, .*(?:\n\1\S.*)*\n(?=\n|\1\"\"\")")


def blocking(source: str) -> str:
    kept = [marked.expand(r"\1\2").rstrip() if (marked := _MARKED.fullmatch(line)) else line
            for line in _PARAGRAPH.sub("", source).splitlines() if not line.endswith("  # asyncio")]
    return _with_sorted_imports(_replaced("\n".join(kept) + "\n"))


def words(text: str) -> str:
    for word, by in WORDS.items():
        text = re.sub(word, by, text)
    return text


def _replaced(text: str) -> str:
    """As `words`; a line that is continued below a bracket moves with it."""
    lines = text.splitlines(keepends=True)
    below = _brackets(text)
    shifts: list[int] = []
    for number in range(len(lines)):
        row, column = below.get(number, (-1, 0))
        shifts.append(0 if row < 0 else shifts[row] + (len(words(lines[row][:column])) - column if column else 0))
    return "".join(words(line[-min(shift, 0):] if shift < 0 else line) for line, shift in zip(lines, shifts, strict=True))


def _brackets(text: str) -> dict[int, tuple[int, int]]:
    """Of each continued line, from 0: the line of its innermost bracket, and the column behind it, 0 if none follows."""
    lines, found, opened, last = text.splitlines(), dict[int, tuple[int, int]](), list[tuple[int, int]](), -1
    for token in tokenize.generate_tokens(StringIO(text).readline):
        row = token.start[0] - 1
        if opened and row != last:
            found.setdefault(row, opened[-1])
        last = token.end[0] - 1
        if token.type == tokenize.OP and token.string in "([{":
            follows = lines[row][token.end[1]:].strip()
            opened.append((row, token.end[1] if follows and not follows.startswith("#") else 0))
        elif token.type == tokenize.OP and token.string in ")]}":
            opened.pop()
    return found


def _with_sorted_imports(text: str) -> str:
    """*text* with each run of imports from leeward, or from collections, in the order of the modules' names."""
    lines = text.splitlines(keepends=True)
    bodies = [node.body for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Module, ast.If))]
    for body in bodies:
        for ours, run in groupby(body, lambda node: isinstance(node, ast.ImportFrom)
                                 and (node.module or "").partition(".")[0]):
            imports = [node for node in run if ours in ("leeward", "collections") and isinstance(node, ast.ImportFrom)]
            parts = [(node.module, _with_sorted_names(node, lines[node.lineno - 1:node.end_lineno])) for node in imports]
            if parts:
                lines[imports[0].lineno - 1:imports[-1].end_lineno] = [
                    line for _, part in sorted(parts, key=lambda part: part[0] or "") for line in part]
    return "".join(lines)


def _with_sorted_names(node: ast.ImportFrom, lines: list[str]) -> list[str]:
    """The lines of an import, with its names in order if it has one line: constants, classes, then the rest."""
    if len(lines) > 1 or any(alias.asname for alias in node.names):
        return lines
    names = sorted((alias.name for alias in node.names),
                   key=lambda name: (len(name) < 2 or not name.isupper(), name[0].islower(), name))
    return [lines[0].partition(" import ")[0] + f" import {', '.join(names)}\n"] if "#" not in lines[0] else lines


def _made(name: str) -> str:
    return blocking((CLIENT / name).read_text())


client, files, forking, kernel_session, process, sandbox, snapshot = (partial(_made, name) for name in (
    "aio.py", "aio_files.py", "aio_forking.py", "aio_kernel_session.py", "aio_process.py", "aio_sandbox.py",
    "aio_snapshot.py"))

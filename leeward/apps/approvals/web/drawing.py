"""
Draws a text with marks for what can't be seen, and a change of a file as rows for two columns or one, with the
differences within lines and its syntax in colours.

Trust:     none. Characters that are invisible or reorder text are replaced by their names. A hostile text makes regular
           expressions that backtrack slow, which would block the whole program; see decision 0086. A mistake of a colour
           gives only a wrong colour.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from leeward.apps.approvals.carrying.orders import MOST_WIDTH
from leeward.spec.unseen import is_hidden

#: Lines of context around a change, and rows that are drawn, at most.
CONTEXT, MOST_LINES = 3, 3000


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One row of two columns."""

    kind: str  # "same", "changed", "removed" or "added"
    old: tuple[int, Markup] | None  # the number of the old line, from 1, and the line as HTML; None if there is none
    new: tuple[int, Markup] | None  # the same for the new line


@dataclass(frozen=True, slots=True)
class DiffHunk:
    """One hunk with the lines around it."""

    index: int  # of the hunk, by which it is approved
    head: str  # the numbers of the lines, as in a unified diff
    rows: Sequence[DiffRow]  # for two columns
    left_out: int  # the number of rows that aren't drawn

    @property
    def unified(self) -> list[tuple[str, int | None, int | None, Markup]]:
        """The rows for one column: "same", "removed" or "added", the old and the new number, the line."""
        found = list[tuple[str, int | None, int | None, Markup]]()
        added = list[tuple[str, int | None, int | None, Markup]]()
        for row in self.rows:
            if row.kind == "same" and row.old and row.new:
                found += [*added, ("same", row.old[0], row.new[0], row.new[1])]
                added = []
                continue
            if row.old:
                found.append(("removed", row.old[0], None, row.old[1]))
            if row.new:
                added.append(("added", None, row.new[0], row.new[1]))
        return found + added


def hunks_of(before: str, after: str, path: str, hunks: Sequence[Mapping[str, Any]],
             most: int = MOST_LINES) -> list[DiffHunk]:
    """
    The hunks of a change, for drawing, in *most* rows: *hunks* are those of `ApprovalService.detail`, *path* chooses the
    language.
    """
    old, new = _Lines(before, path), _Lines(after, path)
    found, drawn, free = list[DiffHunk](), 0, 0
    for index, hunk in enumerate(hunks):
        old_at, new_at = max(0, int(hunk["old_start"]) - 1), max(0, int(hunk["new_start"]) - 1)
        old_count, new_count = len(hunk["old"]), len(hunk["new"])
        following = int(hunks[index + 1]["old_start"]) - 1 if index + 1 < len(hunks) else len(old)
        lead = min(CONTEXT, old_at - free)
        rows = [_same(old, new, old_at - back, new_at - back) for back in range(lead, 0, -1)]
        rows += _changed(old, new, range(old_at, old_at + old_count), range(new_at, new_at + new_count),
                         most - drawn)
        left_out = max(0, max(old_count, new_count) - (len(rows) - lead))
        free = old_at + old_count
        if not left_out:
            after_new, trail = new_at + new_count, min(CONTEXT, following - free)
            rows += [_same(old, new, free + on, after_new + on) for on in range(trail)]
            free += trail  # no line is drawn twice
        drawn += len(rows)
        head = f"@@ -{old_at + 1},{old_count} +{new_at + 1},{new_count} @@"
        found.append(DiffHunk(index, head, rows, left_out))
    return found


def patch_hunks(patch: Sequence[str], path: str, most: int) -> list[DiffHunk]:
    """The hunks of one file's patch, lines that begin with `@@`, `+`, `-` or a blank, for drawing in *most* rows."""
    found, drawn, at = list[DiffHunk](), 0, 0
    while at < len(patch):
        starts = _PATCH_HEAD.match(patch[at])
        end = next((place for place in range(at + 1, len(patch)) if patch[place].startswith("@@")), len(patch))
        if starts is not None:
            lines = patch[at + 1:end]
            old = _Lines("\n".join(line[1:] for line in lines if line[:1] != "+"), path, max(0, int(starts[1]) - 1))
            new = _Lines("\n".join(line[1:] for line in lines if line[:1] != "-"), path, max(0, int(starts[2]) - 1))
            rows, left_out = _patched(lines, old, new, most - drawn)
            drawn += len(rows)
            found.append(DiffHunk(len(found), starts[0], rows, left_out))
        at = end
    return found


#: The head of a hunk: the first line of the old file, and of the new one.
_PATCH_HEAD = re.compile(r"@@ -([0-9]{1,9})(?:,[0-9]{1,9})? \+([0-9]{1,9})(?:,[0-9]{1,9})? @@")


def _patched(lines: Sequence[str], old: _Lines, new: _Lines, most: int) -> tuple[list[DiffRow], int]:
    """The rows of one hunk of a patch, *most* at most, and the number of lines that aren't drawn."""
    rows, old_at, new_at, at = list[DiffRow](), 0, 0, 0
    while at < len(lines) and len(rows) < most:
        if lines[at][:1] == " ":
            rows.append(_same(old, new, old_at, new_at))
            old_at, new_at, at = old_at + 1, new_at + 1, at + 1
            continue
        removed = next((on for on in range(at, len(lines)) if lines[on][:1] != "-"), len(lines))
        end = next((on for on in range(removed, len(lines)) if lines[on][:1] != "+"), len(lines))
        rows += _changed(old, new, range(old_at, old_at + removed - at), range(new_at, new_at + end - removed),
                         most - len(rows))
        old_at, new_at, at = old_at + removed - at, new_at + end - removed, end
    return rows, len(lines) - at


def _same(old: _Lines, new: _Lines, old_at: int, new_at: int) -> DiffRow:
    return DiffRow("same", (old.number(old_at), old.drawn(old_at)), (new.number(new_at), new.drawn(new_at)))


def _changed(old: _Lines, new: _Lines, removed: range, added: range, most: int) -> list[DiffRow]:
    rows = []
    for place in range(min(max(len(removed), len(added)), max(0, most))):
        was = removed[place] if place < len(removed) else None
        now = added[place] if place < len(added) else None
        if was is None or now is None:
            rows.append(DiffRow("added" if was is None else "removed",
                                None if was is None else (old.number(was), old.drawn(was)),
                                None if now is None else (new.number(now), new.drawn(now))))
        else:
            first, last = _differs(old.text(was), new.text(now))
            rows.append(DiffRow("changed", (old.number(was), old.drawn(was, first, last)),
                                (new.number(now), new.drawn(now, first, last))))
    return rows


def _differs(old: str, new: str) -> tuple[int, int]:
    """The numbers of characters that two lines share at the beginning and at the end; 0, 0 if that is too little to mark."""
    first, most = 0, min(len(old), len(new), MOST_WIDTH)
    while first < most and old[first] == new[first]:
        first += 1
    last = 0
    while last < most - first and old[len(old) - 1 - last] == new[len(new) - 1 - last]:
        last += 1
    # If the lines share less than a third, no difference within them is marked.
    return (first, last) if (first + last) * 3 >= max(len(old), len(new), 1) else (0, 0)


class _Lines:
    """The lines of a text, of which the first *before* of its file aren't there."""

    def __init__(self, text: str, path: str, before: int = 0) -> None:
        self._before = before
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self._colours: Colours | None = coloured(text, path)

    def __len__(self) -> int:
        return len(self._lines)

    def number(self, at: int) -> int:
        """The number of a line in its file, from 1."""
        return self._before + at + 1

    def text(self, at: int) -> str:
        return self._lines[at] if at < len(self._lines) else ""

    def drawn(self, at: int, first: int = 0, last: int = 0) -> Markup:
        """
        A line as HTML, marked as different after the first *first* and before the last *last* characters, unless both
        are 0.
        """
        text = self.text(at)
        parts = [(text, "")] if self._colours is None or at >= len(self._colours) else self._colours[at]
        start, stop = (first, len(text) - last) if first or last else (0, 0)
        return Markup("").join(_drawn(parts, start, stop))


def _drawn(parts: Sequence[tuple[str, str]], start: int, stop: int) -> list[Markup]:
    """Parts with their colours as HTML; the characters between *start* and *stop* are marked as different."""
    found, at = list[Markup](), 0
    for text, colour in parts:
        shown = text[:max(0, MOST_WIDTH - at)]
        for begin, end, differs in ((0, start - at, False), (start - at, stop - at, True),
                                    (max(start, stop) - at, len(shown), False)):
            piece = shown[max(0, begin):max(0, end)]
            kinds = " ".join(filter(None, (f"t-{colour}" if colour else "", "dif" if differs else "")))
            if piece:
                found.append(Markup('<span class="{}">{}</span>').format(kinds, marked(piece)) if kinds
                             else marked(piece))
        at += len(text)
    if at > MOST_WIDTH:
        found.append(Markup('<span class="cut">… {} characters more</span>').format(f"{at - MOST_WIDTH:,}"))
    return found


#: Characters of a text that is highlighted, at most.
MOST_COLOURED = 400_000

_HASH = ("py", "sh", "bash", "zsh", "toml", "yaml", "yml", "rb", "pl", "cfg", "ini", "conf", "nix", "r", "jl", "mk",
         "dockerfile", "makefile", "gitignore", "env", "tf")
_SLASHES = ("js", "mjs", "cjs", "ts", "tsx", "jsx", "c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "swift",
            "cs", "php", "scala", "css", "scss", "zig", "dart")
_DASHES = ("sql", "lua", "hs", "elm")
_OTHERS = ("json", "html", "xml", "svg")

#: Keywords of several languages together.
_WORDS = frozenset(re.split(" ", (
    "abstract and as assert async await begin bool break case catch char class const continue def default defer del "
    "delete do done double elif else end enum esac except export extends extern False false fi final finally float fn "
    "for from func function global go if impl import in inline instanceof int interface is lambda let local long loop "
    "match mod module mut namespace new nil None nonlocal not null or package pass private protected pub public raise "
    "return self short signed sizeof static struct super switch template then this throw trait True true try type "
    "typedef typeof undefined union unsafe unsigned use using var void volatile where while with yield "
    "SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE DROP JOIN ON AND OR NOT NULL INTO VALUES SET")))

#: With possessive quantifiers, so that no character is matched twice.
_TOKEN = re.compile(r"""
    (?P<string>"(?:[^"\\\n]|\\.)*+"?+|'(?:[^'\\\n]|\\.)*+'?+|`(?:[^`\\\n]|\\.)*+`?+)
    | (?P<word>[^\W\d]\w*+)
    | (?P<number>\d[\w.]*+)
    | (?P<other>[^\w"'`\n]|\n)
""", re.VERBOSE)

Colours = list[list[tuple[str, str]]]


def comments_of(path: str) -> tuple[str, str, str] | None:
    """The mark of a comment up to the end of the line, and the marks around a longer one; None for an unknown language."""
    name = posixpath.basename(path).lower()
    kind = name.rpartition(".")[2]
    if kind in _HASH:
        return ("#", '"""', '"""') if kind == "py" else ("#", "", "")
    if kind in _SLASHES:
        return ("", "/*", "*/") if kind == "css" else ("//", "/*", "*/")
    if kind in _DASHES:
        return "--", "", ""
    if kind in _OTHERS:
        return ("", "", "") if kind == "json" else ("", "<!--", "-->")
    return None


def coloured(text: str, path: str) -> Colours | None:
    """
    The lines of *text*, each as pieces with their colours: "c" for a comment, "s" a string, "k" a keyword, "n" a
    number, "" other text. None for an unknown language, or more than MOST_COLOURED characters. Takes linear time.
    """
    marks = comments_of(path)
    if marks is None or len(text) > MOST_COLOURED:
        return None
    lines: Colours = [[]]
    at, (line, begin, end) = 0, marks
    begun, of = 0, ""  # the start and colour of a run, which is copied as a whole
    while at < len(text):
        if begin and text.startswith(begin, at):
            stop = text.find(end, at + len(begin))
            stop = len(text) if stop < 0 else stop + len(end)
            kind = "s" if begin == '"""' else "c"
        elif line and text.startswith(line, at):
            stop = text.find("\n", at)
            stop, kind = len(text) if stop < 0 else stop, "c"
        else:
            token = _TOKEN.match(text, at)
            stop, kind = (at + 1, "") if token is None else (token.end(), _kind(token))
        if kind != of:
            _add(lines, text[begun:at], of)
            begun, of = at, kind
        at = stop
    _add(lines, text[begun:], of)
    return lines


def _kind(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "string":
            return "s"
        case "number":
            return "n"
        case "word" if token[0] in _WORDS:
            return "k"
    return ""


def _add(lines: Colours, text: str, kind: str) -> None:
    first, *others = text.split("\n")
    for number, piece in enumerate((first, *others)):
        if number:
            lines.append([])
        if piece:
            lines[-1].append((piece, kind))


#: Characters of a text that are shown at first, and of all of it.
MOST_SHOWN, MOST_FULL = 4000, 1 << 20

#: Combining characters on one letter that are shown as such, at most.
MOST_COMBINED = 3

#: A text without a match is shown unchanged.
_SUSPECT = re.compile(r"[^\t\n -~\u00a1-\u00ac\u00ae-\u024f\u0391-\u03c9\u0410-\u044f\u2010-\u2027\u2190-\u21ff]")

_SHORT = {"\r": "CR", "\x00": "NUL", "\x1b": "ESC", "\x7f": "DEL", "\u00a0": "NBSP", "\u200b": "ZWSP", "\u200d": "ZWJ",
          "\u202a": "LRE", "\u202b": "RLE", "\u202d": "LRO", "\u202e": "RLO", "\u202c": "PDF", "\u2066": "LRI",
          "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI", "\u200e": "LRM", "\u200f": "RLM", "\ufeff": "BOM",
          "\u00ad": "SHY"}


def pieces(text: str) -> list[tuple[str, str]]:
    """*text* in pieces: visible text with "", or one invisible character with its name."""
    if not _SUSPECT.search(text):
        return [(text, "")] if text else []
    found, start, combined = list[tuple[str, str]](), 0, 0
    for place, letter in enumerate(text):
        combined = combined + 1 if unicodedata.combining(letter) or unicodedata.category(letter) == "Me" else 0
        if is_hidden(letter) or letter == "\r" or "\ud800" <= letter <= "\udfff" or combined > MOST_COMBINED:
            if place > start:
                found.append((text[start:place], ""))
            found.append((letter, _SHORT.get(letter, f"U+{ord(letter):04X}")))
            start = place + 1
    if start < len(text):
        found.append((text[start:], ""))
    return found


def plain(text: str) -> str:
    """*text* with the names of invisible characters in their places, for attributes and titles."""
    return "".join(f"[{name}]" if name else piece for piece, name in pieces(text))


def marked(text: str, most: int | None = None) -> Markup:
    """*text* escaped, with a mark in the place of each invisible character, and one for what is behind *most* characters."""
    rest = 0
    if most is not None and len(text) > most:
        text, rest = text[:most], len(text) - most
    shown = Markup("").join(
        Markup('<span class="hid" title="{}">{}</span>').format(_about(piece), name) if name else escape(piece)
        for piece, name in pieces(text))
    return shown + Markup('<span class="cut">… {} characters more</span>').format(f"{rest:,}") if rest else shown


def _about(letter: str) -> str:
    name = unicodedata.name(letter, "a character that isn't seen")
    return f"U+{ord(letter):04X} {name.lower()}"

"""
Output of a command as HTML: colours, bold and underlined text of a terminal are shown as such, whatever else a terminal
would obey as a mark.

Trust:     none. Only ESC [ ... m with numbers of the table counts, which can't hide text: no background, nothing that
           conceals or blinks, and each colour is legible. All else of an escape sequence is text, with a mark for ESC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup

from leeward.apps.approvals.web.drawing import marked

#: Each part has at most three digits, so no number is long.
_SGR = re.compile(r"\x1b\[((?:[0-9]{1,3}(?:;[0-9]{1,3}){0,7})?)m")

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")

#: What each number does: the kind of the style, and its class; "" for none.
_STYLES = {1: ("weight", "o-bold"), 22: ("weight", ""), 3: ("slant", "o-italic"), 23: ("slant", ""),
           4: ("line", "o-under"), 24: ("line", ""), 39: ("colour", ""),
           **{first + at: ("colour", f"o-{name}") for first in (30, 90) for at, name in enumerate(_COLOURS)}}


def terminal_text(text: str, most: int) -> Markup:
    """The first *most* characters of *text* as HTML."""
    shown = Markup("").join(Markup('<span class="{}">{}</span>').format(" ".join(classes), marked(piece)) if classes
                            else marked(piece) for piece, classes in _pieces(text[:most]))
    return shown + marked(text[most:], 0) if len(text) > most else shown


def _pieces(text: str) -> Iterator[tuple[str, list[str]]]:
    """*text* in pieces, each with its classes. A sequence with a number that isn't in the table is text as a whole."""
    styles, start = dict[str, str](), 0
    for found in _SGR.finditer(text):
        numbers = [int(each) for each in found[1].split(";")] if found[1] else [0]
        if not all(number == 0 or number in _STYLES for number in numbers):
            continue
        if found.start() > start:
            yield text[start:found.start()], list(filter(None, styles.values()))
        start = found.end()
        for number in numbers:
            if number:
                kind, name = _STYLES[number]
                styles[kind] = name
            else:
                styles.clear()
    if start < len(text):
        yield text[start:], list(filter(None, styles.values()))

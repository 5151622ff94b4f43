"""
Renders pages from templates.

Trust:     none in values. All that a template prints is escaped, and characters that are invisible or reorder text are
           replaced by their names, also in attributes. The filter `exact`, for values of form fields, only escapes.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from leeward.approvals.durations import duration_text
from leeward.spec.unseen import is_hidden


def draw(template: str, values: Mapping[str, Any], status: int = 200,
         headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """A page as an answer."""
    return HTMLResponse(drawn(template, values), status, headers)


def drawn(template: str, values: Mapping[str, Any]) -> str:
    """A page as HTML."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    made = Environment(loader=PackageLoader("leeward.approvals.web"), autoescape=True, undefined=StrictUndefined,
                       finalize=_final, trim_blocks=True, lstrip_blocks=True, auto_reload=False)
    made.filters.update(marked=marked, exact=escape, moment=_moment, clock=_clock, age=_age,
                        duration=_duration)
    return made


def _final(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(seconds: float) -> str:
    """The value of `datetime` for the element `time`."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _age(seconds: float) -> str:
    """Seconds in one unit: "12 s", "3 min", "2 h", "5 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _duration(seconds: float) -> str:
    return duration_text(max(0.0, float(round(seconds))))


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

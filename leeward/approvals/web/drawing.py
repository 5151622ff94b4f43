"""
Renders pages from templates.

Runs in:   the operator's program that decides; pure except for the templates, which are read once.
Trust:     none in values. All that a template prints is escaped, and invisible characters are replaced by their names,
           also in attributes. The filter `exact`, for values of form fields, only escapes.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from leeward.approvals.durations import duration_text
from leeward.approvals.web.marking import MOST_SHOWN, marked, plain


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
    made.filters.update(marked=marked, exact=_exact, short=_short, moment=_moment, clock=_clock, age=_age,
                        duration=_duration)
    return made


def _final(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _exact(text: str) -> Markup:
    return escape(text)


def _short(text: str, most: int = MOST_SHOWN) -> Markup:
    return marked(text, most)


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

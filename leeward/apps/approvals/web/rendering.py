"""
Renders pages from templates.

Trust:     none in values. All that a template prints is escaped, and characters that are invisible or reorder text are
           replaced by their names, also in attributes. The filter `exact`, for values of form fields, only escapes.
"""

from __future__ import annotations

import datetime as dt
import functools
import posixpath
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from leeward.apps.approvals.durations import age_text, duration_text
from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.web.change_view import size_text, verb_of
from leeward.apps.approvals.web.drawing import marked, plain
from leeward.apps.approvals.web.terminal_text import terminal_text

#: Remarks of one request that are shown.
MOST_REMARKS = 50


def draw(template: str, values: Mapping[str, Any], status: int = 200,
         headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """A page as an answer."""
    return HTMLResponse(drawn(template, values), status, headers)


def drawn(template: str, values: Mapping[str, Any]) -> str:
    """A page as HTML."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    made = Environment(loader=PackageLoader("leeward.apps.approvals.web"), autoescape=True, undefined=StrictUndefined,
                       finalize=_final, trim_blocks=True, lstrip_blocks=True, auto_reload=False)
    made.filters.update(marked=marked, exact=escape, moment=_moment, clock=_clock, age=age_text, duration=_duration,
                        size=size_text, verb=verb_of, remarks=remarks_of, base=_base, terminal=terminal_text)
    return made


def _final(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(seconds: float) -> str:
    """The value of `datetime` for the element `time`."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    return duration_text(max(0.0, float(round(seconds))))


def _base(path: str) -> str:
    """The last part of a path; "" for ""."""
    return posixpath.basename(path.rstrip("/"))


def remarks_of(request: ApprovalRequest, most: int = MOST_REMARKS) -> list[str]:
    """What a person could overlook in a request: its first *most* remarks."""
    found = request.metadata.get("remarks")
    return [str(each) for each in found[:most]] if isinstance(found, list) else []

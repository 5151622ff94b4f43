"""
Formats a result for a notebook.

Trust:     none in what a job shows. A page that shows a notebook runs the scripts in it, with the rights of the
           notebook's owner. So nothing that a job wrote becomes a part of the page. HTML is put into a frame that has
           no scripts, no forms and not the page's origin, and loads nothing unless the user follows a link in it. SVG
           is an image, which the browser draws without scripts. Everything else is text.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leeward.spec.outcome import Result

#: The greatest number of characters of each stream that are shown. The result has all of them.
_SHOWN = 20_000

#: The content security policy of a job's HTML: it loads only what it contains.
POLICY = ("<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:;"
          " style-src 'unsafe-inline'\">")
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")
#: The height of a frame in pixels: for each row of a table, for the rest, the smallest, and the greatest.
_ROW, _AROUND, _LEAST, _MOST = 24, 60, 120, 480


def bundle(result: Result) -> dict[str, str]:
    """The forms of *result*: text, and HTML that is safe to have in a page."""
    parts = [_text(str(result.stdout_view[:4 * _SHOWN], "utf-8", "replace")),
             _text(str(result.stderr_view[:4 * _SHOWN], "utf-8", "replace"), "color: #b00")]
    parts += [_part(each) for each in result.results]
    parts += [_text(f"{one.name}: left out, {one.reason.replace('_', ' ')}", "color: #777") for one in result.left_out]
    if not result.ok:
        parts.append(_text(repr(result)[:_SHOWN], "color: #777"))
    shown = "".join(parts)
    plain = "\n".join([repr(result), *(str(each.get("text/plain", ", ".join(each))) for each in result.results)])
    return {"text/plain": plain, **({"text/html": shown} if shown else {})}


def _part(forms: Mapping[str, str | bytes]) -> str:
    for kind in _IMAGES:
        if kind in forms:
            return f'<img alt="" style="max-width: 100%" src="data:{kind};base64,{_base64(forms[kind])}">'
    if "text/html" in forms:
        page = str(forms["text/html"])
        height = min(_MOST, max(_LEAST, _AROUND + _ROW * page.count("<tr")))
        return (f'<iframe sandbox="" style="width: 100%; height: {height}px; border: 0; resize: vertical"'
                f' srcdoc="{escape(POLICY + page)}"></iframe>')
    for kind in ("text/markdown", "text/latex", "text/plain", "application/json"):
        if kind in forms:
            return _text(str(forms[kind]))
    return _text(f"{', '.join(forms)}: {sum(map(len, forms.values()))} bytes")


def _text(text: str, style: str = "") -> str:
    if not text:
        return ""
    more = "" if len(text) <= _SHOWN else f"\n... and {len(text) - _SHOWN} characters more"
    return f'<pre style="{style}">{escape(text[:_SHOWN] + more)}</pre>'


def _base64(content: str | bytes) -> str:
    return b64encode(content.encode("utf-8", "replace") if isinstance(content, str) else content).decode()

"""`IPython.display` in code that is shown: IPython's own shows by ours, and where it isn't installed this stands for it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from leeward.inside import imports

#: The forms that have a class.
_FORMS = {"HTML": "text/html", "Markdown": "text/markdown", "Latex": "text/latex", "SVG": "image/svg+xml",
          "JSON": "application/json", "Pretty": "text/plain", "Image": "image/png"}


class _Form:
    """Content that is shown in one form."""

    kind = ""

    def __init__(self, data: Any = None, url: str | None = None, filename: str | None = None, **_options: object) -> None:
        if filename is None and self.kind == _FORMS["Image"] and isinstance(data, str):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        if data is None:
            raise ValueError("data or a filename is needed; nothing is loaded by URL")
        self.data = data

    def _repr_mimebundle_(self, **_which: object) -> dict[str, Any]:
        if not isinstance(self.data, bytes):
            return {self.kind: self.data}
        if self.kind != _FORMS["Image"]:
            return {self.kind: self.data.decode()}
        return {"image/jpeg" if self.data.startswith(b"\xff\xd8") else self.kind: self.data}


def prepare(display: Callable[..., object]) -> None:
    """Have `IPython.display.display` show by *display*, whether IPython is installed or not."""
    if "IPython" in imports.offers:
        return

    def publish(module: types.ModuleType) -> None:
        vars(module)["display"] = display

    def stand_in(module: types.ModuleType) -> None:
        publish(module)
        vars(module)["clear_output"] = _nothing
        for name, kind in _FORMS.items():
            vars(module)[name] = type(name, (_Form,), {"kind": kind, "__module__": module.__name__})

    imports.after("IPython.core.display_functions", publish)
    imports.offer("IPython", lambda module: vars(module).update(get_ipython=_nothing))
    imports.offer("IPython.display", stand_in)


def _nothing(*_given: object, **_named: object) -> None:
    pass

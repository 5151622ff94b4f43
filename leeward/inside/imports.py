"""
Acts on modules when a job with `display` imports them: matplotlib's figures and `IPython.display` show by leeward. Imports
nothing of them before the job does.

Figures are drawn by Agg, which needs no screen. `pyplot.show` shows all open figures and closes them, as a user would close
the windows; figures that are still open at the end are shown then. Where IPython isn't installed this stands for it.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any

Act = Callable[[types.ModuleType], object]

_acts: dict[str, Act] = {}
#: What fills each package that is offered.
offers: dict[str, Act] = {}

_PYPLOT = "matplotlib.pyplot"

#: Shows one figure, in the job that runs now.
_show_one: Callable[[object], object] | None = None

#: The `id` of each figure that the job has shown itself and that is still open.
_shown: set[int] = set()

#: The forms that have a class.
_FORMS = {"HTML": "text/html", "Markdown": "text/markdown", "Latex": "text/latex", "SVG": "image/svg+xml",
          "JSON": "application/json", "Pretty": "text/plain", "Image": "image/png"}


def after(name: str, act: Act) -> None:
    """Call *act* with the module *name*: now if it is loaded, otherwise right after its first import."""
    if name in sys.modules:
        act(sys.modules[name])
        return
    _acts[name] = act
    _look()


def offer(name: str, fill: Act) -> None:
    """Have *fill* make a package *name* where none is installed."""
    offers[name] = fill
    _look()


def _look() -> None:
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the modules by the other finders, and has their loaders call the acts."""

    def find_spec(self, name: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None) -> ModuleSpec | None:
        if name not in _acts and name not in offers:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = partial(_executed, loader.exec_module, name)
                return spec
        if name not in offers:
            return None
        filled: Any = _Filled(offers[name])
        return ModuleSpec(name, filled, is_package=True)


class _Filled:
    def __init__(self, fill: Act) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: types.ModuleType) -> None:
        self._fill(module)


def _executed(execute: Act, name: str, module: types.ModuleType) -> None:
    execute(module)
    act = _acts.pop(name, None)
    if act is not None:
        act(module)


def prepare_figures(show_one: Callable[[object], object]) -> None:
    """Before a job: select the backend without a screen, and have `pyplot` get our `show` at its import."""
    global _show_one
    first, _show_one = _show_one is None, show_one
    if not first:
        return
    if "MPLBACKEND" not in os.environ:
        os.environ["MPLBACKEND"] = "Agg"  # read when matplotlib is imported
        if "matplotlib" in sys.modules and _PYPLOT not in sys.modules:
            sys.modules["matplotlib"].use("Agg")
    after(_PYPLOT, _install)


def _install(pyplot: Any) -> None:
    pyplot.show = show_figures


def is_figure(thing: object) -> bool:
    module = sys.modules.get("matplotlib.figure")
    kind = getattr(module, "Figure", None)
    return isinstance(kind, type) and isinstance(thing, kind)


def png(figure: Any) -> bytes:
    """The picture. The job's end doesn't show it again."""
    _shown.add(id(figure))
    target = io.BytesIO()
    figure.savefig(target, format="png", bbox_inches="tight")
    return target.getvalue()


def show_figures(*_ignored: object, **_options: object) -> None:
    """Show all open figures that weren't shown yet, and close all."""
    pyplot: Any = sys.modules.get(_PYPLOT)
    if pyplot is None:
        return
    try:
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if id(figure) not in _shown and _show_one is not None:
                _show_one(figure)
        pyplot.close("all")
    except Exception:  # the job may have put anything there
        traceback.print_exc()
    finally:
        _shown.clear()


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


def prepare_ipython(display: Callable[..., object]) -> None:
    """Have `IPython.display.display` show by *display*, whether IPython is installed or not."""
    if "IPython" in offers:
        return

    def publish(module: types.ModuleType) -> None:
        vars(module)["display"] = display

    def stand_in(module: types.ModuleType) -> None:
        publish(module)
        vars(module)["clear_output"] = _nothing
        for name, kind in _FORMS.items():
            vars(module)[name] = type(name, (_Form,), {"kind": kind, "__module__": module.__name__})

    after("IPython.core.display_functions", publish)
    offer("IPython", lambda module: vars(module).update(get_ipython=_nothing))
    offer("IPython.display", stand_in)


def _nothing(*_given: object, **_named: object) -> None:
    pass

"""
Shows matplotlib's figures, so that a job needn't save them. Imports nothing of matplotlib's before the job does.

They are drawn by Agg, which needs no screen. `pyplot.show` shows all open figures and closes them, as a user would
close the windows; figures that are still open at the end are shown then.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from leeward.inside import imports

_PYPLOT = "matplotlib.pyplot"

#: Shows one figure, in the job that runs now.
_show_one: Callable[[object], object] | None = None

#: The `id` of each figure that the job has shown itself and that is still open.
_shown: set[int] = set()


def prepare(show_one: Callable[[object], object]) -> None:
    """Before a job: select the backend without a screen, and have `pyplot` get our `show` at its import."""
    global _show_one
    first, _show_one = _show_one is None, show_one
    if not first:
        return
    if "MPLBACKEND" not in os.environ:
        os.environ["MPLBACKEND"] = "Agg"  # read when matplotlib is imported
        if "matplotlib" in sys.modules and _PYPLOT not in sys.modules:
            sys.modules["matplotlib"].use("Agg")
    imports.after(_PYPLOT, _install)


def _install(pyplot: Any) -> None:
    pyplot.show = show


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


def show(*_ignored: object, **_options: object) -> None:
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

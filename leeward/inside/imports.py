"""Acts on modules when a job with `display` imports them, so that nothing of them is imported before."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any

Act = Callable[[types.ModuleType], object]

_acts: dict[str, Act] = {}
#: What fills each package that is offered.
offers: dict[str, Act] = {}


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

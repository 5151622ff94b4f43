"""Programs of the tree that are in no package, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from kit.features import ROOT


def module_at(path: str) -> ModuleType:
    """That of the file *path* of the tree, made anew."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

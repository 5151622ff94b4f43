"""
macOS in the eyes of Python: what its modules haven't there is taken away from this process, and so is /proc.

Runs in:   a process of its own, before anything else is imported: `python -c 'import kit.other_system; ...'`.
Source:    typeshed, the declarations of Python's modules by system, which mypy brings.
Not here:  what the other kernel does otherwise.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SYSTEM = "darwin"
_MODULES = ("errno", "fcntl", "mmap", "os", "posix", "resource", "select", "signal", "_socket", "socket", "termios", "time")


def declared(body: Sequence[ast.stmt], system: str) -> Iterator[str]:
    """The names that a stub declares on a *system*."""
    for each in body:
        if isinstance(each, ast.If):
            about = types.SimpleNamespace(platform=system, version_info=sys.version_info)
            holds = eval(compile(ast.Expression(each.test), "", "eval"), {"sys": about})
            yield from declared(each.body if holds else each.orelse, system)
        elif isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
        elif isinstance(each, ast.ImportFrom):
            yield from (name.asname or name.name for name in each.names)


def _typeshed() -> Path:
    found = importlib.util.find_spec("mypy")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "typeshed/stdlib"


def _stub(name: str) -> Sequence[ast.stmt]:
    path = _typeshed() / f"{name}.pyi"
    return ast.parse((path if path.exists() else _typeshed() / name / "__init__.pyi").read_text()).body


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(arguments[0])


class _NoCffi:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("cffi", "_cffi_backend"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become() -> None:
    for name in _MODULES:
        module, stub = importlib.import_module(name), _stub(name)
        for gone in set(declared(stub, "linux")) - set(declared(stub, SYSTEM)):
            if hasattr(module, gone):
                delattr(module, gone)
    sys.platform = SYSTEM
    asked = types.ModuleType("_scproxy")  # urllib asks the system for its proxies there
    vars(asked).update(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = asked
    sys.meta_path.insert(0, _NoCffi())
    sys.addaudithook(_no_proc)


become()
assert not {"memfd_create", "O_PATH", "sched_getaffinity"} & set(dir(os))

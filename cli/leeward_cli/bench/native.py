"""
leeward from C: the same call by libleeward, as a program in C, Go or Rust makes it.

Runs in:   the CLI. ctypes adds a microsecond or two to each call.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

from leeward.errors import LeewardError
from leeward_cli import library
from leeward_cli.bench.floors import CODE, check

_CODE = CODE.encode()


class _Result(ctypes.Structure):
    """The first fields of leeward_result in leeward.h. New fields are added only at its end."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("id", ctypes.c_int64), ("outcome", ctypes.c_int32), ("exit_code", ctypes.c_int32),
        ("limit", ctypes.c_int32), ("truncated", ctypes.c_int32), ("stdout_data", ctypes.c_void_p),
        ("stdout_length", ctypes.c_size_t),
    ]


class FromC:
    """`print("hello world")` over one connection, a fresh runner for each call."""

    name = "leeward, called from C"

    def __init__(self, lib: ctypes.CDLL, handle: int) -> None:
        self._lib, self._handle = lib, handle

    def call(self) -> None:
        found = self._lib.leeward_execute(self._handle, _CODE, len(_CODE), None)
        if not found:
            raise LeewardError(f"bench: {_last_error(self._lib)}")
        result = ctypes.cast(found, ctypes.POINTER(_Result)).contents
        stdout = ctypes.string_at(result.stdout_data, result.stdout_length)
        self._lib.leeward_free_result(found)
        check(self.name, stdout)


@contextlib.contextmanager
def connected(path: str) -> Iterator[FromC | None]:
    """A context with one connection; None if this installation has no libleeward."""
    if not Path(library.SDK, "lib", library.SONAME).exists():
        yield None
        return
    lib = ctypes.CDLL(library.library())
    lib.leeward_connect.restype = lib.leeward_execute.restype = ctypes.c_void_p
    lib.leeward_connect.argtypes = [ctypes.c_char_p]
    lib.leeward_execute.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.leeward_free_result.argtypes = lib.leeward_disconnect.argtypes = [ctypes.c_void_p]
    lib.leeward_free_result.restype = lib.leeward_disconnect.restype = None
    lib.leeward_last_error.restype = ctypes.c_char_p
    handle = lib.leeward_connect(path.encode())
    if not handle:
        raise LeewardError(f"bench: {_last_error(lib)}")
    try:
        yield FromC(lib, handle)
    finally:
        lib.leeward_disconnect(handle)


def _last_error(lib: ctypes.CDLL) -> str:
    said: bytes = lib.leeward_last_error()
    return said.decode(errors="replace")

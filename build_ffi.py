"""
Builds the C shim: leeward/_native/*.cdef.h declare, leeward/_native/src/*.c define.

    python build_ffi.py            compile in place, as leeward/_native/_shim.abi3.so

cffi API mode with the limited API: one build serves every CPython from 3.11 on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "leeward" / "_native"

WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fvisibility=hidden",
            "-Wall", "-Wextra", "-Wconversion", "-Wno-unused-parameter"]


def ffibuilder() -> FFI:
    """
    The declarations and sources, ready to compile.
    """
    ffi = FFI()
    headers = sorted(NATIVE.glob("src/*.h"))
    for cdef in sorted(NATIVE.glob("*.cdef.h")):
        ffi.cdef(cdef.read_text())
    ffi.set_source(
        "leeward._native._shim",
        "".join(f'#include "{header.name}"\n' for header in headers),
        sources=[os.path.relpath(source, HERE) for source in sorted(NATIVE.glob("src/*.c"))],
        include_dirs=[os.path.relpath(NATIVE / "src", HERE)],
        extra_compile_args=WARNINGS + os.environ.get("LEEWARD_CFLAGS", "").split(),
        extra_link_args=["-pthread", *os.environ.get("LEEWARD_LDFLAGS", "").split()],
        py_limited_api=True,
    )
    return ffi


def build(target: Path = HERE) -> Path:
    """
    Compile into *target*; return the extension's path.
    """
    os.chdir(HERE)
    return Path(ffibuilder().compile(tmpdir=str(target), verbose="-v" in sys.argv))


if __name__ == "__main__":
    print(build())

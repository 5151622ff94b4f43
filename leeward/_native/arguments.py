"""The kernel's constants that a syscall filter is made of, by the kernel's names. The crossing doesn't import it."""

from __future__ import annotations

from leeward._native._shim import ffi, lib
from leeward.errors import Bug


def value(name: str) -> int:
    """The low 32 bits of *name*, e.g. "PR_SET_NAME"; Bug if `src/arguments.c` doesn't list it."""
    found = ffi.new("uint32_t *")
    if lib.lw_argument_value(name.encode(), found):
        raise Bug(f"{name} is missing in _native/src/arguments.c")
    return int(found[0])

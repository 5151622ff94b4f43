"""The state of this process as bytes in a memory file, and back: _native/src/state_dump.c, _native/src/state_load.c."""

from __future__ import annotations

import errno
import os
from typing import Any, NoReturn

from leeward._native._shim import ffi, lib

_NAME = int(lib.LW_STATE_NAME)

#: Whether states can be dumped and loaded on this processor.
KNOWN = bool(lib.lw_state_known())

#: The states that this process was, each with what its copies find in their memory. Nothing else keeps them.
_states: list[Any] = []


def dump(orders: int, answers: int, scratch: int, memory: int = -1, gate: int = -1,
         number: int = -1) -> int:
    """
    Have the state of this process written, a child with one thread that ends with this call, by a process that outlives it.
    Returns in each copy, with the number that `load` was given.

    Args:
        orders: a socket on which a memory file comes, once the pipe *answers* has said how many bytes are needed.
        answers: the pipe, which then gets the bytes that were written; or -errno and a name.
        scratch: the device of the files that only this sandbox has.
        memory: the zygote's memory file, with which a copy is loaded; -1 if it isn't.
        gate: a pipe from which that process reads the end of file, or a byte if it isn't wanted.
        number: a pipe that gets its pid, 8 bytes.

    Raises:
        OSError: nothing was written, because this machine's processor isn't known to the shim.
    """
    state = ffi.new("struct lw_state *")
    _states[:] = [state]
    done = int(lib.lw_state_dump(state, orders, answers, scratch, memory, gate, number))
    if done < 0:
        raise OSError(-done, os.strerror(-done))
    return int(state.word)


def alone() -> bytes:
    """`dump` as a shared object that needs no C library: _native/src/alone."""
    return bytes(ffi.buffer(lib.lw_state_alone))


def load(file: int, memory: int = -1, word: int = 0) -> NoReturn:
    """
    Become a copy of the state in *file*, in a process that has run no job, with the zygote's memory file *memory* if it was
    dumped with that. Returns only by OSError: with the name of a file that isn't as it was, ESTALE, or isn't there; or
    EBADMSG for a file that holds no state, EXDEV for one of another kernel.
    """
    name = ffi.new("char[]", _NAME)
    error = -int(lib.lw_state_load(file, memory, word, name))
    shown = ffi.string(name).decode(errors="replace")
    why = {errno.ESTALE: "it isn't the file that the snapshot was taken with",
           errno.EBADMSG: "these bytes are no snapshot",
           errno.EXDEV: "the snapshot was taken on another kernel"}.get(error, os.strerror(error))
    raise OSError(error, why, shown or None)

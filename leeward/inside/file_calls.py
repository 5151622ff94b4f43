"""
Does file calls for the clients of a live sandbox, one after the other.

Runs in:   a separate process in the sandbox, after the last lock: it can reach what a job there can reach, and no more.
Trust:     the calls come from the daemon, which has checked them. The files may change during every call: other
           processes of the sandbox replace them by FIFOs, loops and links, fill folders, and stop or kill this process.
           A call must not block for ever, nor take memory without bound; the content that it reads is checked outside.

SIGALRM ends a call whose time is up. Its handler raises between two bytecodes, and inside the matcher of `re`, which
checks for signals. Where even that doesn't help, the daemon kills this process and makes another one.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgpack

from leeward.inside import answer, file_content, file_tree
from leeward.wire import file_answers as wire
from leeward.wire.pieces import framed, pieces_of

#: Reads from a descriptor exactly so many bytes; None if the writer has closed the pipe.
Read = Callable[[int, int], "bytes | None"]  # Python 3.9 can't evaluate it

Fields = Mapping[str, Any]

_AGAIN_S = 0.05


class CallTime:
    def __init__(self) -> None:
        self._runs = False
        signal.signal(signal.SIGALRM, self._up)

    def _up(self, number: int, frame: types.FrameType | None) -> None:
        if self._runs:
            raise TimeoutError(errno.ETIMEDOUT, "the call took too long")

    def start(self, seconds: float) -> None:
        self._runs = True
        # Repeatedly, because code that skips unreadable files also skips the first exception.
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)

    def stop(self) -> None:
        self._runs = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def serve(read: Read, job_fd: int, reply_fd: int) -> NoReturn:
    """Do call after call, until the daemon closes the pipe. Never returns."""
    time, handles = CallTime(), file_content.Handles()
    while (head := read(job_fd, wire.HEADER.size)) is not None:
        body = read(job_fd, wire.HEADER.unpack(head)[0])
        if body is None:
            break
        call = msgpack.unpackb(body, raw=False, max_bin_len=len(body), max_str_len=len(body))
        answer.write(reply_fd, framed(pieces_of({"n": call["n"], **perform(call, handles, time)}, "replace")))
    os._exit(0)


def perform(call: Fields, handles: file_content.Handles, time: CallTime) -> dict[str, Any]:
    try:
        try:
            time.start(call["timeout"])
            return CALLS[call["op"]](call, handles)
        finally:
            time.stop()
    except re.error as error:
        return wire.failure(0, f"the pattern is no regular expression: {error}")
    except (OSError, ValueError) as error:
        return failure_of(error)
    except RecursionError:
        return wire.failure(0, "the path or the pattern is nested too deeply")
    except (MemoryError, OverflowError):
        return wire.failure(errno.ENOMEM)


def failure_of(error: OSError | ValueError) -> dict[str, Any]:
    """With the text of *error*, unless that is only the errno's usual text."""
    if not isinstance(error, OSError):
        return wire.failure(0, str(error))
    said = error.strerror or ""
    usual = error.errno == errno.ENOENT or said == os.strerror(error.errno or 0)
    return wire.failure(error.errno or errno.EIO, "" if usual else said)


CALLS: dict[str, Callable[[Fields, file_content.Handles], dict[str, Any]]] = {
    "file_read": file_content.read, "file_write": file_content.write, "file_close": file_content.close,
    "file_append": lambda call, _: file_content.append(call),
    "file_write_many": lambda call, _: {"failed": file_content.write_many(call["data"], failure_of, file_tree.remove)},
    "file_read_many": lambda call, _: {"data": file_content.read_many(call["paths"], failure_of)},
    "file_edit": lambda call, _: file_content.edit(call),
    "file_copy": lambda call, _: file_tree.copy(call["path"], call["to"]),
    "file_move": lambda call, _: file_tree.move(call["path"], call["to"]),
    "file_remove": lambda call, _: file_tree.remove(call["path"], call["recursive"], call["missing"]),
    "file_list": lambda call, _: file_tree.page(call["path"], call["after"]),
    "file_walk": lambda call, _: file_tree.snapshot(call["path"]),
    "file_stat": lambda call, _: file_tree.describe(call["path"], call["follow"]),
    "file_mkdir": lambda call, _: file_tree.make(call["path"], call["parents"], call["there"]),
    "file_set": lambda call, _: file_tree.set_attributes(call["path"], call["mode"], call["time"]),
    "file_link": lambda call, _: file_tree.link(call["path"], call["to"]),
    "file_glob": lambda call, _: file_tree.names(call["path"], call["pattern"], call["most"]),
    "file_grep": lambda call, _: file_tree.lines(call),
}

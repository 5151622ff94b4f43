"""A job's end of its two pipes, in the job's process: one call reads the frame, one sends the reply."""

from __future__ import annotations

import errno

from leeward._native._shim import ffi, lib

_NO_MEMORY = -errno.ENOMEM

_take, _taken, _leave, _unpack = lib.lw_job_take, lib.lw_job_taken, lib.lw_job_leave, ffi.unpack


class Pipes:
    """
    Reads the job's frame from one pipe, and sends the reply without details on the other. One object in a process.

    Args:
        lone: the first byte of a frame that is the last one on its pipe, which is closed after it.
        workspace: a folder; if its file system is full, the reply needs details.
        nothing: the reply without details.
        last: false for a rehearsal.
    """

    def __init__(self, job: int, reply: int, *, lone: bytes, workspace: str, nothing: bytes, last: bool) -> None:
        path, data = ffi.new("char[]", workspace.encode()), ffi.from_buffer(nothing)
        given = ffi.new("struct lw_job *", {"job": job, "reply": reply, "lone": lone[0], "workspace": path,
                                            "nothing": data, "size": len(nothing), "last": last})
        failed = lib.lw_job_lay(given)
        if failed:
            raise ValueError(f"a folder's name or a reply is too long: {workspace}")

    def take(self) -> bytes | None:
        """
        Wait for a frame. Returns its payload, or None if the writer is gone. MemoryError if there is no memory for the
        payload: the job must not end as if it had run.
        """
        size = _take()
        if size >= 0:
            return _unpack(_taken(), size)  # type: ignore[no-any-return]  # cffi has no types
        if size == _NO_MEMORY:
            raise MemoryError
        return None

    def taken(self) -> bytes:
        """The payload of the frame that was read last, by `take` or in C."""
        return _unpack(_taken(), lib.lw_job_size())  # type: ignore[no-any-return]  # as above

    def finish(self) -> None:
        """
        Send the reply without details, and wait until the process is killed. Returns if the reply needs details, or
        can't be sent; and after a rehearsal.
        """
        _leave()

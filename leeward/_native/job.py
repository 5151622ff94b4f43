"""
A job's two pipes, seen from inside, one call each.

Runs in:   the job's process.
Source:    read(2), statvfs(3), pause(2)
"""

from __future__ import annotations

import errno

from leeward._native._shim import ffi, lib

_NO_MEMORY = -errno.ENOMEM

_take, _taken, _leave, _unpack = lib.lw_job_take, lib.lw_job_taken, lib.lw_job_leave, ffi.unpack


class Pipes:
    """
    The frame that comes, and the reply of a job that has nothing to tell. One pair in a process.

    Args:
        lone: the first byte of a frame behind which nothing comes: the job's end is closed then.
        workspace: full, it is something to tell.
        nothing: the reply.
        last: not a rehearsal.
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
        Wait for a frame; its payload, or None where its writer is gone.

        Raises:
            MemoryError: there is no room for it. The job must not end as if it had run.
        """
        size = _take()
        if size >= 0:
            return _unpack(_taken(), size)  # type: ignore[no-any-return]  # cffi says nothing of its types
        if size == _NO_MEMORY:
            raise MemoryError
        return None

    def taken(self) -> bytes:
        """
        The frame that was taken last, by `take` or in C.
        """
        return _unpack(_taken(), lib.lw_job_size())  # type: ignore[no-any-return]  # as above

    def finish(self) -> None:
        """
        Reply, and wait for the end of the process. Returns where that is not all there is to tell; or from a rehearsal.
        """
        _leave()

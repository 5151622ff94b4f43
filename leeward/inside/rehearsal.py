"""
A job before the job, so that the pages which every job writes are this process's own already.

Runs in:   the job's process, after the last lock and before it waits for its job.

A clone shares its parent's memory until it writes; in CPython looking at an object writes its
reference count. The first job of a process therefore used to take some 200 page faults,
0.3 ms, which the client waited for. Now the rehearsal takes them while nobody waits. It goes
the way of a real job: frame, source, output, reply.

It doesn't raise. A traceback writes 185 pages more: 0.7 MiB and 0.9 ms of processor time, for each
runner. Now a job that raises pays for it, and no other does.

Nothing of it may be seen later: descriptors 1 and 2 lead into a scratch pipe meanwhile, and
what the steps leave in the interpreter is put back.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterator

from leeward.wire import job as wire

#: Defines, calls, formats, prints: the first use of each costs some pages.
CODE = b'''\
def rehearse(numbers):
    return {str(number): [number, number / 2] for number in numbers}


print(f"{rehearse(range(3))} {'a' + 'b'!r} {2 ** 70:x}", len("abc".split("b")))
'''

#: As the daemon would send it.
FRAME = wire.HEADER.pack(1 + len(CODE)) + wire.CODE + CODE


@contextlib.contextmanager
def stage() -> Iterator[tuple[int, int]]:
    """
    Descriptors to read and to write what a rehearsal says; all is as before when it ends.
    """
    read, write = os.pipe()
    streams = [os.dup(1), os.dup(2)]
    main, argv, path = sys.modules["__main__"], list(sys.argv), list(sys.path)
    lines = dict(linecache.cache)
    try:
        os.dup2(write, 1)
        os.dup2(write, 2)
        yield read, write
    finally:
        for number, fd in enumerate(streams, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.close(read)
        os.close(write)
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, argv, path
        linecache.cache.clear()
        linecache.cache.update(lines)

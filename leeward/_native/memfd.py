"""Memory files, which nobody can ever run as a program. memfd_create(2)"""

from __future__ import annotations

import errno
import fcntl
import os

from leeward.base.points import point

#: Linux 6.3, <linux/memfd.h>; Python has it from 3.14 on.
_NOEXEC_SEAL = 0x8


def memory_file(name: str) -> int:
    """
    Make an empty memory file that can be sealed; the caller owns its close-on-exec descriptor. It has no execute
    permission and is sealed against getting it, from Linux 6.3 on: a host may require that (vm.memfd_noexec=2).
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # older than Linux 6.3


@point("results.seal")
def seal(fd: int, seals: int) -> None:
    """
    Add *seals* (F_SEAL_...) to those of a memory file. OSError if it is sealed against that, or mapped writable
    (EBUSY).
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)

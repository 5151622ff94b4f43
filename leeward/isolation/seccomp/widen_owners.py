"""
The calls that tell and change the owners of files, where an image's user is root and the profile says `owners = true`.

Runs in:   the daemon: it puts them before a program of the package, which then decides on all others.
Who needs it: PostgreSQL, git, userdel and others that stop where a file isn't the one's whom they gave it to.
Costs:     each `stat` asks the supervisor: tens of microseconds, and 4 in a millisecond after the first 1,000.
Stands:    all of them are calls that other sandboxes make freely, but for the owners that the kernel refuses; the
           supervisor lets them go on, or answers from a table (supervisor_owners.c).
"""

from __future__ import annotations

import struct

from leeward.base.dataclass import replace
from leeward.isolation.seccomp.filters import Program
from leeward.isolation.seccomp.rules import NOTIFY
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH, NUMBERS

CALLS = ("chown", "fchown", "lchown", "fchownat", "stat", "lstat", "fstat", "newfstatat", "statx")

#: Of <linux/bpf_common.h>: load a word, jump if equal, jump, return. The offsets of number and architecture in the data.
_LOAD, _IF, _JUMP, _RETURN = 0x20, 0x15, 0x05, 0x06
_NUMBER, _ARCH = 0, 4


def with_owners(program: Program, arch: str) -> Program:
    """*program* for *arch*, with these calls before it."""
    numbers = [NUMBERS[arch][name] for name in CALLS if name in NUMBERS[arch]]
    asks = len(numbers)
    head = ((_LOAD, 0, 0, _ARCH), (_IF, 0, asks + 3, AUDIT_ARCH[arch]),  # another one's numbers are for *program*
            (_LOAD, 0, 0, _NUMBER), *((_IF, asks - at, 0, number) for at, number in enumerate(numbers)),
            (_JUMP, 0, 0, 1), (_RETURN, 0, 0, NOTIFY.ret))
    insns = b"".join(struct.pack("=HBBI", *row) for row in head) + program.insns
    return replace(program, insns=insns, rules=program.rules + asks)

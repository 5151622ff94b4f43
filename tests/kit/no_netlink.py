"""
A host that lets no netlink socket be made, as under systemd's RestrictAddressFamilies= without AF_NETLINK, and in
containers with such a filter: socket(2) of that family fails with EAFNOSUPPORT, in this process and all its children.

Source:    systemd.exec(5) on RestrictAddressFamilies=, which is a filter of seccomp as well; seccomp(2)
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

from leeward.isolation.seccomp.syscalls import NUMBERS

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
_NUMBER, _FIRST = 0, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def prepare() -> None:
    """For good."""
    rows = ((_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 3, NUMBERS[platform.machine()]["socket"]), (_LOAD, 0, 0, _FIRST),
            (_EQUAL, 0, 1, socket.AF_NETLINK), (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("=HBBI", *row) for row in rows)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(rows), code)
    for asked in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*asked):
            raise OSError(ctypes.get_errno(), "prctl")

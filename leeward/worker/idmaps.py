"""
The id maps of a worker's user namespace.

Runs in:   the daemon, which stands outside of the namespace and may write them.
Source:    user_namespaces(7)
"""

from __future__ import annotations

import os

from leeward.errors import KernelRefusal


def write_id_maps(pid: int, inside: int, host_uid: int, host_gid: int) -> None:
    """
    One user and one group: *inside* in the namespace is the host's. user_namespaces(7)

    Raises:
        KernelRefusal: which file, and the errno.
    """
    rows = (("setgroups", "deny"), ("uid_map", f"{inside} {host_uid} 1"), ("gid_map", f"{inside} {host_gid} 1"))
    for name, text in rows:
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise KernelRefusal("write", f"/proc/{pid}/{name}, {text!r}", error.errno or 0) from error

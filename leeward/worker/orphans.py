"""
Processes that lost their parent, and came to the daemon to be collected.

Runs in:   the daemon, a subreaper: what a dead zygote or keeper leaves becomes its child.
Source:    prctl(2) PR_SET_CHILD_SUBREAPER, waitid(2)
"""

from __future__ import annotations

import os


def reap(pidfd: int) -> None:
    """
    Collect a dead process if it became our child; its own parent does otherwise.
    """
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return


def reap_inits() -> None:
    """
    Collect dead inits that became our children before we heard of them.

    One whose keeper died between making it and saying so. Only the first process of a pid
    namespace is taken: other children may be somebody else's to wait for.
    """
    me = os.getpid()
    for task in os.listdir(f"/proc/{me}/task"):
        try:
            with open(f"/proc/{me}/task/{task}/children") as file:
                children = file.read().split()
        except OSError:  # a thread that ended, or a kernel without the file
            continue
        for child in children:
            try:
                with open(f"/proc/{child}/status") as file:
                    fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
                if fields["State"].startswith("Z") and fields["NSpid"].split()[1:] == ["1"]:
                    os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOHANG)
            except (OSError, KeyError):
                continue

"""
Reaps processes whose parent has died, and which became the daemon's children.

Runs in:   the daemon, which is a subreaper: it gets the children of a dead zygote or keeper.
Source:    prctl(2) PR_SET_CHILD_SUBREAPER, waitid(2)
"""

from __future__ import annotations

import os

from leeward.errors import SHORT

#: LW_HELPER of _native/src/beside.h.
_HELPER = "lw-helper"


def reap(pidfd: int) -> None:
    """Reap the dead process of *pidfd* if it became our child; otherwise its own parent does."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return


def reap_inits() -> bool:
    """
    Reap dead inits and further processes of runners that became our children before they were reported, because their
    keeper died between making and reporting them; and keepers' helpers. Only processes in other pid namespaces and
    helpers are reaped, because other code may wait for other children.

    Returns:
        False if there was no descriptor, or no memory, to look for all of them: call again later.
    """
    me = os.getpid()
    complete = True
    try:
        tasks = os.listdir(f"/proc/{me}/task")
    except OSError as error:
        if error.errno not in SHORT:
            raise
        return False
    for task in tasks:
        try:
            with open(f"/proc/{me}/task/{task}/children") as file:
                children = file.read().split()
        except OSError as error:  # a thread that ended, or a kernel without the file
            complete = complete and error.errno not in SHORT
            continue
        for child in children:
            try:
                with open(f"/proc/{child}/status") as file:
                    fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
                ours = len(fields["NSpid"].split()) > 1 or fields["Name"] == _HELPER
                if ours and fields["State"].startswith("Z"):
                    os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOHANG)
            except OSError as error:
                complete = complete and error.errno not in SHORT
            except KeyError:
                continue
    return complete

"""
A runner on its way to the last lock, and then parked.

Runs in:   the job's process, pid 2 of its namespace, before any code of a job.
Ends:      at the hand-over to `inside`, or by saying what failed and leaving.

Every step is irreversible and none is skipped. What fails, fails the birth: the daemon
gets the reason and no job.
"""

from __future__ import annotations

import os
from typing import NoReturn

from leeward._native import privileges
from leeward._native.keeper import Born
from leeward._native.steps import refusal, take_descriptors
from leeward.crossing.birth import BIRTH, JOB, REPLY, Birth
from leeward.errors import KernelRefusal, LeewardError
from leeward.inside import main as inside
from leeward.isolation.channel import Channel
from leeward.wire import control

_EMPTY = -1
_INHERITED = 3  # 0, 1 and 2


def main(birth: Birth, born: Born, *, rehearse: bool) -> NoReturn:
    """
    Take every step, rehearse, say so, and become `inside`. Never returns.
    """
    layer, channel = "descriptors", born.birth
    try:
        # 0 reads nothing, 1 and 2 are the job's pipes, 3 to 5 ours; everything else is closed.
        take_descriptors((_EMPTY, born.out, born.err, born.job, born.reply, born.birth), _INHERITED)
        channel, layer = BIRTH, "cgroup"
        if born.join_error:
            raise KernelRefusal("write", "tasks", born.join_error)
        if born.cpu is not None:
            os.sched_setaffinity(0, {born.cpu})
        done, result = birth.table.take()
        if done < len(birth.layers):
            layer = birth.layers[done]
            raise refusal(birth.table.steps[done], result)
        layer = "self-check"
        if privileges.capabilities_left():
            raise LeewardError("capabilities are left")
        if rehearse:
            layer = "rehearsal"
            inside.rehearse()
        end = Channel.adopt(BIRTH)
        end.send(control.Ready(dict(birth.report)))
        end.close()
        inside.serve(JOB, REPLY)
    except BaseException as error:  # the last frame of this process: whatever it is, no job may come
        try:
            Channel.adopt(channel).send(control.Failed(-1, layer, f"{type(error).__name__}: {error}"))
        finally:
            os._exit(1)
    os._exit(0)

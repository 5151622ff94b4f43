"""
A newborn runner: it has gone its way to the last lock, or says what failed; rehearses, and parks.

Runs in:   the job's process, pid 2 of its namespace, before any code of a job.
Ends:      at the hand-over to `inside`, or by saying what failed and leaving.

What fails, fails the birth: the daemon gets the reason and no job.
"""

from __future__ import annotations

import os
from typing import NoReturn

from leeward._native import privileges
from leeward._native.keeper import Born
from leeward._native.steps import refusal
from leeward.crossing.birth import BIRTH, ENDS, JOB, REPLY, Birth
from leeward.errors import KernelRefusal, LeewardError
from leeward.inside import main as inside
from leeward.isolation.channel import Channel
from leeward.wire import control


def main(birth: Birth, born: Born, *, rehearse: bool) -> NoReturn:
    """
    See that every step was taken, rehearse, say so, and become `inside`. Never returns.
    """
    layer, channel = "cgroup", birth.table.value(ENDS[-1])
    try:
        if born.join_error:
            raise KernelRefusal("write", "tasks", born.join_error)
        if born.affinity_error:
            raise KernelRefusal("sched_setaffinity", "one processor", born.affinity_error)
        if born.done < len(birth.layers):
            layer = birth.layers[born.done]
            if "descriptors" != layer:
                channel = BIRTH
            raise refusal(birth.table.steps[born.done], born.result)
        layer, channel = "self-check", BIRTH
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

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
from leeward._native.job import Pipes
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
    layer, channel = "self-check", BIRTH
    try:
        if born.done < len(birth.layers):
            layer, channel = _where(birth, born)
            raise _why(birth, born)
        if privileges.capabilities_left():
            raise LeewardError("capabilities are left")
        layer = "randomness"
        inside.freshen()
        if rehearse:
            layer = "rehearsal"
            inside.rehearse(Pipes)
        os.write(BIRTH, birth.ready)
        os.close(BIRTH)
        inside.serve(Pipes, JOB, REPLY)
    except BaseException as error:  # the last frame of this process: whatever it is, no job may come
        try:
            Channel.adopt(channel).send(control.Failed(-1, layer, f"{type(error).__name__}: {error}"))
        finally:
            os._exit(1)
    os._exit(0)


def _where(birth: Birth, born: Born) -> tuple[str, int]:
    """
    The layer at which it stopped, and where its channel lies by then.
    """
    layer = "cgroup" if born.join_error or born.affinity_error else birth.layers[born.done]
    return layer, birth.table.value(ENDS[-1]) if layer in ("cgroup", "descriptors") else BIRTH


def _why(birth: Birth, born: Born) -> KernelRefusal:
    if born.join_error:
        return KernelRefusal("write", "tasks", born.join_error)
    if born.affinity_error:
        return KernelRefusal("sched_setaffinity", "one processor", born.affinity_error)
    return refusal(birth.table.steps[born.done], born.result)

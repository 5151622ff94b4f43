"""
A new runner after its steps: checks the steps, rehearses, reports that the runner is ready, and waits for its job. If
any step failed the daemon gets the reason, and sends no job. Where the environment has a state, the runner becomes a copy
of that, which reports.

Runs in: the job's process, pid 2 of its namespace, before any code of a job. Ends: by calling `inside`, or by reporting
a failure and exiting.
"""

from __future__ import annotations

import os
from functools import partial
from typing import NoReturn

from leeward._native import privileges, spawn, state
from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Born
from leeward._native.steps import refusal
from leeward.base.points import point
from leeward.crossing.birth import BIRTH, ENDS, JOB, REPLY, Birth
from leeward.errors import KernelRefusal, LeewardError
from leeward.inside import main as inside
from leeward.inside import reseeding, session, snapshots
from leeward.isolation.channel import Channel
from leeward.wire import control, job_frames

_pipes = point("job-pipe.pipes")(Pipes)
#: Descriptors of a state, and of its zygote's memory.
_OF_STATE = 2


@point("runner.main")
def main(birth: Birth, born: Born, reports: tuple[bytes, bytes], *, rehearse: bool, warm: bool) -> NoReturn:
    """
    Check that every step succeeded, rehearse, report, and call `inside`. Never returns. *reports*: of the first process,
    and of one beside it; *warm*: the daemon has sent the state to begin with, or that there is none.
    """
    layer, channel = "self-check", BIRTH
    native = snapshots.Native(state.dump, state.load, lambda: state.KNOWN, partial(_begin, reports), spawn.branch)
    try:
        if born.done < len(birth.layers):
            layer, channel = _where(birth, born)
            raise _why(birth, born)
        if privileges.capabilities_left():
            raise LeewardError("capabilities are left")
        layer = "randomness"
        reseeding.freshen()
        if born.beside or born.again:
            inside.renumber()
        if warm and (files := session.received(BIRTH, 0, _OF_STATE)):
            layer = "warm"
            snapshots.load(files, native, job_frames.BESIDE if born.beside else 0)
        if rehearse:
            layer = "rehearsal"
            inside.rehearse(_pipes)
        door = _begin(reports, job_frames.BESIDE if born.beside else 0)
        layer = "warm"  # an error from here on is a copy's
        inside.serve(_pipes, JOB, REPLY, door, native)
    except BaseException as error:  # the last frame of this process: after any error no job may come
        try:
            Channel.adopt(channel).send(control.Failed(-1, layer, f"{type(error).__name__}: {error}"))
        finally:
            os._exit(1)
    os._exit(0)


def _begin(reports: tuple[bytes, bytes], word: int) -> int:
    """
    Report that this process waits for its first frame. Returns the birth channel if it is kept, as a kernel does: the daemon
    sends the descriptors of branches on it, and only sends.
    """
    beside = bool(word & job_frames.BESIDE)
    os.write(BIRTH, reports[beside])
    if beside:
        return BIRTH
    os.close(BIRTH)
    return -1


def _where(birth: Birth, born: Born) -> tuple[str, int]:
    """The layer at which the steps stopped, and the descriptor of the channel at that point."""
    layer = "cgroup" if born.join_error or born.affinity_error else birth.layers[born.done]
    return layer, birth.table.value(ENDS[-1]) if layer in ("cgroup", "descriptors") else BIRTH


def _why(birth: Birth, born: Born) -> KernelRefusal:
    if born.join_error:
        return KernelRefusal("write", "tasks", born.join_error)
    if born.affinity_error:
        return KernelRefusal("sched_setaffinity", "one processor", born.affinity_error)
    return refusal(birth.table.steps[born.done], born.result)

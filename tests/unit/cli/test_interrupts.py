"""What each Ctrl-C does to a job that is waited for."""

from __future__ import annotations

import os
import signal

import pytest

from leeward_cli.interrupts import CtrlC


def test_a_ctrl_c_during_another_is_served_after_it() -> None:
    """A request that is half written can't have another one in it."""
    told: list[str] = []

    def job(how: str) -> bool:
        if "interrupt" == how:
            os.kill(os.getpid(), signal.SIGINT)
            assert [] == told  # the handler has come back here, and asked for nothing
        told.append(how)
        return True

    with CtrlC(job) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.killed

    assert ["interrupt", "kill"] == told


def test_a_third_ctrl_c_and_one_without_a_job_raise_keyboard_interrupt() -> None:
    with CtrlC(lambda _: True):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    with CtrlC(lambda _: False), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

"""
Hooks on the host: lines of a person's shell, before and after an agent.

Leaves:    what a hook has started in the background and that isn't its child any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial

from leeward.apps.agents.errors import HookFailed
from leeward.errors import reason_of

#: Seconds that a hook's processes have to end after SIGTERM.
_END_S = 2.0
#: Signals whose handlers raise an exception: they ask this program to end.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Processes of one hook that are ended, at most.
_MOST = 500


def run_hook(line: str, folder: str, environ: Mapping[str, str], seconds: float) -> None:
    """
    Run *line* by `/bin/sh` in *folder*; HookFailed if it ends with another status than 0, or can't be run.

    If it takes longer than *seconds*, or this call is interrupted, it is ended with its children: a set-up doesn't go
    on while it is cleaned up. It stays in the terminal's foreground, since it may ask for a password.
    """
    # No exception of a signal's handler comes between the child's birth and the assignment of its object.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        process = subprocess.Popen(["/bin/sh", "-c", "--", line], cwd=folder, stdin=subprocess.DEVNULL, env=dict(environ),
                                   preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, before))
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise HookFailed(f"hook {line!a:.200}: {reason_of(error)}") from None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = process.wait(seconds)
    except BaseException as error:
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise HookFailed(f"hook {line!a:.200} took longer than {seconds:g} s") from None
        raise
    if status:
        raise HookFailed(f"hook {line!a:.200} ended with status {status}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End *process* and its descendants, by SIGTERM, and by SIGKILL if they don't end within _END_S."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        waiting, until = select.poll(), time.monotonic() + _END_S
        held = _stopped(process.pid)
        for each in held:
            for sent in (number, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(each, sent)
            waiting.register(each, select.POLLIN)
        left = set(held)
        while left and (seconds := until - time.monotonic()) > 0:
            for each, _ in waiting.poll(seconds * 1000):
                waiting.unregister(each)
                left.discard(each)
        for each in held:
            os.close(each)
        if not left:
            break
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _stopped(pid: int) -> list[int]:
    """A pidfd of *pid* and of each descendant, all stopped: one that gets SIGSTOP in fork(2) has its child, or makes none."""
    held, seen = list[int](), set[int]()
    while new := [each for each in _family(pid) if each not in seen]:
        seen.update(new)
        for each in new:
            # A process that has ended, or a set-id program, which isn't ours to end.
            with contextlib.suppress(OSError):
                held.append(os.pidfd_open(each))
                signal.pidfd_send_signal(held[-1], signal.SIGSTOP)
    return held


def _family(pid: int) -> list[int]:
    """The process, which isn't reaped yet, and its descendants; by proc_pid_task(5), `children`."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{each}/task/{each}/children",
                                                            encoding="ascii") as file:
            found += map(int, file.read().split())
        if len(found) > _MOST:
            break
    return found[:_MOST]

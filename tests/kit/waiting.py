"""
Waits for actions of another process that no descriptor of ours reports.

Runs in:   the tests. The end of a process, an answer and a line of a daemon's log have events of their own:
           live_daemon.py. This module has the event of a file that is written, and one function that looks again and
           again; its callers say why there is no event.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from kit import features

#: As live_daemon.PATIENCE.
PATIENCE_S = 30.0 * features.SLOWER

#: Seconds between two looks: short beside the times that are waited for, and long enough to leave the processor to the
#: process that is waited for.
PAUSE_S = 0.002

#: <sys/inotify.h>
IN_MODIFY, IN_CREATE, IN_MOVED_TO = 0x2, 0x100, 0x80


def poll_until(condition: Callable[[], object], why: str, seconds: float = PATIENCE_S) -> None:
    """
    Look until *condition* holds.

    Args:
        why: the reason why no event reports it, which is part of the failure's message.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"it never came, and nothing tells of it: {why}"
        time.sleep(PAUSE_S)  # callers say in *why* that no event tells of it


def until_written(folder: Path, condition: Callable[[], object]) -> None:
    """Wait until *condition*, which is about files in *folder*, holds: looks when one of them is made or written."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    try:
        watch = libc.inotify_add_watch(fd, os.fsencode(folder), IN_MODIFY | IN_CREATE | IN_MOVED_TO)
        assert watch >= 0, os.strerror(ctypes.get_errno())
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            left = max(0.0, give_up - time.monotonic())
            assert select.select([fd], [], [], left)[0], f"it never came into {folder}"
            os.read(fd, 1 << 16)
    finally:
        os.close(fd)

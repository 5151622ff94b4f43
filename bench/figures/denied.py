"""
A refused system call, beside the same with a minimal supervisor in user space. The process that makes the call is the
same Python on both sides: a job of ours, and a child of floors.c's supervisor.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, compared, missing
from leeward.client.blocking import Client
from leeward.errors import LeewardError
from leeward_cli.bench.floors import interpreter
from leeward_cli.bench.ours import daemon, good

_WORDS = "a denied system call over that of a bare supervisor in C"

#: Calls of a turn: fewer than a job's burst, because beyond the burst it has to wait for tokens.
_CALLS = 500

_ASK = f"""
import os, time
clock, seconds = time.perf_counter, []
for _ in range({_CALLS}):
    start = clock()
    try:
        os.chroot("/")
    except PermissionError:
        seconds.append(clock() - start)
print(seconds)
"""


def measure(settings: FigureSettings) -> Sequence[Row]:
    if settings.program is None:
        return [missing(_WORDS, 1.5, "there is no C compiler")]
    ours, bare = "denied by leeward's supervisor", "denied by a bare one"
    found: dict[str, list[list[float]]] = {ours: [], bare: []}
    with daemon(None) as path, Client(path) as client:
        for _ in range(settings.some(20)):
            found[ours].append(_read(good(client.execute(_ASK)).stdout))
            found[bare].append(_read(_bare(settings.program)))
    return [compared(_WORDS, found, ours, bare, 1.5, gap_s=0.0, note="os.chroot in a loop of Python on both sides")]


def _bare(program: str) -> bytes:
    got = subprocess.run([program, "denied", interpreter(), "-I", "-S", "-c", _ASK], capture_output=True, check=False,
                         stdin=subprocess.DEVNULL)
    if got.returncode:
        raise LeewardError(f"bench: the bare supervisor failed: {got.stderr[:200]!r}")
    return got.stdout


def _read(printed: bytes) -> list[float]:
    seconds = [float(each) for each in json.loads(printed)]
    if len(seconds) != _CALLS:
        raise LeewardError(f"bench: {_CALLS - len(seconds)} of {_CALLS} calls weren't denied")
    return seconds

"""
The daemon's loop and its supervisor under ThreadSanitizer, as they are in the daemon: two threads, and what they share.

A native program, as the sanitizer knows nothing of Python's threads: tests/native/loop_races.c does between two turns
of the loop what the daemon's Python does. test_supervisor.py has the supervisor by itself, asked by more threads
than there are.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kit import reactors
from kit.features import ROOT

pytestmark = pytest.mark.needs("compiler", "sanitizers")

NATIVE = ROOT / "leeward" / "_native" / "src"
SOURCES = sorted(path.name for kind in ("loop", "fast_path", "supervisor") for path in NATIVE.glob(f"{kind}*.c"))

#: Calls of each of three clients.
CALLS = 50_000 if os.environ.get("LEEWARD_LONG") else 300


def races(folder: Path, way: str, supervisor: Path = NATIVE / "supervisor.c") -> subprocess.CompletedProcess[str]:
    """The program over this way to the kernel, with this file for the *supervisor*, to its end."""
    program = folder / "races"
    sources = [NATIVE / name for name in SOURCES if supervisor.name != name]
    flags, libraries = (["-DLW_URING"], ["-l:liburing.a"]) if reactors.URING == way else ([], [])
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-fsanitize=thread",
                    *flags, f"-I{NATIVE}", "-o", program, ROOT / "tests/native/loop_races.c", *sources, supervisor,
                    *libraries, "-pthread"], check=True)
    # -R: this sanitizer's memory map is older than 32 bits of address randomness
    return subprocess.run(["setarch", "-R", program, way, str(CALLS)], check=False, capture_output=True, text=True,
                          env={"TSAN_OPTIONS": "halt_on_error=1"})


@pytest.mark.parametrize("way", reactors.WAYS)
def test_loop_and_supervisor_have_no_data_race(way: str, tmp_path: Path) -> None:
    """Connections come and go, jobs take the fast path and leave it, listeners are added and removed, calls are refused."""
    got = races(tmp_path, way)

    assert "data race" not in got.stderr, got.stderr
    assert 0 == got.returncode, got.stdout + got.stderr


def test_a_look_without_the_mutex_is_found(tmp_path: Path) -> None:
    """Control: the fast path's own question, whether a job was refused anything, asked without it."""
    source = (NATIVE / "supervisor.c").read_text()
    before, name, after = source.partition("int lw_supervisor_total(")
    assert name
    unguarded = after.replace("pthread_mutex_lock(&supervisor->mutex);", "", 1)
    unguarded = unguarded.replace("pthread_mutex_unlock(&supervisor->mutex);", "", 1)
    faulty = tmp_path / "supervisor.c"
    faulty.write_text(before + name + unguarded)

    got = races(tmp_path, reactors.EPOLL, faulty)

    assert "data race" in got.stderr, got.stderr
    assert "lw_supervisor_total" in got.stderr

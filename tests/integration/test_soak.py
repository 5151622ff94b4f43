"""`bench/soak.py`: thousands of jobs, some hostile, while processes are killed. And that it finds what is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench import soak

SOAK = Path(soak.__file__)

JOBS = 1_000_000 if os.environ.get("LEEWARD_LONG") else 6_000
SECONDS = 4 * 3600.0 if os.environ.get("LEEWARD_LONG") else 900.0


#: Counted mounts are this daemon's then: other tests mount folders on the host meanwhile.
APART = [] if os.geteuid() else ["unshare", "--mount", "--propagation", "private"]


def soaked(*arguments: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*APART, sys.executable, "-P", str(SOAK), *arguments], capture_output=True, text=True,
                          timeout=seconds, check=False)


@pytest.mark.timeout(SECONDS + 60)
def test_no_answer_is_lost_doubled_or_wrong_and_no_resource_leaks():
    ended = soaked("--jobs", str(JOBS), "--hostile", "0.05", "--kills", "0.005", seconds=SECONDS)

    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout


def wrong_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(soak.Soak, "say", lambda one, what: (said.append(what), one.wrong.append(what)))
    monkeypatch.setattr(sys, "argv", ["soak.py", "--jobs", "100", "--hostile", "0", "--kills", "0", *arguments])
    assert soak.main() == 1
    return said


def test_a_wrong_answer_is_found(monkeypatch, capsys):
    monkeypatch.setattr(soak, "ORDINARY", tuple(
        (make, lambda got, number: number != 50 and bool(got)) for make, _ in soak.ORDINARY))

    assert any("job 50 has a wrong answer" in line for line in wrong_of(monkeypatch))


def test_a_lost_job_that_no_kill_explains_is_found(monkeypatch, capsys):
    """A job that kills itself looks like one whose process somebody killed."""
    def dies(number: int) -> dict[str, str]:
        return {"code": "import os; os.kill(os.getpid(), 9)"}

    monkeypatch.setattr(soak, "ORDINARY", ((dies, lambda got, number: False),))

    assert any("jobs are lost, and 0 processes were killed" in line for line in wrong_of(monkeypatch))


@pytest.mark.needs("root")
def test_a_memory_file_counts_unless_a_process_below_maps_it():
    """As a keeper does that has outlived its zygote, with the zygote's."""
    fd = os.memfd_create("zygote")
    try:
        os.ftruncate(fd, 4096)
        before = soak.there(os.getpid())["memory files"]
        maps = "import mmap, sys; kept = mmap.mmap(int(sys.argv[1]), 0); print(flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", maps, str(fd)], pass_fds=[fd], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            assert before - 1 == soak.there(os.getpid())["memory files"]
            process.stdin.close()
    finally:
        os.close(fd)


def test_descriptors_that_are_left_are_found(monkeypatch, capsys):
    """Connections that stay: more than the room that groups need."""
    kept: list[socket.socket] = []

    def stays(of: soak.Soak) -> None:
        kept.append(one := socket.socket(socket.AF_UNIX))
        one.connect(of.path)

    monkeypatch.setattr(soak, "vanish", stays)
    try:
        said = wrong_of(monkeypatch, "--vanish", "1")
    finally:
        for one in kept:
            one.close()

    assert any(line.startswith("descriptors: ") for line in said)

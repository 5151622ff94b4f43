"""
The kernel has no memory for a call of the daemon's: strace refuses every so many calls of one kind with ENOMEM.

Left out are close(2), since strace refuses by not calling, and no kernel keeps a descriptor whose close fails; and
read(2), which takes no memory for a pipe: the fast path, which has read stdout, couldn't give the job back any more.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import faults
from kit.live_daemon import PATIENCE, LiveDaemon, held

JOBS = 12
KINDS = ("ioctl", "ftruncate", "fcntl", "memfd_create", "pipe2", "recvmsg", "sendmsg", "write", "pread64",
         "pwrite64", "splice", "epoll_ctl", "pidfd_send_signal", "mkdir", "openat", "io_uring_enter")
#: One call in so many is refused, if it isn't one in thirteen: more than a new worker or zygote takes of this kind. Were
#: it fewer, each new one could lose the same call, and none would ever be there.
EVERY = {"openat": 43, "recvmsg": 29}
#: Kinds that jobs may not need so often.
RARE = ("openat", "mkdir", "io_uring_enter", "epoll_ctl", "pipe2")
#: Jobs, at most, until a call was refused: workers that were made before have what they need for ten.
MOST_JOBS = 10 * JOBS

pytestmark = pytest.mark.needs("root", "strace")


@contextlib.contextmanager
def refusing(pid: int, kind: str, told: Path) -> Iterator[None]:
    """
    A call of *kind* by a thread of process *pid* fails now and then. Its children aren't followed: strace counts for
    each of them from the start, and each new zygote would lose its third call.
    """
    which = f"inject={kind}:error=ENOMEM:when=3+{EVERY.get(kind, 13)}"
    threads = os.listdir(f"/proc/{pid}/task")
    with subprocess.Popen(["strace", "-e", f"trace={kind}", "-e", which, "-o", str(told),
                           *(f"--attach={thread}" for thread in threads)], stderr=subprocess.PIPE) as strace:
        assert strace.stderr is not None
        try:
            said = [strace.stderr.readline() for _ in threads]
            assert f"strace: Process {pid} attached\n".encode() in said, said
            yield
        finally:
            strace.terminate()  # it detaches from each thread when that stops next
            strace.communicate(timeout=PATIENCE)


def answer(socket: Path, number: int) -> str:
    """
    How job *number* ended. Every fourth one writes much, every third one brings a file and takes it back, and every
    fifth one is asked for by a megabyte, which goes by the connection's arena.
    """
    size = 200_000 if number % 4 == 0 else 5
    files = {"a": b"1"} if number % 3 == 0 else {}
    comment = "#" * (1 << 20 if number % 5 == 0 else 0)
    try:
        with leeward.Client(str(socket)) as client:
            result = client.execute(f"print('x' * {size}){comment}", files=files, collect=list(files), timeout=5.0)
    except leeward.DaemonAway:
        return "away"  # its connection was refused, or is gone
    if result.outcome is leeward.Outcome.FINISHED:
        assert (b"x" * size + b"\n", files) == (result.stdout, result.files), number
    return result.outcome.value


def test_a_call_without_memory_costs_a_job_at_most(tmp_path: Path) -> None:
    """Whatever is refused, each job is answered; and what a worker left half made doesn't keep it from being replaced."""
    config = tmp_path / "config.toml"
    config.write_text("pool_size = 2\nrecycle_after = 10\n")
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon:
        daemon.idle()
        before = held(daemon.process.pid)
        for kind in KINDS:
            told = tmp_path / kind
            with refusing(daemon.process.pid, kind, told):
                ends = [answer(daemon.socket, number) for number in range(JOBS)]
                while kind not in RARE and "INJECTED" not in told.read_text():
                    assert len(ends) < MOST_JOBS, kind  # control
                    ends.append(answer(daemon.socket, len(ends)))
            assert {"finished", "internal", "away"} >= set(ends), kind
            assert ["finished"] * JOBS == [answer(daemon.socket, number) for number in range(JOBS)], kind
            daemon.idle()
        daemon.log[:] = [row for row in daemon.log if faults.EVENT != row.get("event")]

        assert daemon.process.poll() is None
        assert held(daemon.process.pid) <= before + 8

"""
One sandbox, and each of its layers against one attack: what there is time for in a machine in software.

The whole of it is tests/escapes. This also says what a kernel gives: the driver that the daemon takes, and
whether it starts at all.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import features
from kit.attack import READ, within, without
from kit.box import MISSING, Box
from kit.live_daemon import LiveDaemon, command, environment
from leeward.apps import host
from leeward.apps.host.findings import Support
from leeward.isolation.cgroup.v2 import V2Worker
from leeward.isolation.landlock import SEALED
from leeward.spec.outcome import Outcome

#: What a guest gives back.
OUT = Path("/leeward-vm/out")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


def test_the_best_driver_is_taken(box: Box) -> None:
    """Delegated controllers are found, and are what holds the limits."""
    if features.is_met("cgroup-v2-controllers"):
        assert "v2" == box.engine.driver.name
    assert (*MISSING, *(("cgroup",) if "none" == box.engine.driver.name else ())) == box.engine.confinement.degraded


def test_a_job_runs(box: Box) -> None:
    got = box.run("import sys; print(sum(range(10))); print('late', file=sys.stderr); sys.exit(3)")

    assert (b"45\n", b"late\n", 3, Outcome.FINISHED) == (got.stdout, got.stderr, got.exit_code, got.outcome)


def test_mounts_hide_files_of_the_host(box: Box) -> None:
    """One that everybody may read has no name inside."""
    path = Path("/var/tmp") / f"leeward-layers-{os.getpid()}"
    path.write_text("the host's")
    path.chmod(0o644)
    try:
        assert ["the host's"] == without(READ, paths=[str(path)])  # control

        assert ["ENOENT"] == within(box, READ, paths=[str(path)])
    finally:
        path.unlink()


WRITE = "tell([attempt(os.open, path, os.O_WRONLY | os.O_CREAT) for path in paths])"


def test_mounts_are_read_only(box: Box) -> None:
    """All but the job's own folders, and its own file in the root too."""
    got = within(box, WRITE, paths=["/usr/new", "/new", "/etc/passwd", "/workspace/new"])

    assert {"EROFS", "EACCES"} >= set(got[:3])
    assert "" == got[3]  # control


def test_landlock_holds_where_there_is_one(box: Box) -> None:
    """A file that mode and mounts let everybody read, and no rule."""
    (said,) = within(box, READ, paths=[SEALED])

    if features.is_met("landlock"):
        assert "EACCES" == said
    else:
        assert said.startswith("A job that can read this")  # control: nothing else hides it


def test_namespaces_hide_processes(box: Box) -> None:
    kill = "tell(attempt(os.kill, pid, 0))"
    pid = os.getpid()
    assert "" == without(kill, pid=pid)  # control

    assert "ESRCH" == within(box, kill, pid=pid)


def test_privileges_are_gone(box: Box) -> None:
    got = within(box, 'tell([status(name) for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")])')

    assert [0, 0, 0, 1, 2] == [int(value, 16) for value in got]


def test_seccomp_refuses_and_counts(box: Box) -> None:
    """Answered through the listener, which this kernel may or may not let signals interrupt."""
    unshare = 'tell(call("unshare", 0x10000000))'  # CLONE_NEWUSER
    assert "" == without(unshare)  # control

    assert "EACCES" == within(box, unshare)
    assert {"unshare": 1} == box.run("import ctypes; ctypes.CDLL(None).unshare(0x10000000)").denied


TOUCH = "held = bytearray(120 << 20)"


def test_memory_is_limited(box: Box) -> None:
    """The same job below its limit and above it."""
    assert Outcome.FINISHED is box.run(TOUCH).outcome  # control

    got = box.run(TOUCH, limits={"memory": 48 << 20})

    assert Outcome.OUT_OF_MEMORY is got.outcome or b"MemoryError" in got.stderr


@pytest.mark.needs("cgroup-v2-controllers")
def test_a_job_is_not_blamed_for_the_limit_of_a_group_above(box: Box) -> None:
    """Its kernel has ended it below its own limit, as it does where the host's memory is short. It was tried again."""
    above = [worker.group.group for worker in box.engine.workers if isinstance(worker.group, V2Worker)]
    for group in above:
        group.write("memory.max", str(64 << 20))
    try:
        got = box.run(TOUCH)
    finally:
        for group in above:
            group.write("memory.max", "max")

    assert got.error is not None
    assert (Outcome.INTERNAL, "HostMemory", None) == (got.outcome, got.error.type, got.limit)


def test_processes_are_limited(box: Box) -> None:
    fork = ("import errno, os, time\nmade = 0\ntry:\n    while made < 12:\n        if os.fork() == 0: time.sleep(60)\n"
            "        made += 1\nexcept OSError as error: print(errno.errorcode[error.errno])\nprint(made)")
    assert b"12\n" == box.run(fork).stdout  # control

    assert b"EAGAIN\n" == box.run(fork, limits={"processes": 8}).stdout[:7]


def test_a_daemon_reports_the_active_layers(tmp_path: Path) -> None:
    """
    Every layer is active that this kernel has, by the daemon's own check; and clients are served by io_uring where
    it is new enough, else by epoll.
    """
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, daemon.client() as client:
        got = client.execute("print(6 * 7)")
        status = client.status()

    if OUT.is_dir():  # not in a guest's container
        # For the report of the run: tests/vm/report.py.
        (OUT / "status.json").write_text(json.dumps(status))
    assert ("42\n", tuple(status["degraded"])) == (got.stdout_text, got.degraded)
    layers = status["layers"]
    assert {"active"} == {layers[name]["state"] for name in ("namespaces", "mounts", "seccomp")}
    assert ("active" if features.is_met("landlock") else "missing") == layers["landlock"]["state"]
    if features.is_met("cgroup-v2-controllers"):
        assert "v2" == layers["cgroup"]["driver"]
    assert ("uring" if features.is_met("uring-transport") else "socket") == status["transport"]


@pytest.mark.needs("guest", "landlock-missing", "kernel>=5.13")
def test_the_doctor_says_how_to_boot_with_landlock() -> None:
    """A kernel that has it and was told to leave it out: ./dev vm --append lsm=lockdown -- tests/vm/test_layers.py"""
    (found,) = (feature for feature in host.features() if "landlock" == feature.name)

    assert (Support.MISSING, True) == (found.state, "security modules" in found.have)
    assert "lsm=landlock," in found.cure


@pytest.mark.needs("landlock-missing")
def test_no_start_without_landlock_and_without_leave(tmp_path: Path) -> None:
    """It says what is missing, since when there is one, and what to type."""
    config = tmp_path / "none-allowed.toml"
    config.write_text("allow_degraded = []\n")
    config.chmod(0o600)

    got = subprocess.run(command("run", "--config", str(config), "print(6 * 7)"), env=environment(),
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert ("", True) == (got.stdout, got.returncode > 0)
    assert "landlock: have none, need ABI 1 (Linux 5.13)" in got.stderr
    assert "--allow-degraded landlock" in got.stderr

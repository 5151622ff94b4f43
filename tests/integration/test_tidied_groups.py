"""A script on the host that removes empty cgroups, a daemon's among them: it costs a runner at most."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from leeward.isolation.cgroup import hierarchy

JOBS = 150 if os.environ.get("LEEWARD_LONG") else 60


@contextlib.contextmanager
def tidied(pid: int, pause: float) -> Iterator[list[str]]:
    """Whatever is empty of the groups that daemon *pid* made is removed again and again; what was, so far."""
    over = threading.Event()
    removed: list[str] = []
    homes = [each.own for each in hierarchy.here()]

    def tidy() -> None:
        while not over.wait(pause):
            for home in homes:
                with contextlib.suppress(OSError):
                    for name in os.listdir(home):
                        if name.startswith(f"leeward-{pid}-"):
                            for folder, _, _ in os.walk(f"{home}/{name}", topdown=False):
                                with contextlib.suppress(OSError):
                                    os.rmdir(folder)
                                    removed.append(folder)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        yield removed
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_daemon_survives_a_program_that_removes_its_empty_groups(tmp_path: Path, pause: float) -> None:
    """
    Whichever job runs meanwhile is answered; when it is over all is as before.

    Who removes without a pause races each arming from mkdir(2) to clone3(2), and on a busy host wins most races: then
    no worker may come free within a request's time, and the answer is that. With a pause every job runs.
    """
    allowed = {"finished"} if pause else {"finished", "queue_timeout"}
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, daemon.client() as client:
        grouped = "none" != client.status()["layers"]["cgroup"]["driver"]
        outcomes: dict[str, int] = {}
        with tidied(daemon.process.pid, pause) as removed:
            for number in range(JOBS):
                code = "import os\nos._exit(0)" if number % 5 == 0 else f"print({number})"
                try:
                    got = client.execute(code).outcome.value
                except leeward.QueueTimeout as late:
                    got = late.kind
                outcomes[got] = outcomes.get(got, 0) + 1
                if got != "finished":
                    break  # each takes as long as a request may wait
        assert outcomes.keys() <= allowed, daemon.log
        assert pause == 0 or {"finished": JOBS} == outcomes
        assert grouped == bool(removed)  # control

        daemon.until(lambda status: 2 == status["workers"]["idle"])
        for _ in range(20):
            result = client.execute("x = bytearray(1 << 20)\nprint(len(x))", memory=64 << 20)
            assert "1048576\n" == result.stdout_text
        assert daemon.process.poll() is None

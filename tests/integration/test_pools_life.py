"""What happens to the daemon happens to all its pools: its end, a lost zygote, a changed configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, descendants, watched
from leeward.errors import DaemonError, QueueTimeout, ShuttingDown
from leeward.spec.outcome import Outcome

CONFIG = """\
pool_size = 1
queue_timeout = {patience}
[environments.other]
max = 3
[profiles.mine]
[users.{user}]
jobs = {jobs}
"""


def started(folder: Path, *, jobs: int = 0, patience: float = 30) -> LiveDaemon:
    path = folder / "c.toml"
    path.write_text(CONFIG.format(user=os.geteuid(), jobs=jobs, patience=patience))
    path.chmod(0o600)
    return LiveDaemon(folder, "--config", str(path))


def pool(status: dict[str, Any]) -> dict[str, Any]:
    return next((row for row in status["pools"] if "other" == row["environment"]), {})


def zygotes(daemon: LiveDaemon) -> list[int]:
    """The newest last."""
    found = []
    for pid in sorted(descendants(daemon.process.pid)):
        with contextlib.suppress(OSError):  # a runner that is gone
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == daemon.process.pid and b"exec(os.read(0,65536))" in command:
                found.append(pid)
    return found


def test_the_daemons_end_is_that_of_all_pools(tmp_path: Path) -> None:
    """A job that runs is cut, what waits is refused, and no process is left."""
    async def run(daemon: LiveDaemon, stack: contextlib.ExitStack) -> tuple[Any, Any, Callable[[float], list[int]]]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            await client.execute("1", environment="other")
            jobs = [asyncio.create_task(client.execute("import time; time.sleep(300)", environment="other",
                                                       timeout=400)) for _ in range(4)]
            while (3, 1) != (pool(status := await client.status())["workers"]["busy"], pool(status)["queued"]):
                pass
            left = descendants(daemon.process.pid)
            assert len(left) > 8
            over = stack.enter_context(watched(left))
            daemon.run("daemon", "stop", "--now", "--socket", str(daemon.socket))
            done = await asyncio.gather(*jobs, return_exceptions=True)
            return done[:3], done[3], over

    with contextlib.ExitStack() as stack:
        with started(tmp_path) as daemon, leeward.Sandbox(socket=daemon.socket, profile="mine") as box:
            box.run(["true"])
            cut, refused, over = asyncio.run(asyncio.wait_for(run(daemon, stack), 2 * PATIENCE))
            assert 0 == daemon.process.wait(PATIENCE)
        assert [] == over(PATIENCE)  # the opener's child for the next order ends by the end of a socket
    assert [Outcome.INTERNAL] * 3 == [result.outcome for result in cut]
    assert {"the daemon shut down before the job was over"} == {result.error.message for result in cut}
    assert isinstance(refused, ShuttingDown)


def test_a_lost_zygote_is_made_again(tmp_path: Path) -> None:
    """Of a pool that isn't the daemon's first; requests for it are served on, and the other pool is left alone."""
    with started(tmp_path) as daemon, daemon.client() as client:
        assert client.execute("1", environment="other").ok
        first, second = zygotes(daemon)
        os.kill(second, signal.SIGKILL)
        daemon.logged(lambda rows: any("zygote is gone" == row.get("event") for row in rows))
        with client.session(environment="other") as session, leeward.Sandbox(
                socket=daemon.socket, environment="other") as box:  # for these, workers are made
            assert session.execute("1").ok
            assert box.execute("1").ok
        assert first in zygotes(daemon)
        assert second not in zygotes(daemon)


def test_a_changed_quota_holds_in_all_pools(tmp_path: Path) -> None:
    """Also in one that stood before."""
    with started(tmp_path) as daemon, daemon.client() as client:
        assert client.execute("1", environment="other").ok
        path = tmp_path / "c.toml"
        path.write_text(CONFIG.format(user=os.geteuid(), jobs=1, patience=0.5))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged(lambda rows: any("configuration reloaded" == row.get("event") for row in rows))
        with client.session(), pytest.raises(QueueTimeout, match="fitted into the quota"):
            client.execute("1", environment="other")


def test_every_client_is_told_when_its_pool_ends(tmp_path: Path) -> None:
    """The first worker of an environment never starts: every request that waits for it is told why."""
    path = tmp_path / "c.toml"
    path.write_text('[environments.ailing]\npreload = ["no_such_module"]\n')
    path.chmod(0o600)

    async def run(daemon: LiveDaemon) -> list[Any]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            return await asyncio.gather(*(client.execute("1", environment="ailing") for _ in range(20)),
                                        return_exceptions=True)

    with LiveDaemon(tmp_path, "--config", str(path)) as daemon:
        told = asyncio.run(asyncio.wait_for(run(daemon), PATIENCE))
        daemon.until(lambda status: status["workers"]["idle"] > 0)
    assert 20 == len(told)
    for error in told:
        assert isinstance(error, DaemonError)
        assert "no_such_module" in str(error)

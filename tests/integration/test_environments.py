"""Environments: interpreters with packages of their own, in pools of their own, beside the daemon's."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import packages
from kit.live_daemon import PATIENCE, LiveDaemon
from leeward.errors import PoolFailed, RequestRejected

WHERE = "import sys, flavour; print(sys.prefix, flavour.NAME)"

CONFIG = """\
pool_idle = {idle}
pool_size = 1
[environments.sour]
path = "{home}/sour"
preload = ["flavour"]
[environments.sweet]
path = "{home}/sweet"
max = 2
[environments.gone]
path = "{home}/gone"
[environments.ailing]
path = "{home}/sour"
preload = ["no_such_module"]
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Two virtual environments, each with a module of its own. Not below /tmp, which a sandbox has for itself."""
    with tempfile.TemporaryDirectory(prefix="leeward-environments-", dir=packages.outside_tmp()) as folder:
        Path(folder).chmod(0o755)
        for name in ("sour", "sweet"):
            subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--without-pip",
                            f"{folder}/{name}"], check=True)
            site = next(Path(folder, name, "lib").glob("python3.*/site-packages"))
            (site / "flavour.py").write_text(f"NAME = {name!r}\n")
        yield Path(folder)


@pytest.fixture(scope="module")
def daemon(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    config = folder / "c.toml"
    config.write_text(CONFIG.format(idle=300, home=home))
    config.chmod(0o600)
    with LiveDaemon(folder, "--config", str(config)) as daemon:
        yield daemon


@pytest.mark.smoke
def test_every_environment_has_its_packages(daemon: LiveDaemon, home: Path) -> None:
    """By the client, a session, a live sandbox and the command line; the daemon's own has none of them."""
    with daemon.client() as client:
        for name in ("sour", "sweet", "sour"):
            assert f"{home}/{name} {name}\n" == client.execute(WHERE, environment=name).stdout_text
        assert "ModuleNotFoundError" in client.execute(WHERE).stderr_text
        with client.session(environment="sour") as session:
            session.execute("import flavour")
            assert "sour\n" == session.execute("print(flavour.NAME)").stdout_text
    with leeward.Sandbox(socket=daemon.socket, environment="sweet") as box:
        assert "sweet" in box.run(["python", "-c", WHERE]).stdout_text
        assert f"{home}/sweet sweet\n" == box.execute(WHERE).stdout_text
        assert "sweet" == box.info()["environment"]
    done = daemon.run("exec", "--environment", "sweet", WHERE)
    assert f"{home}/sweet sweet\n" == done.stdout.decode(), done.stderr


def test_a_pool_grows_while_jobs_wait(daemon: LiveDaemon) -> None:
    """From one worker to `max`, and no further."""
    def of_sweet(status: dict[str, Any]) -> dict[str, Any]:
        return next(row for row in status["pools"] if "sweet" == row["environment"])

    async def crowd() -> None:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            await client.execute("1", environment="sweet")
            jobs = [asyncio.create_task(client.execute("import time; time.sleep(300)", environment="sweet",
                                                       timeout=400)) for _ in range(3)]
            while (2, 1) != (of_sweet(status := await client.status())["workers"]["busy"], of_sweet(status)["queued"]):
                pass
            assert 2 == of_sweet(status)["workers"]["total"]
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    asyncio.run(asyncio.wait_for(crowd(), PATIENCE))


def test_an_unknown_environment_is_refused_by_name(daemon: LiveDaemon) -> None:
    """The daemon serves on after each refusal."""
    with daemon.client() as client:
        with pytest.raises(RequestRejected, match="'nothing' is unknown; this daemon has: sour, sweet, gone, ailing"):
            client.execute("1", environment="nothing")
        with pytest.raises(PoolFailed, match="is not a virtual environment"):
            client.execute("1", environment="gone")
        for _ in range(2):
            with pytest.raises(PoolFailed, match="no_such_module"):
                client.execute("1", environment="ailing")
        with leeward.Sandbox(socket=daemon.socket, profile="workshop") as box, \
                pytest.raises(RequestRejected, match="'workshop' is unknown"):
            box.run(["true"])
        assert client.execute("print(1)").ok


def test_the_status_shows_them(daemon: LiveDaemon) -> None:
    """With what they take and did."""
    with daemon.client() as client:
        client.execute("1", environment="sour")
        (row,) = [row for row in client.status()["pools"] if "sour" == row["environment"]]

    assert row["workers"]["total"] >= 1
    assert row["jobs"]["done"] >= 1
    assert row["memory"] > 0
    assert re.search(rb"^pool +python sour: ", daemon.run("status").stdout, re.MULTILINE)


def test_an_unused_pool_ends(home: Path, tmp_path: Path) -> None:
    """With all its processes, and it begins again when somebody asks."""
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(idle=1, home=home))
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon, daemon.client() as client:
        for _ in range(2):
            since = len(daemon.log)
            assert client.execute("1", environment="sour").ok
            daemon.logged(lambda rows: any("pool ends" == row.get("event") for row in rows), since)
            daemon.until(lambda status: not status["pools"])
        client.execute("1", environment="sour")  # and one that stands is ended with the daemon
    assert 0 == daemon.process.returncode

"""A fleet on Ray, in an environment of its own: tests/frameworks/ray_suite.py has the tests, since Ray starts once."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from pathlib import Path

import pytest

from kit import features
from kit.live_daemon import LiveDaemon, environment

#: Seconds for the suite: a cluster of three takes half a minute on a busy machine.
_PATIENCE = 600


def suite(name: str, tmp_path: Path, **env: str) -> str:
    """Run tests/frameworks/NAME_suite.py; its last line."""
    done = subprocess.run(
        [features.ROOT / ".venv-framework-ray/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
         "-c", "/dev/null", "--rootdir", tmp_path, features.ROOT / f"tests/frameworks/{name}_suite.py"],
        env=environment(RAY_USAGE_STATS_ENABLED="0", **env), cwd=tmp_path,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_PATIENCE)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.needs("framework-ray")
@pytest.mark.timeout(2 * _PATIENCE)
def test_a_fleet_on_ray(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(3)]
    config.write_text(f"allow_network = true\n[egress.everything]\nallow = ['*']\nports = {ports}\n")
    config.chmod(0o600)
    with contextlib.ExitStack() as stack:
        sockets = []
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
            daemon = stack.enter_context(LiveDaemon(tmp_path / name, "--pool-size", "2", "--config", str(config)))
            sockets.append(str(daemon.socket))
        said = suite("ray", tmp_path, LEEWARD_FLEET_SOCKETS=":".join(sockets),
                     LEEWARD_FLEET_RAY_PORTS=":".join(map(str, ports)))
        assert said.startswith("6 passed")


@pytest.mark.needs("framework-ray")
@pytest.mark.timeout(2 * _PATIENCE)
def test_leeward_behind_rays_sandboxes(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        assert suite("ray_sandbox", tmp_path, LEEWARD_FLEET_SOCKETS=str(daemon.socket)).startswith("12 passed")

"""A fleet on Ray, in an environment of its own: tests/frameworks/ray_suite.py has the tests, since Ray starts once."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from kit import features
from kit.live_daemon import LiveDaemon, environment

#: Seconds for the suite: a cluster of three takes half a minute on a busy machine.
_PATIENCE = 600


@pytest.mark.needs("framework-ray")
@pytest.mark.timeout(2 * _PATIENCE)
def test_a_fleet_on_ray(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("allow_network = true\n")
    config.chmod(0o600)
    with contextlib.ExitStack() as stack:
        sockets = []
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
            daemon = stack.enter_context(LiveDaemon(tmp_path / name, "--pool-size", "2", "--config", str(config)))
            sockets.append(str(daemon.socket))
        done = subprocess.run(
            [features.ROOT / ".venv-framework-ray/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
             "-c", "/dev/null", "--rootdir", tmp_path, features.ROOT / "tests/frameworks/ray_suite.py"],
            env=environment(LEEWARD_FLEET_SOCKETS=":".join(sockets), PYTHONDONTWRITEBYTECODE="1", RAY_USAGE_STATS_ENABLED="0",
                            LEEWARD_LONG=os.environ.get("LEEWARD_LONG", "")),
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_PATIENCE)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    assert done.stdout.strip().splitlines()[-1].startswith("5 passed"), done.stdout[-2000:]

"""
Switches of the whole kernel, turned off: leeward says what is missing, and the line that it gives brings it back.

Only in a guest. Nobody else lives there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.live_daemon import LiveDaemon
from leeward.apps import host
from leeward.apps.host.findings import Feature, Support

pytestmark = pytest.mark.needs("guest", "root")


@pytest.fixture
def turned(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A switch below /proc/sys, set to what the test is given with it."""
    name, value = request.param
    path = Path("/proc/sys", name)
    before = path.read_text()
    path.write_text(value)
    yield path
    path.write_text(before)


def feature(name: str) -> Feature:
    return next(each for each in host.features() if name == each.name)


@pytest.mark.parametrize(("turned", "name"), [
    (("user/max_user_namespaces", "0"), "namespace.user"),
    (("user/max_pid_namespaces", "0"), "namespace.pid"),
    (("user/max_net_namespaces", "0"), "namespace.network"),
    pytest.param(("kernel/io_uring_disabled", "2"), "io_uring", marks=pytest.mark.needs("kernel>=6.6")),
], indirect=["turned"])
def test_the_doctor_s_line_brings_it_back(turned: Path, name: str) -> None:
    found = feature(name)

    assert Support.MISSING is found.state
    assert f"sysctl -w {turned.relative_to('/proc/sys').as_posix().replace('/', '.')}=" in found.cure
    subprocess.run(found.cure, shell=True, check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert Support.OK is feature(name).state


@pytest.mark.needs("kernel>=6.6", "uring-transport")
@pytest.mark.parametrize("turned", [("kernel/io_uring_disabled", "2")], indirect=True)
def test_clients_are_served_without_io_uring(turned: Path, tmp_path: Path) -> None:
    """Refused even to root: the daemon goes on by epoll."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, daemon.client() as client:
        assert "socket" == client.status()["transport"]
        assert b"1\n" == bytes(client.execute("print(1)").stdout_view)

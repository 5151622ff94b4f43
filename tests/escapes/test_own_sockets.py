"""
Escapes by leeward's own sockets: whoever can connect to one commands what confines it.

The operator's socket hears processes of this user's and this host alone; and no sandbox is shown a folder in which a
socket of leeward's is, by whatever name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit.approvals import ServedApprovals
from kit.box import control
from kit.live_daemon import LiveDaemon
from leeward.client.mounts import Mount

BY_SERVICE = pytest.mark.no_single_lock("the service looks at its peer, which no lock of a job's is about")
BY_OPENER = pytest.mark.no_single_lock("the opener looks at a folder before there is a sandbox")
ROOT = 0 == os.geteuid()

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as made:
    made.connect(sys.argv[1])
    try:
        made.sendall(b"GET /api/requests HTTP/1.1\\r\\nhost: leeward\\r\\nconnection: close\\r\\n\\r\\n")
        print(made.makefile("rb").readline().decode())
    except OSError:
        print("closed")
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[Path]:
    """
    A folder; root's is on a file system of its own. While a socket has a second name no daemon of that user shows anything
    of its file system, and root's tests run in two lanes.
    """
    with tempfile.TemporaryDirectory(prefix="lw-own-") as made:
        if ROOT:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", made], check=True)
        try:
            yield Path(made)
        finally:
            if ROOT:
                subprocess.run(["umount", made], check=True)


@pytest.fixture(scope="module")
def daemon(apart: Path) -> Iterator[LiveDaemon]:
    (apart / "d").mkdir()
    with LiveDaemon(apart / "d", "--pool-size", "2") as made:
        yield made


def _asked(path: str, *before: str) -> str:
    return subprocess.run([*before, sys.executable, "-c", ASK, path], capture_output=True, text=True,
                          check=True).stdout.strip()


@pytest.mark.needs("extra-web")
@pytest.mark.skipif(not ROOT, reason="needs root, for namespaces with this user's id")
@pytest.mark.smoke
@BY_SERVICE
def test_c415_cannot_be_heard_by_the_operators_socket(daemon: LiveDaemon, tmp_path: Path) -> None:
    """A process with the operator's own id in another pid or network namespace, as a sandbox's is."""
    with ServedApprovals(daemon, tmp_path) as served:
        with control():
            assert "HTTP/1.1 200 OK" == _asked(served.socket)

        for how in (["--pid", "--fork"], ["--net"], ["--pid", "--fork", "--net"]):
            assert "HTTP/1.1" not in _asked(served.socket, "unshare", *how)
        assert "HTTP/1.1 200 OK" == _asked(served.socket)


@pytest.fixture
def place(apart: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=apart) as made:
        folder = Path(made, "above/held")
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        yield folder


def _by_its_path(folder: Path) -> Path:
    return folder


def _by_a_parent(folder: Path) -> Path:
    return folder.parent


def _by_a_link(folder: Path) -> Path:
    link = folder.parent.parent / "link"
    if not link.is_symlink():
        link.symlink_to(folder)
    return link


def _by_a_bind_mount(folder: Path) -> Path:
    bound = folder.parent.parent / "bound"
    bound.mkdir(exist_ok=True)
    if not (bound / "file").exists():
        subprocess.run(["mount", "--bind", folder, bound], check=True)
    return bound


def _by_another_name(folder: Path) -> Path:
    other = folder.parent.parent / "project"
    other.mkdir(exist_ok=True)
    (other / "file").touch()
    for made in folder.glob("*.sock"):
        if not (other / "innocent").exists():
            os.link(made, other / "innocent")
    return other


WAYS = [_by_its_path, _by_a_parent, _by_a_link, _by_another_name]


@pytest.mark.parametrize("way", [*WAYS, pytest.param(_by_a_bind_mount, marks=pytest.mark.skipif(
    not ROOT, reason="needs root, for a bind mount"))])
@pytest.mark.parametrize("kind", ["daemon", "metrics", pytest.param("approvals", marks=pytest.mark.needs("extra-web"))])
@BY_OPENER
def test_c416_cannot_be_shown_a_folder_with_a_socket_of_leewards(daemon: LiveDaemon, place: Path, kind: str,
                                                                 way: Callable[[Path], Path]) -> None:
    """Of another daemon, its metrics, or the operator's; by its path, the folder above, a link, a bind mount, a hard link."""
    def shown(folder: Path) -> str:
        with leeward.Sandbox(socket=daemon.socket, mounts=[Mount(folder, "/data")]) as box:
            return box.run(["find", "/data", "-type", "f"]).stdout_text

    try:
        with control():
            assert "file" in shown(way(place))  # the same folder, in which nothing of leeward's listens
        with _listening(daemon, place, kind), pytest.raises(leeward.RequestRejected, match="leeward's own"):
            shown(way(place))
    finally:
        bound = place.parent.parent / "bound"
        if bound.exists():
            subprocess.run(["umount", bound], check=True)
        shutil.rmtree(place.parent.parent / "project", ignore_errors=True)


def _listening(daemon: LiveDaemon, place: Path, kind: str) -> ServedApprovals | LiveDaemon:
    state = place.parent.parent / "state"
    state.mkdir()
    os.chmod(place, 0o700)
    if "approvals" == kind:
        return ServedApprovals(daemon, state, socket=f"{place}/approvals.sock")
    if "daemon" == kind:
        return LiveDaemon(place, "--pool-size", "1")
    config = state / "config.toml"
    config.write_text(f'metrics = "{place}/metrics.sock"\n')
    return LiveDaemon(state, "--pool-size", "1", "--config", str(config))


CONNECT = """
import socket
with socket.socket(socket.AF_UNIX) as made:
    made.settimeout(5)
    made.connect("/data/s")
    try:
        said = made.recv(4096)
    except TimeoutError:
        said = b"it waits for a request"
    print(said)
"""


@pytest.mark.no_single_lock("the daemon looks at its peer, which no lock of a job's is about")
def test_c407_cannot_command_its_daemon_by_a_name_that_came_later(daemon: LiveDaemon, place: Path) -> None:
    """A hard link to the daemon's socket, in a folder that was shown before."""
    with LiveDaemon(place.parent, "--pool-size", "1") as other, leeward.Sandbox(
            socket=daemon.socket, mounts=[Mount(place, "/data")]) as box:
        box.run(["true"])
        os.link(other.socket, place / "s")
        with control():
            # Another daemon, whose sandbox this isn't. Root's sandboxes have ids that no daemon serves.
            assert ("forbidden" if ROOT else "waits") in box.run(["python3", "-c", CONNECT]).stdout_text
        os.unlink(place / "s")
        os.link(daemon.socket, place / "s")
        assert "forbidden" in box.run(["python3", "-c", CONNECT]).stdout_text

"""Profiles that the operator has made of leeward's own: what they show and permit, and what `leeward profiles` says."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.live_daemon import LiveDaemon
from leeward.errors import PoolFailed, RequestRejected
from leeward.spec.profiles import OURS

MIB = 1 << 20

OWN = ("build", "plain", "housed", "overhoused", "lost")

CONFIG = """\
pool_size = 1
[ceilings]
time = 100
[profiles.build]
show = ["{tools}", "{tools}/../single/file"]
variables = {{ COLOUR = "red", PATH = "/usr/bin" }}
loopback = true
terminal = true
limits = {{ memory = "400M", processes = 7, time = 90 }}
[profiles.plain]
[profiles.housed]
home = "/home/user"
[profiles.overhoused]
home = "/home/sandbox"
[profiles.lost]
show = ["/opt/nothing-is-here"]
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Path]:
    """Things of the host to show. Not below /tmp, which a sandbox has for itself."""
    with tempfile.TemporaryDirectory(prefix="leeward-profiles-", dir=packages.outside_tmp()) as folder:
        Path(folder).chmod(0o755)
        for name in ("tools/deep/file", "single/file", "single/other"):
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n")
        yield Path(folder)


@pytest.fixture(scope="module")
def config(host: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configuration") / "c.toml"
    path.write_text(CONFIG.format(tools=host / "tools").replace("/tools/../", "/"))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def daemon(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--config", str(config)) as daemon:
        yield daemon


@pytest.mark.smoke
def test_a_profile_shows_its_folders_read_only(daemon: LiveDaemon, host: Path) -> None:
    """A folder and a file, to be read alone; a plain sandbox shows neither, nor does a profile what is beside them."""
    look = f"cat {host}/tools/deep/file {host}/single/file; touch {host}/tools/new {host}/single/file; ls {host}/single"
    with leeward.Sandbox(socket=daemon.socket, profile="build") as box:
        seen = box.shell(look)
        assert "tools/deep/file\nsingle/file\nfile\n" == seen.stdout_text
        assert 2 == seen.stderr_text.count("cannot touch")
        assert "build" == box.info()["profile"]
    for profile in ("python", "plain"):
        with leeward.Sandbox(socket=daemon.socket, profile=profile) as box:
            assert "" == box.shell(look).stdout_text
    assert not (host / "tools/new").exists()


def test_a_profile_has_its_variables_limits_and_network(daemon: LiveDaemon) -> None:
    """The others are as the daemon has them; a request may ask for more, up to the ceilings."""
    ask = "import os, socket; print(os.environ['COLOUR'], os.environ['PATH'], os.environ['HOME']); socket.socket()"
    with leeward.Sandbox(socket=daemon.socket, profile="build") as box:
        result = box.execute(ask + "; os.openpty()")
        assert "red /usr/bin /workspace\n" == result.stdout_text
        assert result.ok
        assert 400 * MIB == box.info()["memory_limit"]
    with leeward.Sandbox(socket=daemon.socket, profile="build", memory="500M", timeout=99) as box:
        assert 500 * MIB == box.info()["memory_limit"]
    with leeward.Sandbox(socket=daemon.socket, profile="build", timeout=101) as box, \
            pytest.raises(RequestRejected, match="above this daemon's ceiling"):
        box.run(["true"])
    with leeward.Sandbox(socket=daemon.socket, profile="plain") as box:
        assert "PermissionError" in box.execute("import socket; socket.socket()").stderr_text


def test_a_profiles_home_is_the_work_folder_by_another_path(daemon: LiveDaemon) -> None:
    with leeward.Sandbox(socket=daemon.socket, profile="housed") as box:
        box.files.write("/home/user/a", "x")
        assert "x/home/user\n" == box.shell("cat /workspace/a; echo ~").stdout_text
    with leeward.Sandbox(socket=daemon.socket, profile="overhoused") as box, \
            pytest.raises(PoolFailed, match="home = '/home/sandbox' is a path that the profile's sandboxes have already"):
        box.run(["true"])


def test_a_profile_that_cannot_be_had_is_refused(daemon: LiveDaemon) -> None:
    with leeward.Sandbox(socket=daemon.socket, profile="lost") as box, \
            pytest.raises(PoolFailed, match="'/opt/nothing-is-here' is to be shown, and is no file or folder here"):
        box.run(["true"])
    with leeward.Sandbox(socket=daemon.socket, profile="shop") as box, \
            pytest.raises(RequestRejected, match=f"this daemon has: {', '.join((*OURS, *OWN))}"):
        box.run(["true"])


def test_a_job_and_a_session_have_a_profile(daemon: LiveDaemon, host: Path, tmp_path: Path) -> None:
    """
    With what it shows, its variables, network and limits; from Python, asyncio and the command line. That of the host
    is of live sandboxes.
    """
    code = f"import os, socket; print(os.environ['COLOUR'], open('{host}/single/file').read(), end=''); socket.socket()"

    async def asynchronously() -> str:
        async with leeward.AsyncClient(daemon.socket) as other:
            return (await other.execute(code, profile="build")).stdout_text

    with daemon.client() as client:
        with client.session(profile="build") as session:
            in_session = session.execute(code)
        for said in (client.execute(code, profile="build"), in_session):
            assert ("red single/file\n", True) == (said.stdout_text, said.ok), said.stderr_text
        assert not client.execute(code, profile="plain").ok
        threads = "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(1,)).start()"
        assert leeward.Limit.PROCESSES is client.execute(threads, profile="build").limit
        for wrong, text in (("shop", "is unknown"), ("shell", "is for live sandboxes")):
            with pytest.raises(RequestRejected, match=text):
                client.execute("1", profile=wrong)
            with pytest.raises(RequestRejected, match=text):
                client.session(profile=wrong)
    assert "red single/file\n" == asyncio.run(asynchronously())
    done = daemon.run("exec", "--profile", "build", code)
    assert (0, b"red single/file\n") == (done.returncode, done.stdout), done.stderr
    (tmp_path / "job.py").write_text(code)
    done = daemon.run("exec", "--profile", "build", "--file", str(tmp_path / "job.py"))
    assert (0, b"red single/file\n") == (done.returncode, done.stdout), done.stderr


def test_the_command_shows_them(daemon: LiveDaemon, config: Path, host: Path) -> None:
    """All of them, and one field by field."""
    listed = daemon.run("profiles", "--config", str(config))
    names = [line.split()[0] for line in listed.stdout.decode().splitlines()]
    assert [*OURS, *OWN] == names
    one = json.loads(daemon.run("profiles", "build", "--json", "--config", str(config)).stdout)
    assert {str(host / "tools"), str(host / "single/file"), "/usr"} <= set(one["shows"])
    assert "memory=400MiB" in one["limits"]
    assert "COLOUR=red" in one["variables"]
    assert ("python", "127.0.0.1 and ::1, of its own", 16) == (one["base"], one["network"], one["terminals"])
    assert b"network    none" in daemon.run("profiles", "python").stdout
    ours = json.loads(daemon.run("profiles", "workdir", "--json").stdout)
    assert ("python", "127.0.0.1 and ::1, of its own", "1 to 16") == (ours["base"], ours["network"], ours["workers"])
    wrong = daemon.run("profiles", "shop")
    assert (1, True) == (wrong.returncode, b"'shop' is unknown" in wrong.stderr)

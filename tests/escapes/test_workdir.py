"""
Escapes from a work folder by the calls of its object: paths, links, and links that are laid while a call resolves one.

The calls are made by the client's own program, outside of any sandbox. What holds them is that the kernel resolves each
path beneath the folder's descriptor (openat2(2) RESOLVE_BENEATH), whatever the sandbox does there meanwhile.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.box import control
from kit.live_daemon import LiveDaemon

BY_CLIENT = pytest.mark.no_single_lock("the client's own process reads and writes, and no lock of a job is about it")
BY_SANDBOX = pytest.mark.no_single_lock("the mounts, Landlock and the namespaces hold it together, in any one's place")

DAEMON = ("--pool-size", "4")


@pytest.fixture
def place() -> Iterator[Path]:
    """`work` in it is given to a sandbox; `secret` and `outside` beside it are not."""
    with tempfile.TemporaryDirectory(prefix="lw-workdir-") as made:
        folder = Path(made)
        for name in ("work/folder", "outside"):
            (folder / name).mkdir(parents=True)
        (folder / "work/file").write_text("inside")
        (folder / "secret").write_text(secrets.token_hex(16))
        (folder / "outside/there").write_text("untouched")
        yield folder


def untouched(place: Path, secret: str) -> bool:
    """Is what lies beside the work folder as it was?"""
    return (secret == (place / "secret").read_text() and ["there"] == os.listdir(place / "outside")
            and "untouched" == (place / "outside/there").read_text()
            and {"work", "secret", "outside"} == set(os.listdir(place)))


@pytest.mark.smoke
@BY_CLIENT
def test_c232_no_path_leads_out_of_the_work_folder(daemon: LiveDaemon, place: Path) -> None:
    """To read, to write and to list: by `..`, and as an absolute path."""
    secret = (place / "secret").read_text()
    paths = ("../secret", "../../../etc/passwd", "../../etc/shadow", "foo/../../..", "./../../etc/hosts", "/etc/passwd",
             "..", "../outside", "folder/../../secret", "//etc/passwd", "/workspace/file", "../outside/new", "../new",
             f"{place}/secret", "folder/../../outside/there")
    with control():
        assert secret == (place / "work/../secret").read_text()
        assert "untouched" == (place / "work/folder/../../outside/there").read_text()
    with leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        for path in paths:
            for call in (lambda path=path: work.read_file(path), lambda path=path: work.write_file(path, "x"),
                         lambda path=path: work.list_dir(path)):
                with pytest.raises(leeward.PathTraversal, match=r"^path traversal blocked: .* escapes sandbox root$"):
                    call()
        assert b"inside" == work.read_file("folder/../file")
    assert untouched(place, secret)


@BY_CLIENT
def test_c233_no_link_leads_out_of_the_work_folder(daemon: LiveDaemon, place: Path) -> None:
    """
    Laid by a command of the sandbox: to a folder, with a name that is there and a new one below it; to a file; by `..`;
    through another link; and through /proc.
    """
    secret = (place / "secret").read_text()
    with leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        line = (f"ln -s {place}/outside away; ln -s ../outside up; ln -s {place}/secret name; ln -s away twice;"
                f" ln -s {place}/outside/fresh dangling; ln -s /proc/self/cwd/../secret proc; ln -s /etc etc")
        assert 0 == work.exec("sh", ["-c", line]).exit_code
        with control():
            assert secret == (place / "work/name").read_text()
            assert "untouched" == (place / "work/twice/there").read_text() == (place / "work/up/there").read_text()
        for path in ("away/there", "away/new", "up/there", "up/new", "name", "twice/there", "twice/new", "dangling",
                     "away/new/deep", "etc/passwd", "etc/leeward-new"):
            for call in (lambda path=path: work.read_file(path), lambda path=path: work.write_file(path, "x")):
                with pytest.raises(leeward.PathTraversal):
                    call()
        with pytest.raises((leeward.PathTraversal, leeward.WorkdirIoError)):  # ELOOP: no such link is followed at all
            work.read_file("proc")
        for path in ("away", "up", "twice", "etc", "away/."):
            with pytest.raises(leeward.PathTraversal):
                work.list_dir(path)
        assert {entry.name: (entry.is_dir, entry.is_file) for entry in work.list_dir()}["away"] == (False, False)
    assert untouched(place, secret)
    assert not Path("/etc/leeward-new").exists()


@BY_CLIENT
def test_c234_no_link_that_is_laid_meanwhile_leads_out(daemon: LiveDaemon, place: Path) -> None:
    """A command swaps a folder for a link to the outside, again and again, while calls go through that name."""
    secret = (place / "secret").read_text()
    (place / "outside/file").write_text(secret)
    (place / "work/door").mkdir()
    (place / "work/door/file").write_text("inside")
    (place / "work/link").symlink_to("../outside")
    swap = "import ctypes\nswap = ctypes.CDLL(None).renameat2\nwhile 0 == swap(-100, b'door', -100, b'link', 2): pass"
    box = leeward.Sandbox(socket=daemon.socket, workdir=place / "work")
    with box, leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        box.start(["python3", "-c", swap])
        seen = {"inside": 0, "out": 0, "gone": 0}
        naive = False
        until = time.monotonic() + 20
        while time.monotonic() < until and not (naive and seen["out"] and seen["inside"]):
            try:
                naive = naive or secret == (place / "work/door/file").read_text()
            except OSError:
                pass
            for call in (lambda: work.read_file("door/file"), lambda: work.write_file("door/file", "inside")):
                try:
                    got = call()
                    assert got in (b"inside", b"", None)
                    seen["inside"] += 1
                except leeward.PathTraversal:
                    seen["out"] += 1
                except leeward.WorkdirIoError:
                    seen["gone"] += 1
        with control():
            assert naive  # who goes by the name alone gets there
        assert seen["out"], seen
        assert seen["inside"], seen
    assert secret == (place / "outside/file").read_text()
    assert {"there", "file"} == set(os.listdir(place / "outside"))


@BY_SANDBOX
def test_c235_no_tool_reads_or_writes_outside(daemon: LiveDaemon, place: Path) -> None:
    """By any of the tools that take a path, by JavaScript, and by what a tool starts."""
    secret = (place / "secret").read_text()
    path = place / "secret"
    lines = (f"cat {path}", "cat ../secret", f"cp {path} got", f"grep -r . {place}", f"tar -cf got.tar {place}",
             f"ln {path} hard", f"find {place} -name secret -exec cat {{}} +", f"git diff --no-index /dev/null {path}",
             f"node -e 'process.stdout.write(require(\"fs\").readFileSync(\"{path}\"))'", f"base64 {path} | base64 -d",
             f"echo x >{path}", f"touch {place}/outside/new", f"rm -rf {place}/outside", f"mv file {place}/outside/",
             f"curl -s file://{path}", f"env cat {path}", f"xargs -a /dev/null cat {path}")
    with control():
        assert secret == subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout
    with leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        for line in lines:
            got = work.exec("sh", ["-c", line])
            assert secret.encode() not in got.stdout + got.stderr, line
        assert secret.encode() not in b"".join(entry.read_bytes() for entry in (place / "work").iterdir()
                                               if entry.is_file())
    assert untouched(place, secret)


@BY_SANDBOX
def test_c236_no_tool_reaches_the_network(daemon: LiveDaemon, place: Path) -> None:
    """By curl under its own name or another one, by the shell's sockets, by git and by JavaScript: a server waits."""
    with socket.create_server(("127.0.0.1", 0)) as server, \
            leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        server.setblocking(False)
        port = server.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        with control():
            assert 0 == subprocess.run(["bash", "-c", connect], check=False).returncode
            server.accept()[0].close()
        for line in (f"curl -s http://127.0.0.1:{port}", f"/usr/bin/curl -s -m 2 http://127.0.0.1:{port}",
                     f"PATH=/usr/bin:/bin curl -s -m 2 http://127.0.0.1:{port}", f"bash -c '{connect}'",
                     f"git clone http://127.0.0.1:{port}/x"):
            assert 0 != work.exec("sh", ["-c", line]).exit_code, line
        if "node" in work.available_tools():
            for code in (f"require('net').connect({port}, '127.0.0.1')", f"require('http').get('http://127.0.0.1:{port}')",
                         f"fetch('http://127.0.0.1:{port}')"):
                assert 0 != work.exec_js(code).exit_code, code
            # Whoever takes our `fetch` away finds Node's own, which has no network either.
            assert 0 != work.exec("sh", ["-c", f"node -e 'fetch(\"http://127.0.0.1:{port}\")'"]).exit_code
        with pytest.raises(BlockingIOError):
            server.accept()


@BY_CLIENT
def test_c237_no_file_makes_the_caller_wait_or_take_all_its_memory(daemon: LiveDaemon, place: Path) -> None:
    """FIFOs with nobody at the other end, and a file of holes and terabytes."""
    with leeward.WorkdirSandbox(place / "work", socket=daemon.socket) as work:
        assert 0 == work.exec("sh", ["-c", "mkfifo tube"]).exit_code
        work.write_file("holes", "")
        os.truncate(place / "work/holes", 2 << 40)
        with control():
            with pytest.raises(OSError, match="No such device or address"):  # without O_NONBLOCK this would wait
                os.open(place / "work/tube", os.O_WRONLY | os.O_NONBLOCK)
            assert (place / "work/holes").stat().st_size > 1 << 40
        for call in (lambda: work.read_file("tube"), lambda: work.write_file("tube", "x"),
                     lambda: work.read_file("holes"), lambda: work.list_dir("tube")):
            with pytest.raises(leeward.WorkdirIoError):
                call()

"""Folders of the host in live sandboxes, and copies of them: with the real mounts, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import leeward
from kit import live_daemon, reactors
from kit.configured import written
from kit.live_daemon import LiveDaemon, descendants, held
from kit.waiting import poll_until
from leeward.client.connection import BlockingConnection

DAEMON, REACTORS = ("--pool-size", "4"), reactors.WAYS


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("old\n")
    (folder / "sub/one").write_text("1\n")
    return folder


def test_a_folder_is_the_sandboxs_workspace(daemon: LiveDaemon, project: Path) -> None:
    """For programs, fresh interpreters and kernels; what they make belongs to the client."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert b"/workspace\nold\n" == box.shell("pwd; cat file").stdout
        assert b"old\n" == box.execute("print(open('file').read(), end='')").stdout
        with box.kernel() as kernel:
            kernel.execute("open('made', 'w').write('by a kernel')")
        assert 0 == box.shell("mkdir -p a/b && mv file a/b/moved && chmod 640 a/b/moved").exit_code
        assert b"1000 1000 1000\n" == box.shell("echo $(stat -c %u file sub/one a/b/moved made 2>/dev/null)").stdout
    assert "by a kernel" == (project / "made").read_text()
    about = (project / "a/b/moved").stat()
    assert (os.geteuid(), 0o640) == (about.st_uid, about.st_mode & 0o777)


def test_refused_requests_leave_no_dock(daemon: LiveDaemon, project: Path) -> None:
    """A client whose request is refused sends its folders again, on a dock of their own, and there are two at most."""
    connection = BlockingConnection(str(daemon.socket))
    row = {"path": str(project), "target": "/p", "writable": False, "overlay": False, "file": False}
    for number in (1, 2, 3, 4):
        _, given = connection.call("sandbox_dock", {}, retry=False)
        for fd in given:
            os.close(fd)
        with pytest.raises(leeward.RequestRejected, match="egress"):
            connection.call("sandbox_open", {"mounts": [row], "dock": number, "egress": "none"}, retry=False)
    connection.close()


WITHOUT = """\
import os, sys
import pyseccomp as seccomp
filter = seccomp.SyscallFilter(seccomp.ALLOW)
filter.add_rule(seccomp.ERRNO(38), "mount_setattr")
filter.load()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_on_a_kernel_without_mount_setattr(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.12: a user's daemon makes a folder read-only once it's attached, and root's says why it can't."""
    monkeypatch.setattr(live_daemon, "PROGRAM", [sys.executable, "-c", WITHOUT, *live_daemon.PROGRAM])
    mounts = [leeward.Mount(project, "/p"), leeward.Mount(project / "file", "/one")]
    with LiveDaemon(tmp_path) as daemon:
        if 0 == os.geteuid():
            with pytest.raises(leeward.errors.RequestRejected, match=r"needs Linux 5\.12 \(mount_setattr\)"), \
                    leeward.Sandbox(socket=daemon.socket, mounts=mounts) as box:
                box.shell("true")
            return
        with leeward.Sandbox(socket=daemon.socket, workdir=project / "sub", mounts=mounts) as box:
            assert "old\nold\n1\n" == box.shell("cat /p/file /one one").stdout_text
            for line in ("echo x >/p/new", "echo x >>/p/file", "echo x >>/one", "chmod 777 /p"):
                assert not box.shell(line).ok, line
            assert "ro,nosuid,nodev" in box.shell("grep ' /p ' /proc/self/mounts").stdout_text
            assert box.shell("echo new >made").ok
    assert "new\n" == (project / "sub/made").read_text()


@pytest.mark.parametrize("table", ["", "[users.{}]\n"])
def test_what_can_write_to_a_full_file_system_ends(project: Path, tmp_path: Path, table: str) -> None:
    """Full is what has less than `folder_reserve` free, or a user's own. What can't write there, or to a copy, goes on."""
    config = written(tmp_path / "config.toml", table.format(os.geteuid()) + 'folder_reserve = "1024T"\n')
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon:
        for options in ({}, {"overlay": True}):
            with leeward.Sandbox(socket=daemon.socket, mounts=[leeward.Mount(project, "/p", **options)]) as box:
                assert 0 == box.shell("sleep 0.5; cat /p/file").exit_code
        with (leeward.Sandbox(socket=daemon.socket, mounts=[leeward.Mount(project, "/p", writable=True)]) as box,
              pytest.raises(leeward.SandboxOver, match="less space left") as over):
            box.shell("sleep 60")
        assert ("files", "files") == (over.value.reason, over.value.limit)


def test_no_process_writes_to_the_folder_after_the_end(daemon: LiveDaemon, project: Path) -> None:
    """When `close` returns, no process of the sandbox is left."""
    for each in range(10):
        mark = f"leeward-end-{os.getpid()}-{each}"
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            for _ in range(3):
                box.start(["python3", "-c", f"'{mark}'; n = 0\nwhile True: open('made', 'w').write('x'); n += 1"])
            poll_until(lambda mark=mark: len(_running(mark)) >= 3, "processes of a sandbox tell nobody when they begin")
        assert [] == _running(mark)


def _running(mark: str) -> list[str]:
    """The processes that have *mark* among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found


def test_mounts_anywhere_in_the_view(daemon: LiveDaemon, project: Path) -> None:
    """Below the writable folders, in the root and deep in it, a single file; all else is where it was."""
    mounts = [leeward.Mount(project, "/data"), leeward.Mount(project / "sub", "/srv/a/b", writable=True),
              leeward.Mount(project / "file", "/opt/one"), leeward.Mount(project, "/tmp/deep/er"),
              leeward.Mount(project, "/home/me/x")]
    with leeward.Sandbox(socket=daemon.socket) as plain, leeward.Sandbox(socket=daemon.socket, mounts=mounts) as box:
        assert b"old\nold\nold\nold\n1\n" == box.shell("cat /data/file /opt/one /tmp/deep/er/file /home/me/x/file"
                                                     " /srv/a/b/one").stdout
        assert 0 == box.shell("echo 2 >/srv/a/b/two; echo x >/workspace/y; echo x >/tmp/z; : >/dev/null").exit_code
        assert 0 != box.shell("echo x >/opt/one").exit_code
        names = set(plain.shell("ls -A /").stdout_text.split())
        assert names | {"data", "srv", "opt"} == set(box.shell("ls -A /").stdout_text.split())
        look = ("cat /etc/hostname /proc/meminfo; ls /dev /etc /usr/bin | md5sum; readlink /bin /home/sandbox;"
                " cat /.sealed")
        assert plain.shell(look).stdout == box.shell(look).stdout
        assert 0 == box.execute("import json, ssl, sqlite3; open('/tmp/x', 'w')").exit_code
    assert "2\n" == (project / "sub/two").read_text()
    daemon.idle()
    with leeward.Sandbox(socket=daemon.socket) as plain:
        assert names == set(plain.shell("ls -A /").stdout_text.split())  # nothing of it is left for the next


def test_an_overlay_lists_its_changes(daemon: LiveDaemon, project: Path) -> None:
    """And applies all or some of them to the host when asked."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        assert [] == box.diff()
        box.shell("echo more >>file; mkdir -p new/er; echo n >new/er/f; rm -r sub; chmod 755 file; mkdir sub;"
                  " echo 2 >sub/two")
        rows = [(change.kind, change.type, change.path) for change in box.diff()]
        assert [("modified", "file", "file"), ("created", "folder", "new"), ("created", "folder", "new/er"),
                ("created", "file", "new/er/f"), ("deleted", "file", "sub/one"), ("created", "file", "sub/two")] == rows
        assert "old\n" == (project / "file").read_text()
        assert {"new", "new/er", "new/er/f"} == {change.path for change in box.apply(["new/er/f"])}
        assert ["file", "new", "sub"] == sorted(os.listdir(project))
        box.apply()
        assert [] == box.diff()
        assert ("old\nmore\n", 0o755) == ((project / "file").read_text(), (project / "file").stat().st_mode & 0o777)
        assert ["two"] == os.listdir(project / "sub")
        box.shell("echo again >>file")
        box.apply()  # what this program has applied itself is no change of the host's
        assert "old\nmore\nagain\n" == (project / "file").read_text()
        with pytest.raises(leeward.RequestRejected, match="has not changed"):
            box.apply(["sub"])


def test_types_change_places(daemon: LiveDaemon, project: Path) -> None:
    """A file becomes a folder, a folder a file, a link either."""
    (project / "link").symlink_to("file")
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("rm file link; mkdir file; echo in >file/in; rm -r sub; echo flat >sub; echo real >link")
        box.apply()
        assert [] == box.diff()
    assert ("in\n", "flat\n", "real\n") == tuple((project / name).read_text() for name in ("file/in", "sub", "link"))
    assert not (project / "link").is_symlink()


def test_large_files_are_compared_by_content(daemon: LiveDaemon, project: Path) -> None:
    """And applied whole."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="256M") as box:
        box.shell("head -c 55000000 /dev/urandom >large; sha256sum large >sum")
        [large] = [change for change in box.diff() if "large" == change.path]
        assert (True, 55_000_000) == (large.large, large.size)
        assert f"{large.sha256}  large\n" == box.run(["cat", "sum"]).stdout_text
        box.apply()
    said = subprocess.run(["sha256sum", "-c", "sum"], cwd=project, capture_output=True, check=False)
    assert 0 == said.returncode, said


def test_several_overlays_and_a_plain_folder(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    """Each has its own changes; a folder that is written at once has none to show."""
    (tmp_path / "other").mkdir()
    mounts = [leeward.Mount(tmp_path / "other", "/other", overlay=True)]
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as box:
        box.shell("echo a >a; echo b >/other/b")
        with pytest.raises(leeward.RequestRejected, match="which target"):
            box.diff()
        assert ["a"] == [change.path for change in box.diff("/workspace")]
        assert ["b"] == [change.path for change in box.apply(target="/other")]
    assert ["b"] == os.listdir(tmp_path / "other")
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box, \
            pytest.raises(leeward.RequestRejected, match="overlay=True"):
        box.diff()


def test_a_folder_that_is_written_at_once_is_compared(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    """With what it had at the opening, by whomever it was changed since; also when the sandbox is over."""
    (tmp_path / "other").mkdir()
    other = leeward.Mount(tmp_path / "other", "/other", writable=True, compare=True)
    with leeward.Sandbox(socket=daemon.socket, workdir=project, compare=True, mounts=[other]) as box:
        (project / "before").write_text("the sandbox isn't open yet")
        box.shell("echo new >file; rm sub/one; mkfifo sub/fifo; ln -s /etc/passwd link; echo b >/other/b")
        with pytest.raises(leeward.RequestRejected, match="which target"):
            box.diff()
        with pytest.raises(leeward.RequestRejected, match="overlay=True"):
            box.apply()
        found = [(change.kind, change.path) for change in box.diff("/workspace")]
        assert ["b"] == [change.path for change in box.diff("/other/")]
    assert [("modified", "file"), ("created", "link"), ("created", "sub/fifo"), ("deleted", "sub/one")] == found
    assert found == [(change.kind, change.path) for change in box.diff("/workspace")]

    async def use() -> list[tuple[str, str]]:
        async with leeward.AsyncSandbox(socket=daemon.socket, workdir=project, compare=True) as box:
            await box.shell("rm sub/fifo; chmod 600 file")
            return [(change.kind, change.path) for change in await box.diff()]
    assert [("mode", "file"), ("deleted", "sub/fifo")] == asyncio.run(use())

    for wrong in ({"compare": True}, {"workdir": project, "overlay": True, "compare": True},
                  {"mounts": [leeward.Mount(project, "/data", compare=True)]}):
        with pytest.raises(leeward.RequestRejected, match="compare=True"):
            leeward.Sandbox(socket=daemon.socket, **wrong)  # type: ignore[arg-type]


def test_with_await_and_from_another_program(daemon: LiveDaemon, project: Path) -> None:
    """An asyncio client; `leeward diff` and `leeward apply` by the sandbox's id."""
    async def use() -> str:
        box = leeward.AsyncSandbox(socket=daemon.socket, workdir=project, overlay=True)
        await box.shell("echo async >a; echo b >b; echo c >.envrc")
        assert [".envrc", "a", "b"] == [change.path for change in await box.diff()]
        assert ["a"] == [change.path for change in await box.apply(["a"])]
        return await box.detach()

    name = asyncio.run(use())
    assert b"A .envrc\nA b\n" == (done := daemon.run("diff", name)).stdout
    assert done.stderr.endswith(b"without a further question: .envrc\n")
    [_, row] = [json.loads(line) for line in daemon.run("diff", "--json", name).stdout.splitlines()]
    assert ("b", "created", 2) == (row["path"], row["kind"], row["size"])
    (project / "b").write_text("somebody else's")
    refused = daemon.run("apply", name)
    assert 1 == refused.returncode
    assert b"exists on the host" in refused.stderr or b"was changed" in refused.stderr
    (project / "b").unlink()
    assert (0, b"A .envrc\nA b\n") == ((done := daemon.run("apply", name)).returncode, done.stdout)
    assert done.stderr.endswith(b"without a further question: .envrc\n")
    daemon.run("sandbox", "kill", name)
    with pytest.raises(leeward.SandboxOver):
        leeward.Sandbox.attach(name, socket=daemon.socket)


def test_refused_before_anything_is_made(daemon: LiveDaemon, project: Path) -> None:
    """With what is wrong, by the client or the daemon; and a sandbox that is refused leaves nothing."""
    for mounts, why in (([leeward.Mount(project / "none", "/data")], "no such file"),
                        ([leeward.Mount("/dev/null", "/data")], "neither a folder"),
                        ([leeward.Mount(project, "data")], "not an absolute path"),
                        ([leeward.Mount(project, "/usr/x")], "sandbox's own"),
                        ([leeward.Mount("/proc", "/data")], "no sandbox is shown"),
                        ([leeward.Mount(project / "file", "/data", writable=True)], "read-only"),
                        ([leeward.Mount(project, "/data", writable=True, overlay=True)], "not both"),
                        ([leeward.Mount(project, "/a"), leeward.Mount(project, "/a/b")], "overlap")):
        with leeward.Sandbox(socket=daemon.socket, mounts=mounts) as box, \
                pytest.raises(leeward.RequestRejected, match=why):
            box.run(["true"])
    with pytest.raises(leeward.RequestRejected, match="needs a workdir"):
        leeward.Sandbox(socket=daemon.socket, overlay=True)
    assert [] == leeward.Sandbox.list(socket=daemon.socket)


def test_folders_leave_no_descriptor_process_or_mount(daemon: LiveDaemon, project: Path) -> None:
    """After sandboxes of each kind, openings that were refused, and clients that went in the middle."""
    def once() -> None:
        with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True,
                             mounts=[leeward.Mount(project, "/data")]) as box:
            box.shell("echo x >x")
            assert 1 == len(box.diff())
        with leeward.Sandbox(socket=daemon.socket, mounts=[leeward.Mount("/sys", "/data")]) as box, \
                pytest.raises(leeward.RequestRejected):
            box.run(["true"])

        async def gone() -> None:
            box = leeward.AsyncSandbox(socket=daemon.socket, workdir=project)
            task = asyncio.ensure_future(box.run(["true"]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await box._connections.close()
        asyncio.run(gone())

    for _ in range(4):
        once()
    daemon.idle()
    before = held(daemon.process.pid), len(descendants(daemon.process.pid))
    for _ in range(10):
        once()
    daemon.idle()
    poll_until(lambda: before >= (held(daemon.process.pid), len(descendants(daemon.process.pid))),
               f"{before} descriptors and processes of the daemon, as before")
    with open("/proc/self/mountinfo") as rows:
        assert str(project) not in rows.read()


def opener_of(daemon: LiveDaemon) -> int:
    """The one that is the daemon's own child; the others are its children."""
    found = []
    for pid in descendants(daemon.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a child of it that has done its order
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == daemon.process.pid and b"import opener" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    [opener] = found
    return opener


def test_an_opener_that_dies_is_replaced(daemon: LiveDaemon, project: Path) -> None:
    """By the next one who needs it."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert 0 == box.run(["true"]).exit_code
    os.kill(opener_of(daemon), signal.SIGKILL)
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert b"old\n" == box.run(["cat", "file"]).stdout


def test_a_child_of_the_opener_that_dies_before_its_order_is_replaced(daemon: LiveDaemon, project: Path) -> None:
    """One waits for the next order. Whoever ends it takes no folder from anybody."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert 0 == box.run(["true"]).exit_code
    opener = opener_of(daemon)
    for _ in range(2):
        poll_until(lambda: 1 == len(descendants(opener)), "one child that waits")
        [child] = descendants(opener)
        os.kill(child, signal.SIGKILL)
        poll_until(lambda child=child: child not in descendants(opener), "its end")  # type: ignore[misc]  # a bound default
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            assert b"old\n" == box.run(["cat", "file"]).stdout
        assert opener == opener_of(daemon)


def test_an_opener_that_hangs_delays_no_other_sandbox(daemon: LiveDaemon, project: Path) -> None:
    """As one would whose client's file system doesn't answer: other sandboxes and jobs go on, and so does this one then."""
    said: list[bytes] = []

    def use() -> None:
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            said.append(box.run(["cat", "file"]).stdout)

    use()
    opener = opener_of(daemon)
    os.kill(opener, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=use)
        thread.start()
        with leeward.Sandbox(socket=daemon.socket) as box, daemon.client() as client:
            for _ in range(20):
                assert b"1\n" == box.run(["echo", "1"]).stdout == client.execute("print(1)").stdout
        assert 1 == len(said)
    finally:
        os.kill(opener, signal.SIGCONT)
    thread.join()
    assert [b"old\n"] * 2 == said


def test_many_wait_for_room_together_with_folders_over_one_client(tmp_path: Path, project: Path) -> None:
    """Each attempt is refused as busy until others have ended, and has a dock of its own."""
    async def main() -> list[bytes]:
        async with leeward.AsyncClient(daemon.socket) as client:
            async def one() -> bytes:
                async with leeward.AsyncSandbox(client=client, workdir=project) as box:
                    return (await box.shell("cat file")).stdout

            return await asyncio.gather(*(one() for _ in range(20)))

    config = written(tmp_path / "config.toml", "pool_size = 2\nmax_sessions = 2\n")
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon:
        assert [b"old\n"] * 20 == asyncio.run(main())


def test_many_open_folders_at_once(daemon: LiveDaemon, project: Path) -> None:
    """From as many threads as there is room for."""
    said: list[bytes] = []

    def use() -> None:
        with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
            said.append(box.run(["cat", "file"]).stdout)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"old\n"] * 6 == said


def test_a_part_of_a_read_only_folder_is_written(daemon: LiveDaemon, tmp_path: Path) -> None:
    """At its own place alone: a link of the folder's would lead another one to a place of the sandbox's own."""
    whole = tmp_path / "whole"
    (whole / "deep/part").mkdir(parents=True)
    (whole / "copy").mkdir()
    (whole / "link").symlink_to("/etc")
    mounts = [leeward.Mount(whole, "/data"), leeward.Mount(whole / "deep/part", "/data/deep/part", writable=True),
              leeward.Mount(whole / "copy", "/data/copy", overlay=True)]
    with leeward.Sandbox(socket=daemon.socket, mounts=mounts) as box:
        got = box.shell("cd /data; echo 1 >deep/part/new; echo 2 >copy/new; cat deep/part/new copy/new; touch new deep/new;"
                        " mv deep/part deep/other; rmdir copy")
        assert ("1\n2\n", 4) == (got.stdout_text, len(got.stderr_text.splitlines()))
    assert ["copy", "deep", "deep/part", "deep/part/new", "link"] == sorted(
        str(path.relative_to(whole)) for path in whole.rglob("*"))
    with pytest.raises(leeward.RequestRejected, match="overlap"), leeward.Sandbox(
            socket=daemon.socket, mounts=[mounts[0], leeward.Mount("/etc", "/data/link", writable=True)]) as box:
        box.info()

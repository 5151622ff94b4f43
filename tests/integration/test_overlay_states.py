"""States of an overlay that are kept, gone back to, and undone in part: with the real mounts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, held
from kit.waiting import poll_until


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "2") as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("old\n")
    (folder / "sub/one").write_text("1\n")
    (folder / "sub/two").write_text("2\n")
    return folder


def rows(box: leeward.Sandbox) -> list[tuple[object, ...]]:
    return [(one.path, one.kind, one.type, one.mode, one.size, one.sha256, one.link) for one in box.diff()]


def test_a_checkpoint_is_gone_back_to(daemon: LiveDaemon, project: Path) -> None:
    """Whiteouts, a folder that replaces another, hard links, modes, times and attributes are as they were; and again."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        made = box.shell("echo more >>file; rm -r sub; mkdir sub; echo n >sub/new; ln sub/new sub/hard; mkfifo fifo;"
                         " touch -d @1000000000 sub/new; chmod 000 file; ln -s file link; python3 -c '"
                         "import os; os.setxattr(\"sub/new\", \"user.mine\", b\"kept\")'")
        assert 0 == made.exit_code, made.stderr_text
        before = rows(box)
        assert {"sub/one", "sub/two"} <= {row[0] for row in before if "deleted" == row[1]}
        assert "1" == box.checkpoint()
        assert "before" == box.checkpoint("before")
        assert ["1", "before"] == box.info()["mounts"][0]["checkpoints"]
        for name in ("1", "before", "1"):
            assert 0 == box.shell("rm -rf file fifo sub link; mkdir -p z/y; echo z >z/y/z").exit_code
            assert b"z\n" == bytes(box.files.read("z/y/z"))  # by a process of the sandbox's own, which is ended
            assert before != rows(box)
            box.restore(name)
            assert before == rows(box)
        look = ("stat -c '%a %h %Y' sub/new; cat sub/hard; ls sub; python3 -c '"
                "import os; print(os.getxattr(\"sub/new\", \"user.mine\"))'; chmod 600 file; cat file")
        assert (b"644 2 1000000000\nn\nhard\nnew\nb'kept'\nold\nmore\n") == box.shell(look).stdout
        assert b"k" == box.execute("open('k', 'w').write('k'); print(open('k').read(), end='')").stdout
        box.discard()
        assert [] == rows(box)
        assert b"old\n1\n2\n" == box.shell("cat file sub/*").stdout
        box.restore("before")
        assert before == rows(box)
    assert ("old\n", ["one", "two"]) == ((project / "file").read_text(), sorted(os.listdir(project / "sub")))


def test_a_part_is_discarded(daemon: LiveDaemon, project: Path) -> None:
    """
    A file that was changed, one that was deleted, a folder with all in it; what has gone with its folder comes back
    with that alone.
    """
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo more >>file; rm sub/one; echo x >>sub/two; mkdir -p new/er; echo f >new/er/f; echo g >new/g")
        assert ["file", "new/er", "new/er/f"] == [one.path for one in box.discard(["file", "new/er/"])]
        assert ["new", "new/g", "sub/one", "sub/two"] == [row[0] for row in rows(box)]
        with pytest.raises(leeward.RequestRejected, match="has not changed"):
            box.discard(["sub/two", "file"])
        assert ["sub/one"] == [one.path for one in box.discard(["sub/one"])]
        assert b"1\n2\nx\n" == box.shell("cat sub/*").stdout
        box.shell("rm -r sub; mkdir sub; echo 3 >sub/three")
        with pytest.raises(leeward.RequestRejected, match="gone with a folder"):
            box.discard(["sub/one"])
        assert {"sub/one", "sub/two", "sub/three"} == {one.path for one in box.discard(["sub"])}
        assert b"one\ntwo\n" == box.run(["ls", "sub"]).stdout


def test_a_restore_is_refused_while_a_program_or_kernel_runs(daemon: LiveDaemon, project: Path) -> None:
    """A program or kernel that runs refuses it; what a command left behind is ended."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo x >x")
        process = box.start(["sleep", "1000"])
        assert "1" == box.checkpoint()  # that is of no harm
        for refused in (lambda: box.restore("1"), box.discard):
            with pytest.raises(leeward.RequestRejected, match="end them first"):
                refused()
        process.kill()
        process.wait()
        with box.kernel() as kernel:
            kernel.execute("1")
            with pytest.raises(leeward.RequestRejected, match="end them first"):
                box.restore("1")
        box.shell("sleep 1000 >/dev/null 2>&1 & echo y >y")
        box.restore("1")
        assert ["x"] == [row[0] for row in rows(box)]
        assert [] == [one for one in box.processes() if not one["over"]]
        with pytest.raises(leeward.RequestRejected, match="no checkpoint 'none'"):
            box.restore("none")


def test_copies_have_bounds(daemon: LiveDaemon, project: Path) -> None:
    """In number, and in bytes: what doesn't fit changes nothing."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="64M") as box:
        box.shell("echo x >x")
        for number in range(1, 9):
            assert str(number) == box.checkpoint()
        with pytest.raises(leeward.RequestRejected, match="8 checkpoints"):
            box.checkpoint()
        assert "8" == box.checkpoint("8")
        assert 0 == box.shell("head -c 20M /dev/zero >large").exit_code
        with pytest.raises(leeward.RequestRejected, match="doesn't fit"):
            box.checkpoint("8")
        box.restore("8")
        assert ["x"] == [row[0] for row in rows(box)]
        with pytest.raises(leeward.RequestRejected, match="letters"):
            box.checkpoint("../up")


def test_by_several_targets_from_asyncio_and_the_command_line(daemon: LiveDaemon, project: Path,
                                                              tmp_path: Path) -> None:
    """One overlay is gone back to and the other stays; nothing of it is left in the daemon."""
    (tmp_path / "other").mkdir()
    mounts = [leeward.Mount(project, "/plain"), leeward.Mount(tmp_path / "other", "/srv/other", overlay=True)]

    async def several() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as box:
            await box.shell("echo 1 >a; echo 1 >/srv/other/a")
            assert "n" == await box.checkpoint("n", target="/srv/other")
            await box.shell("echo 2 >a; echo 2 >/srv/other/a; echo >/srv/other/b")
            await box.restore("n", target="/srv/other")
            assert b"2\n1\n" == (await box.shell("cat a /srv/other/*")).stdout
            assert ["a"] == [one.path for one in await box.discard(target="/workspace")]
            assert b"file\nsub\n" == (await box.run(["ls"])).stdout

    asyncio.run(several())
    daemon.idle()
    before = held(daemon.process.pid)
    asyncio.run(several())
    daemon.idle()
    poll_until(lambda: before >= held(daemon.process.pid), f"{before} descriptors of the daemon, as before")

    box = leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True)
    box.shell("echo a >a; echo b >b")
    name = box.detach()
    assert b"1\n" == daemon.run("checkpoint", name).stdout
    assert b"A b\n" == daemon.run("discard", name, "b").stdout
    assert b"A a\n" == daemon.run("diff", name).stdout
    assert 0 == daemon.run("restore", name, "1").returncode
    assert b"A a\nA b\n" == daemon.run("diff", name).stdout
    assert b"no checkpoint" in (refused := daemon.run("restore", name, "2")).stderr
    assert 0 != refused.returncode
    daemon.run("sandbox", "kill", name)

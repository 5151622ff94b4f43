"""
Escapes by the states of an overlay: by what a copy finds in a stranger's folder, and while the overlay is gone.

A copy is made by a porter, which has capabilities in the sandbox's user namespace; an overlay is unmounted while its
layer is changed, and the host's folder lies below it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.box import control
from kit.live_daemon import LiveDaemon

BY_PORTER = pytest.mark.no_single_lock("a process of leeward's looks before it opens, and what it writes is bounded")
BY_CLIENT = pytest.mark.no_single_lock("the client binds what is applied to what was listed, by content")
BY_MOUNTS = pytest.mark.no_single_lock("nothing runs while the overlay is gone, and the mount below is read-only")


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    # Not below pytest's own folder, which other users can't pass.
    with tempfile.TemporaryDirectory(prefix="lw-states-") as place:
        os.chmod(place, 0o755)
        home = Path(place, "socket")
        home.mkdir(mode=0o755)
        with LiveDaemon(home, "--pool-size", "2") as made:
            yield made


@pytest.fixture
def project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-states-") as made:
        os.chmod(made, 0o755)
        folder = Path(made, "project")
        folder.mkdir()
        (folder / "file").write_text("of the host\n")
        yield folder


@pytest.mark.smoke
@BY_PORTER
def test_c246_a_copy_of_a_folder_of_special_files_ends_and_stays_inside(daemon: LiveDaemon, project: Path):
    """
    FIFOs, a file of a tebibyte, links to the host's files and in a circle, entries that change places while they are
    copied, and more than there is room for.
    """
    secret = project.parent / "secret"
    secret.write_text("not the sandbox's")
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="128M") as box:
        with control():  # who follows them, or opens whatever is there, reads it, or waits
            (project / "naive").symlink_to(secret)
            assert "not the sandbox's" == (project / "naive").read_text()
            (project / "naive").unlink()
        box.shell(f"mkfifo fifo; truncate -s 1T huge; ln -s {secret} out; ln -s circle circle; mkdir race; ln -s / root"
                  "; chmod 000 file; mkdir dark; echo in >dark/in; chmod 000 dark")
        assert "whole" == box.checkpoint("whole")
        swapping = box.start(["sh", "-c", ("while :; do rm -rf race; mkdir race; echo a >race/a; rm -rf race; ln -s /"
                                          " race; rm race; mkfifo race; rm race; echo a >race; rm race; done")])
        until = time.monotonic() + 1
        made = 0
        while time.monotonic() < until:
            try:
                box.checkpoint("swapped")
                made += 1
            except leeward.RequestRejected:
                pass
        swapping.kill()
        swapping.wait()
        assert made
        box.restore("swapped")
        assert b"in" in box.shell("chmod 700 dark; cat dark/in; rm -rf race").stdout
        # More than there is room for: nobody is ended for want of memory.
        assert 0 == box.shell("head -c 40M /dev/urandom >large").exit_code
        with pytest.raises(leeward.RequestRejected, match="doesn't fit"):
            box.checkpoint("large")
        box.restore("whole")
        found = {change.path: change for change in box.diff()}
        assert {"fifo", "huge", "out", "circle", "root", "file", "dark", "dark/in", "race"} == set(found)
        assert str(secret) == found["out"].link
        assert not [change for change in found.values() if change.allocated > 1 << 20]
        assert b"" == box.shell("find / -name 'kept.*' -not -path '/proc/*' -not -path '/usr/*' 2>/dev/null").stdout
    assert ("not the sandbox's", "of the host\n") == (secret.read_text(), (project / "file").read_text())


@BY_MOUNTS
def test_c247_the_host_s_folder_cannot_be_reached_while_the_overlay_is_changed(daemon: LiveDaemon, project: Path):
    """
    Processes that are left behind hold the overlay and its files, and write again and again; so do some that are
    started while a state is gone back to.
    """
    with control():  # where the overlay isn't in between, they write on the host
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            assert 0 == box.shell("echo in between >>file").exit_code
        assert "of the host\nin between\n" == (project / "file").read_text()
        (project / "file").write_text("of the host\n")
    line = "(while :; do echo evil >>file; echo evil >new; done) >/dev/null 2>&1 & exec 9>>held; sleep 1000 >&9 2>&1 &"
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box, \
            leeward.Sandbox.attach(box.id, socket=daemon.socket) as other:
        box.shell("echo kept >kept")
        box.checkpoint("kept")
        done = 0
        for _ in range(10):
            assert 0 == box.shell(line).exit_code
            started = other.start(["sh", "-c", "while :; do echo evil >>file; done"])
            with pytest.raises(leeward.RequestRejected):
                box.restore("kept")
            started.kill()
            started.wait()
            box.restore("kept")
            done += 1
            assert ["kept"] == [change.path for change in box.diff()]
            assert b"file\nkept\n" == box.run(["ls"]).stdout
        assert 10 == done
        assert 0 != box.shell("cat /workspace/../upper.0/kept").exit_code
        assert [] == [row for row in box.execute("print(open('/proc/self/mountinfo').read())").stdout_text.splitlines()
                      if " /workspace " in row and " rw," in row.split(" - ")[0] and "overlay" not in row
                      and "tmpfs" not in row]
        other.detach()
    assert ["file"] == os.listdir(project)
    assert "of the host\n" == (project / "file").read_text()


@BY_CLIENT
def test_c410_a_large_file_cannot_be_changed_after_it_was_seen(daemon: LiveDaemon, project: Path):
    """With the size and the time that it had, above the size up to which files were hashed; and where nothing has a hash."""
    change = "printf evil | dd of=big conv=notrunc status=none; touch -d @1000000000 big"
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="512M") as box:
        made = box.shell("head -c 53M /dev/zero >big; touch -d @1000000000 big; mkfifo fifo; ln -s big link; truncate -s 80M"
                         " holes; mkdir -p old/deep; echo in >old/deep/in; echo x >kind; chmod 755 file")
        assert 0 == made.exit_code, made.stderr_text
        seen = [one for one in box.diff() if "fifo" != one.path]
        assert ["holes"] == [one.path for one in seen if not one.is_compared]
        assert ["holes"] == [*box.conflicts(seen)]
        with control():  # who applies what is there now, writes what nobody has seen
            assert 0 == box.shell(change).exit_code
            assert ["big"] == [one.path for one in box.apply(["big"])]
            assert b"evil" == (project / "big").read_bytes()[:4]
            (project / "big").unlink()
            assert 0 == box.shell(change.replace("evil", "\\0\\0\\0\\0")).exit_code

        wanted = [one for one in seen if "holes" != one.path]
        assert 0 == box.shell(f"{change}; ln -sfn /etc link; chmod 777 file").exit_code
        with pytest.raises(leeward.Stale, match="big"):
            box.apply(["big"], changes=wanted)
        assert 0 == box.shell("rm kind; mkdir kind; rm -r old; mkfifo old").exit_code
        for path in ("kind", "old"):
            with pytest.raises(leeward.LeewardError):
                box.apply([path], changes=wanted)
        with pytest.raises(leeward.RequestRejected, match="leave it out"):
            box.apply(["holes"], changes=seen)
        assert {"file", "link"} == {one.path for one in box.apply(["file", "link"], changes=wanted)}
        assert ("big", 0o755) == (os.readlink(project / "link"), (project / "file").stat().st_mode & 0o777)
        assert not [path for path in project.rglob("*") if path.is_file() and not path.is_symlink()
                    and path.name not in ("file",)]


@BY_CLIENT
def test_c411_a_large_file_of_the_hosts_cannot_be_changed_without_being_listed(daemon: LiveDaemon, project: Path):
    """With the size and the time that it has on the host."""
    with open(project / "big", "wb") as file:
        for _ in range(53):
            file.write(bytes(1 << 20))
    os.utime(project / "big", (1_000_000_000, 1_000_000_000))
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="512M") as box:
        made = box.shell("printf evil | dd of=big conv=notrunc status=none; touch -d @1000000000 big")
        assert 0 == made.exit_code, made.stderr_text
        with control():  # who compares size and time sees nothing
            now = box.files.stat("/workspace/big")
            assert (53 << 20, 1_000_000_000) == (now.size, int(now.mtime))
        assert [("big", "modified")] == [(one.path, one.kind) for one in box.diff()]

"""Files of live sandboxes with the real thing: under all locks, over both transports, and in bounded memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import reactors
from kit.live_daemon import LiveDaemon, environment, held
from kit.waiting import poll_until
from leeward.wire.file_answers import CHUNK
from leeward_cli import copying

DAEMON, REACTORS = ("--pool-size", "2"), reactors.WAYS
CONFIGURATION = '[limits]\nfiles = "600M"\n'
MIB = 1 << 20
LARGE = 128 * MIB


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket, memory="1G") as made:
        yield made
    daemon.idle()


def test_a_file_with_a_time_that_no_answer_holds_is_listed_and_read(box: leeward.Sandbox) -> None:
    """As any other; programs may give it one in the year 3000, or before 1970."""
    box.shell("touch -d 3000-01-01 late; touch -d 1900-01-01 early")
    rows = {row.name: row.mtime_ns for row in box.files.list(".")}
    assert {"late": 2**63 - 1, "early": 0} == rows
    assert b"" == box.files.read("late")


def test_files_are_those_of_programs(box: leeward.Sandbox) -> None:
    """Both ways, in the sandbox's own folders, and nowhere else."""
    box.files.write("a/b", b"by a client\n")
    assert b"by a client\n" == box.run(["cat", "/workspace/a/b"]).stdout
    box.shell("echo by a program > /tmp/c")
    assert b"by a program\n" == box.files.read("/tmp/c")
    assert b"hello" == box.execute("import sys; sys.stdout.write(open('d').read())",
                                   files={"d": b"hello"}).stdout
    box.files.edit("a/b", "client", "person")
    assert "by a person\n" == box.execute("print(open('a/b').read(), end='')").stdout_text
    for path in ("/usr/x", "/etc/x", "/x"):
        with pytest.raises(OSError, match=r"Permission|Read-only") as refused:
            box.files.write(path, b"")
        assert refused.value.errno in (1, 13, 30)
    assert 7 == box.files.write_many({"new/below/a": b"by one", "new/b": b"\n"})
    assert b"by one\n" == box.run(["cat", "new/below/a", "new/b"]).stdout
    box.shell("mkdir -m 0 closed; touch f; chmod 0 f")
    with pytest.raises(PermissionError):
        box.files.read("f")
    with pytest.raises(PermissionError):
        box.files.list("closed")


def test_special_files_never_hang_a_request(box: leeward.Sandbox) -> None:
    """FIFOs, devices, sockets, loops, files of /proc."""
    box.shell("mkfifo fifo; ln -s loop loop; ln -s /dev/zero zero; ln -s fifo to-fifo")
    for path in ("fifo", "/dev/null", "/dev/zero", "zero", "to-fifo", "loop", "/dev/random"):
        for call in (box.files.read, lambda name: box.files.edit(name, "a", "b"),
                     lambda name: box.files.write(name, b""),
                     lambda name: box.files.append(name, b"x"), lambda name: box.files.grep("x", path=name)):
            with pytest.raises(OSError, match=r"not a regular|levels of|denied|Read-only"):
                call(path)
    assert b"Name:" in box.files.read("/proc/self/status")
    assert "other" == box.files.stat("fifo").kind
    box.files.remove("fifo")


def test_modes_and_times_are_kept_on_both_ways(box: leeward.Sandbox, tmp_path: Path) -> None:
    """Through a folder, and through an archive."""
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub/run").write_bytes(b"#!/bin/sh\necho ran\n")
    (here / "sub/run").chmod(0o755)
    (here / "name\nof two lines").write_bytes(os.urandom(3 * CHUNK + 5))
    (here / "sub/to").symlink_to("../sub/run")
    os.utime(here / "sub/run", ns=(7, 1_600_000_000_123_456_789))
    (here / "sub").chmod(0o711)
    box.files.upload(here, "there")
    assert b"ran\n" == box.run(["there/sub/to"]).stdout
    box.files.export_tar("there", tmp_path / "all.tgz")
    box.files.import_tar(tmp_path / "all.tgz", "again")
    box.files.download("again", tmp_path / "back")
    for name in ("sub", "sub/run", "name\nof two lines"):
        one, other = (here / name).stat(), (tmp_path / "back" / name).stat()
        assert (one.st_mode, one.st_mtime_ns) == (other.st_mode, other.st_mtime_ns)
    assert (here / "name\nof two lines").read_bytes() == (tmp_path / "back/name\nof two lines").read_bytes()
    assert "../sub/run" == os.readlink(tmp_path / "back/sub/to")


def test_calls_of_many_are_answered(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """Threads, and tasks of asyncio with the same sandbox, each with its own answers."""
    failed: list[BaseException] = []

    def use(number: int) -> None:
        try:
            content = bytes([number]) * (number * 60_000)
            for _ in range(3):
                box.files.write(f"t/{number}", content)
                assert content == box.files.read(f"t/{number}")
        except BaseException as error:
            failed.append(error)

    async def tasks() -> None:
        again = await leeward.AsyncSandbox.attach(box.id, socket=daemon.socket)
        await asyncio.gather(*(again.files.write(f"a/{number}", str(number)) for number in range(50)))
        assert [str(number).encode() for number in range(50)] == await asyncio.gather(
            *(again.files.read(f"a/{number}") for number in range(50)))
        await again.detach()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    assert not failed
    assert 8 == len(box.files.list("t"))


def test_a_large_file_needs_no_copy_in_memory(daemon: LiveDaemon, box: leeward.Sandbox, tmp_path: Path) -> None:
    """Not in the daemon, not in the process inside; in a client that streams none, in one that reads it one."""
    box.files.exists(".")  # the process is there
    inside = box.info()["memory_peak"]
    before = _peak(daemon.process.pid)
    # A client of its own, whose peak is of this alone.
    code = f"""
import leeward, os
def peak():  # not ru_maxrss, which begins with that of who started us
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
box = leeward.Sandbox.attach({box.id!r}, socket={str(daemon.socket)!r})
box.files.write("warm", os.urandom({2 * CHUNK}))
box.files.download("warm", {str(tmp_path / "warm")!r})
first = peak()
piece = os.urandom({CHUNK})
box.files.write("large", (piece for _ in range({LARGE // CHUNK})))
box.files.download("large", {str(tmp_path / "large")!r})
box.files.remove("large")
box.files.upload({str(tmp_path / "large")!r}, "large")
streamed = peak() - first
assert {LARGE} == len(box.files.read("large"))
print(streamed, peak() - first)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(daemon.socket), capture_output=True, text=True,
                          timeout=300, check=False)
    assert 0 == done.returncode, done.stderr
    streamed, all_at_once = map(int, done.stdout.split())
    assert LARGE == (tmp_path / "large").stat().st_size
    assert streamed < 16 * MIB
    assert LARGE - 16 * MIB < all_at_once < LARGE + 48 * MIB
    assert _peak(daemon.process.pid) - before < 32 * MIB
    used = box.info()["memory_peak"]
    assert not used or used - inside < LARGE + 64 * MIB


def _peak(pid: int) -> int:
    """Bytes that a process had resident at most."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def test_a_full_file_system_is_reported_and_leaves_no_partial_file(box: leeward.Sandbox) -> None:
    """Of a file that has no room."""
    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(CHUNK)

    box.files.write("whole", b"kept")
    with pytest.raises(OSError, match=r"space|memory|ended"):
        box.files.write("whole", endless())
    assert b"kept" == box.files.read("whole")
    assert ["whole"] == [info.name for info in box.files.list()]


def test_nothing_is_left_of_a_file_whose_sandbox_ends_while_it_is_written(daemon: LiveDaemon, tmp_path: Path) -> None:
    """In a folder of the host's, where it has no name before it is whole. Control: another one, of the same pieces."""
    with leeward.Sandbox(socket=daemon.socket, mounts=[leeward.Mount(str(tmp_path), "/work", writable=True)]) as box:
        def pieces(meanwhile: Callable[[], object]) -> Iterator[bytes]:
            yield bytes(2 * CHUNK)
            assert [] == os.listdir(tmp_path)
            meanwhile()
            yield bytes(CHUNK)

        box.files.write("/work/whole", pieces(int))
        assert 3 * CHUNK == (tmp_path / "whole").stat().st_size
        (tmp_path / "whole").unlink()
        with pytest.raises(leeward.SandboxOver):
            box.files.write("/work/large", pieces(box.close))
    daemon.idle()
    assert [] == os.listdir(tmp_path)


def test_the_process_for_files_is_in_no_list(daemon: LiveDaemon) -> None:
    """It is in no list, there is one of it however many calls there are, and it ends with the sandbox."""
    counts = []
    for _ in range(5):
        with leeward.Sandbox(socket=daemon.socket) as box:
            box.files.write("f", b"x")
            for _ in range(20):
                box.files.write("f", b"x")
            # Init, the first one, ours, and the one that counts; the one that counted last may not be gone yet.
            poll_until(lambda: box.execute(_NUMBERS).stdout_text == "4\n", "the processes in a sandbox")
            assert (0, []) == (box.info()["processes"], [row for row in box.processes() if not row["over"]])
        daemon.idle()
        counts.append(held(daemon.process.pid))
    assert counts[-1] - counts[0] < 3  # an armed runner has one more or fewer; five of anything would be a leak


#: How many processes there are in the sandbox, with the one that counts.
_NUMBERS = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"


def test_the_command_copies_in_out_and_within(daemon: LiveDaemon, box: leeward.Sandbox, tmp_path: Path) -> None:
    """Files and folders, to a name and into a folder; what goes wrong is told."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(b"1")
    for argv in ((str(tmp_path / "in"), f"{box.id}:"), (f"{box.id}:in/file", f"{box.id}:copied"),
                 (f"{box.id}:copied", str(tmp_path)), (f"{box.id}:/workspace/in", str(tmp_path / "out"))):
        done = daemon.run("cp", *argv)
        assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr), argv
    assert (b"1", b"1") == ((tmp_path / "copied").read_bytes(), (tmp_path / "out/file").read_bytes())
    box.shell("mkfifo in/fifo; ln -s /etc in/leads-out")
    done = daemon.run("cp", f"{box.id}:in", str(tmp_path / "some"))
    assert (1, 2) == (done.returncode, done.stderr.count(b"left out: "))
    for argv, status, told in (
            ((f"{box.id}:no", str(tmp_path / "x")), 1, b"no: No such file"), (("a", "b"), 2, b"ID:PATH"),
            ((str(tmp_path / "no"), f"{box.id}:x"), 1, b"No such file"),
            ((f"{'a' * 26}:x", str(tmp_path / "x")), 1, b"sandbox")):
        done = daemon.run("cp", *argv)
        assert status == done.returncode
        assert told in done.stderr




def test_how_much_will_be_copied_is_known_beforehand(box: leeward.Sandbox, tmp_path: Path) -> None:
    """Of a file or all below a folder, links and FIFOs aside; 0 where it isn't known. The time that is left is by it."""
    box.files.write("sized/a", bytes(1000))
    box.files.write("sized/b/c", bytes(500))
    box.shell("mkfifo sized/fifo; ln -s a sized/link")
    box.files.download("sized", tmp_path / "sized")

    assert [1000, 1500, 0] == [copying._inside(box, path) for path in ("sized/a", "sized", "no")]
    assert [1000, 1500, 0] == [copying._outside(str(tmp_path / path)) for path in ("sized/a", "sized", "no")]

"""
Attacks on file calls from inside: files that are swapped under a call, names that lead out on the way to a client's
host, an answer that is forged, a process that is killed, and work without end.

The process that does file calls is under the locks of any job, so what it can be made to do there its attacker can do
by himself. What must hold: no call hangs, nothing is written on the host outside the folder that a client named, the
daemon's memory is bounded, and no client has another's answer.
"""

from __future__ import annotations

import errno
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.box import PATIENCE_S, RUNS, Run, control
from kit.sessions import Wire
from leeward.client.file_calls import Call, answer_of
from leeward.client.file_tars import export_tar
from leeward.client.file_trees import download
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.wire.file_answers import MAX_ANSWER, MAX_ROWS
from leeward.wire.job_frames import SESSION_BEGINS, session_frame
from leeward.wire.replies import Reply

BY_CARE = pytest.mark.no_single_lock("the client's own care holds it: its host is outside all locks")
BY_BOUNDS = pytest.mark.no_single_lock("bounds of the daemon and of the process inside hold it")


class Files:
    """A client's file calls on one sandbox, as its library makes them."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.peer = wire, wire.peer(os.geteuid())
        self.box = self.peer.box()
        self.sandbox: Any = wire.server.desk._registry.all()[-1].sandbox.sandbox

    def shell(self, line: str) -> None:
        done = self.peer.ask("process_run", sandbox=self.box, shell=line)
        assert 0 == done["exit_code"], done

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        RUNS.append(self.wire.box.made_of)
        return self.peer.ask(op, sandbox=self.box, **fields)

    def do(self, call: Call[Any]) -> Any:
        told: Any = None
        error: Exception | None = None
        while True:
            try:
                op, fields = call.send(told) if error is None else call.throw(error)
            except StopIteration as end:
                return end.value
            try:
                told, error = answer_of(op, fields, Reply(1, self.ask(op, **fields), "", "", [])), None
            except Exception as wrong:
                error = wrong


@pytest.fixture
def files(wire: Wire) -> Iterator[Files]:
    made = Files(wire)
    yield made
    made.peer.ask("sandbox_kill", sandbox=made.box)


def naive_download(rows: list[tuple[bytes, bytes, bytes]], host: Path) -> None:
    """What a client without care does with names, kinds and contents from inside."""
    RUNS.append(Run(outside=True))
    for name, kind, content in rows:
        path = os.path.join(os.fsencode(host), name)
        if b"link" == kind:
            os.symlink(content, path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)


#: What a hostile process in the place of ours answers: names that lead out, and links that are written through.
LIES: list[tuple[bytes, bytes, bytes]] = [(b"../up", b"file", b"1"), (b"to", b"link", b"../outside"),
                                          (b"to/in", b"file", b"1")]


def lying(rows: list[tuple[bytes, bytes, bytes]]) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Answers as such a process would give them."""
    def answers(op: str, fields: dict[str, Any]) -> dict[str, Any]:
        path = fields.get("path", b"").removeprefix(b"top").lstrip(b"/")
        if "file_stat" == op:
            return {"row": [b"top", "folder", 0o755, 0, 0, b""]}
        if "file_list" == op:
            if path:
                return {"rows": [], "more": False}
            found = sorted({(name, kind.decode(), b"" if b"file" == kind else content) for name, kind, content in rows})
            return {"rows": [[name, kind, 0o644, 1, 0, target] for name, kind, target in found], "more": False}
        return {"data": b"1", "handle": 0, "at": 0, "end": 1, "mode": 0o4755, "time": 0}
    return answers


def drive(call: Call[Any], answers: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Any:
    """*call*, with each answer read as the library reads it."""
    told: Any = None
    error: Exception | None = None
    while True:
        try:
            op, fields = call.send(told) if error is None else call.throw(error)
        except StopIteration as end:
            return end.value
        try:
            told, error = answer_of(op, fields, Reply(1, answers(op, fields), "", "", [])), None
        except Exception as wrong:
            error = wrong


@pytest.mark.smoke
@BY_CARE
def test_c180_a_download_cannot_write_outside_its_folder(files: Files, tmp_path: Path):
    """
    By names that lead out, by links that are written through, by what lies on the host already, by links that are
    swapped in: neither what the sandbox holds nor what a forged answer says.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    with control():  # without care both ways lead out
        naive = tmp_path / "naive"
        naive.mkdir()
        naive_download(LIES, naive)
        assert (tmp_path / "up").read_bytes() == (outside / "in").read_bytes() == b"1"
    (tmp_path / "up").unlink()
    (outside / "in").unlink()

    for number, name in enumerate((b"../up", b"/etc/x", b"..", b".", b"a/../../up", b"a\0b", b"")):
        for kind in (b"file", b"folder"):
            with pytest.raises(PeerError):
                drive(download(b"top", tmp_path / f"got{number}"), lying([(name, kind, b"1")]))
    same_name = [(b"to", b"link", b"../outside"), (b"to2", b"link", os.fsencode(outside)), (b"to3", b"link", b".."),
                 (b"to4", b"link", b"a/../.."), (b"to5", b"link", b"here")]
    done = drive(download(b"top", tmp_path / "links"), lying(same_name))
    assert (["to5"], 4) == (os.listdir(tmp_path / "links"), len(done.left_out))

    # What is on the host already: a link where a folder or file goes to.
    there = tmp_path / "there"
    there.mkdir()
    (there / "sub").symlink_to(outside)
    (there / "file").symlink_to(outside / "target")
    files.shell("mkdir -p t/sub t/deep; echo 1 > t/sub/x; echo 1 > t/file; ln -s ../../../../outside t/deep/l;"
                " ln -s / t/root; chmod 755 t/file")
    with pytest.raises(OSError, match=r"directory|symbolic") as refused:
        files.do(download("t", there))
    assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
    (there / "sub").unlink()
    done = files.do(download("t", there))
    assert {"t/deep/l", "t/root"} == {name for name, _ in done.left_out}
    assert not (there / "file").is_symlink()
    assert 0o755 == (there / "file").stat().st_mode & 0o7777
    assert [] == os.listdir(outside)
    assert not (tmp_path / "up").exists()


@BY_CARE
def test_c181_an_archive_holds_no_name_that_leads_out(files: Files, tmp_path: Path):
    """So whoever unpacks it, without care, has nothing outside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with control():  # an archive with such names does lead out
        RUNS.append(Run(outside=True))
        with tarfile.open(tmp_path / "evil.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("../outside/evil"))
        (tmp_path / "naive").mkdir()
        with tarfile.open(tmp_path / "evil.tar") as archive:
            archive.extraction_filter = lambda member, path: member
            archive.extractall(tmp_path / "naive")
        assert ["evil"] == os.listdir(outside)
    (outside / "evil").unlink()

    files.shell(f"mkdir -p t/sub; ln -s {outside} t/abs; ln -s ../../outside t/sub/up; ln -s sub t/ok;"
                " echo 1 > t/sub/x; mkfifo t/fifo; printf x > \"$(printf 't/new\\nline')\"")
    done = files.do(export_tar("t", tmp_path / "t.tar"))
    assert {"t/abs": "link", "t/sub/up": "link", "t/fifo": "special"} == dict(done.left_out)
    with tarfile.open(tmp_path / "t.tar") as archive:
        assert {"sub", "sub/x", "ok", "new\nline"} == set(archive.getnames())
        archive.extraction_filter = lambda member, path: member
        archive.extractall(tmp_path / "unpacked")
    assert {"sub", "ok", "new\nline"} == set(os.listdir(tmp_path / "unpacked"))
    with pytest.raises(PeerError):
        drive(export_tar(b"top", tmp_path / "lie.tar"), lying(LIES[:1]))
    assert not (tmp_path / "lie.tar").exists()
    assert not (tmp_path / "lie.tar.part").exists()
    assert [] == os.listdir(outside)


@BY_CARE
def test_c369_an_archive_is_not_written_through_a_link(files: Files, tmp_path: Path):
    """The folder for it may be one that the sandbox writes to: links wait there under the names that are used on the way."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("the user's")
    folder.mkdir()
    names = ["t.tar", "t.tar.part", "t.tar.tmp", ".t.tar.part"]

    def plant() -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(victim)

    files.shell("mkdir -p t; echo 1 > t/x")
    plant()
    with control():  # whoever opens one of these names writes to what it leads to
        RUNS.append(Run(outside=True))
        with open(folder / "t.tar.part", "wb") as file:
            file.write(b"the sandbox's")
        assert "the sandbox's" == victim.read_text()
    victim.write_text("the user's")
    plant()
    assert 1 == files.do(export_tar("t", folder / "t.tar")).files
    assert "the user's" == victim.read_text()
    assert not (folder / "t.tar").is_symlink()
    assert sorted(names) == sorted(os.listdir(folder))
    with pytest.raises(FileNotFoundError):
        files.do(export_tar("missing", folder / "t.tar"))
    assert sorted(names) == sorted(os.listdir(folder))


#: Puts a FIFO, a folder, a loop, a link to a device and a file in the same place, in turn, for ever.
SWAPS = """
import os, itertools
os.chdir("/workspace")
for n in itertools.count():
    for make in (lambda: os.mkfifo("n"), lambda: os.mkdir("n"), lambda: os.symlink("n", "n"),
                 lambda: os.symlink("/dev/zero", "n"), lambda: open("n", "w").write("text\\n")):
        try:
            make()
            os.rename("n", "spot")
        except OSError:
            try: os.rmdir("spot")
            except OSError: pass
            try: os.unlink("n")
            except OSError:
                try: os.rmdir("n")
                except OSError: pass
"""


@BY_BOUNDS
def test_c182_files_that_are_swapped_hang_no_call(files: Files):
    """FIFOs, devices, folders and loops, in the place of a file, between two looks at it."""
    with control():  # who opens a FIFO as any file waits for ever
        files.shell("mkfifo fifo")
        late = files.peer.ask("process_run", sandbox=files.box, argv=["cat", "fifo"], limits={"time": 0.5})
        assert "timed_out" == late["outcome"]
    process = files.ask("process_start", argv=["/usr/bin/python3", "-c", SWAPS])["process"]
    outcomes: set[int] = set()
    rounds, end = 0, time.monotonic() + PATIENCE_S
    while (rounds < 25 or len(outcomes) < 4) and time.monotonic() < end:
        rounds += 1
        for op, fields in (("file_read", {}), ("file_append", {"data": b"x"}), ("file_write", {"data": b"text\n"}),
                           ("file_stat", {}), ("file_list", {}), ("file_edit", {"old": b"e", "new": b"a"}),
                           ("file_grep", {"pattern": b"t"}), ("file_walk", {"path": b"."}),
                           ("file_copy", {"to": b"copy"}), ("file_remove", {"recursive": True, "missing": True})):
            told = files.ask(op, **{"path": b"spot", "timeout": PATIENCE_S, **fields})
            assert "kind" not in told, told
            assert told.get("errno") != errno.ETIMEDOUT, (op, told)
            outcomes.add(told.get("errno", 0))
    assert len(outcomes) > 3  # they were swapped
    files.ask("process_kill", process=process)
    assert {} == files.ask("file_mkdir", path=b"after")


@BY_BOUNDS
def test_c183_work_without_end_is_ended(files: Files, tmp_path: Path):
    """
    A pattern that explodes, a folder without bottom, a folder that is too large for an answer, a sparse file of many
    terabytes; and a process that is stopped or killed is made again.
    """
    with control():  # by itself the pattern takes longer than anybody waits
        files.shell("printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' > evil")
        late = files.peer.ask("sandbox_execute", sandbox=files.box, limits={"time": 0.5},
                              code=b"import re; re.search('(a+)+$', open('evil').read())")
        assert "timed_out" == late["outcome"]
    began = time.monotonic()
    assert errno.ETIMEDOUT == files.ask("file_grep", path=b"evil", pattern=b"(a+)+$", timeout=0.3)["errno"]
    assert time.monotonic() - began < PATIENCE_S

    deep = "import os\nfor _ in range(3000):\n os.mkdir('d')\n os.chdir('d')\n"
    files.shell(f"/usr/bin/python3 -c \"{deep}\"; mkdir many; cd many;"
                f" seq 1 {MAX_ROWS + 1} | xargs touch; truncate -s 1T sparse 2>/dev/null || truncate -s 40M sparse")
    assert errno.E2BIG == files.ask("file_walk", path=b"many")["errno"]
    assert errno.ENAMETOOLONG == files.ask("file_remove", path=b"d", recursive=True)["errno"]
    told = files.ask("file_glob", pattern=b"**/**/**", timeout=5.0)
    assert told.get("errno") in (None, errno.E2BIG, errno.ETIMEDOUT)
    page = files.ask("file_list", path=b"many")
    assert (MAX_ROWS, True) == (len(page["rows"]), page["more"])
    page = files.ask("file_list", path=b"many", after=page["rows"][-1][0])
    assert (2, False) == (len(page["rows"]), page["more"])
    with pytest.raises(OSError, match="the limit is"):
        files.do(download(b"many/sparse", tmp_path / "sparse", limit=1 << 20))
    assert [] == os.listdir(tmp_path)

    calls = files.sandbox.files
    for number in (signal.SIGKILL, signal.SIGSTOP):  # by our own hand: Landlock may keep other processes from it
        process = calls._starting.runner.pidfd
        asked = files.peer.send("file_grep", sandbox=files.box, path=b"evil", pattern=b"(a+)+$", timeout=1.0)
        files.wire.until(lambda: calls._running is not None)
        signal.pidfd_send_signal(process, number)
        told = files.peer.wait(asked)["ok"]
        assert told["errno"] in (errno.EIO, errno.ETIMEDOUT)
        assert {} == files.ask("file_mkdir", path=b"made%d" % number)


#: A process in the place of ours, with the pipes of ours. It takes one call, and answers as it likes.
IN_ITS_PLACE = """
import os, signal, struct
JOB, REPLY = 3, 4
def frame(body):
    return struct.pack(">I", len(body)) + body
def good(number):
    return bytes([0x83]) + b"\\xa1n" + bytes([number]) + b"\\xa4size\\x01\\xa6handle\\x00"
size = struct.unpack(">I", os.read(JOB, 4))[0]
n = os.read(JOB, size)[3]
forged = {forged}
while forged:
    forged = forged[os.write(REPLY, forged):]
while True:
    signal.pause()
"""


@BY_BOUNDS
def test_c184_a_forged_answer_reaches_no_other_request(wire: Wire, monkeypatch: pytest.MonkeyPatch):
    """
    By a process in the place of ours: answers to other calls, of other kinds, too long, too many, and no answers. The
    call has failed, another process is made, and another sandbox has its own answers all the while.
    """
    other = Files(wire)
    other.shell("echo theirs > secret")
    files = Files(wire)
    with control():  # such a process's word counts, if it is an answer
        assert {"size": 1, "handle": 0} == _in_its_place(files, "frame(good(n))", monkeypatch)
    for forged in ("frame(good(n + 1))", "frame(good(n)) * 2", "frame(bytes([0x81]) + b'\\xa1n' + bytes([n]))",
                   f"struct.pack('>I', {MAX_ANSWER + 1})", "b'\\xff' * 100", "frame(b'\\xdd' + b'\\xff' * 4)",
                   "frame(b'\\x91' * 100000)", "frame(b'')"):
        told = _in_its_place(files, forged, monkeypatch)
        if "frame(good(n)) * 2" != forged:  # the first of these is an answer, the second one nobody's
            assert errno.EIO == told["errno"], forged
        assert b"theirs\n" == other.ask("file_read", path=b"secret")["data"]
        assert 2 == files.ask("file_write", path=b"f", data=b"ok")["size"]
        assert b"ok" == files.ask("file_read", path=b"f")["data"]
    for one in (files, other):
        one.peer.ask("sandbox_kill", sandbox=one.box)


def _in_its_place(files: Files, forged: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a client is told whose call such a process answers. After it the sandbox has ours again."""
    calls = files.sandbox.files
    calls._give_up("the test takes its place")
    begins = SESSION_BEGINS + session_frame(Job(code=IN_ITS_PLACE.replace("{forged}", forged).encode()))
    with monkeypatch.context() as patch:
        patch.setattr("leeward.daemon.sandboxes.file_process.FILE_CALLS_BEGIN", begins)
        told = files.ask("file_write", path=b"f", data=b"x")
    calls._give_up("the test has seen enough")
    return told

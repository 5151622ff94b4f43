"""
Escapes by a folder of the host: out of it, past its being read-only, into another user's, and by what is put back.

A folder is shown by a mount that is made of the client's own descriptor; an overlay keeps what is written in the
sandbox until the client applies it. What must hold: nothing but the folder is reached, nothing but what its client may
do there is done, and no name, link, mode or race of the sandbox's makes `apply` write anywhere else.
"""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
import leeward.client.overlay
from kit.box import control
from kit.host_folders import Sent, as_user
from kit.live_daemon import LiveDaemon
from leeward.client import applying
from leeward.client.apply_journal import ApplyJournal
from leeward.client.mounts import Mount, OpenFolders

BY_MOUNTS = pytest.mark.no_single_lock("the mounts, Landlock and no capability hold it together, in any one's place")
BY_OPENER = pytest.mark.no_single_lock("the opener looks at a descriptor before there is a sandbox")
BY_CLIENT = pytest.mark.no_single_lock("the client's own process writes on the host, and no lock of a job is about it")
ROOT = 0 == os.geteuid()
_TWO_USERS = 4243


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    # Not below pytest's own folder, which other users can't pass.
    with tempfile.TemporaryDirectory(prefix="lw-folders-") as place:
        os.chmod(place, 0o755)
        config = Path(place, "config.toml")
        config.write_text(f'group = "{pwd.getpwnam("nobody").pw_gid}"\n' if ROOT else "")
        home = Path(place, "socket")
        home.mkdir(mode=0o755)
        with LiveDaemon(home, "--pool-size", "4", "--config", str(config)) as made:
            yield made


@pytest.fixture
def place() -> Iterator[Path]:
    """`project` in it is given to sandboxes; `secret` beside it is not."""
    with tempfile.TemporaryDirectory(prefix="lw-folders-") as made:
        os.chmod(made, 0o755)
        folder = Path(made)
        (folder / "project").mkdir()
        (folder / "project/file").write_text("of the host\n")
        (folder / "secret").write_text(secrets.token_hex(16))
        yield folder


@pytest.mark.smoke
@BY_MOUNTS
def test_c215_cannot_leave_the_folder(daemon: LiveDaemon, place: Path):
    """By `..`, by links that are there or made, by absolute names, by a hard link, by the folder's own mount."""
    project, secret = place / "project", (place / "secret").read_text()
    (project / "out").symlink_to(place / "secret")
    (project / "up").symlink_to("../secret")
    (project / "root").symlink_to("/")
    with control():
        assert secret == (project / "out").read_text() == (project / "up").read_text()
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        for path in ("out", "up", "../secret", f"root{place}/secret", f"{place}/secret", "/proc/self/cwd/../secret",
                     f"/proc/1/root{place}/secret"):
            got = box.run(["cat", path])
            assert 0 != got.exit_code, path
            assert secret.encode() not in got.stdout + got.stderr
        assert 0 == box.shell("ln -s /etc/passwd own && ln file again").exit_code
        assert 0 != box.shell("ln file /tmp/away").exit_code  # EXDEV
        assert b"sandbox" in box.run(["cat", "own"]).stdout  # the sandbox's, not the host's
        assert set(os.listdir(project)) == {"file", "out", "up", "root", "own", "again"}


@BY_MOUNTS
def test_c216_cannot_write_to_a_read_only_folder(daemon: LiveDaemon, place: Path):
    """By any call that changes a file, by a new mount of the folder, over it or beside it."""
    data = place / "project"
    with control():
        (data / "other").write_text("by its owner")
        assert ["file", "other"] == sorted(os.listdir(data))
        (data / "other").unlink()
    with leeward.Sandbox(socket=daemon.socket, mounts=[Mount(data, "/data")]) as box:
        for line in ("echo x >/data/new", "echo x >>/data/file", ": >/data/file", "rm /data/file", "mkdir /data/d",
                     "mv /data/file /data/other", "chmod 777 /data/file", "touch /data/file", "ln /data/file /data/l",
                     "ln -s x /data/s", "truncate -s 0 /data/file", "mount -o remount,rw /data",
                     "mount --bind /tmp /data", "umount /data", "rmdir /data", "mkdir /other"):
            assert 0 != box.shell(line).exit_code, line
        code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call, args in (("mount", (b"none", b"/data", None, 32 | 4096, None)), ("umount2", (b"/data", 2)),
                   ("unshare", (0x10020000,)), ("mount", (b"/tmp", b"/data", None, 4096, None))):
    assert -1 == getattr(libc, call)(*args), call
fd = os.open("/data/file", os.O_RDONLY)
try:
    os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
except OSError:
    print("held")
"""
        assert b"held\n" == box.execute(code).stdout
        assert b"of the host\n" == box.run(["cat", "/data/file"]).stdout
    assert "of the host\n" == (data / "file").read_text()
    assert ["file"] == os.listdir(data)


@pytest.mark.needs("landlock>=9")
@BY_MOUNTS
def test_c051_a_programs_sandbox_reaches_its_own_sockets_in_the_folder_alone(daemon: LiveDaemon, place: Path) -> None:
    """One that another of its programs has made, and none of the host's, in a folder that both write."""
    project = place / "project"
    serve = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('own'); s.listen(); print('ready'); s.accept()"
    ask = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('reached')"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(project / "server"))
        (project / "server").chmod(0o777)
        server.listen()
        with control(), socket.socket(socket.AF_UNIX) as client:
            assert 0 == client.connect_ex(str(project / "server"))
        server.accept()[0].close()
        server.setblocking(False)
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box, box.kernel() as kernel:
            own = box.start(["python3", "-c", serve])
            assert own.read(60)
            assert "PermissionError" in box.run(["python3", "-c", ask, "server"]).stderr_text
            assert "PermissionError" in kernel.execute(ask.replace("sys.argv[1]", "'server'")).stderr_text
            assert "reached\n" == box.run(["python3", "-c", ask, "own"]).stdout_text
            assert own.result().ok
        with pytest.raises(BlockingIOError):
            server.accept()


@BY_MOUNTS
def test_c217_set_id_programs_and_devices_of_the_folder_are_of_no_use(daemon: LiveDaemon, place: Path):
    """A program that makes who runs it somebody else, and a device node, lie in the folder."""
    project = place / "project"
    program = project / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o6755)
    if ROOT:
        os.mknod(project / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with control():
            assert b"0\n" == subprocess.run([program, "-u"], user=_TWO_USERS, group=_TWO_USERS, extra_groups=[],
                                            capture_output=True, check=True).stdout
            (project / "null").write_bytes(b"x")
    else:
        with control():
            assert program.stat().st_mode & stat.S_ISUID
    with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert b"1000\n" == box.run(["./id", "-u"]).stdout
        assert 0 != box.shell("cat null").exit_code
        assert 0 != box.shell("mknod zero c 1 5").exit_code


@BY_OPENER
def test_c218_a_descriptor_cannot_be_another_thing_than_its_path(daemon: LiveDaemon, place: Path):
    """
    The folder is replaced between the client's opening and the mount; the descriptor is of another folder, of no
    folder, of a FIFO, a socket or a memory file; there is none, or there are too many.
    """
    sent, project = Sent(daemon), place / "project"
    (place / "other").mkdir()
    os.mkfifo(place / "fifo")
    with OpenFolders([Mount(project, "/data"), Mount(place / "other", "/other")]) as folders:
        row, second = folders.rows
        here, there = folders.descriptors
        with control():
            assert "opened" == sent.open([row], [here])
        fifo, memory = os.open(place / "fifo", os.O_PATH), os.memfd_create("x")
        with socket.socket(socket.AF_UNIX) as sock:
            for descriptors in ([there], [fifo], [memory], [sock.fileno()], [], [here, there]):
                said = sent.open([row], descriptors, leave=bool(descriptors))
                assert "opened" != said
                assert "mount" in said, said
        os.close(fifo)
        os.close(memory)
        assert "opened" == sent.open([row, second], [here, there])
        said = sent.open([row, second], [there, here])
        assert "isn't what the client's descriptor" in said or "has become" in said
        # Replaced: the descriptor is still of the folder that was there.
        project.rename(place / "moved")
        project.symlink_to(place)
        assert "opened" != sent.open([row], [here])
        project.unlink()
        project.mkdir()
        assert "opened" != sent.open([row], [here])
        project.rmdir()
        assert "opened" != sent.open([row], [here])
        # A dock is good for one request, and there are two of them at most.
        assert "opened" == sent.open([{**row, "path": str(place / "moved")}], [here])
        with pytest.raises(leeward.RequestRejected, match="no dock"):
            sent.connection.call("sandbox_open", {"mounts": [row], "dock": 1}, retry=False)
        kept = [fd for _ in range(2) for fd in sent.connection.call("sandbox_dock", {})[1]]
        with pytest.raises(leeward.Busy, match="2 docks"):
            sent.connection.call("sandbox_dock", {}, retry=False)
        for fd in kept:
            os.close(fd)
    sent.connection.close()


@BY_OPENER
def test_c219_places_of_the_kernel_the_daemon_and_the_sandbox_cannot_be_given(daemon: LiveDaemon, place: Path):
    """
    As a source the root, the kernel's file systems, and what holds the daemon's socket; as a target what is the
    sandbox's.
    """
    project = place / "project"

    def opened(*mounts: Mount, **options: object) -> str:
        try:
            with leeward.Sandbox(socket=daemon.socket, mounts=mounts, **options) as box:  # type: ignore[arg-type]  # any
                assert 0 == box.run(["true"]).exit_code
                return "opened"
        except leeward.Refused as why:
            return str(why)

    with control():
        assert "opened" == opened(Mount(project, "/data"))
        assert "opened" == opened(Mount(project, "/workspace/in/it"), Mount(project, "/srv/deep/er", writable=True))
    for source in ("/", "/proc", "/proc/self", "/sys", "/sys/kernel", "/dev", "/dev/shm", daemon.socket.parent,
                   daemon.socket.parent.parent, place / "none", "/tmp"):
        assert "opened" != opened(Mount(source, "/data")), source
    if ROOT:  # under another name
        for kind in ("proc", "sysfs"):
            subprocess.run(["mount", "-t", kind, "none", project], check=True)
            try:
                assert "kernel's file system" in opened(Mount(project, "/data")), kind
                assert "below it is a mount" in opened(Mount(place, "/data"))
                subprocess.run(["umount", project], check=True)  # a refusal leaves nothing that is in it
            finally:  # whatever happened: the folder is removed after the test, with what is below
                subprocess.run(["umount", "--lazy", project], stderr=subprocess.DEVNULL)
    for target in ("/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/dev/shm/x", "/usr", "/usr/local/x", "/bin",
                   "/lib64/x", "/etc", "/etc/passwd", "/tmp", "data", "./data", "/a/../data", "//data", "/a//b", "",
                   "/.sealed", "/var/tmp", "/home", "/home/sandbox"):
        assert "opened" != opened(Mount(project, target)), target
    assert "overlap" in opened(Mount(project, "/data"), Mount(project, "/data/in"))
    assert "overlap" in opened(Mount(project, "/workspace"), workdir=project)
    assert "overlap" in opened(Mount(project, "/workspace/in"), workdir=project)
    assert "opened" != opened(*(Mount(project, f"/data{number}") for number in range(17)))


@BY_OPENER
@pytest.mark.needs("root")
def test_c220_a_root_daemon_cannot_be_made_to_open_files_that_its_client_may_not(daemon: LiveDaemon, place: Path):
    """
    A folder that the client can't pass, files in it that are root's or a third user's; and what is made there is the
    client's own.
    """
    project, user = place / "project", pwd.getpwnam("nobody").pw_uid
    os.chown(project, user, pwd.getpwnam("nobody").pw_gid)
    for name, owner, mode in (("roots", 0, 0o600), ("thirds", _TWO_USERS, 0o600), ("open", 0, 0o644),
                              ("own", user, 0o600)):
        (project / name).write_text(name)
        os.chown(project / name, owner, owner)
        (project / name).chmod(mode)
    (place / "closed").mkdir(mode=0o700)
    (place / "closed/in").mkdir()
    with control(), leeward.Sandbox(socket=daemon.socket, workdir=project) as box:  # root, as itself
        assert b"roots" == box.run(["cat", "roots"]).stdout

    def within() -> None:
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            assert b"open" == box.run(["cat", "open"]).stdout
            assert b"own" == box.run(["cat", "own"]).stdout
            for line in ("cat roots", "cat thirds", "echo x >>open", "chmod 666 open", "chmod 666 roots",
                         "echo x >roots"):
                assert 0 != box.shell(line).exit_code, line
            assert 0 == box.shell("echo made >made && mkdir folder && chmod 600 own").exit_code
        try:
            with leeward.Sandbox(socket=daemon.socket, workdir=place / "closed/in") as box:
                box.run(["true"])
            raise AssertionError("a folder that this user can't pass")
        except leeward.RequestRejected:
            pass
        sent = Sent(daemon)
        with OpenFolders([Mount(project, "/data")]) as folders:
            row = {**folders.rows[0], "path": str(place / "closed/in")}
            assert "opened" != sent.open([row], folders.descriptors)
        sent.connection.close()

    assert as_user(user, within)
    assert {user} == {os.lstat(project / name).st_uid for name in ("made", "folder", "own")}
    assert ("roots", "open") == ((project / "roots").read_text(), (project / "open").read_text())


@BY_CLIENT
def test_c221_apply_cannot_be_led_out_of_the_folder(daemon: LiveDaemon, place: Path):
    """
    The sandbox makes links that lead out, and swaps files, folders and links while changes are applied; on the host a
    folder on the way becomes a link.
    """
    project, secret = place / "project", (place / "secret").read_text()
    (project / "sub").mkdir()
    (project / "sub/file").write_text("sub\n")
    (place / "out").mkdir()
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell(f"echo evil >>sub/file; ln -s {place}/secret abs; ln -s ../secret rel; ln -s file fine")
        with control():  # who follows them writes there
            (place / "naive").symlink_to(place / "out/target")
            (place / "naive").write_text("followed")
            assert "followed" == (place / "out/target").read_text()
        for path in ("abs", "rel"):
            with pytest.raises(leeward.RequestRejected, match="leads out"):
                box.apply([path])
        with pytest.raises(leeward.RequestRejected):
            box.apply()
        assert not os.path.lexists(project / "fine")
        assert ["fine"] == [change.path for change in box.apply(["fine"])]
        # A folder on the way becomes a link.
        (project / "sub").rename(place / "away")
        (project / "sub").symlink_to(place / "out")
        with pytest.raises((leeward.Stale, leeward.RequestRejected)):
            box.apply(["sub/file"])
        assert ["target"] == os.listdir(place / "out")
        assert "sub\n" == (place / "away/file").read_text()

    (project / "sub").unlink()
    (project / "race").mkdir()
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        swapping = box.start(f"while :; do rm -rf race; mkdir race; echo a >race/a; rm -rf race; ln -s {place}/out race"
                             "; rm race; mkfifo race; rm race; mkdir race; ln -s ../../secret race/a; done")
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                box.apply(["race"])
            except (leeward.Stale, leeward.RequestRejected):
                pass
        swapping.kill()
    assert ["target"] == os.listdir(place / "out")
    assert secret == (place / "secret").read_text()
    assert not list(project.rglob(".leeward-*"))


@BY_CLIENT
def test_c367_apply_cannot_be_led_out_by_a_link_behind_a_link(daemon: LiveDaemon, place: Path):
    """Each of the two stays in the folder by its text; together they lead out of it."""
    project, secret = place / "project", (place / "secret").read_text()
    line = "mkdir -p deep/er && ln -s ../.. deep/er/top && ln -s deep/er/top/../secret out"
    with control():  # on the host they do
        subprocess.run(["sh", "-c", line], cwd=project, check=True)
        assert secret == (project / "out").read_text()
        subprocess.run(["rm", "-r", "out", "deep"], cwd=project, check=True)
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        assert 0 == box.shell(line).exit_code
        for paths in (None, ["out"]):
            with pytest.raises(leeward.RequestRejected, match="'out' is a link that leads out"):
                box.apply(paths)
        assert ["file"] == os.listdir(project)
        assert ["deep", "deep/er", "deep/er/top"] == [change.path for change in box.apply(["deep"])]
        assert project == (project / "deep/er/top").resolve()


@BY_CLIENT
def test_c368_a_file_that_grows_while_it_is_applied_cannot_fill_the_host(
        daemon: LiveDaemon, place: Path, monkeypatch: pytest.MonkeyPatch):
    """A few bytes when it was looked at, and 200 MiB of nothing when it is read."""
    project, large, written = place / "project", 200 << 20, list[int]()
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo small >grows")
        fetch, read = applying.Applying._fetch, leeward.client.overlay.Overlay.read

        def grow(self: applying.Applying, *args: object) -> None:
            box.run(["truncate", "-s", str(large), "grows"])
            fetch(self, *args)  # type: ignore[arg-type]  # as they came

        def measured(self: leeward.client.overlay.Overlay, path: bytes, into: int, *most: int) -> None:
            try:
                read(self, path, into, *most)
            finally:
                written.append(os.fstat(into).st_size)

        monkeypatch.setattr(applying.Applying, "_fetch", grow)
        monkeypatch.setattr(leeward.client.overlay.Overlay, "read", measured)
        with pytest.raises(leeward.Stale, match="meanwhile"):
            box.apply()
        with control():  # so much is there for who asks for all of it
            assert large == len(box._overlay("").content("grows", large))
    assert [len("small\n") + 1] == written
    assert ["file"] == os.listdir(project)


@BY_CLIENT
def test_c222_apply_cannot_race_with_the_host(daemon: LiveDaemon, place: Path, monkeypatch: pytest.MonkeyPatch):
    """Files and folders of the host become links, or others, after they were looked at and before they are replaced."""
    project = place / "project"
    (place / "out").mkdir()
    (place / "out/file").write_text("not ours\n")
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo more >>file; echo new >new")
        put = ApplyJournal.content

        def swap(self: ApplyJournal, *args: object) -> None:
            put(self, *args)  # type: ignore[arg-type]  # as they came
            os.symlink(place / "out/file", project / "new")

        monkeypatch.setattr(ApplyJournal, "content", swap)
        with pytest.raises(leeward.Stale):
            box.apply(["new"])
        monkeypatch.undo()
        with control():
            assert "not ours\n" == (project / "new").read_text()
        assert "not ours\n" == (place / "out/file").read_text()
        (project / "new").unlink()
        (project / "file").unlink()
        (project / "file").symlink_to(place / "out/file")
        with pytest.raises(leeward.Stale):
            box.apply(["file"])
        assert "not ours\n" == (place / "out/file").read_text()
        project.rename(place / "elsewhere")
        (place / "project").mkdir()
        with pytest.raises(leeward.Stale, match="another folder"):
            box.diff()


@BY_CLIENT
def test_c223_special_files_do_not_stop_or_mislead_a_diff(daemon: LiveDaemon, place: Path):
    """
    A FIFO, a socket, a file of a tebibyte that occupies nothing, modes 000 and set-id, names with newlines and without
    valid UTF-8, links in a circle, deep folders.
    """
    project = place / "project"
    code = """
import os, socket
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("sock")
with open("huge", "wb") as file:
    file.truncate(1 << 40)
with open("new\\nline", "w"), open(b"bad\\xff", "w"):
    pass
with open("closed", "w") as file:
    file.write("closed")
os.chmod("closed", 0)
with open("setid", "w") as file:
    file.write("#!/bin/sh")
os.chmod("setid", 0o755)
try:
    os.chmod("setid", 0o6755)
except PermissionError:
    print("refused")
os.symlink("circle", "circle")
os.makedirs("/".join(["d"] * 200))
os.mkdir("dark"); open("dark/in", "w").close(); os.chmod("dark", 0)
"""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        got = box.execute(code)
        assert (0, "refused\n") == (got.exit_code, got.stdout_text), got.stderr_text
        found = {change.path: change for change in box.diff()}
        assert {"fifo", "sock", "huge", "new\nline", "bad\udcff", "closed", "setid", "circle", "dark", "dark/in",
                "/".join(["d"] * 200)} <= set(found)
        assert ("special", "special", "file", "link") == tuple(found[name].type for name in
                                                             ("fifo", "sock", "huge", "circle"))
        assert found["huge"].large
        assert None is found["huge"].sha256
        with control():
            mine = place / "setid"
            mine.touch()
            mine.chmod(0o6755)
            assert 0o6755 == stat.S_IMODE(mine.stat().st_mode)
        assert 0o755 == found["setid"].mode
        for name in ("fifo", "sock", "huge"):
            with pytest.raises(leeward.RequestRejected):
                box.apply([name])
        box.apply(["setid", "closed", "new\nline", "bad\udcff", "circle"])
        assert 0o755 == stat.S_IMODE((project / "setid").stat().st_mode)
        assert 0 == stat.S_IMODE((project / "closed").stat().st_mode)
        assert {b"new\nline", b"bad\xff", b"circle"} <= set(os.listdir(os.fsencode(project)))


@BY_MOUNTS
def test_c224_an_overlay_cannot_be_forged_from_inside(daemon: LiveDaemon, place: Path):
    """
    Whiteouts and marks of the overlay's own, made by a job, hide nothing and delete nothing; its layers can't be
    reached.
    """
    project = place / "project"
    (project / "kept").mkdir()
    (project / "kept/file").write_text("kept\n")
    code = """
import os
for name, value in (("user.overlay.opaque", b"y"), ("user.overlay.redirect", b"/etc"), ("user.overlay.whiteout", b"y")):
    try:
        os.setxattr("kept", name, value)
    except OSError as error:
        print(error.errno)
try:
    os.mknod("file2", 0o020000, 0)
except OSError:
    print("no node")
print(sorted(os.listdir("kept")))
"""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        got = box.execute(code)
        assert b"no node" in got.stdout, got
        assert b"['file']" in got.stdout
        assert [] == [change for change in box.diff() if "deleted" == change.kind]
        with control():
            box.shell("rm -r kept")
            assert {"kept", "kept/file"} == {change.path for change in box.diff() if "deleted" == change.kind}
        assert 0 != box.shell("ls /workspace/../upper.0 /workspace/work.0 2>&1").exit_code
        found = box.shell("find / -name 'upper.*' -not -path '/proc/*' -not -path '/usr/*' 2>/dev/null").stdout
        assert b"" == found
    assert "kept\n" == (project / "kept/file").read_text()

"""
Escapes by inotify: watching what isn't the sandbox's, and using up what the host's user has of it.

A watch tells who opens, reads and changes a file. What must hold: only files of mounts to which the sandbox may write are
watched, whatever names, memory and descriptors change meanwhile; and neither another sandbox nor the host's user
is left without.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.attack import PRELUDE, within, without
from kit.box import Box, begins_with, control
from kit.live_daemon import LiveDaemon, first_line
from kit.waiting import poll_until
from leeward._native import supervisor
from leeward._native.supervisor import INSTANCES, WATCHES
from leeward.client.mounts import Mount
from leeward.isolation import watching

pytestmark = [
    pytest.mark.no_single_lock("the supervisor judges by the mounts, what the filter hands to it"),
    pytest.mark.needs("seccomp-notify", "inotify"),
]

#: `init` and `watch` as the kernel has them; `watched` the device and inode of all that a descriptor watches.
WATCH = """
def init():
    return value("inotify_init1", 0x800)
def watch(fd, path, mask=0xfff):
    return call("inotify_add_watch", fd, ctypes.c_char_p(os.fsencode(path)), mask)
def watched(fd):
    rows = [dict(part.split(":", 1) for part in line.split() if ":" in part)
            for line in open(f"/proc/self/fdinfo/{fd}") if line.startswith("inotify")]
    return sorted({(int(row["sdev"], 16), int(row["ino"], 16)) for row in rows})
"""

#: Watches each of `paths`; the errnos' names.
EACH = WATCH + """
fd = init()
tell([watch(fd, path, mask) for path in paths for mask in (0xfff, 0x02000fff)])
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="lw-watch-") as place:
        os.chmod(place, 0o755)
        with LiveDaemon(Path(place), "--pool-size", "3") as made:
            yield made


@pytest.fixture(autouse=True)
def _room() -> None:
    """Other programs of the host's user may have most of its descriptors for a moment: a control needs as many as a test."""
    def is_there() -> bool:
        libc, made = ctypes.CDLL(None), list[int]()
        while len(made) < 3 * INSTANCES and (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
            made.append(fd)
        for fd in made:
            os.close(fd)
        return 3 * INSTANCES == len(made)

    poll_until(is_there, "other programs give descriptors of inotify back")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-watch-") as made:
        os.chmod(made, 0o755)
        Path(made, "file").write_text("of the host\n")
        yield Path(made)


SHARED = ["/", "/usr", "/usr/bin", "/usr/bin/env", "/etc", "/dev", "/dev/null", "/dev/urandom", "/proc", "/proc/self/exe",
          "/proc/self/root/usr", "/proc/self/fd/0", "/proc/1/root", "/proc/1/cwd"]


@pytest.mark.smoke
def test_c460_cannot_watch_what_it_shares_with_the_host(box: Box) -> None:
    """Folders and programs of /usr, devices and /proc: by names, links of its own and descriptors of its own."""
    with control():
        assert {""} == set(without(EACH, paths=SHARED[:9]))

    own = """
for number, path in enumerate(paths):
    os.symlink(path, f"/tmp/link{number}")
os.chdir("/usr")
there = os.open("/usr/bin", os.O_RDONLY)
paths += [f"/tmp/link{number}" for number in range(len(paths))] + ["bin/env", ".", "/workspace/../usr"]
paths += [f"/proc/self/fd/{there}", f"/proc/{os.getpid()}/fd/{there}", f"/proc/thread-self/fd/{there}"]
"""
    got = within(box, own + EACH, paths=SHARED)

    assert {"EACCES", "ELOOP", "ENOENT"} >= set(got)
    assert [""] * 4 == within(box, EACH, paths=["/workspace", "/tmp"])


def test_c460_cannot_watch_a_folder_that_it_may_only_read(daemon: LiveDaemon, folder: Path) -> None:
    """Its own files, and a folder of the host to which it may write, can be watched."""
    with control():
        assert {""} == set(without(EACH, paths=[str(folder), str(folder / "file")]))
    (folder / "written").mkdir()
    (folder / "written/file").touch()
    with leeward.Sandbox(socket=daemon.socket, workdir=folder / "written", mounts=[Mount(folder, "/data")]) as box:
        def run(paths: list[str]) -> str:
            got = box.run(["python3", "-c", f"{PRELUDE}\npaths = {paths!r}\n{EACH}"])
            assert 0 == got.exit_code, got.stderr
            return got.stdout.decode()

        refused = run(["/data", "/data/file", "/data/written", "/data/written/file"])
        assert 8 == refused.count("EACCES")
        assert "EACCES" not in run([".", "file", "/tmp"])


@pytest.mark.needs("root")
def test_c460_cannot_watch_what_it_may_not_read(daemon: LiveDaemon, folder: Path) -> None:
    """Another user's file in a folder to which it may write, though root's daemon could read it."""
    (folder / "private").touch(0o600)
    os.chown(folder / "private", 65534, 65534)
    with control():
        assert {""} == set(without(EACH, paths=[str(folder / "private")]))
    with leeward.Sandbox(socket=daemon.socket, workdir=folder) as box:
        got = box.run(["python3", "-c", f"{PRELUDE}\npaths = ['private', 'file']\n{EACH}"])
        assert b'["EACCES", "EACCES", "", ""]\n' == got.stdout


#: Tells whether it watches `path`, waits for a line, and tells whether anything was seen of `new` there.
SEES = WATCH + """
fd = init()
tell(watch(fd, path))
sys.stdin.readline()
def seen():
    try:
        return b"new" in os.read(fd, 65536)
    except BlockingIOError:
        return False
"""


def test_c460_cannot_watch_another_sandboxs_files(daemon: LiveDaemon, folder: Path) -> None:
    """The same names are its own files, and tell nothing of the other's; nor do names of the host's processes."""
    with control():
        made = "open(path + '/new', 'w').close()\ntell(seen())"
        assert without(SEES.replace("tell(watch", "(watch") + made, path=str(folder))
    with leeward.Sandbox(socket=daemon.socket) as one, leeward.Sandbox(socket=daemon.socket) as other:
        watcher = one.start(["python3", "-c", f"{PRELUDE}\npath = '/tmp'\n{SEES}\ntell(seen())"], stdin=None)
        assert b'""\n' == first_line(watcher)
        assert 0 == other.shell("echo x >/tmp/new").exit_code
        watcher.write(b"\n")
        assert b"false\n" == first_line(watcher)
        paths = [f"/proc/{pid}/{name}" for pid in (daemon.process.pid, os.getpid()) for name in ("root", "root/tmp", "cwd")]
        got = one.run(["python3", "-c", f"{PRELUDE}\npaths = {paths!r}\n{EACH}"])
        assert 12 == sum(got.stdout.count(name) for name in (b"ENOENT", b"EACCES", b"ELOOP"))


#: Watches while threads change what the call names: bytes of the path, a link, a folder by a rename, the descriptor.
SWAPS = WATCH + """
import threading
os.makedirs(base + "/own")
os.chdir(base)
os.symlink("/usr", "there")
names = [os.fsencode(base + "/own"), b"/usr".ljust(len(base) + 4, b"/")]
path = ctypes.create_string_buffer(names[0])
pair = [init(), init()]
spare = os.open("/usr", os.O_RDONLY)
given = os.dup(pair[0])
over = False
def bytes_change():
    while not over:
        for name in names:
            ctypes.memmove(path, name, len(name))
def link_changes():
    number = 0
    while not over:
        os.symlink(("/usr", base + "/own")[number % 2], f"l{number % 2}")
        os.rename(f"l{number % 2}", "link")
        number += 1
def folder_changes():
    while not over:
        libc.renameat2(-100, b"own", -100, b"there", 2)  # RENAME_EXCHANGE
def descriptor_changes():
    while not over:
        for fd in (pair[1], spare, pair[0]):
            os.dup2(fd, given)
threads = [threading.Thread(target=each) for each in (bytes_change, link_changes, folder_changes, descriptor_changes)]
for thread in threads:
    thread.start()
said = set()
for _ in range(turns):
    said.add(call("inotify_add_watch", given, path, 0xfff))
    said.add(watch(pair[0], "link"))
    said.add(watch(pair[0], base + "/there/bin/.."))
    said.add(watch(pair[1], "own"))
over = True
for thread in threads:
    thread.join()
own = os.stat(base)
tell([sorted(said), [("/usr" if ino == os.stat("/usr").st_ino else dev == (os.major(own.st_dev) << 20 | os.minor(own.st_dev)))
                     for fd in pair for dev, ino in watched(fd)]])
"""


def test_c461_cannot_win_by_changing_what_was_judged(box: Box, folder: Path) -> None:
    """Path, link, folder and descriptor change under the call: what is watched in the end is on its own tmpfs."""
    with control():
        said, seen = without(SWAPS, turns=500, base=f"{folder}/race")
        assert "" in said
        assert "/usr" in seen

    said, seen = within(box, SWAPS, turns=500, base="/tmp/race")

    assert {"", "EACCES"} <= set(said) <= {"", "EACCES", "ENOENT", "EINVAL", "EBADF", "ELOOP"}
    assert {True} == set(seen)


#: As many descriptors as it gets, and as many watches of files.
TAKES = WATCH + """
def until_refused(most, make):
    for made in range(most):
        said = make(made)
        if said < 0:
            return made, errno.errorcode[-said]
    return most, ""
fds = []
def one(number):
    fd = init()
    fds.append(fd)
    return fd
descriptors = until_refused(20, one)
os.mkdir("/tmp/many")
def one(number):
    os.close(os.open(f"/tmp/many/{number}", os.O_CREAT | os.O_WRONLY))
    return value("inotify_add_watch", fds[number % 2], ctypes.c_char_p(f"/tmp/many/{number}".encode()), 0xfff)
tell([descriptors, until_refused(most, one)])
"""


def test_c462_cannot_take_all_that_the_hosts_user_has(box: Box) -> None:
    """Its part and no more, of descriptors and watches; and the next job of the worker has as much."""
    replaced = "from leeward.isolation import watching\nwatching.steps = lambda proc=None: []\n"
    with control(), begins_with(replaced), Box() as loose:
        assert [20, ""] == within(loose, TAKES, most=0)[0]

    for _ in range(2):
        assert [[INSTANCES, "EMFILE"], [WATCHES, "ENOSPC"]] == within(box, TAKES, most=WATCHES + 1)


def test_c462_what_one_takes_is_left_to_others(daemon: LiveDaemon) -> None:
    """A sandbox that has all it gets takes none from another, nor from the host's user."""
    takes = f"{PRELUDE}\n{WATCH}\ntell([init() >= 0 for _ in range(20)])\nsys.stdin.readline()"
    with control():
        assert [True, True] == without(WATCH + "tell([init() >= 0, init() >= 0])")
    with leeward.Sandbox(socket=daemon.socket) as one, leeward.Sandbox(socket=daemon.socket) as other:
        holder = one.start(["python3", "-c", takes], stdin=None)
        assert INSTANCES == first_line(holder).count(b"true")
        assert INSTANCES == other.run(["python3", "-c", takes]).stdout.count(b"true")
        assert [True, True] == without(WATCH + "tell([init() >= 0, init() >= 0])")


def test_c462_nobody_watches_where_no_sandbox_can_be_bounded(monkeypatch: pytest.MonkeyPatch, box: Box) -> None:
    """Both calls are refused and counted, and the variables by which programs poll are set; where it can be, they aren't."""
    tells = "tell([call('inotify_init1', 0), 'CHOKIDAR_USEPOLLING' in os.environ])"
    with control():
        assert ["", False] == within(box, tells)

    monkeypatch.setattr(supervisor, "can_bound_watches", lambda path: False)
    watching.watchers.cache_clear()
    try:
        with Box() as unbounded:
            got = unbounded.run(PRELUDE + tells)
    finally:
        watching.watchers.cache_clear()
    assert b'["EACCES", true]\n' == got.stdout
    assert {"inotify_init1": 1} == got.denied

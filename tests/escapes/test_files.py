"""Files: a job reads what the view lists and changes what is its own. Catalogue cases 12, 21, 22, 25 to 28 and 225."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.attack import READ, make_environment, within, without
from kit.box import Box, control
from leeward._native import _shim
from leeward.isolation import mounts

Only = Callable[..., Box]


@pytest.fixture
def canaries() -> Iterator[dict[str, str]]:
    """Files all over the host, wherever this user may write, and their contents."""
    places = ("/root", "/home", "/tmp", "/var", "/var/tmp", "/run", "/opt", "/srv", "/mnt", os.getcwd(),
              str(Path.home()), str(Path(mounts.__file__).parents[2]), f"/run/user/{os.getuid()}", "/dev/shm")
    with ExitStack() as stack:
        found = {}
        for place in dict.fromkeys(places):
            if os.access(place, os.W_OK | os.X_OK):
                made = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
                os.chmod(made, 0o755)
                path = Path(made, "canary")
                path.write_text(secrets.token_hex(16))
                path.chmod(0o644)
                found[str(path)] = path.read_text()
        yield found


@pytest.mark.smoke
@pytest.mark.lock("mounts")
@pytest.mark.lock("landlock")
def test_c012_cannot_read_a_file_of_the_host(box: Box, only: Only, canaries: dict[str, str]) -> None:
    """What is not in the view has no name."""
    paths = [*canaries, "/etc/shadow", "/etc/machine-id", "/etc/hosts.allow"]
    with control():
        assert list(canaries.values()) == without(READ, paths=list(canaries))
    beside = [path for path in canaries if path.startswith("/var/tmp/")]
    assert beside
    with control():
        assert [canaries[path] for path in beside] == within(only(), READ, paths=beside)

    assert ["ENOENT"] * len(paths) == within(box, READ, paths=paths)
    assert ["ENOENT"] * len(paths) == within(only("mounts"), READ, paths=paths)
    # Landlock alone lets a job have the host's /tmp, /dev/shm and /etc, in place of its own.
    others = [path for path in canaries if not path.startswith(("/tmp/", "/dev/shm/"))]
    said = within(only("landlock"), READ, paths=others)
    assert {"EACCES", "ENOENT"} >= set(said)  # ENOENT: what tests/kit/halfway.py covers, where Python is in root's home
    assert "EACCES" == said[others.index(beside[0])]


OVERWRITE = """
import subprocess
flags = {"write": os.O_WRONLY, "both": os.O_RDWR, "append": os.O_WRONLY | os.O_APPEND}
def each(paths):
    return {path: [attempt(os.open, path, flag) for flag in flags.values()] for path in paths}
held = os.open("/proc/self/exe", os.O_PATH)
os.set_inheritable(held, True)
program = '''
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_WRONLY)
        print("")
    except OSError as error:
        print(errno.errorcode[error.errno])
'''
names = [f"/proc/self/fd/{held}", f"/proc/{os.getpid()}/exe", "/proc/1/exe", "/proc/self/exe"]
after = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, pass_fds=[held])
after = after.stdout.split("\\n")[:-1]
tell({"paths": each(["/proc/self/exe", "/proc/1/exe", f"/proc/self/fd/{held}", *paths]), "after": after})
"""


@pytest.mark.smoke
@pytest.mark.lock("mounts")
@pytest.mark.lock("landlock")
def test_c021_cannot_overwrite_the_interpreter_or_the_shim(box: Box, only: Only, folder: Path) -> None:
    """Not by name, not by /proc, not through a descriptor, before or after an exec; the host's files stay."""
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    ours = [executable, "/usr/bin/env", str(_shim.__file__)]
    copy = folder / "copy"
    shutil.copy(executable, copy)
    with control():
        assert "" in without(OVERWRITE, paths=[str(copy)])["paths"][str(copy)]
    before = [hashlib.sha256(Path(path).read_bytes()).digest() for path in ours]

    for sandbox in (box, only("mounts"), only("landlock")):
        got = within(sandbox, OVERWRITE, paths=ours)

        said = {error for errors in got["paths"].values() for error in errors}
        assert {"EROFS", "EACCES", "ETXTBSY", "ENOENT"} >= said
        assert {"EROFS", "EACCES", "ETXTBSY"} >= set(got["after"])
        assert 4 == len(got["after"])
    assert before == [hashlib.sha256(Path(path).read_bytes()).digest() for path in ours]


@pytest.mark.lock("mounts")
def test_c022_cannot_keep_the_daemons_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon started in a secret folder: a job starts in its own, and nothing relative leads back."""
    private = folder / "private"
    private.mkdir()
    text = secrets.token_hex(16)
    (private / "canary").write_text(text)
    (private / "canary").chmod(0o644)
    attack = """
found = []
for way in ("canary", "./canary", "../canary", "../private/canary", "/proc/self/cwd/canary", "/proc/1/cwd/canary",
            "/proc/self/cwd/../private/canary", "/proc/self/cwd/../../../../private/canary"):
    try:
        found.append(open(way).read())
    except OSError:
        pass
tell({"found": found, "cwd": os.getcwd(), "link": os.readlink("/proc/self/cwd"), "entries": os.listdir()})
"""
    with control():
        assert text in without(attack, cwd=private)["found"]

    monkeypatch.chdir(private)
    for locks in (None, {"mounts"}):
        with Box(locks=locks) as sandbox:
            got = within(sandbox, attack)

        assert {"found": [], "cwd": "/workspace", "link": "/workspace", "entries": []} == got


@pytest.mark.lock("mounts")
def test_c025_cannot_see_sys(box: Box, only: Only) -> None:
    """/sys isn't the kernel's: it has a dozen files that leeward wrote, with the job's own limits."""
    attack = """
paths = ("/sys/kernel", "/sys/class/tty", "/sys/class/net", "/sys/block", "/sys/module", "/sys/fs/bpf")
tell({"absent": [attempt(os.listdir, path) for path in paths],
      "files": sorted(os.path.join(at, name) for at, _, names in os.walk("/sys") for name in names),
      "classes": [(at, below) for at, below, _ in os.walk("/sys/class")],
      "write": attempt(os.open, "/sys/fs/cgroup/memory.max", os.O_WRONLY)})
"""
    with control():
        assert ["", ""] == without(attack)["absent"][:2]

    for sandbox in (box, only("mounts")):
        got = within(sandbox, attack)
        assert ["ENOENT"] * 6 == got["absent"]
        assert [["/sys/class", ["power_supply"]], ["/sys/class/power_supply", []]] == got["classes"]
        assert sorted(text.target for text in sandbox.engine.spec.view.texts if text.target.startswith("/sys/")
                      ) == got["files"]
        assert got["write"] in ("EROFS", "EACCES")


DEVICES = """
import glob
wanted = ("mem", "kmsg", "port", "fuse", "kvm", "uinput", "ptmx", "pts/ptmx", "vhost-net", "vhost-vsock", "vda", "sda",
          "loop0", "loop-control", "mapper/control", "net/tun", "console", "tty", "tty0", "rtc0", "userfaultfd",
          "hwrng")
os.makedirs("/tmp/nodes", exist_ok=True)
nodes = {"null": (0o020666, os.makedev(1, 3)), "mem": (0o020666, os.makedev(1, 1)), "whiteout": (0o020000, 0),
         "vda": (0o060666, os.makedev(254, 0))}
tell({"open": {name: attempt(os.open, f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) for name in wanted},
      "mknod": {name: attempt(os.mknod, f"/tmp/nodes/{name}", *how) for name, how in nodes.items()},
      "made": sorted(os.listdir("/tmp/nodes")),
      "fifo": attempt(os.mkfifo, "/tmp/nodes/fifo")})
"""


@pytest.mark.lock("mounts")
@pytest.mark.lock("seccomp", beside=("mounts",), because="what it makes must not lie in the host's /tmp")
@pytest.mark.lock("landlock", beside=("mounts",), because="what it makes must not lie in the host's /tmp")
def test_c026_cannot_open_or_make_a_device(box: Box, only: Only) -> None:
    """The harmless ones are there; no other opens and none can be made. It is on no terminal (ENXIO)."""
    with control():
        loose = without("import os\ntell(attempt(os.open, '/dev/ptmx', os.O_RDWR | os.O_NOCTTY))")
        assert "" == loose
    # With the keeper's capabilities, but on a device that means nothing: the kernel lets it make a whiteout.
    assert "" == within(only("mounts"), DEVICES)["mknod"]["whiteout"]

    got = within(box, DEVICES)
    assert ("ENXIO", "") == (got["open"].pop("tty"), got["open"].pop("pts/ptmx"))  # which is /dev/null: c171
    assert {"ENOENT"} == set(got["open"].values())
    assert {"EACCES"} == set(got["mknod"].values())
    assert [] == got["made"]
    assert "" == got["fifo"]

    # One lock at a time: the view has no such device, the filter lets none be made, nodev opens none.
    alone = within(only("mounts"), DEVICES)["open"]
    assert ("ENXIO", "") == (alone.pop("tty"), alone.pop("pts/ptmx"))
    assert {"ENOENT"} == set(alone.values())
    assert {"EACCES"} == set(within(only("seccomp", "mounts"), DEVICES)["mknod"].values())
    assert {"EACCES"} >= set(within(only("landlock", "mounts"), DEVICES)["mknod"].values())


@pytest.mark.lock("mounts")
def test_c026_dev_is_exactly_the_list(box: Box, only: Only) -> None:
    """Five harmless devices, the terminal of who asks, two folders of the job's own and four links."""
    with control():
        assert without('tell(len(os.listdir("/dev")))') > 10

    for sandbox in (box, only("mounts")):
        got = within(sandbox, """
def what(path):
    return [os.readlink(path)] if os.path.islink(path) else os.major(os.stat(path).st_rdev)
tell({name: what(f"/dev/{name}") for name in os.listdir("/dev")})
""")

        assert {"null": 1, "zero": 1, "full": 1, "random": 1, "urandom": 1, "tty": 5, "pts": 0, "shm": 0,
                "fd": ["/proc/self/fd"], "stdin": ["/proc/self/fd/0"], "stdout": ["/proc/self/fd/1"],
                "stderr": ["/proc/self/fd/2"]} == got


@pytest.mark.lock("mounts")
def test_c026_cannot_change_a_device_of_the_host(box: Box, only: Only) -> None:
    """/dev/null takes what is written to it, and keeps its mode and times."""
    attack = """
with open("/dev/null", "w") as sink:
    sink.write("gone")
null = "/dev/null"
tell([attempt(os.utime, null), attempt(os.chmod, null, 0o600), attempt(os.chown, null, 1000, 1000)])
"""
    before = os.stat("/dev/null")
    with control():  # anybody may touch it
        assert "" == within(only(), attack)[0]
    after = os.stat("/dev/null")
    assert after.st_mtime_ns > before.st_mtime_ns

    for sandbox in (box, only("mounts")):
        assert ["EROFS"] * 3 == within(sandbox, attack)
    assert after.st_mtime_ns == os.stat("/dev/null").st_mtime_ns
    assert stat.S_IMODE(after.st_mode) == stat.S_IMODE(os.stat("/dev/null").st_mode)


HANDLE = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def name(path):
    handle, mount = Handle(128), ctypes.c_int()
    said = call("name_to_handle_at", -100, path, ctypes.byref(handle), ctypes.byref(mount), 0)
    return said, handle
said, own = name(b"/usr")
where = os.open("/usr", os.O_RDONLY)
opened = []
for inode in (2, 128, 256):
    made = Handle(8, 1)  # FILEID_INO32_GEN, generation 0: any
    ctypes.memmove(made.data, (ctypes.c_uint32 * 2)(inode, 0), 8)
    opened.append(call("open_by_handle_at", where, ctypes.byref(made), os.O_RDONLY))
tell({"name": said, "own": call("open_by_handle_at", where, ctypes.byref(own), os.O_RDONLY), "made": opened})
"""


@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp")
def test_c027_cannot_open_by_a_made_up_handle(box: Box, only: Only) -> None:
    """Handles are neither told nor taken; without the filter the kernel wants a capability over the host."""
    with control():
        loose = without(HANDLE)
        assert "" == loose["name"]
        if 0 == os.geteuid():
            assert "" == loose["own"]

    for sandbox in (box, only("seccomp")):
        assert {"name": "EACCES", "own": "EACCES", "made": ["EACCES"] * 3} == within(sandbox, HANDLE)
    got = within(only("mounts", "privileges"), HANDLE)
    assert {"EPERM"} == {got["own"], *got["made"]}


CHANGE = """
import shutil
file, below = f"{place}/file", f"{place}/folder"
said = {
    "write": attempt(os.open, file, os.O_WRONLY), "truncate": attempt(os.truncate, file, 0),
    "append": attempt(os.open, file, os.O_WRONLY | os.O_APPEND),
    "create": attempt(os.open, f"{place}/new", os.O_CREAT | os.O_WRONLY),
    "chmod": attempt(os.chmod, file, 0o600), "chown": attempt(os.chown, file, os.getuid(), os.getgid()),
    "utime": attempt(os.utime, file, (1, 1)), "touch": attempt(os.utime, file),
    "setxattr": attempt(os.setxattr, file, "user.mark", b"x"),
    "removexattr": attempt(os.removexattr, file, "user.kept"),
    "link": attempt(os.link, file, f"{place}/hard"), "link out": attempt(os.link, file, f"{scratch}/hard"),
    "symlink": attempt(os.symlink, "x", f"{place}/soft"), "rename": attempt(os.rename, file, f"{place}/moved"),
    "rename out": attempt(os.rename, file, f"{scratch}/moved"), "mkdir": attempt(os.mkdir, f"{place}/made"),
    "exchange": call("renameat2", -100, file.encode(), -100, below.encode(), 2),
    "rmdir": attempt(os.rmdir, below), "unlink": attempt(os.unlink, file),
    "fallocate": attempt(lambda: os.posix_fallocate(os.open(file, os.O_RDWR), 0, 1 << 16)),
}
tell(said)
"""


def state(place: Path) -> dict[str, Any]:
    """Contents, modes, owners, times and attributes of all below *place*, which a reader's look doesn't change."""
    return {str(path.relative_to(place)): (
        path.read_bytes() if path.is_file() else sorted(os.listdir(path)), path.stat().st_mode, path.stat().st_uid,
        path.stat().st_mtime_ns, path.stat().st_ctime_ns, path.stat().st_nlink,
        {name: os.getxattr(path, name) for name in os.listxattr(path)}) for path in (place, *place.rglob("*"))}


def everybodys(place: Path) -> Path:
    """A folder that everybody may write to, as far as the file modes say."""
    (place / "folder").mkdir(parents=True)
    (place / "file").write_text("kept")
    os.setxattr(place / "file", "user.kept", b"kept")
    for path, mode in ((place, 0o777), (place / "folder", 0o777), (place / "file", 0o666)):
        path.chmod(mode)
    return place


@pytest.mark.smoke
@pytest.mark.lock("mounts")
def test_c028_cannot_change_a_file_that_it_sees(box: Box, folder: Path) -> None:
    """Though it may be its owner by the host's ids: every change fails, and content, mode, times and attributes stay."""
    make_environment(folder / "environment")
    place = everybodys(folder / "environment" / "data")
    twin = everybodys(folder / "twin")
    with control():
        said = without(CHANGE, place=str(twin), scratch=str(folder))
        assert {name for name in said if not said[name]} >= {"write", "chmod", "utime", "setxattr", "link", "mkdir"}
    before = state(place)

    for locks in (None, {"mounts"}):
        with Box(locks=locks, python_env=str(folder / "environment")) as own:
            got = within(own, CHANGE, place=str(place), scratch="/tmp")

        # EACCES is Landlock's, for what would need a right in the folder; EXDEV for what would leave it.
        assert {"EROFS", "EPERM", "EACCES", "EXDEV"} >= set(got.values()), got
        assert {"EROFS"} == {got[name] for name in ("chmod", "chown", "utime", "touch", "setxattr", "removexattr")}
        assert before == state(place)


CHANGE_ALL = """
targets = targets or sorted({line.split()[4] for line in open("/proc/self/mountinfo")})
def try_all(target):
    if os.path.islink(target):
        return [attempt(lambda: os.utime(target, follow_symlinks=False))] * 2
    made = attempt(os.mkdir, target.rstrip("/") + "/lw-new") if os.path.isdir(target) else "EROFS"
    return [made, attempt(os.chmod, target, 0o777), attempt(os.utime, target)]
tell({target: try_all(target) for target in targets})
"""


@pytest.mark.lock("mounts")
def test_c028_every_mount_but_the_jobs_own_is_read_only(box: Box, only: Only, folder: Path) -> None:
    """In the root, in each bind and in /proc: nothing can be made, and no mode can be changed."""
    with control():
        assert {str(folder): ["", "", ""]} == without(CHANGE_ALL, targets=[str(folder)])

    for sandbox in (box, only("mounts")):
        got = within(sandbox, CHANGE_ALL, targets=[])

        own = {"/workspace", "/tmp", "/dev/shm"}
        assert own < set(got)
        with control():  # the attempts work where they may
            assert all(["", "", ""] == got[target] for target in own)
        for target in set(got) - own - {"/proc"}:
            assert {"EROFS", "EACCES"} >= set(got[target]), target
            assert "EROFS" == got[target][1], target
        assert {"EPERM", "EACCES", "ENOENT"} >= set(got["/proc"])


#: Every way to give a file S_ISUID or S_ISGID: what each says, or the bits that the file has then.
SET_ID = """
import ctypes, errno, os, platform, stat
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
CHMOD, OPEN, CREAT, MKNODAT, FCHMODAT2 = (90, 2, 85, 259, 452) if X86 else (None, None, None, 33, 452)
os.chdir("/tmp")

def call(number, *arguments):
    if number is None:
        raise FileNotFoundError(errno.ENOSYS, "")
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

def fresh(does):
    open("file", "w").close()
    try:
        does()
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        bits = os.stat("file").st_mode & (stat.S_ISUID | stat.S_ISGID)
        os.unlink("file")
    return oct(bits)

def made(does):
    try:
        kept = does()
        bits = (os.fstat(kept) if isinstance(kept, int) else os.stat("file")).st_mode & (stat.S_ISUID | stat.S_ISGID)
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        if os.path.exists("file"):
            os.unlink("file")
    return oct(bits)

answer = []
for bits in (0o4755, 0o2755, 0o6755):
    high = ctypes.c_ulong(bits | 1 << 32)
    answer += [
        fresh(lambda: os.chmod("file", bits)), fresh(lambda: os.fchmod(os.open("file", os.O_RDWR), bits)),
        fresh(lambda: os.chmod("file", bits, dir_fd=os.open(".", os.O_RDONLY))),
        fresh(lambda: call(FCHMODAT2, -100, b"file", bits, 0)), fresh(lambda: call(CHMOD, b"file", high)),
        made(lambda: os.open("file", os.O_CREAT | os.O_RDWR, bits)),
        made(lambda: os.open(".", os.O_TMPFILE | os.O_RDWR, bits)),
        made(lambda: os.mknod("file", stat.S_IFREG | bits)), made(lambda: os.mknod("file", bits)),
        made(lambda: call(OPEN, b"file", os.O_CREAT | os.O_RDWR, high)), made(lambda: call(CREAT, b"file", high)),
        made(lambda: call(MKNODAT, -100, b"file", ctypes.c_ulong(stat.S_IFREG | bits | 1 << 32), 0)),
    ]
print(json.dumps(answer))
"""


@pytest.mark.lock("seccomp")
def test_c225_cannot_make_a_set_id_file(box: Box, only: Only) -> None:
    """In a folder of the host that a sandbox may write it would be a program that runs as the client, for everybody."""
    with control():
        loose = within(only("mounts"), SET_ID)
        assert len(loose) == 36
        assert {"0o4000", "0o2000", "0o6000"} <= set(loose)
        assert loose.count("0o0") < 6  # whatever this kernel has no call for says so

    for held in (box, only("seccomp")):
        assert {"EACCES", "EPERM", "ENOSYS"} >= set(within(held, SET_ID)), held
    assert within(box, SET_ID).count("ENOSYS") < 12

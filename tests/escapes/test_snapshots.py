"""
Escapes by snapshots: into a stranger's state, past a copy's locks, and by bytes that a kernel has forged.

A snapshot's bytes are made in a sandbox, so they may be anything. What must hold: they are loaded behind every lock, the
daemon doesn't read them, and who can't read a state can't begin with it.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from pathlib import Path

import pytest

import leeward
from kit.box import Box, control
from kit.forged_states import SPOILS, forged, spoiled
from kit.live_daemon import LiveDaemon
from kit.sessions import Wire
from leeward.client.snapshot_files import SnapshotReader, snapshot_written

pytestmark = pytest.mark.needs("x86-64")

BY_THE_DAEMON = pytest.mark.no_single_lock("the daemon's books say whose a snapshot is, and no lock of a job could")
BY_THE_JOB = pytest.mark.no_single_lock("the loader runs in a process that has every lock already")
STRANGER = 4242

DAEMON = ("--pool-size", "3")


@pytest.mark.smoke
@BY_THE_DAEMON
def test_c495_a_strangers_snapshot_cannot_be_used() -> None:
    """By its very id: begun with, rolled back to, looked at, removed."""
    with Box(pool_size=3, max_sessions=3) as box, Wire(box) as wire:
        _try_a_strangers(wire)


def _try_a_strangers(wire: Wire) -> None:
    owner, stranger = wire.peer(os.geteuid()), wire.peer(STRANGER)
    box, theirs = owner.box(), stranger.box()
    secret = secrets.token_hex(16)
    kernel = owner.ask("kernel_open", sandbox=box)["kernel"]
    owner.ask("sandbox_execute", sandbox=box, kernel=kernel, code=f"secret = '{secret}'".encode())
    snapshot = owner.ask("kernel_snapshot", sandbox=box, kernel=kernel)["snapshot"]
    with control():  # another connection of its owner's begins with it, in another sandbox
        same = wire.peer(os.geteuid())
        other = same.box()
        copy = same.ask("kernel_open", sandbox=other, snapshot=snapshot)["kernel"]
        assert secret in same.ask("sandbox_execute", sandbox=other, kernel=copy, code=b"secret", display=True)["value"]

    mine = stranger.ask("kernel_open", sandbox=theirs)["kernel"]
    for op, fields in (("kernel_open", {"sandbox": theirs}), ("kernel_rollback", {"sandbox": theirs, "kernel": mine}),
                       ("snapshot_info", {}), ("snapshot_export", {}), ("snapshot_read", {}),
                       ("snapshot_write", {"data": b"x"}), ("snapshot_remove", {})):
        answer = stranger.ask(op, snapshot=snapshot, **fields)
        assert "snapshot_failed" == answer["kind"], (op, answer)
    assert [] == stranger.ask("snapshot_list")["snapshots"]
    assert "sandbox_over" == stranger.ask("kernel_snapshot", sandbox=box, kernel=kernel)["kind"]
    assert [snapshot] == [row["snapshot"] for row in owner.ask("snapshot_list")["snapshots"]]


#: What a process may do, as the system tells.
LOCKS = "[each for each in open('/proc/self/status') if each.startswith(('Cap', 'NoN', 'Sec', 'Uid', 'Gid', 'Groups'))]"


@BY_THE_JOB
def test_c496_a_copy_has_every_lock(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Also one of a state that was taken where more was visible: it sees what its own sandbox shows."""
    (tmp_path / "work").mkdir()
    secret = tmp_path / "work" / "secret"
    secret.write_text(secrets.token_hex(16))
    with leeward.Sandbox(socket=daemon.socket, workdir=tmp_path / "work", profile="workdir") as wide, \
            leeward.Sandbox(socket=daemon.socket) as narrow:
        kernel, fresh = wide.kernel(), narrow.kernel()
        look = "import os, ctypes\nfound = open('/workspace/secret').read()\nfound"
        with control():
            assert secret.read_text() in str(kernel.execute(look).value)
        kernel.execute("del found")
        snapshot = kernel.snapshot()
        copy = narrow.kernel(snapshot=snapshot)
        assert fresh.execute(LOCKS).value == copy.execute(LOCKS).value
        assert "FileNotFoundError" in copy.execute(look).stderr_text
        assert "PermissionError" in copy.execute("os.chroot('/')").stderr_text
        assert copy.execute("os.chroot('/')").denied
        limits = "import resource; [resource.getrlimit(n) for n in range(16)]"
        assert fresh.execute(limits).value == copy.execute(limits).value
        kernel.execute("handle = open('/workspace/secret')")
        snapshot.remove()
        with kernel.snapshot() as snapshot, pytest.raises(leeward.SnapshotFailed, match="secret"):
            narrow.kernel(snapshot=snapshot)


@BY_THE_JOB
def test_c496_a_job_of_a_warm_environment_has_every_lock(tmp_path: Path) -> None:
    """And nothing of what the code had in its sandbox, but its memory; what a job changes no other one has."""
    (tmp_path / "warm.py").write_text("import os\nopen('/workspace/secret', 'w').close()\n"
                                      "seen = [os.path.exists('/workspace/secret')]\n")
    (tmp_path / "config.toml").write_text(f'[environments.cold]\n[environments.warm]\nwarm = "{tmp_path}/warm.py"\n')
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, leeward.Client(daemon.socket) as client:
        def printed(code: str, environment: str = "warm") -> str:
            return client.execute(f"import os\nprint({code})", environment=environment).stdout_text

        with control():  # there is something to be seen
            assert "[True]\n" == printed("seen")
        assert printed(LOCKS, "cold") == printed(LOCKS)
        assert "[]\n" == printed("os.listdir('/workspace')")
        assert "PermissionError" in client.execute("import os\nos.chroot('/')", environment="warm").stderr_text
        assert client.execute("seen.append('mine')", environment="warm").ok
        assert "[True]\n" == printed("seen")


#: A child that gets a file, as one that tells the truth.
GIVEN = "os.write(answers, facts); tell(answers, 8192); file = given(orders); "
#: What a child says, and what its client reads.
LIES = {
    "noise": ("os.write(answers, bytes(range(256)) * 40)", "facts|ended"),
    "no facts": ("os.write(answers, struct.pack('>I', 3) + b'abc')", "map ends"),
    "other facts": ("os.write(answers, struct.pack('>I', 1) + b'\\x80')", "facts of a state"),
    "long facts": ("os.write(answers, struct.pack('>I', 1 << 30))", "too many facts"),
    "too much": ("os.write(answers, facts); tell(answers, 1 << 50)", "snapshot_memory"),
    "nothing": ("os.write(answers, facts); tell(answers, 0)", "isn't one of pages"),
    "odd": ("os.write(answers, facts); tell(answers, 4097)", "isn't one of pages"),
    "an error": ("os.write(answers, facts); tell(answers, -5); os.write(answers, b'\\x1b[31m' * 64)", "can't be taken"),
    "more than there is": (GIVEN + "tell(answers, 8193)", "more was"),
    "a mapping": (GIVEN + "m = mmap.mmap(file, 8192); tell(answers, 8192); os.read(orders, 1)", "mapped"),
    "a larger file": (GIVEN + "os.ftruncate(file, 1 << 22); tell(answers, 8192)", "larger"),
    "a smaller file": (GIVEN + "os.ftruncate(file, 1); tell(answers, 8192)", "larger"),
    "silence": ("os.close(answers)", "ended"),
}


@pytest.mark.parametrize("lie", LIES)
@BY_THE_DAEMON
def test_c497_what_a_child_says_of_its_state_costs_nobody_else(daemon: LiveDaemon, lie: str) -> None:
    """The snapshot is refused, the kernel goes on, and so does the daemon."""
    attack, said = LIES[lie]
    with leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        with control(), kernel.snapshot() as snapshot:  # without the lie the same kernel has one
            assert [snapshot.id] == [row["snapshot"] for row in leeward.Snapshot.list(socket=daemon.socket)]
        assert kernel.execute(forged(attack)).ok
        with pytest.raises((leeward.SnapshotFailed, leeward.Busy), match=said) as refused:
            kernel.snapshot()
        assert "\x1b" not in str(refused.value)
        assert "2" == kernel.execute("1 + 1").value
        assert not leeward.Snapshot.list(socket=daemon.socket)
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


@pytest.mark.parametrize("spoil", SPOILS)
@BY_THE_JOB
def test_c498_a_spoiled_state_costs_its_kernel_alone(daemon: LiveDaemon, spoil: str) -> None:
    """It can't be loaded, or it can and does whatever it does inside; nobody else notices."""
    with leeward.Sandbox(socket=daemon.socket, timeout=2) as box, leeward.Sandbox(socket=daemon.socket) as other:
        kernel, beside = box.kernel(), other.kernel()
        kernel.execute("x = [6]")
        beside.execute("y = 7")
        with control():  # unspoiled bytes that the kernel has written itself are loaded
            assert kernel.execute(spoiled("pass")).ok
            with kernel.snapshot() as snapshot:
                assert "[6]" == box.kernel(snapshot=snapshot).execute("x").value
        for seed in range(4):
            assert kernel.execute(spoiled(SPOILS[spoil], seed)).ok
            with kernel.snapshot() as snapshot:
                try:
                    with other.kernel(snapshot=snapshot) as copy:
                        copy.execute("x", timeout=1)
                except (leeward.SnapshotFailed, leeward.SessionOver):
                    pass
            assert "7" == beside.execute("y").value
            assert "[6]" == kernel.execute("x").value
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


@BY_THE_JOB
def test_c506_a_forged_file_costs_its_kernel_alone(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Its bytes are spoiled, in the state, in the zygote's memory or in both, and its hash fits; nobody else notices."""
    with leeward.Sandbox(socket=daemon.socket, timeout=2) as box, box.kernel() as beside:
        beside.execute("y = 7")
        with box.kernel() as kernel:
            kernel.execute("x = [6]")
            with kernel.snapshot() as snapshot:
                snapshot.save(tmp_path / "true")
        with control(), leeward.Snapshot.load(tmp_path / "true", daemon.socket) as snapshot:
            assert "[6]" == box.kernel(snapshot=snapshot).execute("x").value
        with open(tmp_path / "true", "rb") as file:
            reader = SnapshotReader(file)
            content = b"".join(reader.pieces())
        for seed in range(6):
            r, forged_bytes = random.Random(seed), bytearray(content)
            for _ in range(1 << 4 * (1 + seed % 3)):
                at = r.randrange(reader.head["sizes"][0]) if seed < 3 else r.randrange(len(content))
                forged_bytes[at] ^= 1 << r.randrange(8)
            with snapshot_written(tmp_path / "forged", reader.head) as write:
                write(bytes(forged_bytes))
            with leeward.Snapshot.load(tmp_path / "forged", daemon.socket) as snapshot:
                try:
                    with box.kernel(snapshot=snapshot) as copy:
                        copy.execute("x", timeout=1)
                except (leeward.SnapshotFailed, leeward.SessionOver):
                    pass
            assert "7" == beside.execute("y").value
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


@BY_THE_JOB
def test_c565_a_kernel_that_slept_on_disk_cannot_open_its_state(tmp_path: Path) -> None:
    """It has the file mapped, whose place it can read; it has no descriptor of it, and can't get one to write to."""
    tmp_path.chmod(0o700)
    (tmp_path / "config.toml").write_text(f'sleep_folder = "{tmp_path}/sleep"\npool_size = 2\n')
    code = """if True:
        import os
        def tried(path, flags):
            try:
                os.close(os.open(path, flags))
            except OSError:
                return False
            return True
        lines = [line.split(maxsplit=5) for line in open("/proc/self/maps") if ".sleeper" in line]
        ways = [path for line in lines for path in (
            f"/proc/self/map_files/{line[0]}", line[5].strip().removesuffix(" (deleted)"))]
        leads = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        ways += [each for each in leads if os.path.lexists(each) and ".sleeper" in os.readlink(each)]
        """
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, \
            leeward.Sandbox(socket=daemon.socket) as box, box.kernel() as kernel:
        kernel.execute("big = [bytes([number % 256]) * 1000 for number in range(10_000)]")
        box.pause()
        state, = tmp_path.glob("sleep/*/*.sleeper/1")
        with control():  # its own user can, from outside
            fd = os.open(state, os.O_RDWR)
            os.close(fd)
            assert fd > 0
        kernel.execute(code)
        assert "True" == kernel.execute("len(lines) > 0 and len(ways) == 2 * len(lines)").value
        assert "[]" == kernel.execute("[way for way in ways for how in (os.O_RDONLY, os.O_RDWR) if tried(way, how)]").value


#: A child that gets a file of 40 MiB, and leaves a process that keeps it: open for nothing, so that no right is needed.
_KEPT = ("import signal; os.write(answers, facts); tell(answers, 40 << 20); file = given(orders); "
         "kept = os.open(f'/proc/self/fd/{file}', os.O_PATH); os.close(file); os.close(answers); os.fork() or signal.pause()")


def _keeps(box: leeward.Sandbox, keep: str) -> bool:
    """Whether 40 MiB more are kept that no snapshot has any more; else its user has too many already."""
    kernel = box.kernel()  # another each time: one that has a child, where no group counts, can't be taken again
    kernel.execute("import os\nblock = os.urandom(40 << 20)" if keep == "a copy" else forged(_KEPT))
    try:
        snapshot = kernel.snapshot()
    except (leeward.Busy, leeward.SnapshotFailed) as refused:
        return keep == "a descriptor" and "ended" in str(refused)
    assert "40" == box.kernel(snapshot=snapshot).execute("len(block) >> 20").value
    snapshot.remove()
    return True


def _rounds(folder: Path, bound: str, keep: str) -> int:
    """How often that works, of four times; in the end nothing is counted any more."""
    folder.mkdir()
    (folder / "config.toml").write_text(f"snapshot_memory = '{bound}'\n")
    with LiveDaemon(folder, "--config", str(folder / "config.toml")) as daemon:
        with leeward.Sandbox(socket=daemon.socket, memory="1G") as box:
            rounds = sum(_keeps(box, keep) for _ in range(4))
        with leeward.Sandbox(socket=daemon.socket) as box, box.kernel() as kernel:
            kernel.execute("import os\nblock = os.urandom(50 << 20)")
            kernel.snapshot()
    return rounds


@pytest.mark.parametrize("keep", ["a copy", "a descriptor"])
@BY_THE_DAEMON
def test_c590_what_is_kept_of_snapshots_counts(tmp_path: Path, keep: str) -> None:
    """As long as a process of a sandbox has it, though the snapshot was removed, or never was."""
    with control():  # where that is as much as its user may have
        assert 4 == _rounds(tmp_path / "control", "1G", keep)
    assert _rounds(tmp_path / "bounded", "100M", keep) in (1, 2)


#: In a kernel: a child that reads behind the end of a mapping that it has enlarged, and how that ended.
_READS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
def reads(at, size, larger):
    if not (child := os.fork()):
        new = libc.mremap(at, size, larger, 1)
        ctypes.string_at(new + larger - 4096, 4096)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"1" * len(memory)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
"""


@BY_THE_DAEMON
def test_c591_a_copy_puts_no_page_behind_the_end_of_its_state(daemon: LiveDaemon) -> None:
    """Reading would make it, in the file that all copies share: it would outlive this one, and count for nobody."""
    with leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        with control():  # a file with a hole behind its content
            hole = ("file = os.memfd_create('hole'); os.ftruncate(file, 99 << 20); inside = mmap.mmap(file, 1 << 20, 2)\n"
                    "reads(ctypes.addressof(ctypes.c_char.from_buffer(inside)), 1 << 20, 99 << 20), os.fstat(file).st_blocks")
            assert "(0, 8)" == kernel.execute(_READS + hole).value
            assert kernel.execute("del inside").ok
        with kernel.snapshot() as snapshot, leeward.Sandbox(socket=daemon.socket) as other:
            copy = other.kernel(snapshot=snapshot)
            assert str(-signal.SIGBUS) == copy.execute("reads(at, 1 << 20, 99 << 20)").value
            assert "b'1'" == copy.execute("memory[-1:]").value

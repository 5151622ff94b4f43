"""
Landlock alone, on the real kernel: no namespace, no filter, the host's own file system.

Each attack runs in a forked child, with the lock and without.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

import landlock as witness
import pytest

from leeward._native import landlock as native
from leeward._native.landlock import FsAccess, NetAccess
from leeward._native.steps import Block, Call, Table, returns
from leeward.errors import KernelRefusal
from leeward.isolation import landlock
from leeward.isolation.landlock import LandlockPlan, Rule
from leeward.spec.sandbox import Bind, Scratch, View
from skip_policy import require

pytestmark = pytest.mark.needs("landlock")

PR_SET_NO_NEW_PRIVS = 38
RNDGETENTCNT = 0x80045200  # bytes of entropy: an ioctl of a device that changes nothing

#: What a Python needs to go on in the child, and what execve needs.
SYSTEM = tuple(Bind(path, path, optional=True) for path in ("/usr", "/lib", "/lib64", "/bin"))


def in_child(attack: Callable[[], object], *before: Callable[[], object]) -> str:
    """
    Run *before*, then *attack* in a child; the name of its errno, or "" where it worked.

    Raises:
        AssertionError: anything but *attack*'s own OSError.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            for step in before:
                step()
            try:
                attack()
                said = ""
            except OSError as error:
                said = errno.errorcode[error.errno or 0]
            os.write(writing, json.dumps(said).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    assert text.startswith(b'"'), text.decode()
    said = json.loads(text)
    assert isinstance(said, str)
    return said


def locked(plan: LandlockPlan) -> Callable[[], None]:
    """
    A step for `in_child`.
    """
    def enter() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        Table(landlock.steps(plan)).run()
    return enter


def make_host(path: Path) -> Path:
    """
    A folder of the host with one of everything, and beside it one for the sandbox.
    """
    for folder in (path / "outside", path / "inside"):
        (folder / "empty").mkdir(parents=True)
        (folder / "file").write_text(secrets.token_hex())
        shutil.copy("/bin/true", folder / "program")
        (folder / "elsewhere").mkdir()
    return path


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


def plan_for(host: Path) -> LandlockPlan:
    """
    The sandbox that sees /usr, and may write to "inside".
    """
    return landlock.plan(View(SYSTEM, (), (), Scratch((str(host / "inside"),))), landlock.probe())


def run(program: Path) -> None:
    """
    execve, and come back to tell.
    """
    pid = os.fork()
    if 0 == pid:
        try:
            os.execv(program, [str(program)])
        except OSError as error:
            os._exit(error.errno or 255)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # sun_path is short
        made.bind(path.name)


def ask_device() -> None:
    fd = os.open("/dev/urandom", os.O_RDONLY)
    fcntl.ioctl(fd, RNDGETENTCNT, bytearray(4))


#: For each right an attack in a folder, and the errno that refuses it. Each works without the
#: lock, where the folder is the user's own. MAKE_CHAR and MAKE_BLOCK need root besides.
ATTACKS: dict[FsAccess, tuple[Callable[[Path], object], str]] = {
    FsAccess.EXECUTE: (lambda folder: run(folder / "program"), "EACCES"),
    FsAccess.WRITE_FILE: (lambda folder: os.open(folder / "file", os.O_WRONLY), "EACCES"),
    FsAccess.READ_FILE: (lambda folder: os.open(folder / "file", os.O_RDONLY), "EACCES"),
    FsAccess.READ_DIR: (lambda folder: os.listdir(folder), "EACCES"),
    FsAccess.REMOVE_DIR: (lambda folder: os.rmdir(folder / "empty"), "EACCES"),
    FsAccess.REMOVE_FILE: (lambda folder: os.unlink(folder / "file"), "EACCES"),
    # Not a whiteout (0, 0), the one device that anybody may make: kernels differ on whose right that needs.
    FsAccess.MAKE_CHAR: (lambda folder: os.mknod(folder / "new", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "EACCES"),
    FsAccess.MAKE_DIR: (lambda folder: os.mkdir(folder / "new"), "EACCES"),
    FsAccess.MAKE_REG: (lambda folder: os.mknod(folder / "new", stat.S_IFREG | 0o600), "EACCES"),
    FsAccess.MAKE_SOCK: (lambda folder: bind_socket(folder / "new"), "EACCES"),
    FsAccess.MAKE_FIFO: (lambda folder: os.mkfifo(folder / "new"), "EACCES"),
    FsAccess.MAKE_BLOCK: (lambda folder: os.mknod(folder / "new", stat.S_IFBLK | 0o600, os.makedev(7, 200)), "EACCES"),
    FsAccess.MAKE_SYM: (lambda folder: os.symlink("file", folder / "new"), "EACCES"),
    FsAccess.REFER: (lambda folder: os.link(folder / "file", folder / "elsewhere" / "file"), "EXDEV"),
    FsAccess.TRUNCATE: (lambda folder: os.truncate(folder / "file", 0), "EACCES"),
}

FIRST_ABI = {FsAccess.REFER: 2, FsAccess.TRUNCATE: 3, FsAccess.IOCTL_DEV: 5, FsAccess.RESOLVE_UNIX: 9}


def needed_for(right: FsAccess) -> None:
    require(f"landlock>={FIRST_ABI.get(right, 1)}")
    if right in (FsAccess.MAKE_BLOCK, FsAccess.MAKE_CHAR):
        require("root")


def test_c046_each_right_has_an_attack():
    """
    A right that the kernel learns later and this table doesn't know would go untested.
    """
    elsewhere = FsAccess.IOCTL_DEV | FsAccess.RESOLVE_UNIX

    covered = elsewhere
    for right in ATTACKS:
        covered |= right

    assert landlock.plan(View((), (), (), Scratch(())), landlock.NEWEST).fs == covered


@pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
def test_c046_cannot_do_it_outside_the_rules(host, right):
    """
    Nothing of a host's folder that no rule names can be used: not even where its path is known.
    """
    needed_for(right)
    attack, _ = ATTACKS[right]

    got = in_child(lambda: attack(host / "outside"), locked(plan_for(host)))
    before = in_child(lambda: attack(host / "outside"))

    assert "" == before  # control: it works unconfined
    assert got == "EACCES"


@pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
def test_c046_each_right_is_held_by_itself(host, right):
    """
    A folder with every right but one refuses just what that one is for.
    """
    needed_for(right)
    attack, expected = ATTACKS[right]
    plan = plan_for(host)
    system = tuple(rule for rule in plan.rules if rule.path != str(host / "inside"))
    lacking = dataclasses.replace(plan, rules=(*system, Rule(str(host / "inside"), plan.fs & ~right)))
    granted = dataclasses.replace(plan, rules=(*system, Rule(str(host / "inside"), plan.fs)))

    refused = in_child(lambda: attack(host / "inside"), locked(lacking))
    allowed = in_child(lambda: attack(host / "inside"), locked(granted))

    assert "" == allowed  # control: the one right makes the difference
    assert expected == refused


@pytest.mark.parametrize("right", [right for right in ATTACKS
                                   if right not in (FsAccess.MAKE_CHAR, FsAccess.MAKE_BLOCK)],
                         ids=lambda right: right.name)
def test_a_job_is_free_in_its_own_folder(host, right):
    """
    What may be written may be used in every way but for devices.
    """
    needed_for(right)
    attack, _ = ATTACKS[right]

    assert "" == in_child(lambda: attack(host / "inside"), locked(plan_for(host)))


@pytest.mark.needs("landlock>=5")
def test_c046_cannot_drive_a_device_that_may_only_be_read(host):
    """
    IOCTL_DEV is a right of its own.
    """
    plan = plan_for(host)
    readable = dataclasses.replace(plan, rules=(*plan.rules, Rule("/dev/urandom", FsAccess.READ_FILE)))
    device = dataclasses.replace(plan, rules=(*plan.rules, Rule("/dev/urandom", landlock.DEVICE & plan.fs)))

    assert "" == in_child(ask_device)  # control: it works unconfined
    assert "" == in_child(ask_device, locked(device))
    assert in_child(ask_device, locked(readable)) == "EACCES"


@pytest.mark.needs("landlock>=9")
def test_c051_cannot_reach_a_socket_of_the_host_by_its_path(host):
    """
    A socket that was made outside isn't there for a job, though its folder is.
    """
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(host / "inside")
        server.bind("server")
        server.listen()

        def attack() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("server")

        assert "" == in_child(attack)  # control: it works unconfined
        assert in_child(attack, locked(plan_for(host))) == "EACCES"


def test_c046_cannot_move_a_file_in_or_out(host):
    """
    Neither out of the sandbox, nor a host's file into it.
    """
    inside, outside = host / "inside" / "file", host / "outside" / "file"
    attacks = {
        "rename out": lambda: os.rename(inside, outside),
        "rename in": lambda: os.rename(outside, inside),
        "link in": lambda: os.link(outside, host / "inside" / "stolen"),
        "link out": lambda: os.link(inside, host / "outside" / "planted"),
    }

    got = {name: in_child(attack, locked(plan_for(host))) for name, attack in attacks.items()}

    assert "" == in_child(attacks["link in"])  # control: it works unconfined
    assert set(got.values()) <= {"EACCES", "EXDEV"}, got


def test_the_sealed_file_tells_whether_landlock_holds(host):
    """
    A file that anybody may read and no rule names: EACCES with the lock, and only with it.
    """
    sealed = host / "sealed"
    sealed.write_text("")
    sealed.chmod(0o444)

    assert "" == in_child(lambda: os.open(sealed, os.O_RDONLY))  # control: it can be read unconfined
    assert in_child(lambda: os.open(sealed, os.O_RDONLY), locked(plan_for(host))) == "EACCES"


def listener(kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    made.bind(("127.0.0.1", 0))
    if socket.SOCK_STREAM == kind:
        made.listen()
    return made


NET_ATTACKS: dict[NetAccess, tuple[str, Callable[[int], object]]] = {
    NetAccess.BIND_TCP: ("landlock>=4", lambda port: socket.socket().bind(("127.0.0.1", 0))),
    NetAccess.CONNECT_TCP: ("landlock>=4", lambda port: socket.socket().connect(("127.0.0.1", port))),
    NetAccess.BIND_UDP: ("landlock>=10", lambda port: socket.socket(type=socket.SOCK_DGRAM).bind(("127.0.0.1", 0))),
    NetAccess.CONNECT_SEND_UDP: (
        "landlock>=10", lambda port: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))),
}


@pytest.mark.parametrize("right", NET_ATTACKS, ids=lambda right: right.name)
def test_cannot_use_a_port(host, right):
    """
    No port is open, though this process is in the host's own network namespace.
    """
    needs, attack = NET_ATTACKS[right]
    require(needs)
    kind = socket.SOCK_STREAM if right in (NetAccess.BIND_TCP, NetAccess.CONNECT_TCP) else socket.SOCK_DGRAM
    with listener(kind) as server:
        port = server.getsockname()[1]

        assert "" == in_child(lambda: attack(port))  # control: it works unconfined
        assert in_child(lambda: attack(port), locked(plan_for(host))) == "EACCES"


@pytest.mark.needs("landlock>=4")
def test_a_rule_opens_one_port():
    """
    Nothing in a plan uses that yet; the shim's call works.
    """
    with listener(socket.SOCK_STREAM) as server:
        port = server.getsockname()[1]

        def enter() -> None:
            ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            ruleset = native.create_ruleset(0, NetAccess.CONNECT_TCP, 0)
            rule = Block(struct.pack("QQ", NetAccess.CONNECT_TCP, port))
            add = returns(Call.LANDLOCK_ADD_RULE, ruleset, 2, rule, 0)  # LANDLOCK_RULE_NET_PORT
            Table([add, native.restrict_step(ruleset, 0)]).run()

        assert "" == in_child(lambda: socket.socket().connect(("127.0.0.1", port)), enter)
        assert in_child(lambda: socket.socket().connect(("127.0.0.1", port ^ 1)), enter) == "EACCES"


@pytest.mark.needs("landlock>=6")
def test_c049_cannot_signal_a_process_outside(host):
    """
    Not its parent, with the pid namespace switched off; its own children it can.
    """
    parent = os.getpid()

    def own_child() -> None:
        pid = os.fork()
        if 0 == pid:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert "" == in_child(lambda: os.kill(parent, 0))  # control: it works unconfined
    assert in_child(lambda: os.kill(parent, 0), locked(plan_for(host))) == "EPERM"
    assert "" == in_child(own_child, locked(plan_for(host)))


@pytest.mark.needs("landlock>=6")
def test_c049_cannot_reach_an_abstract_socket_outside(host):
    """
    With the network namespace switched off; one of its own it can.
    """
    name = f"\0leeward-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()

        def own_server() -> None:
            with socket.socket(socket.AF_UNIX) as mine, socket.socket(socket.AF_UNIX) as client:
                mine.bind(name + "2")
                mine.listen()
                client.connect(name + "2")

        assert "" == in_child(lambda: socket.socket(socket.AF_UNIX).connect(name))  # control
        assert in_child(lambda: socket.socket(socket.AF_UNIX).connect(name), locked(plan_for(host))) == "EPERM"
        assert "" == in_child(own_server, locked(plan_for(host)))


def test_c047_a_rule_that_cannot_be_made_stops_the_way_in(host):
    """
    Nothing is half enforced: a missing path and an unknown right raise.
    """
    plan = plan_for(host)
    broken = [
        dataclasses.replace(plan, rules=(*plan.rules, Rule(str(host / "missing"), FsAccess.READ_FILE))),
        dataclasses.replace(plan, fs=plan.fs | 1 << 40),
        dataclasses.replace(plan, rules=(*plan.rules, Rule(str(host), 1 << 40))),
    ]

    def refused(one: LandlockPlan) -> None:
        with pytest.raises(KernelRefusal):
            locked(one)()
        os.close(os.open(host / "outside" / "file", os.O_RDONLY))

    for one in broken:
        assert "" == in_child(lambda one=one: refused(one))


@pytest.mark.needs("not-root")
def test_c047_without_no_new_privs_it_is_refused(host):
    """
    The error says what is missing. root may, so root can't try.
    """
    with pytest.raises(KernelRefusal, match="no_new_privs is not set"):
        Table(landlock.steps(plan_for(host))).run()


def test_an_optional_path_may_be_missing(host):
    """
    The others hold all the same.
    """
    plan = plan_for(host)
    gone = Rule(str(host / "missing"), FsAccess.READ_FILE, optional=True)

    assert in_child(lambda: os.listdir(host / "outside"),
                    locked(dataclasses.replace(plan, rules=(gone, *plan.rules)))) == "EACCES"


def test_entering_leaves_no_descriptor(host):
    """
    Neither the ruleset nor a path stays open.
    """
    def count() -> list[int]:
        return [fd for fd in range(256) if not _closed(fd)]

    def attack() -> None:
        before = count()
        locked(plan_for(host))()
        assert before == count()

    assert "" == in_child(attack)


def _closed(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return True
    return False


def test_pipes_and_memory_files_open_again_by_proc(host):
    """
    What `>/dev/stdout` does: these lie on no file system that a rule could name.
    """
    def attack() -> None:
        _, writing = os.pipe()
        os.close(os.open(f"/proc/self/fd/{writing}", os.O_WRONLY))
        os.close(os.open(f"/proc/self/fd/{os.memfd_create('x')}", os.O_RDWR))

    assert "" == in_child(attack, locked(plan_for(host)))


@pytest.mark.needs("landlock>=2")
def test_c052_the_seventeenth_ruleset_is_refused_and_harms_nothing(host):
    """
    A job could stack no more than the kernel bears, and the first goes on holding.
    """
    def stack() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        for _ in range(16):
            Table(landlock.steps(plan_for(host))).run()
        with pytest.raises(KernelRefusal, match="16 rulesets are already stacked"):
            Table(landlock.steps(plan_for(host))).run()
        os.close(os.open(host / "inside" / "file", os.O_RDONLY))

    assert in_child(lambda: os.open(host / "outside" / "file", os.O_RDONLY), stack) == "EACCES"


def test_deny_all_leaves_nothing(host):
    """
    What the sandbox's init gets: no file can be opened, no file made.
    """
    def enter() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        ruleset = landlock.deny_all(landlock.probe())
        Table([native.restrict_step(ruleset, 0)]).run()
        os.close(ruleset)

    assert in_child(lambda: os.open("/proc/self/stat", os.O_RDONLY), enter) == "EACCES"
    assert in_child(lambda: os.mkdir(host / "inside" / "new"), enter) == "EACCES"
    assert not os.get_inheritable(landlock.deny_all(landlock.probe()))


class TestWitness:
    """
    The package `landlock` speaks to the kernel by its own code, and must agree.
    """

    def test_the_same_abi(self):
        """
        Asked by ctypes.
        """
        ctypes.set_errno(0)  # the package takes a stale one for its own

        assert witness.landlock_abi_version() == landlock.probe()

    @pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
    @pytest.mark.parametrize("folder", ["inside", "outside"])
    def test_the_same_verdicts(self, tmp_path, right, folder):
        """
        The same rules, given by the other hand, refuse and allow the same.
        """
        needed_for(right)
        attack, _ = ATTACKS[right]
        ours, theirs = make_host(tmp_path / "ours"), make_host(tmp_path / "theirs")

        def enter() -> None:
            ctypes.set_errno(0)  # the package takes a stale one for its own
            rules = witness.Ruleset()
            for rule in plan_for(theirs).rules:
                if os.path.exists(rule.path):
                    rules.allow(rule.path, rules=witness.FSAccess(rule.access & 0xFFFF))
            rules.apply()

        assert (in_child(lambda: attack(theirs / folder), enter)
                == in_child(lambda: attack(ours / folder), locked(plan_for(ours))))

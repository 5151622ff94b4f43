"""
Landlock: what it refuses with every other lock off, and where it isn't the boundary. Catalogue cases 46 to 52.

What is about single rules runs in a forked child, with the lock and without; the rest as jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.attack import within, without
from kit.box import Box, control
from kit.features import is_met
from kit.landlocked import ATTACKS, PR_SET_NO_NEW_PRIVS, in_child, locked, make_host, needed_for, plan_for
from kit.running import status
from kit.skip_policy import require
from leeward._native.landlock import FsAccess
from leeward._native.steps import Table
from leeward.daemon.run.runner import Runner, job_of
from leeward.errors import KernelRefusal
from leeward.isolation import landlock
from leeward.isolation.landlock import LandlockPlan, PathRule
from leeward.spec.sandbox import Scratch, View

pytestmark = pytest.mark.needs("landlock")

Only = Callable[..., Box]

RNDGETENTCNT = 0x80045200  # bytes of entropy: an ioctl of a device that changes nothing


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


def ask_device() -> None:
    fd = os.open("/dev/urandom", os.O_RDONLY)
    fcntl.ioctl(fd, RNDGETENTCNT, bytearray(4))


@pytest.mark.no_attack("what the table of attacks has")
def test_c046_every_right_has_an_attack():
    """A right that the kernel learns later and this table doesn't know would go untested."""
    elsewhere = FsAccess.IOCTL_DEV | FsAccess.RESOLVE_UNIX

    covered = elsewhere
    for right in ATTACKS:
        covered |= right

    assert landlock.plan(View((), (), (), Scratch(())), landlock.NEWEST).fs == covered


#: What a job can do to a folder of the host, by name: the attacks of kit/landlocked.py but for devices, which no
#: job may make for want of a capability.
IN_A_JOB = """
import shutil, socket, subprocess
def path(name):
    return folder + "/" + name
def start():
    try:
        subprocess.run([path("program")], check=True)
    except (FileNotFoundError, PermissionError) as error:
        raise OSError(error.errno, "") from None
def bind():
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path("socket"))
tell({
    "execute": attempt(start),
    "read": attempt(lambda: os.close(os.open(path("file"), os.O_RDONLY))),
    "list": attempt(os.listdir, folder),
    "write": attempt(lambda: os.close(os.open(path("file"), os.O_WRONLY))),
    "truncate": attempt(os.truncate, path("file"), 1),
    "make a file": attempt(os.mknod, path("new")),
    "make a folder": attempt(os.mkdir, path("folder")),
    "make a socket": attempt(bind),
    "make a fifo": attempt(os.mkfifo, path("fifo")),
    "make a link": attempt(os.symlink, "file", path("link")),
    "link": attempt(os.link, path("file"), path("empty/file")),
    "rename": attempt(os.rename, path("file"), path("other")),
    "remove a file": attempt(os.unlink, path("program")),
    "remove a folder": attempt(os.rmdir, path("elsewhere")),
})
"""


@pytest.mark.smoke
@pytest.mark.needs("landlock>=3")
@pytest.mark.lock("landlock")
def test_c046_cannot_use_a_folder_of_the_host(box: Box, only: Only, folder: Path) -> None:
    """
    Its path is known and everybody may do anything to it: with Landlock alone nothing can be done, and with
    every lock it isn't even there.
    """
    place = make_host(folder) / "outside"
    for path in (folder, place, *place.iterdir()):
        path.chmod(0o777)

    def state() -> list[tuple[str, int]]:
        return sorted((path.name, path.lstat().st_size) for path in place.rglob("*"))

    before = state()
    for sandbox in (box, only("landlock")):
        said = within(sandbox, IN_A_JOB, folder=str(place))
        listed = said.pop("list")
        assert {"ENOENT" if sandbox is box else "EACCES"} == set(said.values()), said
        # Names are the mounts' alone to keep: a job may list "/", and Landlock's rule for it covers all below.
        assert ("ENOENT" if sandbox is box else "") == listed
        assert before == state()

    with control():  # each works without the lock
        said = within(only(), IN_A_JOB, folder=str(place))
        assert {""} == set(said.values()), said
        assert before != state()


@pytest.mark.lock("mounts")
def test_c046_cannot_list_a_folder_of_the_host(box: Box, only: Only, folder: Path) -> None:
    """It isn't in the view, and so has no name inside; Landlock lets a job list whatever is."""
    attack = "tell([attempt(os.listdir, folder), attempt(os.listdir, os.path.dirname(folder))])"
    with control():
        assert "" == within(only(), attack, folder=str(folder))[0]

    for sandbox in (box, only("mounts")):
        assert "ENOENT" == within(sandbox, attack, folder=str(folder))[0]


@pytest.mark.no_single_lock("one right after the other, in a child that has Landlock and no sandbox around it")
@pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
def test_c046_cannot_do_it_outside_the_rules(host, right):
    """Nothing of a host's folder that no rule names can be used: not even where its path is known."""
    needed_for(right)
    attack, _ = ATTACKS[right]

    got = in_child(lambda: attack(host / "outside"), locked(plan_for(host)))
    with control():  # it works unconfined
        before = in_child(lambda: attack(host / "outside"))

        assert "" == before
    assert got == "EACCES"


@pytest.mark.no_single_lock("rules of the test's own, in a child that has Landlock and no sandbox around it")
@pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
def test_c046_every_right_is_enforced_alone(host, right):
    """A folder with every right but one refuses exactly the operations of that right."""
    needed_for(right)
    attack, expected = ATTACKS[right]
    plan = plan_for(host)
    system = tuple(rule for rule in plan.rules if rule.path != str(host / "inside"))
    lacking = dataclasses.replace(plan, rules=(*system, PathRule(str(host / "inside"), plan.fs & ~right)))
    granted = dataclasses.replace(plan, rules=(*system, PathRule(str(host / "inside"), plan.fs)))

    refused = in_child(lambda: attack(host / "inside"), locked(lacking))
    with control():  # the one right makes the difference
        allowed = in_child(lambda: attack(host / "inside"), locked(granted))

        assert "" == allowed
    assert expected == refused


@pytest.mark.needs("landlock>=5")
@pytest.mark.no_single_lock("rules of the test's own, in a child that has Landlock and no sandbox around it")
def test_c046_cannot_drive_a_device_that_may_only_be_read(host):
    """IOCTL_DEV is a right of its own."""
    plan = plan_for(host)
    readable = dataclasses.replace(plan, rules=(*plan.rules, PathRule("/dev/urandom", FsAccess.READ_FILE)))
    device = dataclasses.replace(plan, rules=(*plan.rules, PathRule("/dev/urandom", landlock.DEVICE & plan.fs)))

    with control():  # it works unconfined
        assert "" == in_child(ask_device)
    assert "" == in_child(ask_device, locked(device))
    assert in_child(ask_device, locked(readable)) == "EACCES"


@pytest.mark.needs("landlock>=9")
@pytest.mark.no_single_lock("a folder with a host's socket in it, which no sandbox has")
def test_c051_cannot_reach_a_socket_of_the_host_in_its_own_folder(host):
    """A socket that was made outside isn't there for a job, though its folder is."""
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(host / "inside")
        server.bind("server")
        server.listen()

        def attack() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("server")

        with control():  # it works unconfined
            assert "" == in_child(attack)
        assert in_child(attack, locked(plan_for(host))) == "EACCES"


CONNECT = """
import socket
def reach():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
tell(attempt(reach))
"""


@pytest.mark.parametrize("lock", [
    pytest.param("mounts", marks=pytest.mark.lock("mounts")),
    pytest.param("landlock", marks=[pytest.mark.needs("landlock>=9"), pytest.mark.lock("landlock")])])
def test_c051_cannot_reach_a_socket_of_the_host_by_its_path(box: Box, only: Only, folder: Path, lock: str) -> None:
    """It isn't there for a job; and where it can be seen, a new enough Landlock refuses it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "server"))
        (folder / "server").chmod(0o777)
        server.listen()
        server.setblocking(False)

        for sandbox in (box, only(lock)):
            assert {"mounts": "ENOENT", "landlock": "EACCES"}[
                "mounts" if sandbox is box else lock] == within(sandbox, CONNECT, name=str(folder / "server"))
            with pytest.raises(BlockingIOError):
                server.accept()

        with control():  # it is there, and answers
            assert "" == within(only(), CONNECT, name=str(folder / "server"))
        server.accept()[0].close()


@pytest.mark.no_single_lock("a folder of the test's own, in a child that has Landlock and no sandbox around it")
def test_c046_cannot_move_a_file_in_or_out(host):
    """Neither out of the sandbox, nor a host's file into it."""
    inside, outside = host / "inside" / "file", host / "outside" / "file"
    attacks = {
        "rename out": lambda: os.rename(inside, outside),
        "rename in": lambda: os.rename(outside, inside),
        "link in": lambda: os.link(outside, host / "inside" / "stolen"),
        "link out": lambda: os.link(inside, host / "outside" / "planted"),
    }

    got = {name: in_child(attack, locked(plan_for(host))) for name, attack in attacks.items()}

    with control():  # it works unconfined
        assert "" == in_child(attacks["link in"])
    assert set(got.values()) <= {"EACCES", "EXDEV"}, got


SIGNAL = """
def own_child():
    pid = os.fork()
    if 0 == pid:
        signal.pause()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
tell([attempt(os.kill, pid, 0), attempt(own_child)])
"""


@pytest.mark.smoke
@pytest.mark.needs("landlock>=6")
@pytest.mark.lock("landlock")
def test_c049_cannot_signal_a_process_outside(box: Box, only: Only) -> None:
    """Not its keeper, which has the same uid, with the pid namespace switched off; its own children it can."""
    def said(sandbox: Box) -> object:
        sandbox.settle()  # one whose time ran out while nobody turned its reactor is made anew
        (worker,) = sandbox.engine.main.pool.workforce.workers
        return within(sandbox, SIGNAL, pid=worker.keeper.pid)

    with control():  # it works without the lock
        assert ["", ""] == said(only())
    assert ["EPERM", ""] == said(only("landlock"))
    assert ["ESRCH", ""] == said(box)


ABSTRACT = """
import socket
def reach():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
def own_server():
    with socket.socket(socket.AF_UNIX) as mine, socket.socket(socket.AF_UNIX) as client:
        mine.bind(name + "2")
        mine.listen()
        client.connect(name + "2")
tell([attempt(reach), attempt(own_server)])
"""


@pytest.mark.smoke
@pytest.mark.needs("landlock>=6")
@pytest.mark.lock("landlock")
def test_c049_cannot_reach_an_abstract_socket_outside(box: Box, only: Only) -> None:
    """With the network namespace switched off; one of its own it can."""
    name = f"\0leeward-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        server.setblocking(False)

        for sandbox, refusal in ((box, "ECONNREFUSED"), (only("landlock"), "EPERM")):
            assert [refusal, ""] == within(sandbox, ABSTRACT, name=name)
            with pytest.raises(BlockingIOError):
                server.accept()

        with control():  # it works without the lock
            assert ["", ""] == within(only(), ABSTRACT, name=name)
        server.accept()[0].close()


@pytest.mark.parametrize(("needs", "abstract", "refusal"), [("landlock>=6", True, "EPERM"), ("landlock>=9", False, "EACCES")])
@pytest.mark.no_single_lock("what a helper is restricted by, in a child that has no sandbox around it")
def test_c051_the_domain_of_a_sandbox_reaches_no_socket_outside(host: Path, needs: str, abstract: bool,
                                                                refusal: str) -> None:
    """And its processes reach each other's."""
    require(needs)
    name = f"\0leeward-{secrets.token_hex(8)}" if abstract else str(host / "server")
    plan = plan_for(host)

    def connect(to: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(to)

    def between_children() -> None:
        with socket.socket(socket.AF_UNIX) as mine:
            own = f"{name}2" if abstract else str(host / "inside" / "own")
            mine.bind(own)
            mine.listen()
            assert "" == in_child(lambda: connect(own))

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()

        with control():  # it works unconfined
            assert "" == in_child(lambda: connect(name))
        assert refusal == in_child(lambda: connect(name), locked(plan, landlock.domain_steps))
    assert "" == in_child(between_children, locked(plan, landlock.domain_steps))


@pytest.mark.needs("landlock>=6")
@pytest.mark.no_single_lock("what a helper is restricted by, in a child that has no sandbox around it")
def test_c082_the_domain_of_a_sandbox_signals_no_process_outside(host: Path) -> None:
    """Not who has started it either. And its processes signal each other."""
    plan = plan_for(host)

    def between_children() -> None:
        pid = os.fork()
        while 0 == pid:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    with subprocess.Popen(["sleep", "1000"]) as outside:
        for pid in (outside.pid, os.getpid()):
            def attack(pid: int = pid) -> None:
                os.kill(pid, 0)

            with control():  # it works unconfined
                assert "" == in_child(attack)
            assert "EPERM" == in_child(attack, locked(plan, landlock.domain_steps))
        outside.kill()
    assert "" == in_child(between_children, locked(plan, landlock.domain_steps))


@pytest.mark.no_attack("a lock that can't be set; no job is there yet")
def test_c047_a_rule_that_cannot_be_made_stops_the_way_in(host):
    """Nothing is half enforced: a missing path and an unknown right raise."""
    plan = plan_for(host)
    broken = [
        dataclasses.replace(plan, rules=(*plan.rules, PathRule(str(host / "missing"), FsAccess.READ_FILE))),
        dataclasses.replace(plan, fs=plan.fs | 1 << 40),
        dataclasses.replace(plan, rules=(*plan.rules, PathRule(str(host), 1 << 40))),
    ]

    def refused(one: LandlockPlan) -> None:
        with pytest.raises(KernelRefusal):
            locked(one)()
        os.close(os.open(host / "outside" / "file", os.O_RDONLY))

    for one in broken:
        assert "" == in_child(lambda one=one: refused(one))


@pytest.mark.needs("not-root")
@pytest.mark.no_attack("a lock that can't be set; no job is there yet")
def test_c047_without_no_new_privs_it_is_refused(host):
    """The error says what is missing. root may, so root can't try."""
    with pytest.raises(KernelRefusal, match="no_new_privs is not set"):
        Table(landlock.steps(plan_for(host))).run()


@pytest.mark.needs("landlock>=2")
@pytest.mark.no_single_lock("what the kernel bears of a lock that a job has no call for")
def test_c052_the_seventeenth_ruleset_is_refused_and_the_first_still_holds(host):
    """A job can stack no more rulesets than the kernel allows."""
    def stack() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        for _ in range(16):
            Table(landlock.steps(plan_for(host))).run()
        with pytest.raises(KernelRefusal, match="16 rulesets are already stacked"):
            Table(landlock.steps(plan_for(host))).run()
        os.close(os.open(host / "inside" / "file", os.O_RDONLY))

    def look() -> None:
        os.close(os.open(host / "outside" / "file", os.O_RDONLY))

    with control():  # it works unconfined
        assert "" == in_child(look)
    assert "EACCES" == in_child(look, stack)


@pytest.mark.lock("landlock")
def test_c048_a_thread_from_before_would_be_free_and_there_is_none(box: Box, only: Only, host: Path,
                                                                   secret: tuple[Path, str]) -> None:
    """
    What becomes a job has one thread when it is locked, and so have those that it is a copy of. Threads that a
    job starts are held as it is.
    """
    def by_an_earlier_thread() -> None:
        go, said = threading.Event(), []

        def wait_and_try() -> None:
            go.wait()
            try:
                os.close(os.open(host / "outside" / "file", os.O_RDONLY))
            except OSError as error:
                said.append(error)

        thread = threading.Thread(target=wait_and_try)
        thread.start()
        locked(plan_for(host))()
        go.set()
        thread.join()
        if said:
            raise said[0]

    with control():  # such a thread isn't held
        assert "" == in_child(by_an_earlier_thread)
    assert "EACCES" == in_child(lambda: os.open(host / "outside" / "file", os.O_RDONLY), locked(plan_for(host)))

    box.settle()
    (worker,) = box.engine.main.pool.workforce.workers
    armed, zygote = worker.arming.store[0], box.engine.main.zygotes.current
    assert isinstance(armed, Runner)
    assert zygote is not None
    for pid in (job_of(armed.pid), worker.keeper.pid, zygote.pid):
        assert "1" == status(pid)["Threads"]

    path, text = secret
    attack = """
import threading
said = []
def look():
    try:
        said.append(open(path).read())
    except OSError as error:
        said.append(errno.errorcode[error.errno])
look()
threads = [threading.Thread(target=look) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell(said)
"""
    with control():
        assert [text] * 5 == without(attack, path=str(path))
    assert ["EACCES"] * 5 == within(only("landlock"), attack, path=str(path))
    assert ["ENOENT"] * 5 == within(box, attack, path=str(path))


REACH = """
import socket
IPPROTO_MPTCP = 262
said = {}
for name, kind, protocol in (("tcp", socket.SOCK_STREAM, 0), ("udp", socket.SOCK_DGRAM, 0),
                             ("mptcp", socket.SOCK_STREAM, IPPROTO_MPTCP)):
    def reach():
        with socket.socket(socket.AF_INET, kind, protocol) as made:
            made.connect(("127.0.0.1", ports["udp" if "udp" == name else "tcp"]))
            made.send(token)
    said[name] = attempt(reach)
tell(said)
"""


@pytest.mark.needs("landlock>=4")
@pytest.mark.lock("namespaces")
def test_c050_the_network_namespace_is_the_boundary_not_a_tcp_rule(box: Box, only: Only) -> None:
    """Landlock knows TCP alone, and of that the port: other protocols pass it. Nothing of any arrives from a namespace."""
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        for server in (tcp, udp):
            server.bind(("127.0.0.1", 0))
        tcp.listen()
        tcp.setblocking(False)
        ports = {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}

        def arrived(sandbox: Box) -> tuple[dict[str, str], int, int]:
            """What the job was told, the connections that came, and the datagrams."""
            said = within(sandbox, REACH, ports=ports, token=b"from inside")
            connections = datagrams = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    tcp.accept()[0].close()
                    connections += 1
            with socket.socket(type=socket.SOCK_DGRAM) as mine:
                mine.sendto(b"from outside", ("127.0.0.1", ports["udp"]))
            while b"from outside" != udp.recv(100):
                datagrams += 1
            return said, connections, datagrams

        with control():  # the attack works
            said, connections, datagrams = arrived(only())
            assert ("", "", 1) == (said["tcp"], said["udp"], datagrams)
        assert connections == 1 + ("" == said["mptcp"])

        said, connections, datagrams = arrived(only("landlock"))
        assert said["tcp"] == "EACCES"
        if not is_met("landlock>=10"):
            with control():  # it isn't Landlock that would hold this one
                assert ("", 1) == (said["udp"], datagrams)

        for sandbox in (box, only("namespaces"), only("namespaces", "mounts", "landlock")):
            said, connections, datagrams = arrived(sandbox)
            assert (0, 0) == (connections, datagrams)
            assert "" not in (said["tcp"], said["mptcp"])
        assert {"EACCES"} == set(arrived(box)[0].values())

"""
Landlock alone, on the real kernel: what it leaves to a job, how it is entered, and an independent witness.

What it refuses: tests/escapes/test_landlock.py.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import landlock as witness
import pytest

from kit.landlocked import ATTACKS, PR_SET_NO_NEW_PRIVS, in_child, locked, make_host, needed_for, plan_for
from kit.skip_policy import require
from leeward._native import landlock as native
from leeward._native.landlock import FsAccess, NetAccess
from leeward._native.steps import Block, Call, Cell, Table, returns
from leeward.isolation import landlock
from leeward.isolation.landlock import PathRule

pytestmark = pytest.mark.needs("landlock")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


@pytest.mark.parametrize("right", [right for right in ATTACKS
                                   if right not in (FsAccess.MAKE_CHAR, FsAccess.MAKE_BLOCK)],
                         ids=lambda right: right.name)
def test_a_job_is_free_in_its_own_folder(host, right):
    """What may be written may be used in every way but for devices."""
    needed_for(right)
    attack, _ = ATTACKS[right]

    assert "" == in_child(lambda: attack(host / "inside"), locked(plan_for(host)))


def test_the_sealed_file_tells_whether_landlock_holds(host):
    """A file that anybody may read and no rule names: EACCES with the lock, and only with it."""
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
    """No port is open, though this process is in the host's own network namespace."""
    needs, attack = NET_ATTACKS[right]
    require(needs)
    kind = socket.SOCK_STREAM if right in (NetAccess.BIND_TCP, NetAccess.CONNECT_TCP) else socket.SOCK_DGRAM
    with listener(kind) as server:
        port = server.getsockname()[1]

        assert "" == in_child(lambda: attack(port))  # control: it works unconfined
        assert in_child(lambda: attack(port), locked(plan_for(host))) == "EACCES"


@pytest.mark.needs("landlock>=4")
def test_a_rule_opens_one_port():
    """Nothing in a plan uses that yet; the shim's call works."""
    with listener(socket.SOCK_STREAM) as server:
        port = server.getsockname()[1]

        def enter() -> None:
            ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            ruleset = Cell("ruleset")
            rule = Block(struct.pack("QQ", NetAccess.CONNECT_TCP, port))
            add = returns(Call.LANDLOCK_ADD_RULE, ruleset, 2, rule, 0)  # LANDLOCK_RULE_NET_PORT
            Table([native.ruleset_step(ruleset, 0, NetAccess.CONNECT_TCP, 0), add,
                   native.restrict_step(ruleset, 0)]).run()

        assert "" == in_child(lambda: socket.socket().connect(("127.0.0.1", port)), enter)
        assert in_child(lambda: socket.socket().connect(("127.0.0.1", port ^ 1)), enter) == "EACCES"


def test_an_optional_path_may_be_missing(host):
    """The others hold all the same."""
    plan = plan_for(host)
    gone = PathRule(str(host / "missing"), FsAccess.READ_FILE, optional=True)

    assert in_child(lambda: os.listdir(host / "outside"),
                    locked(dataclasses.replace(plan, rules=(gone, *plan.rules)))) == "EACCES"


def test_entering_leaves_no_descriptor(host):
    """Neither the ruleset nor a path stays open."""
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
    """What `>/dev/stdout` does: these lie on no file system that a rule could name."""
    def attack() -> None:
        _, writing = os.pipe()
        os.close(os.open(f"/proc/self/fd/{writing}", os.O_WRONLY))
        os.close(os.open(f"/proc/self/fd/{os.memfd_create('x')}", os.O_RDWR))

    assert "" == in_child(attack, locked(plan_for(host)))


def test_deny_all_refuses_every_file(host):
    """The ruleset of the sandbox's init: no file can be opened, no file made."""
    def enter() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        ruleset = Cell("ruleset")
        Table([*landlock.deny_all_steps(ruleset, landlock.probe()), native.restrict_step(ruleset, 0),
               returns(Call.CLOSE, ruleset)]).run()

    assert in_child(lambda: os.open("/proc/self/stat", os.O_RDONLY), enter) == "EACCES"
    assert in_child(lambda: os.mkdir(host / "inside" / "new"), enter) == "EACCES"
    ruleset = Cell("ruleset")
    made = Table(landlock.deny_all_steps(ruleset, landlock.probe()))
    made.run()
    assert not os.get_inheritable(made.value(ruleset))
    os.close(made.value(ruleset))


class TestWitness:
    """The package `landlock` speaks to the kernel by its own code, and must agree."""

    def test_the_abi_is_that_which_ctypes_finds(self):
        """Asked by ctypes."""
        ctypes.set_errno(0)  # the package takes a stale one for its own

        assert witness.landlock_abi_version() == landlock.probe()

    @pytest.mark.parametrize("right", ATTACKS, ids=lambda right: right.name)
    @pytest.mark.parametrize("folder", ["inside", "outside"])
    def test_rules_given_by_ctypes_refuse_and_allow_the_same(self, tmp_path, right, folder):
        """The same rules, given by the other hand, refuse and allow the same."""
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

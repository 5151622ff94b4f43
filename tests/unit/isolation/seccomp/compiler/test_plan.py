"""What a plan decides, call by call."""

from __future__ import annotations

from errno import EACCES, ENOMEM, ENOSYS

import pytest

from leeward._native.arguments import value
from leeward.errors import Unsupported
from leeward.isolation.seccomp.compiler.plan import SeccompPlan, init_plan, plan
from leeward.isolation.seccomp.rules import ALLOW, KILL, NOTIFY, Action, errno
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH, NUMBERS

COUNTED = plan(memory_counted=True, affinity_fixed=False, arch="x86_64")
UNCOUNTED = plan(memory_counted=False, affinity_fixed=True, arch="x86_64")
ARM = plan(memory_counted=True, affinity_fixed=False, arch="aarch64")

HIGH = 0x1_0000_0000  # the kernel doesn't look at it


def decide(name: str, *args: int, by: SeccompPlan = COUNTED) -> Action:
    """The decision for a call by its name."""
    return by.decide(by.audit_arch, NUMBERS[by.arch][name], (*args, 0, 0, 0, 0, 0, 0)[:6])


def flag(names: str) -> int:
    """Constants of the kernel, or-ed."""
    bits = 0
    for name in names.split():
        bits |= value(name)
    return bits


@pytest.mark.parametrize(("name", "args", "want"), [
    ("read", (), ALLOW),
    ("mount", (), NOTIFY),
    ("clone3", (), errno(ENOSYS)),
    ("openat2", (), errno(ENOSYS)),
    ("seccomp", (), errno(EACCES)),
    ("sync", (), errno(0)),
    ("clone", (flag("CLONE_NEWUSER"),), NOTIFY),
    ("clone", (flag("CLONE_NEWTIME"),), NOTIFY),
    ("clone", (flag("CLONE_NEWUSER") | HIGH,), NOTIFY),
    ("clone", (17 | HIGH,), ALLOW),
    ("clone", (0x3D0F00,), ALLOW),  # what pthread_create asks for
    ("socket", (flag("AF_UNIX"),), ALLOW),
    ("socket", (flag("AF_UNIX") | HIGH,), ALLOW),
    ("socket", (2,), NOTIFY),
    ("socket", (2 | HIGH,), NOTIFY),
    ("socket", (16,), NOTIFY),
    ("socketpair", (1,), ALLOW),
    ("socketpair", (2,), NOTIFY),
    ("ioctl", (0, flag("FIONBIO")), ALLOW),
    ("ioctl", (0, flag("TIOCSTI")), NOTIFY),
    ("ioctl", (0, flag("TIOCSTI") | HIGH), NOTIFY),
    ("ioctl", (0, flag("TIOCLINUX") | HIGH), NOTIFY),
    ("ioctl", (0, flag("TIOCSETD")), NOTIFY),
    ("prctl", (flag("PR_SET_NAME"),), ALLOW),
    ("prctl", (flag("PR_SET_NAME") | HIGH,), ALLOW),
    ("prctl", (flag("PR_SET_SECCOMP"),), errno(EACCES)),
    ("prctl", (flag("PR_SET_SECCOMP") | HIGH,), errno(EACCES)),
    ("prctl", (flag("PR_SET_DUMPABLE"), 0), ALLOW),
    ("prctl", (flag("PR_SET_DUMPABLE"), 1), NOTIFY),
    ("prctl", (flag("PR_SET_MM"),), NOTIFY),
    ("prctl", (flag("PR_CAP_AMBIENT"), 2), NOTIFY),
    ("prctl", (flag("PR_SET_PTRACER"),), NOTIFY),
    ("prctl", (flag("PR_SET_CHILD_SUBREAPER"), 1), NOTIFY),
    ("fcntl", (0, flag("F_SETFL")), ALLOW),
    ("fcntl", (0, flag("F_SETLEASE")), NOTIFY),
    ("fcntl", (0, flag("F_NOTIFY")), NOTIFY),
    ("fcntl", (0, flag("F_SETOWN")), NOTIFY),
    ("fcntl", (0, flag("F_SETPIPE_SZ")), ALLOW),
    ("madvise", (0, 0, flag("MADV_DONTNEED")), ALLOW),
    ("madvise", (0, 0, flag("MADV_MERGEABLE")), NOTIFY),
    ("setsockopt", (0, flag("SOL_SOCKET"), flag("SO_SNDBUF")), ALLOW),
    ("setsockopt", (0, flag("SOL_SOCKET"), flag("SO_ATTACH_FILTER")), NOTIFY),
    ("setsockopt", (0, 6, flag("SO_SNDBUF")), NOTIFY),
    ("mknod", (0, 0o644), ALLOW),
    ("mknod", (0, flag("S_IFIFO") | 0o644), ALLOW),
    ("mknodat", (0, 0, flag("S_IFSOCK") | 0o644), ALLOW),
    ("mknod", (0, flag("S_IFCHR") | 0o644), NOTIFY),
    ("mknodat", (0, 0, flag("S_IFBLK") | 0o644), NOTIFY),
    ("personality", (0xFFFF_FFFF,), ALLOW),
    ("personality", (0,), ALLOW),
    ("personality", (0x0040000,), NOTIFY),
    ("arch_prctl", (flag("ARCH_SET_FS"),), ALLOW),
    ("arch_prctl", (0x1012,), NOTIFY),
    ("mmap", (0, 4096, 3, flag("MAP_ANONYMOUS MAP_HUGETLB") | 2), errno(ENOMEM)),
    ("mmap", (0, 4096, 3, flag("MAP_ANONYMOUS MAP_HUGETLB MAP_SHARED") | HIGH), errno(ENOMEM)),
    ("memfd_create", (0, flag("MFD_HUGETLB") | 1), errno(ENOMEM)),
])
def test_every_call_is_decided_as_the_table_says(name: str, args: tuple[int, ...], want: Action) -> None:
    """Arguments count by their low 32 bits, which are all that the kernel sees."""
    assert want == decide(name, *args)


@pytest.mark.parametrize(("name", "args"), [
    ("memfd_create", ()),
    ("shmget", ()),
    ("semget", ()),
    ("sched_setaffinity", ()),
    ("mmap", (0, 4096, 3, flag("MAP_SHARED MAP_ANONYMOUS"))),
    ("mmap", (0, 4096, 3, 3 | flag("MAP_ANONYMOUS"))),  # MAP_SHARED_VALIDATE
    ("mprotect", (0, 512 << 20, 7)),
    ("pkey_mprotect", (0, 64 << 20, 7)),
])
def test_calls_that_the_host_cannot_bound_are_the_supervisors(name: str, args: tuple[int, ...]) -> None:
    """c054: allowed where a cgroup bounds it, refused or granted where none does."""
    assert ALLOW == decide(name, *args)
    assert NOTIFY == decide(name, *args, by=UNCOUNTED)


def test_usual_calls_that_protect_memory_are_allowed_at_once() -> None:
    assert ALLOW == decide("mprotect", 0, (64 << 20) - 1, 7, by=UNCOUNTED)


@pytest.mark.parametrize(("size", "want"), [
    (0, ALLOW), (4096, ALLOW), (0xFFFF, ALLOW), (0x1_0000, ALLOW), (0x1_0001, NOTIFY), (0x2_0000, NOTIFY),
    (1 << 20, NOTIFY), (1 << 31, NOTIFY),
])
def test_no_pipe_is_larger_than_it_was_made(size: int, want: Action) -> None:
    """c096: the pages of all pipes of a user are counted together."""
    for by in (COUNTED, UNCOUNTED):
        assert want == decide("fcntl", 0, flag("F_SETPIPE_SZ"), size | HIGH, by=by)


@pytest.mark.parametrize(("name", "args"), [
    ("sched_setscheduler", (1,)), ("sched_setparam", (1,)), ("sched_setaffinity", (1,)),
    ("setpriority", (0, 1)), ("setpriority", (2, 0)), ("setpriority", (2, 1000)),
    ("prlimit64", (1, 7, 4096)),
])
def test_no_row_reaches_the_init(name: str, args: tuple[int, ...]) -> None:
    """c174: refused with pid 1, in the low 32 bits; allowed with any other number."""
    other = (2, *args[1:]) if "setpriority" != name else (0, 2)

    assert NOTIFY == decide(name, *(arg | HIGH for arg in args))
    assert ALLOW == decide(name, *(arg | HIGH for arg in other))


@pytest.mark.parametrize("flags", [flag("MAP_ANONYMOUS") | 2, 2, 1, 2 | flag("MAP_ANONYMOUS") | HIGH])
def test_private_and_file_mappings_are_always_there(flags: int) -> None:
    """No program runs without them."""
    assert ALLOW == decide("mmap", 0, 4096, 3, flags, by=UNCOUNTED)


def test_kills_other_architectures() -> None:
    """c029: a number never gets the meaning of another architecture."""
    for arch in (value("AUDIT_ARCH_I386"), value("AUDIT_ARCH_ARM"), AUDIT_ARCH["aarch64"], 0):
        assert KILL == COUNTED.decide(arch, NUMBERS["x86_64"]["getpid"], (0,) * 6)
    assert KILL == ARM.decide(AUDIT_ARCH["x86_64"], 0, (0,) * 6)


def test_kills_x32() -> None:
    """c030: x86_64 with bit 30 set."""
    for number in (0, 39, 500, 512, 547):
        assert KILL == COUNTED.decide(COUNTED.audit_arch, number | 0x4000_0000, (0,) * 6)
    assert errno(ENOSYS) == ARM.decide(ARM.audit_arch, 0x4000_0000, (0,) * 6)  # to arm just a number


@pytest.mark.parametrize("number", [-1, -2, 337, 400, 471, 500, 512, 547, 1024, 0x3FFF_FFFF, 0x8000_0000])
def test_unassigned_numbers_dont_exist(number: int) -> None:
    """c031: ENOSYS, never EPERM, so that libc's probes go on to the next best call."""
    assert errno(ENOSYS) == COUNTED.decide(COUNTED.audit_arch, number, (0,) * 6)


def test_rows_of_another_architecture_dont_count() -> None:
    """aarch64 has no fork, open or stat."""
    assert ARM.rules < COUNTED.rules
    assert "fork" not in {call.name for call in ARM.calls.values()}
    assert errno(ENOSYS) == ARM.decide(ARM.audit_arch, 244, (0,) * 6)


def test_the_init_is_killed_for_anything_but_waiting() -> None:
    """Its process shares the keeper's memory: it must not be able to do a thing."""
    found = init_plan("x86_64")
    allowed = {name for name, number in NUMBERS["x86_64"].items()
               if ALLOW == found.decide(found.audit_arch, number, (0,) * 6)}

    assert {"wait4", "waitid", "exit", "exit_group", "futex"} == allowed
    assert KILL == found.decide(found.audit_arch, -1, (0,) * 6)
    assert KILL == found.decide(found.audit_arch, NUMBERS["x86_64"]["read"], (0,) * 6)


def test_an_architecture_without_a_table_is_named() -> None:
    """The message says what there is."""
    with pytest.raises(Unsupported, match="riscv64, need x86_64 or aarch64"):
        plan(memory_counted=True, affinity_fixed=False, arch="riscv64")

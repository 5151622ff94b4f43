"""The table: complete, without contradictions, each row with its reason."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import pytest

from leeward._native.arguments import value
from leeward.isolation.seccomp.compiler.plan import CallPolicy, plan
from leeward.isolation.seccomp.rules import ALLOW, NOTIFY, Action, Needs, Rule, init
from leeward.isolation.seccomp.syscalls import ALL, ARCHES, NUMBERS
from leeward.isolation.seccomp.table import INIT_RULES, RULES


def test_every_call_has_a_row() -> None:
    """A new call of the kernel needs a decision, not the default."""
    assert set(ALL) == {rule.name for rule in RULES}


@pytest.mark.parametrize("rules", [RULES, INIT_RULES])
def test_every_row_has_a_reason(rules: tuple[Rule, ...]) -> None:
    """A row that can't say who needs it goes away."""
    assert [] == [rule for rule in rules if len(rule.reason) < 5]


def test_no_row_stands_twice() -> None:
    """Else one of the two reasons is wrong."""
    keys = [(rule.name, rule.tests, rule.needs) for rule in RULES]

    assert len(keys) == len(set(keys))


def overlap(one: Rule, other: Rule) -> bool:
    """Can some arguments fit both rows?"""
    return not any(a.arg == b.arg and (a.value ^ b.value) & a.mask & b.mask
                   for a in one.tests for b in other.tests)


def test_rows_of_one_call_dont_contradict_each_other() -> None:
    """
    Where two rows can both fit they say the same, so their order means nothing; but for one that
    tests an address or the init's number, which comes first, and one without tests, which decides what is left.
    """
    def comes_first(rule: Rule) -> bool:
        return any(test.is_wide or init(test.arg) == test for test in rule.tests)

    for one, other in itertools.combinations(RULES, 2):
        if one.name == other.name and one.action != other.action and one.tests and other.tests:
            apart = {one.needs, other.needs} in ({Needs.HOST_HIDDEN, Needs.HOST_SHOWN},
                                                     {Needs.ROOT, Needs.NOT_ROOT})  # never in one filter
            assert not overlap(one, other) or comes_first(one) or apart, (one, other)
            assert comes_first(one) or not comes_first(other)


def test_a_test_asks_for_no_bit_outside_its_mask() -> None:
    """Such a row could never fit."""
    assert [] == [rule for rule in RULES for test in rule.tests if test.value & ~test.mask]


#: Calls that programs don't repeat after EINTR, so that a signal during the answer would break them.
NEVER_REPEATED = ("close", "fork", "vfork", "dup2", "dup3", "execve", "exit", "exit_group", "munmap", "rt_sigreturn",
                  "clone3", "seccomp")


def test_calls_that_programs_do_not_repeat_are_not_notified() -> None:
    """c041: a lost close, or "cannot fork"."""
    assert [] == [rule for rule in RULES if rule.name in NEVER_REPEATED and rule.action is NOTIFY]


CAN_NEVER_BE_ALLOWED = (
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd bpf perf_event_open userfaultfd keyctl"
    " add_key request_key mount umount2 pivot_root chroot swapon swapoff reboot kexec_load kexec_file_load init_module"
    " finit_module delete_module acct quotactl lookup_dcookie modify_ldt iopl ioperm vmsplice tee fanotify_init"
    " open_by_handle_at name_to_handle_at move_pages migrate_pages uselib nfsservctl syslog vhangup"
    " landlock_create_ruleset landlock_add_rule landlock_restrict_self lsm_get_self_attr lsm_set_self_attr"
    " lsm_list_modules mseal unshare setns io_uring_setup io_uring_enter io_uring_register memfd_secret fsopen fsconfig"
    " fsmount fspick open_tree open_tree_attr move_mount mount_setattr statmount listmount sethostname setdomainname"
    " clock_settime settimeofday adjtimex clock_adjtime"
)


@pytest.mark.parametrize("name", CAN_NEVER_BE_ALLOWED.split())
def test_is_refused_by_the_supervisor(name: str) -> None:
    """c033 and others: these are refused and counted, on every host, with any arguments."""
    assert {NOTIFY} == {rule.action for rule in RULES if name == rule.name}


@pytest.mark.parametrize("name", ["seccomp", "clone3", "openat2", "mbind", "set_mempolicy", "sendfile", "splice"])
def test_is_answered_without_the_supervisor(name: str) -> None:
    """c002, c033, c034: no listener is asked about these, so none can say something else."""
    actions = {rule.action for rule in RULES if name == rule.name}

    assert 1 == len(actions)
    assert not actions & {NOTIFY, ALLOW}


def test_the_init_has_five_calls() -> None:
    """It says that it is locked, waits and exits; all else is deadly."""
    assert {(name, ALLOW) for name in ("wait4", "waitid", "exit", "exit_group", "futex")} == {
        (rule.name, rule.action) for rule in INIT_RULES}


def test_uncounted_memory_is_refused() -> None:
    """c054: without a memory cgroup the calls that make memory outside of resident sets go."""
    counted = plan(memory_counted=True, affinity_fixed=False, arch="x86_64")
    uncounted = plan(memory_counted=False, affinity_fixed=False, arch="x86_64")

    assert {"memfd_create", "shmget", "semget", "msgsnd"} <= newly_refused(counted.calls, uncounted.calls)
    assert "sched_setaffinity" not in newly_refused(counted.calls, uncounted.calls)


def test_a_fixed_affinity_stays() -> None:
    """Where the affinity is the processor limit a job can't move it."""
    free = plan(memory_counted=True, affinity_fixed=False, arch="x86_64")
    fixed = plan(memory_counted=True, affinity_fixed=True, arch="x86_64")

    assert {"sched_setaffinity"} == newly_refused(free.calls, fixed.calls)


@pytest.mark.parametrize(("counted", "shared", "want"), [
    (True, False, ALLOW), (True, True, NOTIFY), (False, False, NOTIFY), (False, True, NOTIFY)])
@pytest.mark.parametrize("above", [0, 1, 0xFFFF_FFFF])
def test_watches_are_asked_for_where_others_could_lack_them(counted: bool, shared: bool, want: Action,
                                                             above: int) -> None:
    """c259: or where no cgroup counts their memory. Only those that are added; the kernel looks at 32 bits of the number."""
    made = plan(memory_counted=counted, affinity_fixed=False, arch="x86_64", shared=shared)
    epoll_ctl = made.calls[NUMBERS["x86_64"]["epoll_ctl"]]

    for name, said in (("EPOLL_CTL_ADD", want), ("EPOLL_CTL_MOD", ALLOW), ("EPOLL_CTL_DEL", ALLOW)):
        assert said == epoll_ctl.decide((3, value(name) | above << 32, 4, 0, 0, 0))
    assert NOTIFY == epoll_ctl.decide((3, 4, 4, 0, 0, 0))  # none that the kernel knows


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("flags", "want"), [
    *((1 << bit, NOTIFY if 1 << bit == os.O_CREAT else ALLOW) for bit in range(22)),
    *((0o20000000 | folder, NOTIFY) for folder in (0, 0o200000, 0o40000)),  # O_TMPFILE, with O_DIRECTORY of either
])
def test_a_mode_counts_where_a_file_is_made(arch: str, flags: int, want: Action) -> None:
    """As in the kernel. Bits that x86_64 and aarch64 call O_DIRECTORY, O_NOFOLLOW, O_DIRECT and O_LARGEFILE say nothing."""
    made = plan(memory_counted=True, affinity_fixed=False, arch=arch)
    openat = made.calls[NUMBERS[arch]["openat"]]

    assert want == openat.decide((3, 0, flags, 0o4755, 0, 0))
    assert ALLOW == openat.decide((3, 0, flags, 0o755, 0, 0))


def test_an_operators_addition_refuses_no_further_call() -> None:
    """Each addition allows more arguments of calls that were there, and of no others than its own file says."""
    plain = plan(memory_counted=True, affinity_fixed=False, arch="x86_64")
    loopback = plan(memory_counted=True, affinity_fixed=False, arch="x86_64", loopback=True)
    terminal = plan(memory_counted=True, affinity_fixed=False, arch="x86_64", terminal=True)

    assert {"socket", "setsockopt", "fcntl", "ioctl"} == changed(plain.calls, loopback.calls)
    assert {"ioctl"} == changed(plain.calls, terminal.calls)


@pytest.mark.parametrize("name", ["TIOCSTI", "TIOCLINUX", "TIOCSETD", "TIOCCONS", "TIOCVHANGUP"])
@pytest.mark.parametrize("above", [0, 1, 0xDEADBEEF, 0xFFFF_FFFF])
def test_no_terminal_is_typed_into(name: str, above: int) -> None:
    """The kernel looks at the low 32 bits of an ioctl's number, and so does the filter."""
    terminal = plan(memory_counted=True, affinity_fixed=False, arch="x86_64", terminal=True)
    ioctl = terminal.calls[NUMBERS["x86_64"]["ioctl"]]

    assert NOTIFY == ioctl.decide((0, value(name) | above << 32, 0, 0, 0, 0))
    assert ALLOW == ioctl.decide((0, value("TIOCSWINSZ") | above << 32, 0, 0, 0, 0))


def changed(before: Mapping[int, CallPolicy], after: Mapping[int, CallPolicy]) -> set[str]:
    """Calls with other rows, all of which they had before."""
    different = {number for number, call in before.items() if call != after[number]}
    for number in different:
        assert set(before[number].rows) <= set(after[number].rows)
        assert all(ALLOW == action for _, action in set(after[number].rows) - set(before[number].rows))
    return {before[number].name for number in different}


def newly_refused(before: Mapping[int, CallPolicy], after: Mapping[int, CallPolicy]) -> set[str]:
    """Calls that were allowed with any arguments and aren't any more; mmap goes by its flags, see test_plan."""
    return {call.name for number, call in before.items()
            if ALLOW == call.otherwise != after[number].otherwise} - {"mmap"}


@pytest.mark.parametrize("arch", ARCHES)
def test_root_in_an_image_is_answered(arch: str) -> None:
    """What harms nobody is done or looks so; what makes a device or gives a file away never reaches the kernel."""
    made = plan(memory_counted=True, affinity_fixed=False, arch=arch, root=True)
    keep, char, fifo = 0xFFFF_FFFF, value("S_IFCHR") | 0o666, value("S_IFIFO") | 0o666

    def text(name: str, *args: int) -> str:
        return made.calls[NUMBERS[arch][name]].decide((*args, *[0] * (6 - len(args)))).text

    for told, calls in {
        "allow": [("fchownat", 0, 0, 0, 0), ("fchownat", 0, 0, keep, 0), ("fchown", 0, 0, keep), ("fchmod", 0, 0o6755),
                  ("mknodat", 0, 0, fifo), ("getgroups",), ("capget",)],
        "0, without effect": [("fchownat", 0, 0, 33, 0), ("fchownat", 0, 0, keep, 33), ("fchown", 0, 1 << 20, 0),
                              ("mknodat", 0, 0, char), ("setgroups",), ("capset",)],
        "the supervisor answers with the ids that the process has asked for": [
            ("getuid",), ("setresuid", 0, 0, 0), ("getresgid",), ("setfsgid", 1)],
        NOTIFY.text: [("chroot",), ("mount",), ("unshare",), ("mknodat", 0, 0, fifo | 0o4000)],
    }.items():
        for call in calls:
            assert told == text(*call), call


def test_a_user_who_is_not_root_is_refused_by_the_kernel() -> None:
    made = plan(memory_counted=True, affinity_fixed=False, arch="x86_64")

    for name in ("fchown", "setuid", "getuid", "setgroups", "capset"):
        assert ALLOW == made.calls[NUMBERS["x86_64"][name]].decide((0, 33, 33, 0, 0, 0)), name
    assert NOTIFY == made.calls[NUMBERS["x86_64"]["fchmod"]].decide((0, 0o4755, 0, 0, 0, 0))


def test_audit_is_unknown_to_every_job() -> None:
    """Netlink to rtnetlink stays refused or allowed as before."""
    for more in ({}, {"loopback": True}, {"host": True}, {"root": True}):
        made = plan(memory_counted=True, affinity_fixed=False, arch="x86_64", **more)
        answer = made.calls[NUMBERS["x86_64"]["socket"]].decide((value("AF_NETLINK"), 3, value("NETLINK_AUDIT"), 0, 0, 0))

        assert "EAFNOSUPPORT" == answer.text

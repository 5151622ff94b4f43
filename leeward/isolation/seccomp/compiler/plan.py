"""
Makes the decisions of one host's filter from the table.

A filter decides in this order, here and in the compiled program: calls of another architecture kill the process, and so
do calls of x32, which has x86_64's architecture value; a number that no kernel has assigned gets ENOSYS; then the
call's rows decide; then the action is NOTIFY.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from types import MappingProxyType

from leeward.errors import Bug, Unsupported
from leeward.isolation.seccomp.broker import BROKER_RULES
from leeward.isolation.seccomp.rules import KILL, NOTIFY, Action, Match, Needs, Rule, errno
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH, NUMBERS
from leeward.isolation.seccomp.table import INIT_RULES, RULES

#: On x86_64, bit 30 of a number means x32, unless bit 31 is set: -1 is an unknown number like others.
X32_BIT = 0x4000_0000
NEGATIVE_BIT = 0x8000_0000

Args = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """One system call: the first of *rows* whose tests all pass decides, else *otherwise*."""

    name: str
    number: int
    rows: tuple[tuple[tuple[Match, ...], Action], ...]
    otherwise: Action

    def decide(self, args: Args) -> Action:
        for tests, action in self.rows:
            if all(test.holds(args) for test in tests):
                return action
        return self.otherwise


@dataclass(frozen=True, slots=True)
class SeccompPlan:
    """The decisions of a filter, for every architecture, number and argument."""

    arch: str           # "x86_64" or "aarch64". Calls of other architectures kill the process
    audit_arch: int
    calls: Mapping[int, CallPolicy]  # by number, all of this architecture
    default: Action     # for a call for which no row matches
    unassigned: Action  # for a number that no call has
    rules: int          # the number of rows of the table that apply here

    def decide(self, audit_arch: int, number: int, args: Args) -> Action:
        """The action for a call. Only the low 32 bits of *number* count, as in the kernel."""
        number &= 0xFFFF_FFFF
        if audit_arch != self.audit_arch:
            return KILL
        if self.has_x32 and number & X32_BIT and not number & NEGATIVE_BIT:
            return KILL
        call = self.calls.get(number)
        return self.unassigned if call is None else call.decide(args)

    @property
    def has_x32(self) -> bool:
        """Whether numbers with bit 30 set belong to another calling convention of this architecture."""
        return self.arch == "x86_64"

    @property
    def newest(self) -> int:
        return max(self.calls)


def plan(*, memory_counted: bool, affinity_fixed: bool, arch: str, loopback: bool = False,
         terminal: bool = False, host: bool = False, shared: bool = False, root: bool = False) -> SeccompPlan:
    """
    Choose the rows that hold on a host; Unsupported if there is no table for *arch*, as in os.uname().machine.

    Args:
        memory_counted: a cgroup counts memory that no process's resident set shows. If False, the calls that make such
            memory go to the supervisor.
        affinity_fixed: the affinity holds the processor limit, so jobs must not change it.
        loopback: TCP and UDP are allowed.
        terminal: pseudo-terminals are allowed.
        host: the view is the host's, so connections to sockets are refused.
        shared: the workers of several jobs have one user id.
        root: the user of an image is root.
    """
    holds = {Needs.LOOPBACK: loopback, Needs.TERMINAL: terminal, Needs.HOST_SHOWN: host, Needs.HOST_HIDDEN: not host,
             Needs.ROOT: root, Needs.NOT_ROOT: not root,
             Needs.NOTHING: True, Needs.MEMORY_COUNTED: memory_counted, Needs.MEMORY_CHARGED: memory_counted,
             Needs.WATCHES_GRANTED: memory_counted and not shared, Needs.AFFINITY_FREE: not affinity_fixed}
    return _plan(tuple(rule for rule in RULES if holds[rule.needs]), arch, NOTIFY, errno(ENOSYS))


def init_plan(arch: str) -> SeccompPlan:
    """The plan for the sandbox's init: the calls of its loop are allowed; any other call kills it, and so the sandbox."""
    return _plan(INIT_RULES, arch, KILL, KILL)


def broker_plan(arch: str) -> SeccompPlan:
    """The plan for the egress broker: calls that aren't listed are refused with EPERM, since it has no supervisor."""
    return _plan(BROKER_RULES, arch, errno(EPERM), errno(ENOSYS))


def _plan(rules: tuple[Rule, ...], arch: str, default: Action, unassigned: Action) -> SeccompPlan:
    if arch not in NUMBERS:
        raise Unsupported("seccomp", have=arch, need=" or ".join(NUMBERS))
    numbers = NUMBERS[arch]
    by_name: dict[str, list[Rule]] = {name: [] for name in numbers}
    for rule in rules:
        if rule.name in by_name:  # else the call is one of another architecture
            by_name[rule.name].append(rule)
    calls = {numbers[name]: _call(name, numbers[name], mine, default) for name, mine in by_name.items()}
    return SeccompPlan(arch, AUDIT_ARCH[arch], MappingProxyType(calls), default, unassigned,
                       sum(len(mine) for mine in by_name.values()))


def _call(name: str, number: int, rules: list[Rule], default: Action) -> CallPolicy:
    untested = {rule.action for rule in rules if not rule.tests}
    if len(untested) > 1:
        raise Bug(f"the seccomp table decides {name} twice: {', '.join(sorted(action.text for action in untested))}")
    otherwise = untested.pop() if untested else default
    rows = [(rule.tests, rule.action) for rule in rules if rule.tests]
    # A last row with the default action would only lengthen the program.
    while rows and rows[-1][1] == otherwise:
        rows.pop()
    return CallPolicy(name, number, tuple(rows), otherwise)

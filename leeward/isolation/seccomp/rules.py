"""The parts of a row of the seccomp table. Pure."""

from __future__ import annotations

import enum
import errno as _errno
from dataclasses import dataclass

from leeward._native.arguments import value

#: The kernel uses only the low 32 bits of each argument that the table tests.
#: A filter that compared all 64 bits could be passed by setting one of the upper bits.
WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Action:
    text: str  # for readers, e.g. "allow" or "ENOSYS"
    ret: int   # the filter's return value, SECCOMP_RET_*


ALLOW = Action("allow", value("SECCOMP_RET_ALLOW"))
NOTIFY = Action("EACCES, counted and logged", value("SECCOMP_RET_USER_NOTIF"))
#: As NOTIFY, but supervisor_watches.c may allow it.
JUDGED = Action(f"the supervisor allows it for files of the sandbox's own; else {NOTIFY.text}", NOTIFY.ret)
#: As NOTIFY, but supervisor_ids.c answers it.
IDS = Action("the supervisor answers with the ids that the process has asked for", NOTIFY.ret)
KILL = Action("kill the process", value("SECCOMP_RET_KILL_PROCESS"))


def errno(code: int) -> Action:
    """The action by which a call fails with the errno *code*, or, for 0, returns success. The call isn't executed."""
    return Action(_errno.errorcode[code] if code else "0, without effect", value("SECCOMP_RET_ERRNO") | code)


@dataclass(frozen=True, slots=True)
class Match:
    """A test of an argument, which passes if (argument number *arg* & *mask*) == *value*. *text* is for readers."""

    arg: int
    mask: int
    value: int
    text: str

    def holds(self, args: tuple[int, ...]) -> bool:
        return args[self.arg] & self.mask == self.value

    @property
    def is_wide(self) -> bool:
        """Whether the test compares all 64 bits, as a test of an address has to."""
        return self.mask > WORD


def is_(arg: int, name: str) -> Match:
    """Test that the argument, a 32-bit number, is the constant *name*."""
    return Match(arg, WORD, value(name), name)


def number(arg: int, wanted: int) -> Match:
    """Test that the argument, a 32-bit number, is *wanted*."""
    return Match(arg, WORD, wanted, f"{wanted:#x}")


def init(arg: int) -> Match:
    """Test that the argument, a process number, is that of the sandbox's init."""
    return Match(arg, WORD, 1, "pid 1")


def below(arg: int, power: int) -> Match:
    """Test that the argument, a 32-bit number, is less than *power*, a power of two."""
    return Match(arg, WORD & ~(power - 1), 0, f"less than {power:#x}")


def null(arg: int) -> Match:
    """Test that the argument, an address, is null in all of its 64 bits."""
    return Match(arg, 0xFFFF_FFFF_FFFF_FFFF, 0, "null")


def under(arg: int, mask: str, name: str) -> Match:
    """Test that the bits *mask* of the argument have the value *name*. *mask* has names, separated by spaces."""
    return Match(arg, _bits(mask), value(name), f"{mask} {name}")


def flags(arg: int, *, have: str = "", lack: str = "") -> Match:
    """Test that all flags in *have* are set, and none in *lack*. Both have names, separated by spaces."""
    wanted, unwanted = _bits(have), _bits(lack)
    return Match(arg, wanted | unwanted, wanted, " ".join([*have.split(), *(f"!{name}" for name in lack.split())]))


def _bits(names: str) -> int:
    bits = 0
    for name in names.split():
        bits |= value(name)
    return bits


class Needs(enum.Enum):
    """The condition on the host under which a row applies."""

    NOTHING = "always"
    MEMORY_COUNTED = "where a cgroup counts memory that no resident set shows"
    MEMORY_CHARGED = "where a cgroup counts such memory; else the supervisor grants and charges it"
    WATCHES_GRANTED = ("where a cgroup counts memory and each worker has a user id of its own; else the supervisor"
                       " grants and counts it")
    AFFINITY_FREE = "where the processor limit isn't kept by fixing the affinity"
    LOOPBACK = "where the operator has set `loopback = true`"
    TERMINAL = "where the operator has set `terminal = true`"
    NOT_ROOT = "but where an image's user is root"
    ROOT = "where an image's user is root"
    HOST_HIDDEN = "where the view isn't the host's"
    HOST_SHOWN = "where the view is the host's, of the profile `shell`"


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One row of the table: the call *name* gets *action* if its arguments pass all *tests*.

    Rows of one call with different actions don't overlap, with two exceptions. A row that tests an address, or for the
    init's number, comes first and takes precedence. A row without tests decides if no other row of its call matches;
    without such a row, the action is NOTIFY.
    """

    name: str
    action: Action
    reason: str
    tests: tuple[Match, ...] = ()
    needs: Needs = Needs.NOTHING


def rows(names: str, action: Action, reason: str, *tests: Match, needs: Needs = Needs.NOTHING) -> tuple[Rule, ...]:
    """The same row for several calls. *names* has the names of the calls, separated by spaces."""
    return tuple(Rule(name, action, reason, tests, needs) for name in names.split())


def each(name: str, arg: int, constants: str, reason: str, *tests: Match,
         needs: Needs = Needs.NOTHING) -> tuple[Rule, ...]:
    """Rows that allow the call *name* if its argument *arg* is one of *constants*, which are separated by spaces."""
    return tuple(Rule(name, ALLOW, reason, (*tests, is_(arg, constant)), needs) for constant in constants.split())

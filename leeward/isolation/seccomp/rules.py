"""
What a row of the seccomp table is made of.

Runs in:   where the programs are made, and the tests; pure.
"""

from __future__ import annotations

import enum
import errno as _errno

from leeward._native.arguments import value
from leeward.dataclass import dataclass

#: The kernel looks at 32 bits of every argument that the table tests, whatever stands
#: above them in the register. A filter that compared all 64 would be passed by setting one.
WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Action:
    """
    What becomes of a call.

    Attributes:
        text: for people, e.g. "allow" or "ENOSYS".
        ret: the filter's return value, SECCOMP_RET_*.
    """

    text: str
    ret: int


ALLOW = Action("allow", value("SECCOMP_RET_ALLOW"))
NOTIFY = Action("EACCES, counted and logged", value("SECCOMP_RET_USER_NOTIF"))
KILL = Action("kill the process", value("SECCOMP_RET_KILL_PROCESS"))


def errno(code: int) -> Action:
    """
    The filter answers by itself; 0 is success without doing anything.
    """
    return Action(_errno.errorcode[code] if code else "0, not done", value("SECCOMP_RET_ERRNO") | code)


@dataclass(frozen=True, slots=True)
class Match:
    """
    Holds if (argument number *arg* & *mask*) == *value*.
    """

    arg: int
    mask: int
    value: int
    text: str

    def holds(self, args: tuple[int, ...]) -> bool:
        return args[self.arg] & self.mask == self.value

    @property
    def is_wide(self) -> bool:
        """
        Does it look at all 64 bits, as a test of an address has to?
        """
        return self.mask > WORD


def is_(arg: int, name: str) -> Match:
    """
    The argument, a 32-bit number, is the constant *name*.
    """
    return Match(arg, WORD, value(name), name)


def number(arg: int, wanted: int) -> Match:
    """
    The argument, a 32-bit number, is *wanted*.
    """
    return Match(arg, WORD, wanted, f"{wanted:#x}")


def null(arg: int) -> Match:
    """
    The argument, an address, is null: in all of its 64 bits.
    """
    return Match(arg, 0xFFFF_FFFF_FFFF_FFFF, 0, "null")


def under(arg: int, mask: str, name: str) -> Match:
    """
    The bits *mask* of the argument are those of *name*.
    """
    return Match(arg, value(mask), value(name), f"{mask} {name}")


def flags(arg: int, *, have: str = "", lack: str = "") -> Match:
    """
    All the flags in *have* are set and none in *lack*; names with spaces between.
    """
    wanted, unwanted = _bits(have), _bits(lack)
    return Match(arg, wanted | unwanted, wanted, " ".join([*have.split(), *(f"!{name}" for name in lack.split())]))


def _bits(names: str) -> int:
    bits = 0
    for name in names.split():
        bits |= value(name)
    return bits


class Needs(enum.Enum):
    """
    What must hold on this host for a row to count.
    """

    NOTHING = "always"
    MEMORY_COUNTED = "where a cgroup counts memory that no resident set shows"
    AFFINITY_FREE = "where the processor limit isn't kept by fixing the affinity"


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One row: this call, with arguments of which all tests hold, gets this action.

    Rows of one call never overlap with different actions, but for one that tests an address: it comes
    first and counts first. Where none fits: NOTIFY.
    """

    name: str
    action: Action
    reason: str
    tests: tuple[Match, ...] = ()
    needs: Needs = Needs.NOTHING


def rows(names: str, action: Action, reason: str, *tests: Match, needs: Needs = Needs.NOTHING) -> tuple[Rule, ...]:
    """
    The same row for several calls; *names* has spaces between.
    """
    return tuple(Rule(name, action, reason, tests, needs) for name in names.split())


def each(name: str, arg: int, constants: str, reason: str, *tests: Match,
         needs: Needs = Needs.NOTHING) -> tuple[Rule, ...]:
    """
    A row that allows *name* for each constant that its argument *arg* may be.
    """
    return tuple(Rule(name, ALLOW, reason, (*tests, is_(arg, constant)), needs) for constant in constants.split())

"""
Landlock: which files, ports, sockets and processes a job may touch.

Runs in:   probe() in the daemon; plan() anywhere; steps are made in the zygote; the runner
           takes the steps.
Stands if: the mount layer is wrong. This is the second lock on the same door.
Leaves:    stat, chdir, chmod and the like, and descriptors that were open before.
Source:    landlock(7), <linux/landlock.h>
"""

from __future__ import annotations

import errno
import os
import posixpath

from leeward._native import landlock as native
from leeward._native.landlock import FsAccess, NetAccess, RestrictSelf, Scope
from leeward._native.steps import Call, Cell, Step, fails, returns
from leeward.dataclass import dataclass
from leeward.errors import Bug, Unsupported
from leeward.spec.sandbox import View

#: In the root of every sandbox, readable by all, and covered by no rule: that opening it
#: gives EACCES proves that Landlock holds. The mount layer makes it; the self-check opens it.
SEALED = "/.sealed"

_FS_1 = (FsAccess.EXECUTE | FsAccess.WRITE_FILE | FsAccess.READ_FILE | FsAccess.READ_DIR
         | FsAccess.REMOVE_DIR | FsAccess.REMOVE_FILE | FsAccess.MAKE_CHAR | FsAccess.MAKE_DIR
         | FsAccess.MAKE_REG | FsAccess.MAKE_SOCK | FsAccess.MAKE_FIFO | FsAccess.MAKE_BLOCK | FsAccess.MAKE_SYM)
_TCP = NetAccess.BIND_TCP | NetAccess.CONNECT_TCP
_UDP = NetAccess.BIND_UDP | NetAccess.CONNECT_SEND_UDP

#: What each ABI added; landlock(7). ABI 8 (7.0) and 11 (7.3) brought flags for processes
#: with threads and for no_new_privs: a runner has one thread, and has set no_new_privs.
FS_SINCE = {1: _FS_1,                   # Linux 5.13
            2: FsAccess.REFER,          # Linux 5.19; before it, every move between folders gives EXDEV
            3: FsAccess.TRUNCATE,       # Linux 6.2
            5: FsAccess.IOCTL_DEV,      # Linux 6.10
            9: FsAccess.RESOLVE_UNIX}   # Linux 7.1; sockets from outside the sandbox, by path
NET_SINCE = {4: _TCP,                   # Linux 6.7
             10: _UDP}                  # Linux 7.2
SCOPE_SINCE = {6: Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL}  # Linux 6.12

#: From ABI 7 (Linux 6.15) a denial is written to the host's audit log. Jobs run unknown code
#: in an interpreter that does not exec, and could fill that log at will: both are off.
FLAGS_SINCE = {7: RestrictSelf.LOG_SAME_EXEC_OFF | RestrictSelf.LOG_SUBDOMAINS_OFF}

#: The newest ABI that the tables above know.
NEWEST = 11

#: Rights that a rule on something other than a folder may hold.
FILE_ACCESS = (FsAccess.EXECUTE | FsAccess.WRITE_FILE | FsAccess.READ_FILE
               | FsAccess.TRUNCATE | FsAccess.IOCTL_DEV | FsAccess.RESOLVE_UNIX)

#: Parts of the host: everything but to change them.
READ_ONLY = FsAccess.EXECUTE | FsAccess.READ_FILE | FsAccess.READ_DIR
#: Texts of our own making and /proc: data, nothing to run.
DATA = FsAccess.READ_FILE | FsAccess.READ_DIR
#: /dev/null and its like. Without IOCTL_DEV isatty() would still answer, by an error.
DEVICE = FsAccess.READ_FILE | FsAccess.WRITE_FILE | FsAccess.IOCTL_DEV
#: Folders of the job's own. It may run what it writes: it runs code of its choice anyway.
#: No devices, whose nodes a job could not make or open in any case.
SCRATCH = (_FS_1 | FsAccess.REFER | FsAccess.TRUNCATE) & ~(FsAccess.MAKE_CHAR | FsAccess.MAKE_BLOCK)


@dataclass(frozen=True, slots=True)
class Rule:
    """
    What may be done with *path* and all beneath it.

    Attributes:
        optional: a sandbox without *path* is no error.
    """

    path: str
    access: int
    optional: bool = False


@dataclass(frozen=True, slots=True)
class LandlockPlan:
    """
    A ruleset, ready to be made. With `abi` 0 there is nothing to enforce.

    Attributes:
        abi: the one that was planned for, at most NEWEST.
        fs, net, scoped: what is denied unless a rule allows it.
        flags: of landlock_restrict_self.
    """

    abi: int
    fs: int
    net: int
    scoped: int
    flags: int
    rules: tuple[Rule, ...]


def probe() -> int:
    """
    The kernel's Landlock ABI; 0 where Landlock is absent or not enabled.
    """
    return native.abi()


def plan(view: View, abi: int, *, allow_missing: bool = False) -> LandlockPlan:
    """
    The strictest rules for *view* that a kernel of *abi* can enforce. Pure.

    All that the ABI can deny is denied, and no rule allows a port. Links need no rule: what
    counts is where they lead.

    Args:
        allow_missing: where there is no Landlock, plan nothing instead of raising.

    Raises:
        Unsupported: *abi* is 0 and *allow_missing* isn't set.
        Bug: a rule would cover SEALED.
    """
    if abi < 1:
        if not allow_missing:
            raise Unsupported("landlock", have="none", need="ABI 1 (Linux 5.13)",
                              cure="boot with `lsm=landlock,...`, or allow it to be missing: --allow-degraded landlock")
        return LandlockPlan(0, 0, 0, 0, 0, ())
    abi = min(abi, NEWEST)
    handled = _upto(FS_SINCE, abi)
    access: dict[str, Rule] = {}

    def allow(path: str, rights: int, optional: bool = False) -> None:
        if not path.startswith("/"):
            raise Bug(f"a Landlock rule on {path!r}, which is not absolute")
        path = "/" + posixpath.normpath(path).lstrip("/")  # normpath leaves two slashes as they are
        if path in ("/", SEALED):
            raise Bug(f"a Landlock rule on {path!r} would cover {SEALED}")
        before = access.get(path)
        if before is not None:  # a text in a folder that is also a bind: the rights add up
            rights, optional = rights | before.access, optional and before.optional
        access[path] = Rule(path, int(rights) & handled, optional)

    for bind in view.binds:
        device = DEVICE if bind.written else DEVICE & ~FsAccess.WRITE_FILE
        allow(bind.target, device if bind.device else READ_ONLY & FILE_ACCESS if bind.file else READ_ONLY,
              bind.optional)
    for text in view.texts:
        # One rule for the folder instead of one for each text: everything in it is of our
        # own making, or a bind that may be read anyway. It costs three calls per rule to enter.
        folder = posixpath.dirname(text.target)
        if folder == "/":
            allow(text.target, DATA & FILE_ACCESS)
        else:
            allow(folder, DATA)
    for target in view.scratch.targets:
        allow(target, SCRATCH)
    allow("/proc", DATA)
    return LandlockPlan(abi, handled, _upto(NET_SINCE, abi), _upto(SCOPE_SINCE, abi), _upto(FLAGS_SINCE, abi),
                        tuple(access[path] for path in sorted(access)))


def _upto(since: dict[int, FsAccess] | dict[int, NetAccess] | dict[int, Scope] | dict[int, RestrictSelf],
          abi: int) -> int:
    rights = 0
    for first, more in since.items():
        if first <= abi:
            rights |= int(more)
    return rights


def steps(plan: LandlockPlan) -> list[Step]:
    """
    Enforce *plan* on the thread that takes these, and on all that it starts from then on. Irreversible.

    Needs no_new_privs, and the sandbox's root; leaves no descriptor open.
    """
    if not plan.abi:
        return []
    ruleset = Cell("ruleset")
    made = [native.ruleset_step(ruleset, plan.fs, plan.net, plan.scoped)]
    for rule in plan.rules:
        made += native.path_steps(ruleset, rule.path, rule.access, optional=rule.optional)
    return [*made, native.restrict_step(ruleset, plan.flags), returns(Call.CLOSE, ruleset)]


def proof() -> list[Step]:
    """
    What only a restricted thread is refused.
    """
    return [fails(Call.OPENAT, native.AT_FDCWD, SEALED, os.O_RDONLY | os.O_CLOEXEC, 0, errnos=(errno.EACCES,))]


def deny_all_steps(ruleset: Cell, abi: int) -> list[Step]:
    """
    *ruleset* gets one that denies all that *abi* can, without a rule; for the sandbox's init. None where *abi* is 0.

    Whoever is restricted by it opens no file and signals nobody outside; what it starts
    later inherits that, so the init restricts itself after it has started the job.
    """
    if abi < 1:
        return []
    abi = min(abi, NEWEST)
    return [native.ruleset_step(ruleset, _upto(FS_SINCE, abi), _upto(NET_SINCE, abi), _upto(SCOPE_SINCE, abi))]

"""
Landlock: restricts the files, ports, sockets and processes that a job can use.

Runs in:   plan() anywhere; steps are made in the zygote; the runner takes them, the keeper those of `hold_steps`.
Stands if: the mount layer is wrong. This is the second, independent check of file accesses.
Leaves:    stat, chdir, chmod and the like, and descriptors that were opened before.
Source:    landlock(7), <linux/landlock.h>
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
from collections.abc import Mapping, Sequence

from leeward._native import landlock as native
from leeward._native.landlock import FsAccess, NetAccess, RestrictSelf, Scope
from leeward._native.steps import Call, Cell, Step, fails, gives, returns
from leeward.base.dataclass import dataclass
from leeward.base.points import point
from leeward.errors import Bug, Unsupported
from leeward.spec.sandbox import View

#: A world-readable file in the root of every sandbox that no rule covers: if opening it
#: fails with EACCES, Landlock holds. The mount layer makes it; the self-check opens it.
SEALED = "/.sealed"

_FS_1 = (FsAccess.EXECUTE | FsAccess.WRITE_FILE | FsAccess.READ_FILE | FsAccess.READ_DIR
         | FsAccess.REMOVE_DIR | FsAccess.REMOVE_FILE | FsAccess.MAKE_CHAR | FsAccess.MAKE_DIR
         | FsAccess.MAKE_REG | FsAccess.MAKE_SOCK | FsAccess.MAKE_FIFO | FsAccess.MAKE_BLOCK | FsAccess.MAKE_SYM)
_TCP = NetAccess.BIND_TCP | NetAccess.CONNECT_TCP
_UDP = NetAccess.BIND_UDP | NetAccess.CONNECT_SEND_UDP

#: The rights that each ABI added; landlock(7). ABI 8 (7.0) and 11 (7.3) brought flags for processes
#: with threads and for no_new_privs: a runner has one thread, and has set no_new_privs.
FS_SINCE = {1: _FS_1,                   # Linux 5.13
            2: FsAccess.REFER,          # Linux 5.19; before it, every move between folders gives EXDEV
            3: FsAccess.TRUNCATE,       # Linux 6.2
            5: FsAccess.IOCTL_DEV,      # Linux 6.10
            9: FsAccess.RESOLVE_UNIX}   # Linux 7.1; sockets from outside the sandbox, by path
NET_SINCE = {4: _TCP,                   # Linux 6.7
             10: _UDP}                  # Linux 7.2
SCOPE_SINCE = {6: Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL}  # Linux 6.12

#: What is about other processes: rights on files, and scopes.
_OTHERS = FsAccess.RESOLVE_UNIX, Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL

#: From ABI 7 (Linux 6.15) on, denials are written to the host's audit log. Jobs run unknown code
#: in an interpreter that does not exec, and could fill that log at will: both kinds are off.
FLAGS_SINCE = {7: RestrictSelf.LOG_SAME_EXEC_OFF | RestrictSelf.LOG_SUBDOMAINS_OFF}

#: The newest ABI that the tables above know.
NEWEST = 11

#: Rights that a rule on something other than a folder may hold.
FILE_ACCESS = (FsAccess.EXECUTE | FsAccess.WRITE_FILE | FsAccess.READ_FILE
               | FsAccess.TRUNCATE | FsAccess.IOCTL_DEV | FsAccess.RESOLVE_UNIX)

#: For folders of the host: every right but those that change something.
READ_ONLY = FsAccess.EXECUTE | FsAccess.READ_FILE | FsAccess.READ_DIR
#: For leeward's own text files and /proc: data, not programs.
DATA = FsAccess.READ_FILE | FsAccess.READ_DIR
#: For /dev/null and its like. Without IOCTL_DEV isatty() still returns the right answer, through an error.
DEVICE = FsAccess.READ_FILE | FsAccess.WRITE_FILE | FsAccess.IOCTL_DEV
#: For folders whose entries may be listed, but not read.
LISTED = FsAccess.READ_DIR
#: For /dev/pts: a program sets the modes of its terminal by ioctl.
TERMINALS = FsAccess.READ_FILE | FsAccess.WRITE_FILE | FsAccess.READ_DIR | FsAccess.IOCTL_DEV
#: For the job's own folders. It may execute what it writes, since it runs code of its choice anyway.
#: No right to devices: a job can't make or open device nodes in any case.
SCRATCH = (_FS_1 | FsAccess.REFER | FsAccess.TRUNCATE) & ~(FsAccess.MAKE_CHAR | FsAccess.MAKE_BLOCK)


#: Switch for tests: whether a keeper opens the rules' paths for all of its runners.
HOLD = True
#: The number of the first descriptor that a keeper holds for a rule, above those that descriptors.py parks; and at most
#: so many: the table of descriptors, which each clone copies, doubles at 128.
HELD, _MOST_HELD = 72, 48
#: And of the ruleset of kept namespaces.
KEPT = HELD - 1
_PLACEHOLDER = "/dev/null"


@dataclass(frozen=True, slots=True)
class PathRule:
    """The rights on *path* and everything below it. An *optional* rule is left out if the sandbox has no *path*."""

    path: str
    access: int
    optional: bool = False


@dataclass(frozen=True, slots=True)
class PortRule:
    port: int
    access: int


@dataclass(frozen=True, slots=True)
class LandlockPlan:
    """A ruleset to create. With `abi` 0 there is nothing to enforce."""

    abi: int     # the ABI for which the ruleset was planned, at most NEWEST
    fs: int      # rights on files, which are denied unless a rule allows them
    net: int     # rights on ports, which are denied unless a rule allows them
    scoped: int  # rights on sockets and processes outside, which are denied
    flags: int   # of landlock_restrict_self
    rules: tuple[PathRule, ...]
    ports: tuple[PortRule, ...] = ()


def probe() -> int:
    return native.abi()


def plan(view: View, abi: int, *, loopback: bool = False, ports: Sequence[int] = (),
         allow_missing: bool = False) -> LandlockPlan:
    """
    The strictest rules for *view* that a kernel of *abi* can enforce. Pure. Unsupported if *abi* is 0, unless
    *allow_missing* (then the plan is empty); Bug if a rule would cover SEALED.

    Everything that the ABI can deny is denied, and no rule allows a port but *ports*. Links need no rule: the kernel
    checks their targets.

    Args:
        loopback: don't restrict ports. A rule names one port, and a server may use any: rules for all ports cost 0.4 s.
            The network namespace, which has `lo` and no other interface, keeps connections inside.
        ports: the ports of egress. TCP connections to them are allowed, if ports are restricted. Then UDP isn't
            restricted: no rule allows a socket a port of the kernel's choice, and only the broker's name server
            receives UDP.
    """
    if abi < 1:
        if not allow_missing:
            raise Unsupported("landlock", have="none", need="ABI 1 (Linux 5.13)",
                              cure="boot with `lsm=landlock,...`, or allow it to be missing: --allow-degraded landlock")
        return LandlockPlan(0, 0, 0, 0, 0, ())
    abi = min(abi, NEWEST)
    handled = _upto(FS_SINCE, abi)
    access: dict[str, PathRule] = {}

    def allow(path: str, rights: int, optional: bool = False) -> None:
        if not path.startswith("/"):
            raise Bug(f"a Landlock rule on {path!r}, which is not absolute")
        path = "/" + posixpath.normpath(path).lstrip("/")  # normpath leaves two slashes as they are
        if path in ("/", SEALED) and view.root is None:
            raise Bug(f"a Landlock rule on {path!r} would cover {SEALED}")
        before = access.get(path)
        if before is not None:  # a text in a folder that is also a bind: the rights add up
            rights, optional = rights | before.access, optional and before.optional
        access[path] = PathRule(path, int(rights) & handled, optional)

    for bind in view.binds:
        device = DEVICE if bind.written else DEVICE & ~FsAccess.WRITE_FILE
        allow(bind.target, device if bind.device else READ_ONLY & FILE_ACCESS if bind.file else READ_ONLY,
              bind.optional)
    for text in view.texts if view.root is None else ():
        # One rule for the folder instead of one for each file: leeward has made everything in it,
        # or it is a bind that may be read anyway. Each rule costs one system call, or three.
        folder = posixpath.dirname(text.target)
        if folder == "/" or text.program:
            allow(text.target, (READ_ONLY if text.program else DATA) & FILE_ACCESS)
        else:
            allow(folder, DATA)
    for target in view.scratch.targets:
        allow(target, SCRATCH)
    if view.root is not None:
        allow("/", SCRATCH)  # of /proc, /dev and /sys only their mounts prevent that they are written
    else:
        allow("/proc", DATA)
    if view.terminals:
        allow("/dev/pts", TERMINALS)
    for path in view.listed:
        before = access.get(path, PathRule(path, 0))
        access[path] = PathRule(path, before.access | int(LISTED) & handled, before.optional)
    net = 0 if loopback else _upto(NET_SINCE, abi) & (int(_TCP) if ports else -1)
    connect = net & int(NetAccess.CONNECT_TCP)
    return LandlockPlan(abi, handled, net, _upto(SCOPE_SINCE, abi), _upto(FLAGS_SINCE, abi),
                        tuple(access[path] for path in sorted(access)),
                        tuple(PortRule(port, connect) for port in ports) if connect else ())


def _upto(since: dict[int, FsAccess] | dict[int, NetAccess] | dict[int, Scope] | dict[int, RestrictSelf],
          abi: int) -> int:
    rights = 0
    for first, more in since.items():
        if first <= abi:
            rights |= int(more)
    return rights


@point("landlock.held")
def held(plan: LandlockPlan, own: Sequence[str]) -> dict[str, int]:
    """
    The paths of *plan*'s rules that are the same file or folder in all runners of a keeper, not below *own*, on which
    each mounts something; with the numbers of the descriptors that the keeper holds for them. A rule is about a file or
    folder, and not about its mount, so a descriptor from the keeper's root does.
    """
    same = [rule.path for rule in plan.rules
            if not any(rule.path == path or rule.path.startswith(f"{path}/") for path in own)]
    return {path: HELD + number for number, path in enumerate(same[:_MOST_HELD])} if HOLD else {}


def hold_steps(plan: LandlockPlan, held: Mapping[str, int]) -> list[Step]:
    """
    Open the paths of *held*, in the keeper's root. All numbers are in use afterwards, so that the keeper has nothing
    else there: that of an optional path that doesn't exist is /dev/null's, on which the rule of a folder is refused,
    and that of a file allows nothing new.
    """
    made = []
    for rule in plan.rules:
        number = held.get(rule.path)
        if number is None:
            continue
        cell = Cell(rule.path)
        paths = [_PLACEHOLDER, rule.path] if rule.optional else [rule.path]
        made += [gives(cell, Call.OPENAT, native.AT_FDCWD, paths[0], os.O_PATH | os.O_CLOEXEC, 0),
                 returns(Call.FCNTL, cell, fcntl.F_DUPFD_CLOEXEC, number, value=number),  # it was free
                 returns(Call.CLOSE, cell)]
        if rule.optional:
            found = Cell(f"{rule.path}, if it exists")
            made += [gives(found, Call.OPENAT, native.AT_FDCWD, paths[1], os.O_PATH | os.O_CLOEXEC, 0, optional=True),
                     Step(Call.DUP3, (found, number, os.O_CLOEXEC), (number, -errno.EBADF)),
                     returns(Call.CLOSE, found, unless=(errno.EBADF,))]
    return made


def let_go_steps(held: Mapping[str, int]) -> list[Step]:
    return [returns(Call.CLOSE_RANGE, min(held.values()), max(held.values()), 0)] if held else []


def steps(plan: LandlockPlan, ruleset: Cell | None = None, held: Mapping[str, int] | None = None) -> list[Step]:
    """
    Enforce *plan* on the thread that takes these steps, and on all that it starts later. Irreversible; needs
    no_new_privs, and the sandbox's root. The cell *ruleset* gets its descriptor, for `again_steps`; it then stays open,
    as *held* do.
    """
    if not plan.abi:
        return []
    cell, fs, scoped = ruleset or Cell("ruleset"), plan.fs, plan.scoped
    if ruleset:  # others are made with it, in one domain
        fs, scoped = fs & ~_OTHERS[0], scoped & ~_OTHERS[1]
    return [*_ruleset(plan, cell, fs, scoped, held or {}), native.restrict_step(cell, plan.flags),
            *(domain_steps(plan) if ruleset else [returns(Call.CLOSE, cell)])]


def kept_steps(plan: LandlockPlan, held: Mapping[str, int]) -> list[Step]:
    """
    In a runner's mounts: make the ruleset of those that come after it there, as descriptor KEPT. Each restricts itself by it,
    and so has a domain of its own.
    """
    cell = Cell("ruleset")
    return [returns(Call.CLOSE, KEPT, unless=(errno.EBADF,)),  # of namespaces that have ended
            *_ruleset(plan, cell, plan.fs, plan.scoped, held),
            returns(Call.FCNTL, cell, fcntl.F_DUPFD_CLOEXEC, KEPT, value=KEPT), returns(Call.CLOSE, cell)] if plan.abi else []


def _ruleset(plan: LandlockPlan, cell: Cell, fs: int, scoped: int, held: Mapping[str, int]) -> list[Step]:
    made = [native.ruleset_step(cell, fs, plan.net, scoped)]
    for rule in plan.rules:
        if rule.path in held:
            made.append(native.held_step(cell, held[rule.path], rule.access, optional=rule.optional))
        else:
            made += native.path_steps(cell, rule.path, rule.access, optional=rule.optional)
    return [*made, *(native.port_step(cell, rule.port, rule.access) for rule in plan.ports)]


@point("landlock.domain")
def domain_steps(plan: LandlockPlan) -> list[Step]:
    """
    Enforce the part of *plan* that is about processes outside the own domain: their sockets, and signals to them. The
    helper that makes a sandbox's further processes takes these steps, and they inherit its domain: each restricted by
    itself, they couldn't reach each other. Every ruleset denies moves between folders until a rule allows them: these
    are the other ruleset's to decide.
    """
    fs, scoped = plan.fs & _OTHERS[0], plan.scoped & _OTHERS[1]
    cell = Cell("ruleset of the domain")
    return [native.ruleset_step(cell, fs | FsAccess.REFER, 0, scoped), *native.path_steps(cell, "/", FsAccess.REFER),
            native.restrict_step(cell, plan.flags), returns(Call.CLOSE, cell)] if fs or scoped else []


def reader_rights(abi: int) -> tuple[int, ...]:
    """
    The ruleset for a process of the daemon that reads files of the host, connects to any port and listens on none: the
    rights on files, on ports and on processes outside that are denied, the flags, and the rights that its rules allow.
    """
    if abi < 1:
        return ()
    abi = min(abi, NEWEST)
    handled = _upto(FS_SINCE, abi)
    return (handled, _upto(NET_SINCE, abi) & int(NetAccess.BIND_TCP), _upto(SCOPE_SINCE, abi), _upto(FLAGS_SINCE, abi),
            int(READ_ONLY) & handled)


def again_steps(plan: LandlockPlan, ruleset: int) -> list[Step]:
    """
    Enforce *plan*, but for `domain_steps`, by the descriptor *ruleset*, which another process of the sandbox has made,
    and close that.
    """
    if not plan.abi:
        return []
    return [native.restrict_step(ruleset, plan.flags), returns(Call.CLOSE, ruleset)]


def proof() -> list[Step]:
    """Try a call that is refused only if the thread is restricted."""
    return [fails(Call.OPENAT, native.AT_FDCWD, SEALED, os.O_RDONLY | os.O_CLOEXEC, 0, errnos=(errno.EACCES,))]


@point("landlock.deny-all")
def deny_all_steps(ruleset: Cell, abi: int) -> list[Step]:
    """
    Create a ruleset without rules, for the sandbox's init, which denies all rights of *abi*; no steps if that is 0. A
    process under it opens no file and signals no process outside, and its later children inherit it. So the init
    restricts itself after it has started the job.
    """
    if abi < 1:
        return []
    abi = min(abi, NEWEST)
    return [native.ruleset_step(ruleset, _upto(FS_SINCE, abi), _upto(NET_SINCE, abi), _upto(SCOPE_SINCE, abi))]

"""
A zygote whose runners have some locks only: for the tests of single locks, and for controls.

Runs in:   a test's zygote, which is a test build: kit/points.py. The locks are taken out by filling the injection
           points that the product names (leeward/base/points.py). A point that the product no longer has is an error at
           once: with a lock that isn't taken out, a control would be worthless.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.inits import Init
from kit.locks import LOCKS
from kit.points import fill, original
from leeward._native import mounts as native_mounts
from leeward._native import privileges
from leeward._native import seccomp as native_seccomp
from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Born, Kept
from leeward._native.privileges import Prctl
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Cell, Step, Table, gives, returns
from leeward.crossing import beside, birth
from leeward.isolation import landlock
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.wire import control

_KEPT = 6  # 0 to 5
_PARKING = 64  # above every number that is used here

_ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # BPF_RET, SECCOMP_RET_ALLOW


def strip(names: Iterable[str] | None) -> None:
    """Take out all locks but those named; None is all of them."""
    if names is None:
        return
    keep = frozenset(names)
    unknown = keep - LOCKS
    assert not unknown, unknown
    importlib.import_module("leeward.crossing.zygote")  # and with it all that has a point
    order = dict(birth.ORDER)
    order["self-check"] = _nothing
    keep_runners = original("keeper.keep")
    fill("runner.begins-in-c", lambda: False)  # C takes no lock out
    fill("keeper.settles-in-c", lambda: False)
    if "namespaces" not in keep:
        left = Clone(0) if "mounts" not in keep else Clone.NEWNS | Clone.NEWPID
        fill("namespaces.runner", lambda: left)
        fill("namespaces.keeper", lambda: Clone.NEWUSER | Clone.NEWNS)
        order["namespaces"] = _nothing
        fill("namespaces.loopback", _no_loopback)  # they would be the host's
        fill("namespaces.small-queues", _no_loopback)
        fill("egress.steps", lambda plan: ([], []))
    if "namespaces" not in keep and "mounts" not in keep:
        keep_runners = _keep_and_adopt
    if "mounts" not in keep:
        fill("mounts.template", _HostTemplate)
        fill("mounts.devpts", _hidden_devpts)
        fill("landlock.held", _hold_nothing)  # the host may lack what rules are about
        order["mounts"] = _host_folder
        order["landlock"] = _landlock_on_the_host
        fill("files.collect", _collect_nothing)
        fill("files.lay", _lay_nothing)
    if "rlimits" not in keep:
        order["rlimits"] = _nothing
        fill("rlimits.steps", _no_limits)  # they are asked for once more, for those that come after the last lock
    if "privileges" not in keep:
        order["privileges"] = _end_with_the_init
        fill("privileges.keeper", _stay_dumpable)  # the keeper's and its inits', too
        fill("privileges.capabilities-left", _none_left)
    if "landlock" not in keep:
        order["landlock"] = _unrestricted
        fill("landlock.deny-all", _no_ruleset)
        fill("landlock.domain", lambda plan: [])
    if "seccomp" not in keep:
        fill("seccomp.steps", _listen_to_nothing)
    if "descriptors" not in keep:
        keep_runners = _hold_twice(keep_runners)
        order["descriptors"] = _keep_descriptors
        fill("runner.main", _close_the_daemons_ends)
    if "environment" not in keep:
        fill("environment.interpreter", _keep_environment)
    if "randomness" not in keep:
        fill("randomness.sources", lambda: ())
        fill("randomness.hooks", _run_none)
    if "job-pipe" not in keep:
        fill("job-pipe.close", _leave_open)
        fill("job-pipe.pipes", _leave_the_job_pipe_open)
    if "hard-limit" not in keep:
        fill("descriptors.settle", lambda: None)
    if "late-limit" not in keep:
        fill("rlimits.late", lambda: ())
    fill("keeper.keep", keep_runners)
    runners, others = tuple(order.items()), _beside(keep, order)
    fill("layers.runner", lambda: runners)
    fill("layers.beside", lambda: others)


def give_up_rights() -> None:
    """Give up the rights that a zygote in its backstage namespaces never has, because this zygote is started without them."""
    if 0 == os.geteuid():
        os.setgroups([])
        Table([*privileges.bounding_steps(), *privileges.dropping_steps()]).run()
    privileges.no_new_privs()


def _beside(keep: frozenset[str], order: Mapping[str, object]) -> dict[str, beside.Layer]:
    """Return the layers of a runner's further processes, without the layers that the runner itself lacks."""
    layers = {name: _none_beside if order[name] is _nothing else made for name, made in beside.LAYERS.items()}
    for name in {"landlock", "privileges"} - keep:
        layers[name] = _none_beside
    if "descriptors" not in keep:
        layers["descriptors"] = _keep_descriptors_beside
    return layers


def _none_beside(plan: WorkerPlan, kind: control.Kind) -> list[Step]:
    return []


_descriptors_beside = beside.LAYERS["descriptors"]


def _keep_descriptors_beside(plan: WorkerPlan, kind: control.Kind) -> list[Step]:
    return _descriptors_beside(plan, kind)[:-1]


def _nothing(plan: WorkerPlan) -> list[Step]:
    return []


def _unrestricted(plan: WorkerPlan) -> list[Step]:
    """Return no lock, and a descriptor to send in place of the ruleset, which no process enters."""
    path = (native_mounts.AT_FDCWD, "/", os.O_PATH | os.O_CLOEXEC, 0)
    return [gives(birth._RULESET, Call.OPENAT, *path)] if plan.enterable else []


def _no_limits(rows: object, *, late: bool = False) -> list[Step]:
    return []


def _run_none() -> None:
    return


def _none_left() -> int:
    return 0  # the product asks, and must not be told


def _stay_dumpable() -> list[Step]:
    dumpable = returns(Call.PRCTL, Prctl.SET_DUMPABLE, 1, 0, 0, 0)  # who changed its uid isn't any more
    return [dumpable if step.arguments[0] == Prctl.SET_DUMPABLE else step for step in original("privileges.keeper")()]


def _hold_twice(keep: Callable[..., Born | None]) -> Callable[..., Born | None]:
    """
    Duplicate the keeper's descriptors below 6, such as its channel, to higher numbers, because a job's own ends take
    the lower numbers.
    """
    def kept(*arguments: Any, **more: Any) -> Born | None:
        for fd in range(_KEPT):
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PARKING)
        return keep(*arguments, **more)

    return kept


_layer = dict(birth.ORDER)


def _keep_descriptors(plan: WorkerPlan) -> list[Step]:
    """Return the product's steps without the one that closes all other descriptors."""
    return [step for step in _layer["descriptors"](plan) if step.call is not Call.CLOSE_RANGE]


def _close_the_daemons_ends(made: birth.Birth, born: Born, reports: tuple[bytes, bytes], *, rehearse: bool,
                            warm: bool) -> None:
    """
    As `runner.main`, but close only the daemon's ends of the runner's own pipes before: a runner that its keeper has
    left behind has to read the end of its job pipe.
    """
    pipes = {os.fstat(fd).st_ino for fd in range(_KEPT) if stat.S_ISFIFO(os.fstat(fd).st_mode)}
    for fd in range(_KEPT, 1024):
        try:
            if os.fstat(fd).st_ino in pipes and stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.close(fd)
        except OSError:
            continue
    original("runner.main")(made, born, reports, rehearse=rehearse, warm=warm)


def _leave_open(fd: int) -> None:
    return


def _leave_the_job_pipe_open(job: int, reply: int, **more: Any) -> object:
    """No frame begins with this byte: msgpack has no use for it."""
    return Pipes(job, reply, **{**more, "lone": bytes([0xC1])})


def _keep_environment(plan: ZygotePlan) -> None:
    """Leave the daemon's variables in the environment; box.py has given them to the zygote."""
    before = dict(os.environ)
    original("environment.interpreter")(plan)
    os.environ.update(before | dict(plan.environment))


def _keep_and_adopt(channel: int, ruleset: int, kept: Kept) -> Born | None:
    """`keep` where no pid namespace ends what a job leaves: the keeper adopts and reaps it."""
    privileges.be_subreaper()
    try:
        return _Adopting(channel, ruleset, kept).serve()
    finally:
        while os.getpid() != _job and _end(_children()):
            continue  # what an init leaves comes to us when it ends


#: The pid of this process if a job came out of `_keep_and_adopt`.
_job = -1


class _Adopting:
    def __init__(self, channel: int, ruleset: int, kept: Kept) -> None:
        self._channel = Channel.adopt(os.dup(channel))
        self._how = kept.flags, ruleset, kept.filter
        self._way, self._ends = kept.way, kept.ends
        self._inits: dict[int, tuple[int, Init]] = {}  # pidfd -> runner number, init

    def serve(self) -> Born | None:
        while True:
            poll = select.poll()
            for fd in (self._channel.fileno(), *self._inits):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd in self._inits:
                    self._reap(fd)
                    continue
                received = self._channel.receive()
                if received is None:
                    return None
                born = self._arm(*received)
                if born is not None:
                    return born

    def _arm(self, message: control.Message, fds: list[int]) -> Born | None:
        global _job
        assert isinstance(message, control.Arm)
        flags, ruleset, filter = self._how
        pipes = job, reply, out, err = [os.pipe() for _ in range(4)]
        init = Init()
        into = fds[1] if message.into else -1
        if init.spawn(flags, cgroup=into, attach=fds[1 + message.into:], ruleset=ruleset, filter=filter):
            _job = os.getpid()
            self._channel.socket.detach()  # else it is closed with this object, and its number is another's by then
            for cell, end in zip(self._ends, (job[0], reply[1], out[1], err[1], fds[0]), strict=True):
                self._way.address(cell)[0] = end
            if message.cpu is not None:
                os.sched_setaffinity(0, {message.cpu})
            return Born(init.join_error(), 0, *self._way.take())
        self._inits[init.pidfd] = message.runner, init
        ours = [job[1], reply[0], out[0], err[0]]
        for fd in ours:
            os.set_blocking(fd, False)
        self._say(2, init.pid, message.runner, [init.pidfd, *ours])
        for fd in (*fds, *(fd for pipe in pipes for fd in pipe)):
            os.close(fd)
        return None

    def _reap(self, pidfd: int) -> None:
        # Each child that ends may leave its own children to us. This is done before the daemon hears that the runner is
        # empty.
        while _end(_children() - {init.pid for _, init in self._inits.values()}):
            continue
        number, init = self._inits.pop(pidfd)
        os.waitpid(init.pid, 0)
        os.close(pidfd)
        status = init.status()
        init.free()
        self._say(3, -1 if status is None else status, number, [])

    def _say(self, kind: int, value: int, runner: int, fds: list[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        with contextlib.suppress(BrokenPipeError):  # the daemon let us go between two messages
            self._channel.socket.sendmsg([struct.pack("=BBBBiQQQQQQQ", 0xC1, kind, 0, 0, value, runner, *[0] * 6)], rights)


def _end(pids: set[int]) -> bool:
    """Kill these processes. The end of their init may not kill them, because Landlock keeps it from signalling them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return bool(pids)


def _children() -> set[int]:
    """Return the children of this process, which has one thread."""
    return set(map(int, Path("/proc/self/task", str(os.getpid()), "children").read_text().split()))


def _end_with_the_init(plan: WorkerPlan) -> list[Step]:
    """No lock: without a pid namespace either, nothing else would end a job that has replied."""
    return [returns(Call.PRCTL, Prctl.SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)]


def _no_loopback() -> list[Step]:
    return []


class _HostTemplate:
    """
    The template of a sandbox that shows the whole tree of the host. An unprivileged uid can reach the interpreter
    there: if it lies in a private home folder, its prefix is bound.
    """

    def __init__(self, view: object, first: Sequence[Step], before: Sequence[Step], after: Sequence[Step],
                 written: Sequence[Cell], layers: Sequence[object] = (),
                 bounds: Callable[[Cell | None], Sequence[Step]] = lambda _proc: ()) -> None:
        prefix, cover = Cell("prefix"), Cell("cover")
        opened = [] if _PRIVATE_HOME is None else [native_mounts.copy_step(prefix, sys.base_prefix)]
        covered = [] if _PRIVATE_HOME is None else [
            *native_mounts.filesystem_steps(cover, "tmpfs", {"mode": "0755"}, 0),
            native_mounts.move_step(cover, str(_PRIVATE_HOME)),
            *(returns(Call.MKDIRAT, native_mounts.AT_FDCWD, str(folder), 0o755)
              for folder in reversed([Path(sys.base_prefix), *Path(sys.base_prefix).parents])
              if folder.is_relative_to(_PRIVATE_HOME) and folder != _PRIVATE_HOME),
            native_mounts.move_step(prefix, sys.base_prefix),
        ]
        # Nothing here tells a job how much it may use, or what to trust.
        flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
        unseen = [gives(cell, Call.OPENAT, native_mounts.AT_FDCWD, "/tmp", flags, 0o600) for cell in written]
        self.table = Table([*first, *opened, *unseen, *before, *bounds(None), native_mounts.private_step(), *covered, *after])
        self.build = self.table.run

    def open(self) -> None:
        return


def _hidden_devpts(ptmx: Cell) -> list[Step]:
    """Return steps that leave the host's /dev/pts in sight."""
    made = Cell("devpts")
    return [*native_mounts.filesystem_steps(made, "devpts", {"ptmxmode": "0666"}, 0),
            gives(ptmx, Call.OPENAT, made, "ptmx", os.O_PATH | os.O_CLOEXEC, 0), returns(Call.CLOSE, made)]


def _private_home(prefix: str) -> Path | None:
    """The folder on the way to *prefix* that only its owner may pass."""
    folders = [folder for folder in reversed(Path(prefix).parents) if not folder.stat().st_mode & 0o001]
    return folders[0] if folders and 0 == os.geteuid() else None


#: Determined in the zygote, because keepers of root's daemon have no uid that owns a home folder.
_PRIVATE_HOME = _private_home(sys.base_prefix)


def _host_folder(plan: WorkerPlan) -> list[Step]:
    object.__setattr__(plan, "watched", False)  # the daemon would charge the job with all of the host's /tmp
    return [returns(Call.CHDIR, "/tmp")]


def _landlock_on_the_host(plan: WorkerPlan) -> list[Step]:
    """Return the product's steps, with the rules whose folders the host has."""
    rules = tuple(replace(rule, optional=True) for rule in plan.landlock.rules)
    return landlock.steps(replace(plan.landlock, rules=rules), birth._RULESET if plan.enterable else None)


def _hold_nothing(*_: object) -> dict[str, int]:
    return {}


def _collect_nothing(*_: object) -> tuple[dict[str, bytes], list[tuple[str, str]], bool]:
    return {}, [], False


def _lay_nothing(contents: object) -> None:
    return


def _no_ruleset(ruleset: Cell, abi: int) -> list[Step]:
    return [gives(ruleset, Call.CLOSE, -1, optional=True)]  # negative: none


def _listen_to_nothing(program: bytes, listener: Cell) -> list[Step]:
    return [native_seccomp.listen_step(listener, _ALLOW_ALL, killable=False)]

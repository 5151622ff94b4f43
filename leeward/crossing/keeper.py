"""
The keeper of one worker: owns the worker's user and network namespaces and mount template, and makes its runners.

Runs in: its own process, cloned by the zygote; one thread; never sees a job's code. Ends: when the daemon's end of its
control channel closes. Its runners die with it (PR_SET_PDEATHSIG of their inits).

Once the template is built the keeper runs no bytecode any more: `_native.keeper_loop` serves, in C. A keeper isn't pid 1 of
a pid namespace: OpenSSL detects a fork by getpid(), so two processes that are both pid 1 would draw the same random
bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Born, Keeping, Kept, Settling, Way, keep
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Gives, Step, Table, returns
from leeward.base.dataclass import dataclass
from leeward.base.points import point
from leeward.crossing import beside, birth, porter, runner, scout
from leeward.crossing.birth import BIRTH, JOB, REPLY, Birth
from leeward.errors import KernelRefusal, LeewardError
from leeward.inside import main as inside
from leeward.isolation import backstage, egress_route, landlock, namespaces, privileges, template, terminals, watching
from leeward.isolation.channel import Channel, receive_step, send_step
from leeward.isolation.plan import WorkerPlan
from leeward.isolation.template import Template, written_by_daemon
from leeward.wire import control
from leeward.wire.control import Kind

#: The keeper's end of its control channel, and the ruleset of its inits.
CHANNEL, RULESET = Cell("control channel"), Cell("ruleset")
#: Whether the clone copies the pages that a runner which begins in C writes.
COPY_BY_CLONE = True
#: The file by which the daemon opens sandboxes' terminals; only the daemon keeps a descriptor.
_PTMX = Cell("ptmx")

_keep = point("keeper.keep")(keep)
_template = point("mounts.template")(Template)


@point("namespaces.runner")
def _runner_namespaces() -> Clone:
    return Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS


@point("namespaces.keeper")
def keepers_namespaces() -> Clone:
    return Clone.NEWUSER | Clone.NEWNET | Clone.NEWNS


@point("keeper.settles-in-c")
def _settles_in_c() -> bool:
    """Whether a keeper settles in C. Not if a test has taken a lock out of what it does in Python."""
    return True


@point("runner.begins-in-c")
def _begins_in_c() -> bool:
    """Whether a runner for which a request waits begins in C. Not if a test has removed a lock from the steps in Python."""
    return True


@dataclass(frozen=True, slots=True)
class Ways:
    """All that the zygote lays out for its keepers: objects made in a keeper would cost it pages of its own."""

    settling: Template  # the steps of the keeper's own setup
    birth: Birth  # the steps of each of its runners
    again: Birth | None  # of those in namespaces that had one before
    beside: Birth | None  # the steps of an interpreter beside a runner's first process, if there are such
    kept: Kept  # the data with which C makes runners
    landlocked: bool  # whether the setup creates a Landlock ruleset for the inits
    rehearse: bool  # whether runners rehearse
    carried: porter.Carried  # what a porter needs to know about the view
    warm: bool  # whether interpreters may begin as copies of a state


def ways(plan: WorkerPlan) -> Ways:
    """Lay out all that a keeper of *plan* needs; Unsupported if the host lacks a file or folder that *plan* binds."""
    made = birth.of(plan)
    again = birth.of(plan, again=True) if plan.reuse else None
    keeping = None if again is None else Keeping(
        Way(again.table, birth.ENDS), again.once, Table(landlock.kept_steps(plan.landlock, birth.held(plan))),
        plan.view.scratch.targets)
    others = [beside.way(plan, kind) for kind in Kind if kind is not Kind.PORTER] if plan.enterable else []
    others_ways = [*(way for way, _ in others), porter.way(plan), Way(Table(landlock.domain_steps(plan.landlock)), [])]
    kept = Kept(_runner_namespaces(), filter=plan.init_seccomp, way=made.table, ends=birth.ENDS,
                beside=others_ways if plan.enterable else [], once=made.once, keeping=keeping)
    return Ways(settling(plan), made, again, others[-1][1] if others else None, kept, plan.landlock.abi > 0, plan.rehearse,
                porter.carried(plan), plan.warm)


def whole(ways: Ways) -> Settling | None:
    """What keepers settle by in C; None if a part of it is Python's."""
    template = ways.settling
    if not _settles_in_c() or template.is_late:
        return None
    return Settling(template.table, *template.aside, CHANNEL, RULESET if ways.landlocked else None, ways.kept)


def begin_early(ways: Ways) -> None:
    """Lay out what a runner needs to begin in C, if runners can. Called in the zygote, when `inside` is ready."""
    renew = inside.begin_early(Pipes, JOB, REPLY) if _begins_in_c() and not ways.warm else None
    if renew is not None:
        ways.kept.begin_early(BIRTH, ways.birth.ready, renew)


def look_ahead(ways: Ways) -> None:
    """In the zygote, when all that jobs inherit exists: let clones copy the pages that a runner begun in C writes."""
    if COPY_BY_CLONE and _begins_in_c():
        ways.kept.copy_by_clone(scout.hurried(ways.kept, JOB, REPLY))


def main(channel: int, ways: Ways) -> None:
    """Build the template, then serve until the daemon is gone."""
    if ways.kept.snapshot is not None:
        ways.kept.snapshot.look()
    settling = ways.settling
    settling.table.address(CHANNEL)[0] = channel
    try:
        settling.open()
        settling.build()
    except (LeewardError, OSError) as error:
        _tell(channel, error)
        return
    _serve(ways, lambda: _keep(channel, settling.table.value(RULESET) if ways.landlocked else -1, ways.kept))


def make_all(ways: Ways, whole: Settling, channel: int) -> None:
    """
    In the zygote: make keepers, which settle by *whole*, for the daemon at *channel*. Returns, or raises KernelRefusal if
    *channel* broke, in the zygote alone: however a keeper ends, its process exits.
    """
    zygote = os.getpid()

    def kept() -> Born | None:
        got = whole.serve(channel, keepers_namespaces())
        if not isinstance(got, KernelRefusal):
            return got
        _tell(whole.channel, got)
        return None

    try:
        _serve(ways, kept)
    except BaseException as error:
        if os.getpid() == zygote:
            raise
        end(error)
    if os.getpid() != zygote:
        os._exit(0)


def end(error: BaseException) -> NoReturn:
    """In a keeper: report an error of ours where the zygote's output goes, and exit."""
    try:
        os.write(2, f"leeward keeper: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(1)


def _tell(channel: int, error: Exception) -> None:
    with contextlib.suppress(BrokenPipeError):  # the daemon is gone
        Channel.adopt(channel).send(control.Failed(-1, "mounts", str(error)))


def _serve(ways: Ways, kept: Callable[[], Born | None]) -> None:
    """Do in each job, which returns from *kept*, what comes next; return in the keeper, when the daemon is gone."""
    try:
        born = kept()
        if born is ways.kept.begun:
            inside.serve_started(JOB, REPLY)
        elif born is ways.kept.followed:
            inside.serve_started(JOB, REPLY, os.getpid())
    except BaseException as error:  # interrupts are possible once a job has its frame
        if not ways.kept.born.begun:
            raise
        try:
            if isinstance(error, KeyboardInterrupt):
                inside.serve_interrupted(REPLY, error)
        finally:
            os._exit(1)
    if born is not None and born.beside == Kind.PORTER:
        porter.main(ways.carried, born)
    elif born is not None:
        beside = ways.beside or ways.birth
        first = ways.again if born.again and ways.again is not None else ways.birth
        runner.main(beside if born.beside else first, born, (ways.birth.ready, beside.ready),
                    rehearse=ways.rehearse and not born.hurried, warm=ways.warm)


def settling(plan: WorkerPlan) -> Template:
    """
    Lay out the steps of a keeper's setup: ids, template, loopback, privileges. A keeper takes them when the daemon has
    mapped the ids; the last step reports to the daemon. Unsupported as `ways`.
    """
    layers = template.layers(plan.view)
    outside, back = backstage.host_steps()  # the sources are the host's, as they are now
    ways_out, listeners = egress_route.steps(plan.egress) if plan.egress is not None else ([], [])
    written = tuple(map(Cell, written_by_daemon(plan.view)))  # the daemon alone keeps these descriptors
    sent = [*([_PTMX] if plan.enterable else []), *written]
    return _template(
        plan.view,
        written=written,
        layers=layers,
        first=[receive_step(CHANNEL, control.Mapped(), [source.fd for source in layers[1]]), *outside],
        before=[*back,
                returns(Call.SETRESGID, plan.gid, plan.gid, plan.gid),
                returns(Call.SETRESUID, plan.uid, plan.uid, plan.uid),
                # With an id that nobody has on the host: in root's network namespace the files would belong to root.
                *(namespaces.small_queues_steps() if plan.watched and plan.loopback else []),
                *(namespaces.low_ports_steps() if plan.low_ports else [])],
        bounds=watching.steps if plan.bounds_watches else lambda _proc: (),
        after=[*landlock.hold_steps(plan.landlock, birth.held(plan)),  # before the egress has many descriptors
               *(namespaces.loopback_steps() if plan.loopback else []),
               *ways_out,  # before any job, and never closed here: no job gets one of their ports
               *(privileges.no_huge_pages_steps() if plan.watched else []),
               Step(Call.UMASK, (0o022,), gives=Gives.SOMETHING),
               *(terminals.devpts_steps(_PTMX) if plan.enterable else []),
               *privileges.keeper_steps(),
               *landlock.deny_all_steps(RULESET, plan.landlock.abi),
               *_ready_steps(sent, listeners)])


def _ready_steps(fds: Sequence[Cell], kept: Sequence[Cell]) -> list[Step]:
    """Tell the daemon that the keeper is ready, with *fds*, which only the daemon keeps, and *kept*, sent last."""
    if fds or kept:
        return [send_step(CHANNEL, control.Ready({}), [*fds, *kept]), *(returns(Call.CLOSE, fd) for fd in fds)]
    ready = control.encode(control.Ready({}))
    return [returns(Call.WRITE, CHANNEL, Block(ready), len(ready), value=len(ready))]

"""
How a daemon divides the descriptors that it may have (RLIMIT_NOFILE).

Workers come first, because a job without a free descriptor fails; then the daemon itself; then results that wait for
clients and request arenas. Connections have the rest, so no number of idle clients takes what a job needs.
"""

from __future__ import annotations

import resource
from functools import partial
from typing import TypeAlias

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.pool.begin import NO_BOUNDS, NOT_BEYOND, SURPLUS, Beyond, SeatBounds
from leeward.errors import Unsupported
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.spec.machine import SIZED

#: The daemon's own descriptors: standard streams, socket and its folder, groups, signals, loop, supervisor, zygote, log
#: and service manager (20 at most); those that are kept for ends (4, isolation/cgroup/reserve.py); and some that the
#: program which started it may have left open.
OWN = 28
#: Descriptors that are used for a moment: the start of a zygote (10), making a cgroup (4), reading /proc (2), accepted
#: clients that are refused (4).
PASSING = 20
#: The metrics' socket, its folder, and its clients.
METRICS = 2 + 16
#: A worker's channel, its keeper's pidfd, /proc/net/sockstat, the far end of a channel that is on its way, and the
#: files that tell jobs their size.
WORKER = 3 + 1 + len(SIZED)
#: The files of certificates, where a worker has listeners for egress.
CERTIFICATES = 2
#: Runners, and their groups, of a worker without spares: one that ends, and one that is armed meanwhile.
LEAN = 2
#: A runner's pidfd, four pipes, and its listener; and the job's file system where that is watched.
RUNNER = 6
#: Needed to keep a runner open as a sandbox: four namespaces and its ruleset. If fewer connections than that would be
#: left, there are no sandboxes.
ENTRANCES, ROOMY = 5, 64
#: What an idle live sandbox holds (run/live_runner.py): the channel, two pidfds and the listener; and its tmpfs and sockstat
#: where no controller counts. And what its processes need while they run: a pidfd, pipes and a group each.
RESTING, PROCESSES = 4, 4
#: Sandboxes that may have all their descriptors at once, if there isn't room for all.
LEAST_AWAKE, MOST_AWAKE = 4, 16
#: The ptmx of a worker's devpts, where there are sandboxes.
PTMX = 1
#: Memory files that wait for clients to read, at most; and request arenas.
RESULTS, ARENAS = 128, 32
#: Connections that are reserved for the owner and root, so that they can always send requests and stop the daemon: this
#: number, or a quarter.
OWNERS = 8
#: The most descriptors that a daemon uses, however high the hard limit is: as many as systemd gives a service.
MOST = 524288
#: Descriptors that stay free beside all shares.
_KEPT = 1024
#: Connections, at least: a daemon with descriptors for fewer doesn't start.
LEAST = 4


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares into which a daemon's *limit* descriptors are divided, those of *pool* workers first."""

    limit: int
    pool: int
    connections: int
    results: int = RESULTS
    arenas: int = ARENAS
    leaves: int = 0
    surplus: int = SURPLUS
    room: int = 0
    sandboxes: bool = True
    further: int = 0
    bounds: SeatBounds = NO_BOUNDS
    beyond: Beyond = NOT_BEYOND


#: A driver of control groups, or its class: what descriptors it needs. The one for version 1 needs the most.
Costs: TypeAlias = Driver | type[Driver]


def shares(limit: int, driver: Costs, *, workers: int, spares: int, asked: int, metrics: bool,
           room: int = 0, further: int = 0, listeners: int = 0, jobs: int = 0) -> Shares:
    """
    Divide *limit* descriptors; Unsupported if it is too low for *workers*. *asked* are the configuration's connections.
    *room* workers for sessions, and after them *further* ones of other pools, each with *listeners* for egress, have
    what is left. The workers for *jobs* have those for sessions while there are none, and half of what nothing else
    may need.
    """
    divide = partial(_shares, limit, driver, workers, spares, asked, metrics, room, further, listeners, jobs)
    try:
        roomy = divide(sandboxes=True)
        if roomy.connections >= min(asked, ROOMY):
            return roomy
    except Unsupported:
        pass
    return divide(sandboxes=False)


def _shares(limit: int, driver: Costs, workers: int, spares: int, asked: int, metrics: bool, room: int, further: int,
            listeners: int, jobs: int, *, sandboxes: bool) -> Shares:
    runners = spares + 2  # one has a job or is ending, one is for the next job
    most = runners + driver.kept_leaves
    runner = RUNNER + (ENTRANCES if sandboxes else 0) + (not driver.memory_counted)
    worker = WORKER + (PTMX if sandboxes else 0) + driver.worker_descriptors + runners * runner
    ours = OWN + PASSING + (METRICS if metrics else 0) + workers  # a job may end when no more results may wait

    # If descriptors are short, those that only save time go first: kept groups, then workers made in advance.
    for leaves, surplus in ((most, SURPLUS), (runners, SURPLUS), (runners, 0)):
        each = worker + leaves * driver.leaf_descriptors
        pool = (workers + surplus) * each
        left = limit - pool - ours
        results, arenas = min(RESULTS, max(1, left // 4)), min(ARENAS, max(1, left // 16))
        connections = left - results - arenas
        if connections >= asked:
            break
    if connections < min(LEAST, asked):
        least = pool + ours + min(LEAST, asked) + 2
        raise Unsupported(
            "descriptors", have=f"a hard limit of {limit} (RLIMIT_NOFILE)",
            need=f"about {least + least // 8}, of which {workers} workers with {spares} spares take {pool}",
            cure="raise it (ulimit -Hn, LimitNOFILE= of a service), or lower pool_size or spares")
    left = max(0, connections - asked)
    resting = RESTING + ENTRANCES + PTMX + PROCESSES + driver.resting_descriptors + 2 * (not driver.memory_counted)
    room, bounds, theirs = _roomy(left, room, each + 1, resting if sandboxes else each + 1)
    other = each + 1 + (listeners + CERTIFICATES if listeners else 0)
    further = max(0, min(further, (left - theirs) // other))
    free = max(0, left - theirs - further * other - _KEPT) // 2
    lean = worker - (runners - LEAN) * runner + LEAN * driver.leaf_descriptors + 1
    beyond = Beyond(jobs, free + (room * (each + 1) if bounds == NO_BOUNDS else 0), each + 1, lean)
    beyond = replace(beyond, jobs=beyond.left(0))
    return Shares(limit, pool + theirs + further * other + (free if jobs else 0), min(asked, connections), results,
                  arenas, 0 if leaves == most and connections >= asked else runners, surplus, room, sandboxes, further,
                  bounds, beyond)


def _roomy(left: int, room: int, each: int, resting: int) -> tuple[int, SeatBounds, int]:
    """
    Return how many workers for sessions, at most *room*, *left* descriptors suffice for, their bounds, and what they
    take. With *each* descriptors for every worker no other bound holds. If not, most sandboxes have to rest, with
    *resting* descriptors, a session takes the room of several, and as many workers of ended sandboxes may be left as
    are awake.
    """
    whole = left // each
    seats = (left - 2 * LEAST_AWAKE * each) // resting
    if room <= whole or seats <= whole:
        room = min(room, whole)
        return room, NO_BOUNDS, room * each
    room = min(room, seats)
    awake = min(MOST_AWAKE, (left - room * resting) // (2 * each))
    seats = (left - 2 * awake * each) // resting
    return room, SeatBounds(awake, seats, -(-each // resting)), room * resting + 2 * awake * each


def owners(connections: int) -> int:
    """Return how many of *connections* are reserved for the owner and root."""
    return min(OWNERS, connections // 4)


def limit() -> int:
    """Return the number of descriptors that this daemon may have: its hard limit, but no more than MOST."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)


def raise_limit() -> bool:
    """Raise the limits to MOST (CAP_SYS_RESOURCE). Returns whether they were lower, and that was possible."""
    if limit() == MOST:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
    except (OSError, ValueError):  # Python raises ValueError for EPERM
        return False
    return True


def in_force(most: int, *, workers: int, spares: int, asked: int, metrics: bool) -> str:
    """Return a text about the number of connections that a limit of *most* descriptors allows with either cgroup driver."""
    try:
        got = shares(most, V1Driver, workers=workers, spares=spares, asked=asked, metrics=metrics)
    except Unsupported as error:
        return f"none may be left on this host: {error}"
    if got.connections == asked:
        return f"{asked} on this host, as asked for"
    return (f"{got.connections} or more on this host: a limit of {most} descriptors (RLIMIT_NOFILE), of which {workers}"
            f" workers may need {got.pool}, leaves no room for {asked}")

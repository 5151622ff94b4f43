"""
What must hold of a world: at all times, when all clients have gone, and when the daemon has ended.

The checks look at the daemon's own books, private ones among them, and at the host's descriptors and processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.daemon.pool.begin import SURPLUS
from leeward.daemon.pool.sessions import SessionState
from leeward.daemon.sandboxes.registry import State
from leeward.daemon.serving import connection

from .install import FRAME_S, UNREAD_S
from .loop import ShimReactor

if TYPE_CHECKING:
    from .world import World

#: Seconds: the grain of a connection's deadlines, and of `at_all_times`.
_SWEEP_S = 1.1


class Wrong(AssertionError):
    """Something that must hold didn't."""


def at_all_times(world: World) -> None:
    """
    No bound is passed, and the books agree with each other.

    Raises:
        Wrong: as of the two checks below.
    """
    late = [line for one in world.connections for line in one.late()]
    if late:
        raise Wrong(f"{late[0]} within its bound of {world.bound:.1f} s")
    pool, homes = world.pool, world.server
    jobs = sum(account.jobs for account in pool.ledger._accounts.values())
    _same("no account is below nothing", True, all(
        account.jobs >= 0 and account.memory >= 0 for account in pool.ledger._accounts.values()))
    workers = len(pool.workforce.workers)
    most = world.setting.workers + world.setting.room + world.setting.jobs + SURPLUS
    if jobs > workers or workers > most:
        raise Wrong(f"{jobs} jobs run on {workers} workers, of {most} at most, by the books")
    if min(homes.held, homes.arenas, homes.requests) < 0:
        raise Wrong("less than nothing is held")
    _same("connections and shares", len(homes.connections),
          sum(share.connections for share in homes.shares.values()))
    _same("sessions and their connections", pool.sessions,
         sum(len(one._flight.sessions._held) for one in homes.connections.values()))
    _same("sessions and their users' shares", pool.sessions,
          sum(share.sessions for share in homes.shares.values()))
    _check_sandboxes(world)
    if pool.capacity.jobs != sum(ticket.session is None for ticket in pool._running):
        raise Wrong("a job isn't counted, or has ended and is")
    if not all(ticket.deadline.is_set for ticket in pool.queue):
        raise Wrong("somebody waits for a worker without end")
    for one in homes.connections.values():
        _check_sessions(world, one)
        _check_deadlines(world, one)


def _check_sandboxes(world: World) -> None:
    now, desk = world.kernel.time, world.server.desk
    _same("seats and sandboxes", len(world.pool._seats), len(desk))
    calls = 0
    for entry in desk._registry.all():
        calls += entry.calls
        sandbox = entry.sandbox.sandbox
        if State.OPEN is sandbox.state and entry.due(now - _SWEEP_S) is not None:
            raise Wrong(f"sandbox {entry.name} outlives its time: {entry.due(now)}")
        if sandbox.running > sandbox.facts.limits.processes:
            raise Wrong(f"sandbox {entry.name} has {sandbox.running} processes")
    if calls > sum(len(one._flight.tickets) for one in world.server.connections.values()):
        raise Wrong(f"{calls} calls wait for sandboxes, and fewer requests are in flight")


def _check_deadlines(world: World, one: connection.Connection) -> None:
    now = world.kernel.time
    if one._output.unread_since is not None and now - one._output.unread_since > UNREAD_S + 2 * _SWEEP_S:
        raise Wrong("an answer waits for its client without end")
    if one._inbox.since is not None and one._reading and now - one._inbox.since > FRAME_S + 2 * _SWEEP_S:
        raise Wrong("half a frame waits for the other half without end")


def _check_sessions(world: World, one: connection.Connection) -> None:
    now = world.kernel.time
    for number, held in one._flight.sessions._held.items():
        session = held.session
        if SessionState.RUNNING is session.state and (session._lease is None or session._lease.turn is None):
            raise Wrong(f"session {number} runs, and has no job")
        if SessionState.IDLE is session.state and now - session.since > held.idle + _SWEEP_S:
            raise Wrong(f"session {number} had no job for {now - session.since:.1f} s, of {held.idle:g}")
        if session.state in (SessionState.IDLE, SessionState.LOST) and \
                now - max(session.opened + world.setting.session_lifetime, session.since) > _SWEEP_S:
            raise Wrong(f"session {number} outlives its time")


def _check_books(world: World) -> None:
    """No client is connected and no job runs, so every book is empty."""
    pool, home = world.pool, world.server
    _same("queue", 0, len(pool.queue))
    _same("running", 0, len(pool._running))
    capacity = pool.capacity
    _same("jobs by the capacity's books", (0, 0, 0, 0),
          (capacity.jobs, len(capacity._samples), len(capacity._waiting), len(capacity._connections)))
    _same("sessions", 0, pool.sessions)
    _same("jobs by the ledger", 0, sum(account.jobs for account in pool.ledger._accounts.values()))
    _same("memory by the ledger", 0, sum(account.memory for account in pool.ledger._accounts.values()))
    _same("sandboxes and seats", (0, 0), (len(home.desk), len(pool._seats)))
    _same("connections", 0, len(home.connections))
    _same("shares", 0, len(home.shares))
    _same("held, arenas, requests", (0, 0, 0), (home.held, home.arenas, home.requests))
    if world.reactor.fast_path is not None:
        _same("jobs of the fast path", (0, 0), (len(world.reactor.fast_path._jobs), len(world.reactor.fast_path.held)))
    if isinstance(world.reactor, ShimReactor):
        _same("sends that fly", 0, len(world.reactor._flying))
        _same("streams", 0, len(world.reactor._streams))
    _same("arming", (0, 0), (len(pool.workforce.refill._waiting), len(pool.workforce.refill._arming)))
    _same("timers", [], [entry for entry in world.reactor._timers if entry[2].call is not None])
    _same("soon", 0, len(world.reactor._soon))


def at_the_start(world: World) -> None:
    """Once all clients have gone, the world is as it was before they came."""
    _check_books(world)
    pool = world.pool
    _same("outdated workers", 0, sum(worker.outdated for worker in pool.workforce.workers))
    _same("workers that sessions hold", (0, world.setting.workers), (pool.workforce.held, pool._backlog.workers))
    _same("workers that are ready", world.setting.workers, sum(worker.free for worker in pool.workforce.workers))
    armed = sum(worker.armed for worker in pool.workforce.workers)
    _same("descriptors", world.base + 3 * world.setting.workers + 6 * armed, len(world.kernel.files))
    _same("processes", world.setting.workers + 2 * armed, world.alive())
    short = world.pool.workforce.fast_path is not None and not world.setting.needs_ticks
    _same("offers", world.setting.workers if short else 0, len(pool.workforce.offers))
    if isinstance(world.reactor, ShimReactor):
        _same("entries of the fast path", len(pool.workforce.offers), len(world.reactor.loop.fast.entries))


def at_the_end(world: World) -> None:
    """Once the daemon has ended, it has left no descriptor and no process."""
    _check_books(world)
    _same("descriptors", world.base, len(world.kernel.files))
    _same("processes", 0, world.alive())


def _same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise Wrong(f"{what}: {found!r}, not {expected!r}")

"""
The nodes of a cluster of Ray's: one actor on each, which speaks to the daemon of its node.

Runs in:   a client's process that is connected to Ray; `_Actor` on each node.
Trust:     Ray's ports have no authentication: whoever reaches them runs code on every node. docs/fleet.md says so first.

An actor is bound to its node and isn't restarted elsewhere: its sandboxes would be missing there. It is named, and
detached: all programs of the cluster share it, and it stays when they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from leeward import __version__
from leeward.apps.fleet.aio_fleet import PROBE_S, AsyncFleet, Member
from leeward.apps.fleet.carrier import Answered, Call, Carrier
from leeward.apps.fleet.far_client import FarClient
from leeward.apps.fleet.placement import Node
from leeward.errors import DaemonAway, quoted, told

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Where the actors have their names, and the resource of Ray's that says which nodes have one, where any node has it.
NAMESPACE, RESOURCE = "leeward", "leeward"
#: Calls of one actor at once. Each of a batch's calls is a task of the actor's own, so these are messages.
_MESSAGES = 1000
#: Seconds that an actor may take to start: Ray starts a process, which imports leeward.
_START_S = 60.0
#: Resources of Ray's that aren't requests' to ask for.
_RAYS = ("CPU", "memory", "object_store_memory", "node:", RESOURCE)


class _Actor:
    """A Carrier in an actor."""

    def __init__(self) -> None:
        self._carrier = Carrier()

    async def submit(self, caller: str, calls: list[Call]) -> None:
        self._carrier.submit(caller, calls)

    async def fetch(self, caller: str) -> list[Answered]:
        return await self._carrier.fetch(caller)

    async def close(self, caller: str) -> None:
        await self._carrier.close(caller)


class ReachedCarrier:
    """One client's way to a Carrier in an actor. A call that raises anything has lost the node."""

    def __init__(self, actor: ActorHandle) -> None:
        self._actor, self._caller = actor, os.urandom(8).hex()

    async def submit(self, calls: list[Call]) -> None:
        await self._actor.submit.remote(self._caller, calls)

    async def fetch(self) -> list[Answered]:
        answers: list[Answered] = await self._actor.fetch.remote(self._caller)
        return answers

    async def close(self) -> None:
        await self._actor.close.remote(self._caller)


async def follow(where: str, fleet: AsyncFleet) -> None:
    """Connect to the cluster, have *fleet* take in its nodes, and go on with those that come and go."""
    await asyncio.to_thread(_connect, where)
    await _look(fleet)
    fleet.follow(_looking(fleet))


def _connect(where: str) -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(where, namespace=NAMESPACE, log_to_driver=False)
    except ConnectionError as error:
        away = DaemonAway(f"no cluster of Ray's answers at {quoted(where)}: {told(error)}")
        away.may_have_run = False
        raise away from None


async def _looking(fleet: AsyncFleet) -> None:
    while True:
        await asyncio.sleep(PROBE_S)
        with contextlib.suppress(Exception):  # whatever Ray raises while its head is away: it is asked again
            await _look(fleet)


async def _look(fleet: AsyncFleet) -> None:
    rows = [row for row in await asyncio.to_thread(ray.nodes) if row["Alive"]]
    marked = [row for row in rows if RESOURCE in row["Resources"]]
    there = {name_of(row): row for row in marked or rows}
    for name in fleet.names - set(there):
        fleet.leave(name)
    await asyncio.gather(*(_join(fleet, name, there[name]) for name in set(there) - fleet.names))


async def _join(fleet: AsyncFleet, name: str, row: dict[str, Any]) -> None:
    """Have *fleet* take in a node, when its actor has started."""
    with contextlib.suppress(RayError):  # the fleet finds that it doesn't answer
        await asyncio.to_thread(lambda: ray.get(_actor(row).__ray_ready__.remote(), timeout=_START_S))
    await fleet.join(_member(name, row))


def name_of(row: dict[str, Any]) -> str:
    """A node's name in the fleet: its host's, and the beginning of Ray's id."""
    return f"{row['NodeManagerHostname']}-{row['NodeID'][:8]}"


def _member(name: str, row: dict[str, Any]) -> Member:
    resources = {key.lower(): amount for key, amount in row["Resources"].items() if not key.startswith(_RAYS)}
    tags = frozenset(f"{key}:{value}" for key, value in row.get("Labels", {}).items() if not key.startswith("ray.io/"))

    async def connect() -> ReachedCarrier:
        return ReachedCarrier(await asyncio.to_thread(_actor, row))

    return Member(Node(name, tags=tags, resources=resources), FarClient(name, connect))


def _actor(row: dict[str, Any]) -> ActorHandle:
    """The actor of a node, which is made if there is none."""
    node = row["NodeID"]
    made = ray.remote(_Actor).options(
        name=f"leeward-{__version__}-{node}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
        num_cpus=0, resources={RESOURCE: 1} if RESOURCE in row["Resources"] else None, max_restarts=0,
        max_concurrency=_MESSAGES, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    return made.remote()

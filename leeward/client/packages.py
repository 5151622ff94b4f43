"""
`packages=[...]` of a sandbox, a job or a session: finds the environment of these packages, whose name is derived from
the requirements, or makes it, for the daemon's own user alone; other users can use environments that exist.

Trust:     the folder and the interpreter that the daemon reports are used only if the daemon is this user's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from os import geteuid
from typing import Any, TypeVar

from leeward.client.connecting import connect, peer, started
from leeward.client.environments import Environments, PackageSource
from leeward.errors import BadReply, DaemonAway, Forbidden, RequestRejected
from leeward.spec.paths import RemoteHost
from leeward.spec.stored import Named, Recipe, packages_name, unencrypted_host

T = TypeVar("T")

#: Attempts to make an environment: `prune` in another program may remove it before it is used.
TRIES = 3


@dataclass(frozen=True, slots=True)
class WantedPackages:
    """The packages of a sandbox, job or session: the recipe of their environment, the daemon's folder, and their source."""

    recipe: Recipe
    folder: str
    source: PackageSource

    @property
    def name(self) -> str:
        """The environment's name, the same for all requests with the same recipe."""
        return packages_name(self.recipe.hash)

    def lacks(self, error: RequestRejected) -> bool:
        """Whether *error* is the daemon's refusal of an unknown environment."""
        return f"environment {self.name!r} is unknown" in str(error)

    def make(self, grew: Callable[[int], object] = int) -> None:
        """
        Install the packages, or wait until another process has done so. *grew* and errors are those of
        `Environments.create`; Forbidden if the daemon belongs to another user, or its operator has configured no index.
        """
        owner = _owner(str(self.source.socket))
        if owner != geteuid():
            raise Forbidden(f"this daemon has no environment of these packages, and user {owner} alone can make it:"
                            f" leeward env create NAME {' '.join(map(repr, self.recipe.requirements))}")
        if not self.source.egress:
            raise Forbidden("pip reaches no index: `leeward env setup` allows the one that pip has here, or set"
                            " environments_egress in the daemon's configuration to a policy (docs/environments.md)")
        Environments(self.folder).create(self.name, self.recipe, self.source, Named, lambda _: None, grew)


def ready(path: str) -> None:
    """Have a daemon answer on *path*: one is started where a job would start one, though it is asked for its status first."""
    elsewhere(path)
    try:
        sock = connect(path)
    except DaemonAway:
        if not started(path, "execute"):
            raise
    else:
        assert sock is not None
        sock.close()


def elsewhere(path: str) -> None:
    """Forbidden if the daemon is on another machine."""
    if isinstance(path, RemoteHost):
        raise Forbidden("packages are installed on the daemon's machine: `leeward env create` there, and environment= here")


def wanted_packages(packages: tuple[str, ...], socket: str, status: Mapping[str, Any]) -> WantedPackages:
    """The environment for *packages*, by the daemon's *status*; BadReply if that lacks what it takes."""
    try:
        about = status["environments"]
        major, minor = map(int, about["version"])
        index, egress, folder, python = (about[name] for name in ("index", "egress", "folder", "python"))
        if not all(isinstance(each, str) for each in (index, egress, folder, python)) or not folder.startswith("/"):
            raise ValueError("no text")
        source = PackageSource(socket, egress, index, unencrypted_host(index), size=int(about["size"]))
        return WantedPackages(Recipe(packages, python, (major, minor), False, (index,)), folder, source)
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"the daemon's status lacks its environments: {error!r}") from None


def with_environment(fields: Mapping[str, Any], wanted: WantedPackages, attempt: Callable[[Mapping[str, Any]], T],
                     make: Callable[[], None] | None = None) -> T:
    """
    The result of *attempt* with *fields* and the environment of *wanted*, which is made if the daemon hasn't it, by *make*
    in place of `wanted.make`.
    """
    fields = {**fields, "environment": wanted.name}
    for _ in range(TRIES):
        try:
            return attempt(fields)
        except RequestRejected as error:
            if not wanted.lacks(error):
                raise
        (make or wanted.make)()
    return attempt(fields)


async def with_environment_async(fields: Mapping[str, Any], wanted: WantedPackages,
                                 attempt: Callable[[Mapping[str, Any]], Awaitable[T]]) -> T:
    """As `with_environment`. A thread installs the packages, and goes on if the task is cancelled."""
    fields = {**fields, "environment": wanted.name}
    for _ in range(TRIES):
        try:
            return await attempt(fields)
        except RequestRejected as error:
            if not wanted.lacks(error):
                raise
        await asyncio.to_thread(wanted.make)
    return await attempt(fields)


def _owner(path: str) -> int:
    sock = connect(path)
    assert sock is not None
    try:
        return peer(sock)
    finally:
        sock.close()

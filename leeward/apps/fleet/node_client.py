"""
The client of one node of a fleet.

Runs in:   a client's process, and in the actor that Ray has on a node.

It makes each call once: which call is made again, and where, is decided for all nodes together (failure.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.whole_files import read_whole, write_whole
from leeward.client.aio import AsyncClient
from leeward.client.conversation import checked
from leeward.errors import BadReply, RequestRejected, quoted, told
from leeward.spec.paths import RemoteHost
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH
from leeward.wire.sandbox_replies import page

if TYPE_CHECKING:
    from leeward.client.aio_connection import AsyncConnection
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer

#: What the status has besides, as whole numbers.
_COUNTS = ("queued", "sandboxes", "sessions", "max_sessions")
#: Rows of a node's sandboxes, and each of its counts, at most: by its workers a fleet says how many jobs it has under way.
_MOST = 1 << 16
#: What the file's name has after the socket's.
DRAIN = ".drain"


class NodeClient(AsyncClient):
    """
    The client of a daemon on this host, or behind another's `leeward serve leeward`. `close` fails the calls that wait; a
    later call connects again.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        super().__init__(socket, retry=False)

    @property
    def where(self) -> str:
        """The socket that other clients may use as well."""
        return self.socket

    async def ask(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                  functions: AwaitedBesideJob | None = None, packages: Sequence[str] = ()) -> Answer:
        """
        The answer to one request of the wire, whose descriptors the caller owns; a refusal is raised. It may take
        *seconds* in all. The environment of *packages*, which is made if it is missing, is added to the fields.
        """
        until = None if seconds is None else time.monotonic() + seconds
        attempt = partial(self._asked, op, until, functions)
        return await self._with_packages({"packages": packages}, fields, attempt) if packages else await attempt(fields)

    async def ask_within(self, op: str, fields: Mapping[str, Any], until: float | None,
                         packages: Sequence[str]) -> tuple[Answer, AsyncConnection]:
        """As `ask`, before *until*, a time.monotonic() value: the answer, and the connection on which it has its place."""
        attempt = partial(self._asked_within, op, until)
        return await self._with_packages({"packages": packages}, fields, attempt) if packages else await attempt(fields)

    async def _asked_within(self, op: str, until: float | None,
                            fields: Mapping[str, Any]) -> tuple[Answer, AsyncConnection]:
        return await self._within(op, fields, until)

    async def _asked(self, op: str, until: float | None, functions: AwaitedBesideJob | None,
                     fields: Mapping[str, Any]) -> Answer:
        return await self._call(op, fields, until, functions=functions)

    async def sandboxes(self, timeout: float) -> list[dict[str, Any]]:
        """The `info` of each sandbox of this user, as AsyncSandbox.list gives it; each page may take *timeout* seconds."""
        found, last = list[dict[str, Any]](), 0
        while True:
            reply, _ = await self.ask("sandbox_list", {"after": last} if last else {}, timeout)
            more, last = checked(page, reply, last)
            found += more
            if len(found) > _MOST or not all(map(_is_row, more)):
                raise BadReply("the node's sandboxes aren't told as a daemon tells them")
            if not last:
                return found

    async def state(self, timeout: float) -> dict[str, Any]:
        """
        The daemon's status, with `version`; `capacity`: how many jobs it runs at once, whatever sandboxes are open; and
        `drains`, the seconds until what is open ends, if the node is to take no new work.
        """
        about, status = await self._simple("ping", {}, timeout), await self.status(timeout)
        caps, workers = about.get("caps"), status.get("workers")
        capacity = caps.get("workers") if isinstance(caps, dict) else None
        busy = workers.get("busy") if isinstance(workers, dict) else None
        if not all(type(count) is int and 0 <= count <= _MOST
                   for count in (capacity, busy, *(status.get(name) for name in _COUNTS))):
            raise BadReply("the daemon's status lacks what a fleet counts by, or is of another version")
        state = {**status, "version": str(about.get("version", "")), "capacity": capacity, **self._drains()}
        drains = state.get("drains", 0.0)
        if type(drains) not in (int, float) or not 0 <= drains < float("inf"):
            raise BadReply("the node says no seconds in which it drains")
        return state

    def _drains(self) -> dict[str, float]:
        if isinstance(self.socket, RemoteHost):
            return {}  # its server has put it into the status
        try:
            return {"drains": max(0.0, float(read_whole(self.socket + DRAIN, 64) or b"") - time.time())}
        except (OSError, ValueError):
            return {}

    async def drain(self, seconds: float) -> None:
        """
        Tell all who use the node that it takes no new work, and that what is open ends after *seconds*; 0 takes that
        back. It is in a file beside the socket, since the daemon takes no part in it.
        """
        if isinstance(self.socket, RemoteHost):
            raise RequestRejected(f"{self.socket} is drained on its own machine, by `leeward fleet drain` there")
        path = self.socket + DRAIN
        try:
            if seconds:
                write_whole(path, b"%.3f" % (time.time() + seconds), 0o644)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RequestRejected(f"{quoted(path)}: {told(error)}") from None


def _is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row of a list has what is counted and shown by, which may be another machine's word."""
    name, metadata, seconds = row.get("sandbox"), row.get("metadata"), [row.get("age"), row.get("left")]
    return (type(name) is str and len(name) == ID_LENGTH and not name.strip(ID_ALPHABET) and type(metadata) is dict
            and all(type(each) is str for each in (*metadata, *metadata.values())) and type(row.get("memory_limit")) is int
            and all(isinstance(each, int | float) and abs(each) < 1e9 for each in seconds))

"""
Fetches that the broker does for a connection, by the policy of a sandbox.

Runs in:   the daemon, on the reactor's one thread. The broker fetches; the daemon sends nothing and resolves nothing.
Trust:     none in the client, nor in the broker's fields and body of a response: both go to the client, the fields
           checked, the body unchanged.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward._native.memfd import memory_file
from leeward.daemon.serving.parcel import SEALS, Parcel, seal
from leeward.daemon.serving.sandbox_calls import FileTicket
from leeward.errors import Busy, LeewardError
from leeward.pool.fetches import failed
from leeward.run.placement import INLINE
from leeward.run.report import Arena
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry
from leeward.spec.stand_ins import DISABLED
from leeward.wire.answers import encode_ok
from leeward.wire.sandbox_requests import SandboxFetch

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight


class FetchCall(FileTicket):
    """
    A fetch, as a ticket; while it runs the sandbox isn't idle.

    Raises:
        Busy: the user has as many fetches as are allowed, or there is no broker or no memory.
        Refused: the sandbox is over.
    """

    def __init__(self, desk: Desk, owner: Flight, request: SandboxFetch, entry: RegistryEntry[Held]) -> None:
        super().__init__(desk, entry)
        self._owner, self._request = owner, request
        self._begin()
        desk.busy(entry)
        owner.wait(request.id, self)

    def _begin(self) -> None:
        request, sandbox = self._request, self._entry.sandbox.sandbox
        lease = sandbox.lease
        if not sandbox.facts.key.egress:
            self._desk.reactor.soon(self._disabled)
            self._take_back = _nothing
            return
        about: dict[str, object] = {"url": request.url, "method": request.method,
                                    "headers": [list(each) for each in request.headers]}
        body: Arena | None = None
        try:
            self._fd = memory_file("leeward_results")
            body = seal([request.body]) if request.body else None
            fds = [self._fd, *([body.fd] if body is not None else [])]
            self._take_back = self._owner.server.fetch(lease, about, fds, self._owner.user, self._answered)
        except OSError as error:
            self._drop()
            raise Busy(f"no memory file can be made: {error.strerror}") from None
        except LeewardError:
            self._drop()
            raise
        finally:
            if body is not None:
                body.close()

    def _disabled(self) -> None:
        self._answered(failed(DISABLED, "disabled", sent=False))

    def _answered(self, answer: Mapping[str, Any]) -> None:
        if not self._end():
            self._drop()
            return
        self._owner.deliver(self._request.id, self._parcel(answer))

    def _parcel(self, answer: Mapping[str, Any]) -> Parcel:
        """Return the answer. A large body is sent beside it in a memory file, which is sealed against changes."""
        fd = self._take_file()
        if fd < 0:
            return Parcel(memoryview(encode_ok(self._request.id, answer)))
        arena = Arena(fd, 0)
        try:
            if "failed" not in answer:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
                arena.size = os.fstat(fd).st_size
            if arena.size > INLINE:
                answer = {**answer, "body": [0, 0, arena.size], "arenas": [arena.size]}
                return Parcel(memoryview(encode_ok(self._request.id, answer)), [arena], weight=1)
            if "failed" not in answer:
                answer = {**answer, "body": os.pread(fd, arena.size, 0)}
        except OSError as error:
            answer = failed(f"HTTP error: the response can't be handed on: {error.strerror}")
        arena.close()
        return Parcel(memoryview(encode_ok(self._request.id, answer)))


def _nothing() -> None:
    return

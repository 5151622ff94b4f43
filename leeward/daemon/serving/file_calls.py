"""
The file calls of one connection, to files in a live sandbox.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client, none in the answers of the process inside; no path is opened here. A call that waits counts
           as use of its sandbox. It goes on when its connection ends, and its answer is then dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leeward.pool.sessions import Cancellable
from leeward.sandboxes.sandbox import LiveSandbox
from leeward.wire.file_requests import FileRequest, call_of, weight

#: Makes a ticket of a waiting request. Takes the function that cancels it; returns a function that marks it as
#: answered, and says whether it wasn't yet.
Waits = Callable[[Callable[[], object]], Callable[[], bool]]


class CallTicket:
    """The ticket of a request whose call doesn't exist yet."""

    def __init__(self) -> None:
        self.call: Cancellable | None = None

    def take_back(self) -> None:
        if self.call is not None:
            self.call.cancel()


def serve_file_call(request: FileRequest, sandbox: LiveSandbox, waits: Waits,
                    answer: Callable[[Mapping[str, Any]], None],
                    over: Callable[[], None]) -> Mapping[str, Any] | None:
    """
    Return the answer to *request*, or None if it comes later.

    Args:
        answer: called with the answer that comes later; or
        over: called instead if the sandbox has ended.

    Raises:
        Busy: too many calls wait already, or no process can be started for the call.
    """
    ticket = CallTicket()
    at_once: list[Mapping[str, Any] | None] = []
    ended: Callable[[], bool] | None = None

    def answered(found: Mapping[str, Any] | None) -> None:
        if ended is None:
            at_once.append(found)
        elif ended():
            if found is None:
                over()
            else:
                answer(found)

    call = call_of(request)
    ticket.call = sandbox.files.ask(call, weight(call), answered)
    if at_once and at_once[0] is not None:
        return at_once[0]
    ended = waits(ticket.take_back)
    if at_once:
        answered(None)
    return None

"""
Asks of a policy of egress: each ask is a request of the queue, and the decision about it is the answer.

Runs in:   the operator's program that decides; a client of the daemon.
Trust:     none in names and paths, which a sandbox chooses.
Threads:   one listens. Another one sends the answers, over a connection of its own, so that no decision waits for the
           daemon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest, NewRequest
from leeward.approvals.subjects import endpoint
from leeward.client.blocking import Client
from leeward.client.egress_asks import EgressAsk
from leeward.errors import BadRequest, Busy, LeewardError, ShuttingDown

#: Seconds that one request for asks waits, and after which it is tried again where the daemon is away.
_WAIT_S, _AGAIN_S = 2.0, 2.0

#: Characters of a path that a description has.
_MOST_PATH = 2000


def ask_request(ask: EgressAsk, project: str = "") -> NewRequest:
    """
    The request for *ask*.

    Args:
        ask: of the daemon.
        project: that its sandbox works on; "" for none.

    Raises:
        BadRequest: its host is none.
    """
    host = ask.name or ask.address
    where = f"[{host}]" if ":" in host else host
    shown = f"{ask.method} {ask.protocol}://{where}:{ask.port}{ask.path}" if ask.method else \
        f"{ask.protocol} to {where}:{ask.port}"
    metadata = {"policy": ask.policy, "rule": ask.rule, "protocol": ask.protocol, "method": ask.method}
    return NewRequest(endpoint(host, ask.port), "connect", shown[:_MOST_PATH], metadata=metadata,
                      sandbox=ask.sandbox or f"{ask.kind} {ask.job}", project=project)


def refusal_text(request: ApprovalRequest) -> str:
    """
    What a request that was denied is answered with, by 403.
    """
    if "rule" == request.decided_by and request.rule:
        return "Blocked by rule"
    if "mode" == request.decided_by:
        return "Blocked by policy"
    return f"Denied by leeward (request {request.id})"


class EgressDesk:
    """
    Args:
        approvals: takes requests in.
        socket: of the daemon; None for the default.
        project_of: the path of the project that a sandbox works on; "" for none.

    Attributes:
        trouble: why nothing is heard of asks; "" where it is.
    """

    def __init__(self, approvals: ApprovalQueue, socket: str | None, project_of: Callable[[str], str]) -> None:
        self._approvals, self._socket, self._project_of, self.trouble = approvals, socket, project_of, ""
        self._lock, self._over = threading.Lock(), threading.Event()
        self._waiting = dict[int, list[EgressAsk]]()
        self._answers: queue.SimpleQueue[tuple[EgressAsk, bool, str] | None] = queue.SimpleQueue()
        self._unsubscribe = approvals.subscribe(self._decided)
        self._threads = [threading.Thread(target=self._again, args=(each,), name=f"asks-{name}", daemon=True)
                         for name, each in (("listen", self._listen), ("answer", self._answer))]

    def start(self) -> None:
        """
        Listen from now on.
        """
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """
        Answer what was decided, and listen no more.
        """
        self._over.set()
        self._unsubscribe()
        self._answers.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_WAIT_S * 4)

    def _again(self, do: Callable[[Client], None]) -> None:
        """
        *do* until the end, with another connection after each loss.
        """
        while not self._over.is_set():
            try:
                with Client(socket=self._socket, retry=False) as client:
                    do(client)
                return
            except LeewardError as error:
                self.trouble = str(error)
                self._over.wait(_AGAIN_S)

    def _listen(self, client: Client) -> None:
        last = 0
        while not self._over.is_set():
            for ask in client.egress_asks(last, _WAIT_S):
                last = ask.id
                self._take(ask)
            self.trouble = ""

    def _take(self, ask: EgressAsk) -> None:
        with self._lock:
            if any(ask in waiting for waiting in self._waiting.values()):
                return  # after the loss of a connection they are told again
        try:
            request = self._approvals.submit(ask_request(ask, self._project_of(ask.sandbox) if ask.sandbox else ""))
        except (BadRequest, Busy, ShuttingDown) as error:
            self._answers.put((ask, False, str(error)[:500]))
            return
        with self._lock:
            self._waiting.setdefault(request.id, []).append(ask)
        now = self._approvals.get(request.id)
        if now is not None:
            self._decided(now)  # it may have been by a rule, or in between

    def _decided(self, request: ApprovalRequest) -> None:
        """
        A subscriber of the queue.
        """
        if "network" != request.category or "pending" == request.status:
            return
        with self._lock:
            waiting = self._waiting.pop(request.id, [])
        for ask in waiting:
            self._answers.put((ask, "approved" == request.status, _text(request)))

    def _answer(self, client: Client) -> None:
        while (found := self._answers.get()) is not None:
            ask, allow, text = found
            # Another daemon, after a restart, gives the same numbers to other asks.
            if ask in client.egress_asks(ask.id - 1):
                client.answer_egress_ask(ask.id, allow, text)


def _text(request: ApprovalRequest) -> str:
    return "" if "approved" == request.status else refusal_text(request)

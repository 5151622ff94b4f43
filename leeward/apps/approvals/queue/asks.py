"""
Asks of egress policies: each becomes a request of the queue, and the decision about the request is its answer.

Trust:     none in names and paths, which a sandbox chooses.
Threads:   one listens for asks, another one sends answers over a connection of its own, so that no decision waits for
           the daemon. An exception costs a connection: the thread goes on with the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import endpoint
from leeward.client.blocking import Client
from leeward.client.egress_asks import EgressAsk
from leeward.errors import BadRequest, Busy, ShuttingDown, told

#: Seconds that one request for asks waits, and seconds until the next connection after a failure.
_WAIT_S, _AGAIN_S = 2.0, 2.0

#: Characters of a description, at most.
_MOST_PATH = 2000


def ask_request(ask: EgressAsk, project: str = "", asker: str = "") -> NewRequest:
    """
    The request for *ask* of the sandbox of the agent *asker* in *project* ("": none); BadRequest if its host is neither a
    name nor an address.
    """
    host = ask.name or ask.address
    where = f"[{host}]" if ":" in host else host
    shown = f"{ask.method} {ask.protocol}://{where}:{ask.port}{ask.path}" if ask.method else \
        f"{ask.protocol} to {where}:{ask.port}"
    metadata = {"policy": ask.policy, "rule": ask.rule, "protocol": ask.protocol, "method": ask.method}
    return NewRequest(endpoint(host, ask.port), "connect", shown[:_MOST_PATH], metadata=metadata,
                      sandbox=ask.sandbox or f"{ask.kind} {ask.job}", project=project, asker=asker)


def refusal_text(request: ApprovalRequest) -> str:
    """The text of the answer 403 to a connection whose request was denied."""
    if request.decided_by == "rule" and request.rule:
        return "Blocked by rule"
    if request.decided_by == "mode":
        return "Blocked by policy"
    return f"Denied by leeward (request {request.id})"


class EgressQuestions:
    """
    Takes the daemon's asks into the queue, and sends the decisions back. *about* returns the path of the project that a
    sandbox works on, and the name of its agent; "" for none. `trouble` is the error of the last connection; "" while asks
    arrive.
    """

    def __init__(self, approvals: ApprovalQueue, socket: str | None, about: Callable[[str], tuple[str, str]]) -> None:
        self._approvals, self._socket, self._about, self.trouble = approvals, socket, about, ""
        self._lock, self._over = threading.Lock(), threading.Event()
        self._waiting = dict[int, list[EgressAsk]]()  # by the id of the request
        self._unsent: tuple[EgressAsk, bool, str] | None = None  # an answer that the last connection may have lost
        self._answers: queue.SimpleQueue[tuple[EgressAsk, bool, str] | None] = queue.SimpleQueue()
        self._unsubscribe = approvals.subscribe(self._decided)
        self._threads = [threading.Thread(target=self._again, args=(each,), name=f"asks-{name}", daemon=True)
                         for name, each in (("listen", self._listen), ("answer", self._answer))]

    def start(self) -> None:
        """Begin to listen and to answer."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Send the answers that are decided, and stop listening. Waits for each thread, 8 seconds at most."""
        self._over.set()
        self._unsubscribe()
        self._answers.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_WAIT_S * 4)

    def _again(self, do: Callable[[Client], None]) -> None:
        """Call *do* with a connection, and with another one after each failure, until it returns or `close` is called."""
        while not self._over.is_set():
            try:
                with Client(socket=self._socket, retry=False) as client:
                    do(client)
                return
            except Exception as error:
                self.trouble = told(error)
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
                return  # a new connection gets all asks again
        try:
            request = self._approvals.submit(ask_request(ask, *(self._about(ask.sandbox) if ask.sandbox else ())))
        except (BadRequest, Busy, ShuttingDown) as error:
            self._answers.put((ask, False, str(error)[:500]))
            return
        with self._lock:
            self._waiting.setdefault(request.id, []).append(ask)
        now = self._approvals.get(request.id)
        if now is not None:
            self._decided(now)  # a rule or a person may have decided before the ask was in `_waiting`

    def _decided(self, request: ApprovalRequest) -> None:
        """Queue the answers to the asks of a decided request. A subscriber of the queue."""
        if request.category != "network" or request.status == "pending":
            return
        with self._lock:
            waiting = self._waiting.pop(request.id, [])
        for ask in waiting:
            is_approved = request.status == "approved"
            self._answers.put((ask, is_approved, "" if is_approved else refusal_text(request)))

    def _answer(self, client: Client) -> None:
        while (found := self._unsent or self._answers.get()) is not None:
            self._unsent = found
            ask, allow, text = found
            # A daemon that was restarted gives the same ids to other asks.
            if ask in client.egress_asks(ask.id - 1):
                client.answer_egress_ask(ask.id, allow, text)
            self._unsent = None

"""
Connections and requests that only a rule of `ask` allows wait here for the operator's answer.

Theory of operation. The daemon says whether a client listens for asks. While none does, nothing waits: the connection
is refused at once. Otherwise the broker sends an ask to the daemon, and its one answer ends the wait of everything that
asks for the same thing in the same sandbox: a program that tries again makes no second ask. When the policy's limit
`ask` or the end of all waiting connections ends the wait, the ask is withdrawn. An answer is for the connections or
requests that wait, and isn't kept: the next one asks again.
Bound:     MOST_OF_LEASE asks of a sandbox at a time; what waits for an answer counts among the sandbox's connections.
           The daemon bounds the asks of a user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from leeward.egress.policy import ASK, DENY, Decision, Request, decide
from leeward.egress.tenancy import ANSWERED, NotAllowed, unanswered
from leeward.spec.egress_policy import Policy
from leeward.wire.egress_asks import MAX_ASKED, MAX_PATH
from leeward.wire.egress_control import Ask, AskAnswer, Unask

#: Asks of one sandbox that wait at a time.
MOST_OF_LEASE = 16

class WaitingAsk:
    """An ask that has no answer yet: how many wait for it, the answer to come, and the timer that withdraws it."""

    def __init__(self, number: int, resolved: Callable[[WaitingAsk], object]) -> None:
        self.number, self._resolved = number, resolved
        self.waiting = 0
        self.answer: asyncio.Future[AskAnswer] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def resolve(self, answer: AskAnswer) -> None:
        """Give *answer* to everything that waits for this ask, unless the ask has an answer already."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_result(answer)
            self._resolved(self)


class Asking:
    """The asks of all sandboxes; `listening`: a client of the daemon answers them."""

    def __init__(self, tell: Callable[[Ask | Unask], None]) -> None:
        self._tell = tell
        self._numbers = count(1)
        self._open: dict[int, WaitingAsk] = {}
        self.listening = False

    def listen(self, on: bool) -> None:
        """Note whether a client answers asks from now on. If none does, everything that waits is refused."""
        self.listening = on
        if not on:
            for question in list(self._open.values()):
                question.resolve(AskAnswer(question.number, 0, "nobody is there to answer any more"))

    def answered(self, answer: AskAnswer) -> None:
        """Take an answer from the daemon. If its ask has ended meanwhile, the answer is ignored."""
        question = self._open.pop(answer.number, None)
        if question is not None:
            question.resolve(answer)

    def ask(self, lease: int, about: dict[str, object], seconds: float,
            resolved: Callable[[WaitingAsk], object]) -> WaitingAsk:
        """Send an ask about *about*; it is withdrawn after *seconds*. *resolved* is called once, at its end."""
        question = WaitingAsk(next(self._numbers), resolved)
        self._open[question.number] = question
        question.timer = asyncio.get_running_loop().call_later(
            seconds, self.withdraw, question, f"nobody has answered within {seconds:g} s")
        self._tell(Ask(lease, question.number, {**about, "seconds": float(seconds)}))
        return question

    def withdraw(self, question: WaitingAsk, why: str) -> None:
        """End an ask that has no answer: everything that waits for it is refused, for the reason *why*."""
        if self._open.pop(question.number, None) is not None:
            self._tell(Unask(question.number))
        question.resolve(AskAnswer(question.number, 0, why))


class LeaseAsks:
    def __init__(self, asking: Asking, lease: int) -> None:
        self._asking, self._lease = asking, lease
        self._open: dict[Request, WaitingAsk] = {}

    @property
    def listening(self) -> bool:
        return self._asking.listening

    async def approval(self, policy: Policy, request: Request) -> bool:
        """Wait for the answer to *request*: True if allowed, False at once if no rule of `ask` decides, else NotAllowed."""
        decision = decide(policy, request)
        if decision.verdict != ASK:
            return False
        if not self._asking.listening:
            raise NotAllowed(unanswered(decision))
        answer = await self._answer(request, decision, policy.limits.ask)
        if not answer.allow:
            raise NotAllowed(Decision(DENY, decision.rule, answer.message, ANSWERED))
        return True

    async def _answer(self, request: Request, decision: Decision, seconds: float) -> AskAnswer:
        question = self._open.get(request)
        if question is None:
            if len(self._open) >= MOST_OF_LEASE:
                raise NotAllowed(Decision(DENY, decision.rule, f"{len(self._open)} connections or requests wait for an"
                                          " answer, which is all that a sandbox may have", ANSWERED), status=429)
            if len(request.path) > MAX_PATH:
                raise NotAllowed(Decision(DENY, decision.rule, f"a path of {len(request.path)} characters, {MAX_PATH}"
                                          " are the most that can be asked for", ANSWERED))
            question = self._open[request] = self._asking.ask(self._lease, {
                "name": request.name, "address": "" if request.address is None else str(request.address),
                "port": request.port, "protocol": request.protocol, "method": request.method[:64], "path": request.path,
                "rule": decision.rule[:MAX_ASKED],  # a rule of a client's policy may be longer
            }, seconds, lambda _: self._open.pop(request, None))
        question.waiting += 1
        try:
            return await asyncio.shield(question.answer)
        finally:
            question.waiting -= 1
            if not question.waiting:
                self._asking.withdraw(question, "nobody waits for it")

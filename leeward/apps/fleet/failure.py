"""
What follows when a node didn't answer a job or a call with its result.

Runs in:   anywhere; no clock, no connection.

A job has exactly one answer. So it is sent to a second node only after an error which says that nothing of it has run,
or if its caller allows that it runs twice; and after a loss only once, since a job that ends its node would end them all.
"""

from __future__ import annotations

import enum

from leeward.errors import Busy, DaemonAway, DaemonError, NoAnswer, QueueTimeout, ShuttingDown


class Ending(enum.Enum):
    """How an attempt on a node ended without a result."""

    BUSY = "busy"        # the node has no room, and refused it
    STOPPING = "stopping"  # the node's daemon is stopping, and refused it
    LOST = "lost"        # the connection ended, or the node is silent
    REFUSED = "refused"  # anything else that a node or the client itself says


class Then(enum.Enum):
    """What is done next."""

    NEXT = "next"            # try another node, as often as there are some
    ELSEWHERE = "elsewhere"  # run it on another node, once
    NODE_LOST = "node_lost"  # the caller gets NodeLost
    OVER = "over"            # the caller gets SandboxOver, with the reason node_lost
    RAISE = "raise"          # the caller gets the error itself


#: By ending, whether it may have run, whether it may run twice: what follows for a job; and why.
JOB: dict[tuple[Ending, bool, bool], tuple[Then, str]] = {
    (Ending.BUSY, False, False): (Then.NEXT, "another node may have room"),
    (Ending.BUSY, False, True): (Then.NEXT, "another node may have room"),
    (Ending.STOPPING, False, False): (Then.NEXT, "it hasn't run, and that node takes none any more"),
    (Ending.STOPPING, False, True): (Then.NEXT, "it hasn't run, and that node takes none any more"),
    (Ending.LOST, False, False): (Then.ELSEWHERE, "it surely hasn't run"),
    (Ending.LOST, False, True): (Then.ELSEWHERE, "it surely hasn't run"),
    (Ending.LOST, True, False): (Then.NODE_LOST, "it may have had its effect, which nobody may repeat unasked"),
    (Ending.LOST, True, True): (Then.ELSEWHERE, "its caller allows that it runs twice"),
    (Ending.REFUSED, False, False): (Then.RAISE, "another node would refuse it as well"),
    (Ending.REFUSED, False, True): (Then.RAISE, "another node would refuse it as well"),
    (Ending.REFUSED, True, False): (Then.RAISE, "it may have run, and the error says more than the fleet knows"),
    (Ending.REFUSED, True, True): (Then.RAISE, "the caller's own deadline, say, which no other node extends"),
}

#: The same for a call on an open sandbox or session, which are on one node and nowhere else.
OPEN: dict[Ending, tuple[Then, str]] = {
    Ending.BUSY: (Then.RAISE, "its node alone has its state"),
    Ending.STOPPING: (Then.OVER, "it ends with its daemon"),
    Ending.LOST: (Then.OVER, "a blank one in its place would be taken for it"),
    Ending.REFUSED: (Then.RAISE, "its node alone has its state"),
}


def ending_of(error: DaemonError, lost: bool) -> Ending:
    """How an attempt ended with *error*; *lost*: the fleet has given the node up."""
    if isinstance(error, (Busy, QueueTimeout)):
        return Ending.BUSY
    if isinstance(error, ShuttingDown):
        return Ending.STOPPING
    if isinstance(error, DaemonAway) or (lost and isinstance(error, NoAnswer)):
        return Ending.LOST
    return Ending.REFUSED


class Attempts:
    """
    The attempts of one job, whose *idempotent* says that it may run twice.

    Attributes:
        avoid: the names of nodes that have just refused it, or were lost with it.
        may_have_run: whether an attempt may have run.
        lost_on: the name of the node that was lost with it; "" if none was.
    """

    def __init__(self, idempotent: bool) -> None:
        self._idempotent = idempotent
        self.lost_on = ""
        self.avoid = set[str]()
        self.may_have_run = False

    def then(self, node: str, ending: Ending, may_have_run: bool) -> Then:
        """What follows after the attempt on *node* has ended so."""
        self.may_have_run |= may_have_run
        # A node that refused a job has run nothing of it, whatever an attempt before may have done elsewhere.
        known = may_have_run if ending in (Ending.LOST, Ending.REFUSED) else False
        then, _ = JOB[ending, known, self._idempotent]
        if then is Then.ELSEWHERE and self.lost_on:
            then = Then.NODE_LOST
        self.lost_on = node if ending is Ending.LOST else self.lost_on
        if then in (Then.NEXT, Then.ELSEWHERE):
            self.avoid.add(node)
        return then

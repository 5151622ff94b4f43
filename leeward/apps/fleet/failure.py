"""
What follows when a node didn't answer a job or a call with its result.

Runs in:   anywhere; no clock, no connection.

A job has exactly one answer. So it is sent to a second node only after an error which says that nothing of it has run,
or if its caller allows that it runs twice; and after a loss only once, since a job that ends its node would end them all.
"""

from __future__ import annotations

import enum

from leeward.errors import Busy, DaemonAway, DaemonError, NoAnswer, QueueTimeout, ShuttingDown


class AttemptEnd(enum.Enum):
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
JOB: dict[tuple[AttemptEnd, bool, bool], tuple[Then, str]] = {
    (AttemptEnd.BUSY, False, False): (Then.NEXT, "another node may have room"),
    (AttemptEnd.BUSY, False, True): (Then.NEXT, "another node may have room"),
    (AttemptEnd.STOPPING, False, False): (Then.NEXT, "it hasn't run, and that node takes none any more"),
    (AttemptEnd.STOPPING, False, True): (Then.NEXT, "it hasn't run, and that node takes none any more"),
    (AttemptEnd.LOST, False, False): (Then.ELSEWHERE, "it surely hasn't run"),
    (AttemptEnd.LOST, False, True): (Then.ELSEWHERE, "it surely hasn't run"),
    (AttemptEnd.LOST, True, False): (Then.NODE_LOST, "it may have had its effect, which nobody may repeat unasked"),
    (AttemptEnd.LOST, True, True): (Then.ELSEWHERE, "its caller allows that it runs twice"),
    (AttemptEnd.REFUSED, False, False): (Then.RAISE, "another node would refuse it as well"),
    (AttemptEnd.REFUSED, False, True): (Then.RAISE, "another node would refuse it as well"),
    (AttemptEnd.REFUSED, True, False): (Then.RAISE, "it may have run, and the error says more than the fleet knows"),
    (AttemptEnd.REFUSED, True, True): (Then.RAISE, "the caller's own deadline, say, which no other node extends"),
}

#: The same for a call on an open sandbox or session, which are on one node and nowhere else.
OPEN: dict[AttemptEnd, tuple[Then, str]] = {
    AttemptEnd.BUSY: (Then.RAISE, "its node alone has its state"),
    AttemptEnd.STOPPING: (Then.OVER, "it ends with its daemon"),
    AttemptEnd.LOST: (Then.OVER, "a blank one in its place would be taken for it"),
    AttemptEnd.REFUSED: (Then.RAISE, "its node alone has its state"),
}


def ending_of(error: DaemonError, lost: bool) -> AttemptEnd:
    """How an attempt ended with *error*; *lost*: the fleet has given the node up."""
    if isinstance(error, (Busy, QueueTimeout)):
        return AttemptEnd.BUSY
    if isinstance(error, ShuttingDown):
        return AttemptEnd.STOPPING
    if isinstance(error, DaemonAway) or (lost and isinstance(error, NoAnswer)):
        return AttemptEnd.LOST
    return AttemptEnd.REFUSED


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

    def then(self, node: str, ending: AttemptEnd, may_have_run: bool) -> Then:
        """What follows after the attempt on *node* has ended so."""
        self.may_have_run |= may_have_run
        # A node that refused a job has run nothing of it, whatever an attempt before may have done elsewhere.
        known = may_have_run if ending in (AttemptEnd.LOST, AttemptEnd.REFUSED) else False
        then, _ = JOB[ending, known, self._idempotent]
        if then is Then.ELSEWHERE and self.lost_on:
            then = Then.NODE_LOST
        self.lost_on = node if ending is AttemptEnd.LOST else self.lost_on
        if then in (Then.NEXT, Then.ELSEWHERE):
            self.avoid.add(node)
        return then

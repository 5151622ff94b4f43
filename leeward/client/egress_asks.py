"""
The asks of egress, for both clients: connections that wait for an answer, because a rule of `ask` says so.

Trust:     none in the daemon's bytes, nor in the texts, which a job chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.base.dataclass import dataclass
from leeward.client.conversation import checked
from leeward.errors import BadReply, PeerError
from leeward.wire.egress_asks import check_ask


@dataclass(frozen=True, slots=True)
class EgressAsk:
    """
    A connection or request of a sandbox that waits for an answer. A job chooses its texts: escape them for display.

    Attributes:
        id: the ask's number, for `answer_egress_ask`.
        kind: "job", "session" or "sandbox".
        job: the daemon's number of the job; 0 for other kinds.
        sandbox: the sandbox's id; "" for other kinds.
        user: the uid of the user to whom the job or sandbox belongs.
        policy: the name of the operator's policy.
        rule: the rule in the policy's `ask` that matched.
        name: the host's name; "" if the job connects to an address.
        address: the host's address; "" if the job connects to a name.
        port: the TCP port.
        protocol: "http" and "https" are requests, with method and path; "tls" is TLS that the broker doesn't decrypt,
            with *name* as its server name; "tcp" is anything else.
        method, path: the method and path of a request; else "".
        time: when the ask began to wait, in seconds since the epoch.
        seconds: the time that the ask waits at most.
    """

    id: int
    kind: str
    job: int
    sandbox: str
    user: int
    policy: str
    rule: str
    name: str
    address: str
    port: int
    protocol: str
    method: str
    path: str
    time: float
    seconds: float


def asks_of(answer: Mapping[str, Any]) -> list[EgressAsk]:
    """The asks in the answer to an egress_asks request; BadReply if it isn't valid."""
    rows = answer.get("events")
    if not isinstance(rows, list):
        raise BadReply("the daemon broke the protocol: egress_asks: no rows")
    return [checked(_ask_of, row) for row in rows]


def _ask_of(row: Any) -> EgressAsk:
    if not isinstance(row, dict):
        raise PeerError("egress_asks: no rows")
    numbers = {"ask": int, "user": int, "time": float}
    texts = {"kind": row.get("kind"), "sandbox": row.get("sandbox", ""), "policy": row.get("policy")}
    job = row.get("job", 0)
    if any(type(row.get(name)) is not kind for name, kind in numbers.items()) or type(job) is not int or not all(
            isinstance(value, str) for value in texts.values()):
        raise PeerError("egress_asks: a row isn't valid")
    return EgressAsk(id=row["ask"], user=row["user"], time=row["time"], job=job, **texts, **check_ask(row))


def taken(answer: Mapping[str, Any]) -> bool:
    """Whether the daemon took the answer, from its reply to an egress_answer request; BadReply if it isn't such a reply."""
    found = answer.get("taken")
    if not isinstance(found, bool):
        raise BadReply("the daemon broke the protocol: egress_answer: no taken")
    return found

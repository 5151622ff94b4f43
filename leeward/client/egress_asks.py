"""
What sandboxes wait for because of a rule of `ask`, for both clients.

Runs in:   the clients; no socket and no clock.
Trust:     none in the daemon's bytes, nor in what jobs have written of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.dataclass import dataclass
from leeward.errors import BadReply, PeerError
from leeward.wire.egress_asks import check_ask


@dataclass(frozen=True, slots=True)
class EgressAsk:
    """
    A connection or request of a sandbox that waits for an answer. Its texts are a job's: show them as such.

    Attributes:
        id: its number, for `answer_egress_ask`.
        kind: "job", "session" or "sandbox".
        job: the daemon's number of the job, 0 for other kinds.
        sandbox: the sandbox's id, "" for other kinds.
        user: the uid whose it is.
        policy: the operator's name of the policy.
        rule: of the policy's `ask`.
        name: the host that was asked for, "" where an address was.
        address: that was asked for, "" where a name was.
        port: of TCP.
        protocol: what is seen of it: "http" and "https" are requests, with their method and path; "tls" is TLS that
            passes, with a server name that is *name*; "tcp" is anything else.
        method, path: "" where they aren't seen.
        time: when it began to wait, seconds since 1970.
        seconds: for which it waits at most.
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
    """
    Those of the answer to an egress_asks request.

    Raises:
        BadReply: it is none.
    """
    rows = answer.get("events")
    try:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise PeerError("egress_asks: no rows")
        return [_ask_of(row) for row in rows]
    except PeerError as error:
        raise BadReply(f"the daemon broke the protocol: {error}") from None


def _ask_of(row: Mapping[str, Any]) -> EgressAsk:
    numbers = {"ask": int, "user": int, "time": float}
    texts = {"kind": row.get("kind"), "sandbox": row.get("sandbox", ""), "policy": row.get("policy")}
    job = row.get("job", 0)
    if any(type(row.get(name)) is not kind for name, kind in numbers.items()) or type(job) is not int or not all(
            isinstance(value, str) for value in texts.values()):
        raise PeerError("egress_asks: a row that is none")
    return EgressAsk(id=row["ask"], user=row["user"], time=row["time"], job=job, **texts, **check_ask(row))


def taken(answer: Mapping[str, Any]) -> bool:
    """
    What the answer to an egress_answer request says.

    Raises:
        BadReply: it is none.
    """
    found = answer.get("taken")
    if not isinstance(found, bool):
        raise BadReply("the daemon broke the protocol: egress_answer: no taken")
    return found

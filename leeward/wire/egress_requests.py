"""
Requests about egress: the record of what sandboxes tried, and questions that they wait for.

Runs in:   the daemon, and `leeward run`; pure.
Trust:     none, as for all of `requests`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from leeward.dataclass import dataclass
from leeward.wire import egress_asks, sandbox_fields


@dataclass(frozen=True, slots=True)
class EgressLog:
    """
    Ask what this user's sandboxes tried to reach; for the operator, what all sandboxes tried.

    Attributes:
        after: the number of the last row that the client has.
        wait: seconds to wait for another one.
    """

    op: ClassVar[str] = "egress_log"

    id: int
    after: int = 0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class EgressAsks:
    """
    Ask for the questions of rules of `ask` that sandboxes wait for; only the operator may.

    Attributes:
        after: the number of the last one that the client has.
        wait: seconds to wait for another one; above 0 the connection listens until it is closed.
    """

    op: ClassVar[str] = "egress_asks"

    id: int
    after: int = 0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """
    Answer such a question.

    Attributes:
        ask: its number.
        allow: it goes on; otherwise it is refused.
        message: a text for the program in the sandbox, "" for the daemon's.
    """

    op: ClassVar[str] = "egress_answer"

    id: int
    ask: int
    allow: bool = False
    message: str = ""


EgressRequest = EgressLog | EgressAsks | EgressAnswer

#: As in `requests`.
FIELDS: dict[str, tuple[type[Any], dict[str, Callable[[object], object]]]] = {
    "egress_log": (EgressLog, {"after": sandbox_fields.whole("after"), "wait": sandbox_fields.wait}),
    "egress_asks": (EgressAsks, {"after": sandbox_fields.whole("after"), "wait": sandbox_fields.wait}),
    "egress_answer": (EgressAnswer, {"ask": sandbox_fields.whole("ask"), "allow": sandbox_fields.flag("allow"),
                                     "message": egress_asks.message}),
}
NEEDED: dict[str, tuple[str, ...]] = {"egress_answer": ("ask",)}

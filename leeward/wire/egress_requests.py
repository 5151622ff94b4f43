"""Requests about egress: the record of what sandboxes tried, and questions that they wait for."""

from __future__ import annotations

from leeward.wire import egress_asks, fields
from leeward.wire import sandbox_fields as ours
from leeward.wire.schema import ClientRequest, field, operation

_OPERATORS = "what a rule of `ask` asks for is the operator's to answer"


@operation("egress_log", answers={"events": "array of map", "last": "int", "forgotten": "int"}, admits="if it waits")
class EgressLog(ClientRequest):
    """Ask what this user's sandboxes tried to reach; for the operator, what all sandboxes tried."""

    after: int = field(fields.whole, "the number of the last row that the client has", default=0)
    wait: float = field(ours.wait, "seconds to wait for another one, at most 3,600", default=0.0)


@operation("egress_asks", answers={"events": "array of map"}, admits="if it waits", guests=_OPERATORS)
class EgressAsks(ClientRequest):
    """Ask for the questions of rules of `ask` that sandboxes wait for; only the operator may."""

    after: int = field(fields.whole, "the number of the last one that the client has", default=0)
    wait: float = field(ours.wait, "seconds to wait for one, at most 3,600", default=0.0)


@operation("egress_answer", answers={"taken": "bool"}, admits="at once", guests=_OPERATORS)
class EgressAnswer(ClientRequest):
    """Answer such a question."""

    ask: int = field(fields.whole, "its number")
    allow: bool = field(fields.flag, "it goes on; else it is refused", default=False)
    message: str = field(egress_asks.message, "why, for whoever asked: at most 500 printable characters. \"\" is "
                         "`Denied by leeward (request N)`", default="", shown="\"\"")

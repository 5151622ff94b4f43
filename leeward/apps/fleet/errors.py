"""What a fleet raises beside the errors of a client."""

from __future__ import annotations

from collections.abc import Mapping

from leeward.errors import DaemonError, Refused, quoted


class NodeLost(DaemonError):
    """
    The node that had this job doesn't answer any more, and the job hasn't been run elsewhere.

    Attributes:
        node: its name.
        may_have_run: whether the job may have run there. If it may run twice, call with `idempotent=True`.
    """

    def __init__(self, node: str, may_have_run: bool) -> None:
        self.node, self.may_have_run = node, may_have_run
        what = ("may have run; idempotent=True lets such a job run again on another node" if may_have_run else
                "hasn't run, and no other node took it")
        super().__init__(f"node_lost: {quoted(node)} doesn't answer any more; the job {what}")

    def __reduce__(self) -> tuple[type[NodeLost], tuple[str, bool]]:
        return NodeLost, (self.node, self.may_have_run)


class NoNodeFits(Refused):
    """
    No node could take the request.

    Attributes:
        reasons: of each node, by its name, why it couldn't.
    """

    kind = "no_node"

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        told = [f"{quoted(name)} {why}" for name, why in self.reasons.items()]
        more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        super().__init__(f"no node fits: {'; '.join(told[:_SHOWN]) or 'the fleet has none'}{more}")

    def __reduce__(self) -> tuple[type[NoNodeFits], tuple[dict[str, str]]]:
        return NoNodeFits, (self.reasons,)


#: Nodes that the text of NoNodeFits names.
_SHOWN = 8

"""
The steps in which a request is decided and carried out.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

from leeward.points import point


@point("approvals.step")
def reached(step: str) -> None:
    """Do nothing: *step* begins here. A test build ends the program here, or raises."""

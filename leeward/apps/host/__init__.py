"""
`leeward doctor`: which features this host offers, and the commands that provide the missing ones.

Runs in:   the CLI; all but `probe` is pure.

`probe` examines the host and makes a Record, which can be kept in a file; `facts` parses the texts in it; `findings`
judges the facts, with lines from `cures`. So the findings for hosts that aren't available can be tested with records.
"""

from __future__ import annotations

from leeward.apps.host.facts import Record, facts_of
from leeward.apps.host.findings import Feature, judge
from leeward.apps.host.probe import look


def features(record: Record | None = None) -> list[Feature]:
    """All features of the host of *record*, or of this one, in the order in which leeward needs them."""
    return judge(facts_of(look() if record is None else record))

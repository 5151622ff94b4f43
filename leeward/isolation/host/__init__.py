"""
What this host offers leeward, and what to type where something is wanting: `leeward doctor`.

Runs in:   the CLI; all but `probe` is pure.

In three steps. `probe` looks and makes a Record, which can be kept in a file; `facts` makes sense of
the texts in it; `findings` says what that means for leeward, with lines out of `cures`. So what is
said of hosts that nobody here has is tested with the records of such hosts.
"""

from __future__ import annotations

from leeward.isolation.host.facts import Record, facts_of
from leeward.isolation.host.findings import Feature, judge
from leeward.isolation.host.probe import look


def features(record: Record | None = None) -> list[Feature]:
    """
    All features of the host of *record*, or of this one, in the order in which leeward needs them.
    """
    return judge(facts_of(look() if record is None else record))

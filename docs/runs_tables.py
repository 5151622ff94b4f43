"""
Tables of what was run of other people's programs, from docs/runs: agents in docs/agent-command.md, all in README.md.

Runs in:   the host; `./dev generate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.features import ROOT
from kit.runs import recorded

STEPS = {"edit": "reads, edits", "command": "runs a command", "denied": "is denied a host", "screen": "answers on a terminal",
         "size": "follows its size", "interrupt": "ends by Ctrl-C"}
FIRST, LAST = "<!-- runs: made by ./dev generate -->\n", "<!-- The end of the runs. -->\n"


def _table(rows: Sequence[Sequence[object]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _placed(page: str, table: str) -> str:
    """The page with the table in place of the one that is there."""
    before, _, rest = (ROOT / page).read_text().partition(FIRST)
    return f"{before}{FIRST}{table}{LAST}{rest.partition(LAST)[2]}"


def agents() -> str:
    """Of docs/agent-command.md: an agent a line."""
    rows = [(name, row["version"], *("yes" if row.get(step) else "not tried" for step in STEPS), row["date"])
            for name, row in sorted(recorded("agents").items())]
    return _placed("docs/agent-command.md", _table([("agent", "version", *STEPS.values(), "date"), *rows]))


def readme() -> str:
    """Of README.md: a program a line."""
    tried = [(name, row["version"], f"{sum(step in row for step in STEPS)} of {len(STEPS)} steps", row["date"])
             for name, row in recorded("agents").items()]
    suites = [(row["package"], row["version"], f"{row['passed']} tests", row["date"])
              for row in recorded("frameworks").values()]
    return _placed("README.md", _table([("", "version", "passed", "date"), *sorted(tried), *sorted(suites)]))

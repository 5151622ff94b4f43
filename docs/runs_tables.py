"""
Tables of what was run of other people's programs, from docs/runs: agents in docs/agent-command.md, adapters in
docs/frameworks.md, both in README.md.

Runs in:   the host; `./dev generate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def _beside(row: dict[str, str | float | bool]) -> str:
    """What a call takes beside the client's own, by processor time and by the clock, and what it would at another server."""
    return "; ".join(f"{word}{max(0.0, float(row[what])):.1f}" for what, word in (
        ("overhead_ms", ""), ("clock_ms", "by the clock "), ("floor_ms", "floor ")) if what in row)


def _newest(row: dict[str, str | float | bool]) -> str:
    """What is known of a package's newest version."""
    newest = row.get("newest", "")
    return "the same" if newest == row["version"] else f"{newest}: {row.get('newest_passed', 'not run')}" if newest else ""


def _passed(row: dict[str, str | float | bool]) -> str:
    return f"{row['passed']} of {row['of']}" if "of" in row else str(row["passed"])


def agents() -> str:
    """Of docs/agent-command.md: an agent a line."""
    rows = [(name, row["version"], *("yes" if row.get(step) else "not tried" for step in STEPS), row["date"])
            for name, row in sorted(recorded("agents").items())]
    return _placed("docs/agent-command.md", _table([("agent", "version", *STEPS.values(), "date"), *rows]))


def frameworks() -> str:
    """Of docs/frameworks.md: a package a line, and below a suite a line."""
    rows = [(row["package"], row["version"], _passed(row), row["date"], _newest(row), _beside(row))
            for row in recorded("frameworks").values()]
    return _placed("docs/frameworks.md", _table([
        ("package", "version", "tests that passed", "date", "the newest", "ms a call"), *sorted(rows)]) + "\n" + _table([
            ("suite, by `./dev suites`", "version", "how much of it", *COUNTS.values(), "date"), *suites()]))


#: What `./dev suites` counts in a part of a suite.
COUNTS = {"units": "units", "tests": "tests that pass outside", "both": "units that fail on both sides",
          "skipped": "units that skip themselves", "excused": "what fails inside for a listed reason",
          "alone": "units that fail inside for another"}


def suites() -> Iterator[tuple[object, ...]]:
    """The parts of each suite, together: those by number, and those by how the names of their units begin."""
    found: dict[tuple[str, str, str], dict[str, dict[str, str | float | bool]]] = {}
    for name, row in sorted(recorded("suites").items()):
        suite, _, part = name.partition(" ")
        found.setdefault((suite, str(row["version"]), part.partition("/")[2] if part[0].isdigit() else ""), {})[part] = row
    for (suite, version, parts), named in found.items():
        rows = [*named.values()]
        counts = [sum(int(row[what]) for row in rows) if what in rows[0] else "" for what in COUNTS]
        much = " ".join(named) if not parts else "all" if len(rows) == int(parts) else f"{len(rows)}/{parts}"
        yield suite, version, much, *counts, max(str(row["date"]) for row in rows)


def readme() -> str:
    """Of README.md: a line for agents, for adapters, and for suites of programs."""
    tried, adapters = recorded("agents"), recorded("frameworks")
    rows = (("agents, each by all steps", tried, ", ".join(
                f"{name} {row['version']}" for name, row in sorted(tried.items()) if {*STEPS} <= {*row})),
            ("adapters", adapters, ", ".join(
                f"{row['package']} {row['version']} ({_passed(row)})" for _, row in sorted(adapters.items()))),
            ("own tests of programs, inside beside outside", recorded("suites"), ", ".join(
                f"{suite} {version}, {much} ({units} units, {alone} differ)"
                for suite, version, much, units, *_, alone, _ in suites())))
    return _placed("README.md", _table([
        ("[what was run](docs/frameworks.md#what-was-run)", "version (and tests that passed)", "by"), *(
        (name, text, max(str(row["date"]) for row in found.values())) for name, found, text in rows if found)]))

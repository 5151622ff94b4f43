"""
What one run in a guest found: how each test ended, and what the kernel offered.

Runs in:   the host. `record` writes it where table.py finds it.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kit.features import ROOT
from kit.runs import text_of
from vm.rows import ALL, Row

RECORDED = ROOT / "docs" / "kernel-runs"

#: What the guest leaves: pytest's report, `leeward doctor --json`, and what a daemon says of itself.
TESTS, FEATURES, STATUS = "tests.xml", "features.json", "status.json"


@dataclass(frozen=True, slots=True)
class Report:
    """
    Attributes:
        kernel: its package.
        tests: by file: how many passed, failed and were skipped.
        failed: the names of those that did.
        features: by name: state, and what there is in words.
        layers: by name, what holds it, as a daemon says; empty where none ran.
        transport: how that daemon talks to clients, "uring" or "socket".
        seconds: with the boot.
        commit: whose sources ran; with a "+" where files differed from it, "" where git didn't say.
        date: of the run, as YYYY-MM-DD.
    """

    row: Row
    kernel: str
    tests: Mapping[str, Mapping[str, int]]
    failed: tuple[str, ...]
    features: Mapping[str, tuple[str, str]]
    layers: Mapping[str, Mapping[str, Any]]
    transport: str
    seconds: float
    commit: str
    date: str

    def count(self, outcome: str) -> int:
        return sum(counts.get(outcome, 0) for counts in self.tests.values())


def of(row: Row, kernel: str, files: Mapping[str, bytes], seconds: float, commit: str, date: str) -> Report:
    """Read what the guest left."""
    tests: dict[str, Counter[str]] = {}
    failed = []
    for case in _cases(files.get(TESTS, b"")):
        outcome = _outcome(case)
        path = f"{case.get('classname', '').replace('.', '/')}.py"
        tests.setdefault(path, Counter())[outcome] += 1
        if "failed" == outcome:
            failed.append(f"{path}::{case.get('name')}")
    offered = json.loads(files.get(FEATURES) or '{"features": []}')["features"]
    status = json.loads(files.get(STATUS) or "{}")
    return Report(row, kernel, {path: dict(counts) for path, counts in sorted(tests.items())}, tuple(failed),
                  {feature["name"]: (feature["state"], feature["have"]) for feature in offered},
                  status.get("layers", {}), status.get("transport", ""), round(seconds, 1),
                  commit, date)


def _cases(text: bytes) -> Iterable[ET.Element]:
    # Our own guest's: no stranger writes this file.
    return ET.fromstring(text).iter("testcase") if text else ()


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def record(report: Report) -> Path:
    """Keep *report*, in place of the one of the same row before."""
    RECORDED.mkdir(exist_ok=True)
    path = RECORDED / f"{report.row.name}.json"
    path.write_text(text_of(asdict(report)))
    return path


def recorded() -> list[Report]:
    """All that are kept."""
    return [_read(json.loads(path.read_text())) for path in sorted(RECORDED.glob("*.json"))]


def _read(values: dict[str, Any]) -> Report:
    features = {name: (state, have) for name, (state, have) in values["features"].items()}
    return Report(**{**values, "row": Row(**values["row"]), "failed": tuple(values["failed"]), "features": features})


def commit_here() -> str:
    """The commit of this checkout, as `Report.commit` has it."""
    commit = _git("rev-parse", "HEAD")
    return f"{commit.strip()}{'+' if changed_since('HEAD') else ''}" if commit else ""


def changed_since(commit: str) -> list[str] | None:
    """The files of this checkout that differ from *commit*, but for documents; None where git doesn't know it."""
    said = _git("diff", "--name-only", commit, "--", ".", ":!docs", ":!*.md")
    return None if said is None else said.splitlines()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def not_for_release(reports: Iterable[Report], changed: Callable[[str], Sequence[str] | None]) -> list[str]:
    """
    For each row of the matrix that a release can't rely on, a line that says why, and what records it. A release needs
    a run of its own sources in every row, in which nothing failed.

    Args:
        reports: those that are recorded.
        changed: as `changed_since`.
    """
    found = {each.row: each for each in reports}
    lines = []
    for row in ALL:
        one = found.get(row)
        if one is None:
            why = "no run is recorded"
        elif one.failed:
            why = f"{len(one.failed)} tests failed"
        elif not one.commit or one.commit.endswith("+"):
            why = f"the run of {one.date} was of sources that no commit has"
        elif (files := changed(one.commit)) is None:
            why = f"the run of {one.date} was of {one.commit[:8]}, which isn't in this repository"
        elif files:
            why = f"{len(files)} files have changed since the run of {one.date}, of {one.commit[:8]}"
        else:
            continue
        lines.append(f"{row.name}: {why}: {row.command}")
    return lines

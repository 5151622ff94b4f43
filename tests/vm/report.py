"""
What one run in a guest found: how each test ended, and what the kernel offered.

Runs in:   the host. `record` writes it where table.py finds it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kit.features import ROOT
from vm.rows import Row

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
    """

    row: Row
    kernel: str
    tests: Mapping[str, Mapping[str, int]]
    failed: tuple[str, ...]
    features: Mapping[str, tuple[str, str]]
    layers: Mapping[str, Mapping[str, Any]]
    transport: str
    seconds: float

    def count(self, outcome: str) -> int:
        return sum(counts.get(outcome, 0) for counts in self.tests.values())


def of(row: Row, kernel: str, files: Mapping[str, bytes], seconds: float) -> Report:
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
                  status.get("layers", {}), status.get("transport", ""), round(seconds, 1))


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
    path.write_text(json.dumps(asdict(report), indent=1, sort_keys=True) + "\n")
    return path


def recorded() -> list[Report]:
    """All that are kept."""
    return [_read(json.loads(path.read_text())) for path in sorted(RECORDED.glob("*.json"))]


def _read(values: dict[str, Any]) -> Report:
    features = {name: (state, have) for name, (state, have) in values["features"].items()}
    return Report(**{**values, "row": Row(**values["row"]), "failed": tuple(values["failed"]), "features": features})

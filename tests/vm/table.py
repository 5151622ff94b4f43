"""
docs/kernel.md's table of what was found on real kernels, from the recorded reports.

Runs in:   the host. Pure but for `write`.
"""

from __future__ import annotations

from collections.abc import Sequence

from features import ROOT
from vm import report
from vm.kernels import KERNELS
from vm.report import Report

PAGE = ROOT / "docs" / "kernel.md"

HEADING = "## What was found on which kernel\n"

#: A column each: the layer, and the feature that tells what holds it.
LAYERS = (("limits", "cgroup"), ("files", "landlock"), ("mounts", "mount.proc"), ("calls", "seccomp.notification"),
          ("io_uring", "io_uring"))


def of(reports: Sequence[Report]) -> str:
    """
    The table.
    """
    head = ("kernel", "as", *(name for name, _ in LAYERS), "passed", "skipped", "failed")
    order = list(KERNELS)
    rows = [(each.kernel.removeprefix("linux-image-").removesuffix("-cloud-amd64"), each.row.way,
             *(_held(each, feature) for _, feature in LAYERS),
             *(str(each.count(outcome)) for outcome in ("passed", "skipped", "failed")))
            for each in sorted(reports, key=lambda one: (order.index(one.row.kernel), one.row.systemd, one.row.user))]
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _held(each: Report, feature: str) -> str:
    state, have = each.features.get(feature, ("", "not asked"))
    return have.partition(":")[0] if "ok" == state else f"*{have.partition(':')[0]}*"


def write() -> None:
    """
    Put the table into the page, in place of the one that is there.
    """
    before, heading, after = PAGE.read_text().partition(HEADING)
    said, _, rest = after.partition("\n| ")
    _, _, rest = ("\n| " + rest).partition("\n\n")
    PAGE.write_text(f"{before}{heading}{said}\n{of(report.recorded())}\n{rest}".rstrip("\n") + "\n")

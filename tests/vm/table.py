"""
docs/kernel.md's table of what was found on real kernels, from the recorded reports.

Runs in:   the host; `./dev generate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.features import ROOT
from vm import report
from vm.kernels import KERNELS
from vm.report import Report

PAGE = ROOT / "docs" / "kernel.md"

HEADING = "## What was found on which kernel\n"

COLUMNS = ("kernel", "as", "limits", "mounts", "Landlock", "seccomp", "clients by", "passed", "skipped", "failed", "commit",
           "date")


def of(reports: Sequence[Report]) -> str:
    """The table."""
    order = list(KERNELS)
    rows = [(each.kernel.removeprefix("linux-image-").removesuffix("-cloud-amd64"), each.row.way, *_held(each),
             *(str(each.count(outcome)) for outcome in ("passed", "skipped", "failed")), _commit(each), each.date)
            for each in sorted(reports, key=lambda one: (order.index(one.row.kernel), one.row.systemd, one.row.user))]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _held(each: Report) -> tuple[str, ...]:
    """What holds each layer: the daemon's word and its own check of it, in italics where something is wanting."""
    if not each.layers:
        return ("not asked",) * 5
    cgroup, landlock = each.layers["cgroup"], each.layers["landlock"]
    state, notification = each.features.get("seccomp.notification", ("", ""))
    return (
        f"`{cgroup['driver']}`" if "active" == cgroup["state"] else f"*`{cgroup['driver']}`*",
        each.layers["mounts"].get("self_check", "*unchecked*"),
        f"ABI {landlock['abi']}" if landlock["abi"] else "*missing*",
        f"{each.layers['seccomp'].get('self_check', '*unchecked*')}, " + (
            notification if "ok" == state else f"*{notification or 'not asked'}*"),
        {"uring": "io_uring", "socket": "epoll"}.get(each.transport, each.transport),
    )


def _commit(each: Report) -> str:
    commit = each.commit.rstrip("+")
    return f"{commit[:8]}{' and changes' if commit != each.commit else ''}" if commit else "unknown"


def made() -> str:
    """The page with the table in place of the one that is there."""
    before, heading, after = PAGE.read_text().partition(HEADING)
    said, _, rest = after.partition("\n| ")
    _, _, rest = ("\n| " + rest).partition("\n\n")
    return f"{before}{heading}{said}\n{of(report.recorded())}\n{rest}".rstrip("\n") + "\n"

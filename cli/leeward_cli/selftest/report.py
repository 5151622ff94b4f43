"""The findings of a self-test, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leeward.host.findings import Feature, Support
from leeward_cli.selftest.trial import HELD, MISSING, OPEN, Finding

#: For each lock, the beginnings of the names of the host's features that it needs.
FEATURES = {"namespaces": ("namespace.",), "mounts": ("namespace.mount", "mount."), "landlock": ("landlock",),
            "seccomp": ("seccomp",), "limits": ("cgroup",), "controllers": ("cgroup",), "rlimits": ("cgroup",)}

_HOLE = "this is a hole: please report it as SECURITY.md says"


def cure(finding: Finding, features: Iterable[Feature]) -> str:
    """The commands or actions by which the attack of *finding* is held; "" if it is held."""
    if finding.state not in (OPEN, MISSING):
        return ""
    needed = (*finding.attack.locks, *([finding.attack.needs] if finding.attack.needs else []))
    prefixes = tuple(prefix for lock in needed for prefix in FEATURES.get(lock, ()))
    cures = [feature.cure for feature in features
             if feature.state is not Support.OK and feature.cure and feature.name.startswith(prefixes)]
    return "; ".join(dict.fromkeys(cures)) or _HOLE


def holds(findings: Iterable[Finding]) -> bool:
    return all(finding.state == HELD for finding in findings)


def as_text(findings: Sequence[Finding], features: Sequence[Feature]) -> str:
    """A line for each finding, with the cure below it if the attack wasn't held; and the features that this host lacks."""
    width = max(len(finding.attack.name) for finding in findings)
    lines = []
    area = ""
    for finding in findings:
        attack = finding.attack
        if area != attack.area:
            area = attack.area
            lines.append(f"{area}")
        held = f"by {', '.join(attack.locks)} ({finding.said})" if finding.state == HELD else finding.said
        lines.append(f"  {finding.state:<8}{attack.number}  {attack.name:<{width}}  {held}")
        what = cure(finding, features)
        if what:
            lines.append(f"  {'':<8}{'':<4}  cure: {what}")
    count = sum(finding.state == HELD for finding in findings)
    lines.append(f"{count} of {len(findings)} attacks were held")
    lacking = [feature for feature in features if feature.state is not Support.OK]
    if lacking:
        lines.append("this host lacks")
        for feature in lacking:
            lines.append(f"  {feature.name:<21} {feature.have}")
            if feature.cure:
                lines.append(f"  {'':<21} to get it: {feature.cure}")
    return "\n".join(lines) + "\n"


def as_object(findings: Sequence[Finding], features: Sequence[Feature], daemon: Mapping[str, Any]) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "held": holds(findings),
        "rows": [{"attack": finding.attack.number, "area": finding.attack.area, "name": finding.attack.name,
                  "state": finding.state, "locks": list(finding.attack.locks), "said": finding.said,
                  "cure": cure(finding, features)} for finding in findings],
        "missing": [{"name": feature.name, "state": str(feature.state), "have": feature.have, "cure": feature.cure}
                    for feature in features if feature.state is not Support.OK],
        "daemon": dict(daemon),
    }

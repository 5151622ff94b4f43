"""Runs the program of each row, judges the results, and shows the findings, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from leeward.dataclass import dataclass
from leeward.errors import DaemonError
from leeward.host.findings import Feature, Support
from leeward_cli.selftest.attack import Attack, seen_of
from leeward_cli.selftest.canaries import Canaries, named

if TYPE_CHECKING:
    from leeward_cli.selftest.command import ByDaemon

HELD, OPEN, MISSING, UNTRIED = "held", "OPEN", "missing", "untried"

#: Seconds until the neighbour's process must be seen, and seconds that the neighbour runs.
_NEIGHBOUR_S, _NEIGHBOUR_LIVES_S = 20.0, 60.0
_NEIGHBOUR = """
import subprocess, sys
subprocess.run(["/bin/sh", "-c", "sleep {seconds}; : " + sys.argv[1]], stdin=subprocess.DEVNULL)
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The finding about one row.

    Attributes:
        state: HELD, OPEN, UNTRIED; or MISSING if the daemon reports that it lacks the means to hold the attack.
        said: the refusal of the attack, how it succeeded, or why it couldn't be tried.
    """

    attack: Attack
    state: str
    said: str


def attempt(sandbox: ByDaemon, attacks: tuple[Attack, ...], canaries: Canaries,
            lacks: Mapping[str, str] = MappingProxyType({})) -> Iterator[Finding]:
    """Try *attacks* one after the other; *lacks* as `lacks_of` has it."""
    for attack in attacks:
        if attack.needs in lacks:
            yield Finding(attack, MISSING, lacks[attack.needs])
            continue
        try:
            yield _with_neighbour(sandbox, attack, canaries) if "given[\"neighbour\"]" in attack.code else \
                _one(sandbox, attack, canaries)
        except DaemonError as error:
            yield Finding(attack, UNTRIED, f"the daemon didn't take it: {error}")


def _one(sandbox: ByDaemon, attack: Attack, canaries: Canaries) -> Finding:
    given = canaries.given()
    options = {"timeout": 15.0, "label": "selftest", **attack.options}
    results = tuple(sandbox.run(attack.program, args=[json.dumps({**given, "turn": turn})], **options)
                    for turn in range(attack.repeat))
    seen = seen_of(attack, results)
    through = attack.judge(canaries, seen)
    if through:
        return Finding(attack, OPEN, through)
    if seen.failed:
        return Finding(attack, UNTRIED, seen.failed)
    return Finding(attack, HELD, seen.refused or "no effect")


def _with_neighbour(sandbox: ByDaemon, attack: Attack, canaries: Canaries) -> Finding:
    """Try *attack* while a job in another worker has a process, which is the attack's target."""
    mark = f"{canaries.mark}-beside"
    stop = sandbox.beside(_NEIGHBOUR.replace("{seconds}", f"{_NEIGHBOUR_LIVES_S:.0f}"), args=[mark],
                          timeout=_NEIGHBOUR_LIVES_S + 5)
    try:
        if not sandbox.until(lambda: bool(named(mark)), _NEIGHBOUR_S):
            return Finding(attack, UNTRIED, "no job in another worker is seen from here: a single worker, or a"
                                            " daemon whose processes this user doesn't see")
        canaries.neighbour = named(mark)[0]
        return _one(sandbox, attack, canaries)
    finally:
        canaries.neighbour = 0
        stop()


# --- the report ---------------------------------------------------------------

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
    return {
        "held": holds(findings),
        "rows": [{"attack": finding.attack.number, "area": finding.attack.area, "name": finding.attack.name,
                  "state": finding.state, "locks": list(finding.attack.locks), "said": finding.said,
                  "cure": cure(finding, features)} for finding in findings],
        "missing": [{"name": feature.name, "state": str(feature.state), "have": feature.have, "cure": feature.cure}
                    for feature in features if feature.state is not Support.OK],
        "daemon": dict(daemon),
    }

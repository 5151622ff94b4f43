"""Runs the program of each row, and judges the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from leeward.dataclass import dataclass
from leeward.errors import DaemonError
from leeward_cli.selftest.attack import Attack, seen_of
from leeward_cli.selftest.attacks_kernel import CALLS, RIGHTS
from leeward_cli.selftest.attacks_limits import LEFTOVERS, LIMITS
from leeward_cli.selftest.attacks_view import MOUNTS, NAMESPACES, NETWORK, PROCFS
from leeward_cli.selftest.canaries import Canaries, named

if TYPE_CHECKING:
    from leeward_cli.selftest.command import ByDaemon

ATTACKS = (*NAMESPACES, *NETWORK, *MOUNTS, *PROCFS, *CALLS, *RIGHTS, *LIMITS, *LEFTOVERS)

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
    results = tuple(sandbox.run(attack.program, args=[json.dumps({**given, "turn": turn})], **_options(attack.options))
                    for turn in range(attack.repeat))
    seen = seen_of(attack, results)
    through = attack.judge(canaries, seen)
    if through:
        return Finding(attack, OPEN, through)
    if seen.failed:
        return Finding(attack, UNTRIED, seen.failed)
    return Finding(attack, HELD, seen.refused or "no effect")


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"timeout": 15.0, "label": "selftest", **options}


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

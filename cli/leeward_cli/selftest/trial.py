"""
Sends each row's program, and judges what came of it.

Runs in:   the CLI.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from leeward.dataclass import dataclass
from leeward.errors import DaemonError
from leeward.outcome import Result
from leeward.protocols import Protocol
from leeward_cli.selftest.attack import Attack, seen_of
from leeward_cli.selftest.attacks_kernel import CALLS, RIGHTS
from leeward_cli.selftest.attacks_limits import LEFTOVERS, LIMITS
from leeward_cli.selftest.attacks_view import MOUNTS, NAMESPACES, NETWORK, PROCFS
from leeward_cli.selftest.canaries import Canaries, named

ATTACKS = (*NAMESPACES, *NETWORK, *MOUNTS, *PROCFS, *CALLS, *RIGHTS, *LIMITS, *LEFTOVERS)

HELD, OPEN, MISSING, UNTRIED = "held", "OPEN", "missing", "untried"

#: Seconds that a neighbour's process has to be there, and the neighbour lives.
_NEIGHBOUR_S, _NEIGHBOUR_LIVES_S = 20.0, 60.0
_NEIGHBOUR = """
import subprocess, sys
subprocess.run(["/bin/sh", "-c", "sleep {seconds}; : " + sys.argv[1]], stdin=subprocess.DEVNULL)
"""


class TriedSandbox(Protocol):
    """
    Where the programs run.
    """

    def run(self, code: str, **options: Any) -> Result:
        """
        One job, to its end. DaemonError where it isn't taken.
        """

    def beside(self, code: str, **options: Any) -> Callable[[], object]:
        """
        One job that goes on until the function that is returned is called.
        """

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """
        Wait for *condition*; whether it came.
        """


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What came of one row.

    Attributes:
        state: HELD, OPEN, UNTRIED; or MISSING: this daemon says itself that it lacks what would hold it.
        said: the refusal that the program met, how it got through, or why it could not be tried.
    """

    attack: Attack
    state: str
    said: str


def attempt(sandbox: TriedSandbox, attacks: tuple[Attack, ...], canaries: Canaries,
            lacks: Mapping[str, str] = MappingProxyType({})) -> Iterator[Finding]:
    """
    Try *attacks* one after the other.

    Args:
        lacks: what the daemon says it has not, of Attack.needs, each with its word for that.
    """
    for attack in attacks:
        if attack.needs in lacks:
            yield Finding(attack, MISSING, lacks[attack.needs])
            continue
        try:
            yield _with_neighbour(sandbox, attack, canaries) if "given[\"neighbour\"]" in attack.code else \
                _one(sandbox, attack, canaries)
        except DaemonError as error:
            yield Finding(attack, UNTRIED, f"the daemon didn't take it: {error}")


def _one(sandbox: TriedSandbox, attack: Attack, canaries: Canaries) -> Finding:
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


def _with_neighbour(sandbox: TriedSandbox, attack: Attack, canaries: Canaries) -> Finding:
    """
    While a job in another worker has a process that the attack is after.
    """
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

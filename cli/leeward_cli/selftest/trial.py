"""A row of the tables (a program, its locks, the function that judges them), its trial, and the findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from leeward.apps.host.findings import Feature, Support
from leeward.base.dataclass import dataclass, field
from leeward.errors import DaemonError
from leeward.spec.outcome import Outcome, Result
from leeward_cli.selftest.canaries import Canaries, named

if TYPE_CHECKING:
    from leeward_cli.selftest.command import ByDaemon

#: The beginning of each program, before the code that defines attack(). `given` has the client's values, and `call`
#: makes a system call by name. The last line of output has the return value of attack(), the errno of a refusal, or an
#: error.
PRELUDE = """
import ctypes, errno, json, os, sys
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    plain = [ctypes.c_ulong(arg & (1 << 64) - 1) if isinstance(arg, int) else arg for arg in args]
    got = libc.syscall(ctypes.c_long(given["calls"][name]), *plain)
    if -1 == got:
        raise OSError(ctypes.get_errno(), name)
    return got
def refusal(function, *args):
    "The errno's name, or an empty text where the call succeeded."
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return ""
"""

_END = """
try:
    said = {"did": attack()}
except OSError as error:
    said = {"refused": errno.errorcode.get(error.errno, str(error.errno))}
except MemoryError:
    said = {"refused": "MemoryError"}
except Exception as error:
    said = {"failed": f"{type(error).__name__}: {error}"}
sys.stdout.flush()
os.write(1, b"\\n" + json.dumps(said).encode())
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    The reports and results of one row's jobs.

    Attributes:
        did: the return value of attack() in each job; None if it was refused, or didn't return.
        refused: the first refusal, an errno's name; or "".
        failed: why the program couldn't be tried; or "".
    """

    did: tuple[Any, ...]
    refused: str
    failed: str
    results: tuple[Result, ...]

    @property
    def any(self) -> Any:
        return next((did for did in self.did if did), None)


#: Returns how the attack has succeeded; "" if it was held.
Judge = Callable[[Canaries, Seen], str]


def did(canaries: Canaries, seen: Seen) -> str:
    return str(seen.any)[:80] if seen.any else ""


def secret_read(canaries: Canaries, seen: Seen) -> str:
    """Judge by the job's output: the attack has succeeded if the secret is in it."""
    found = any(canaries.token.encode() in result.stdout + result.stderr for result in seen.results)
    return "the secret was read" if found else ""


@dataclass(frozen=True, slots=True)
class Attack:
    """
    One row of the tables.

    Attributes:
        number: the attack's number in tests/escapes/CATALOGUE.md.
        locks: the locks that hold the attack; the first one holds it first.
        code: the program, which defines attack().
        repeat: the number of jobs that run the program, one after the other.
        ends: outcomes that count as a refusal, though the program reports nothing.
        needs: "controllers" if only cgroup controllers can hold it with a limit of less than one processor; or "".
        only: the lock without which the attack succeeds while all others stand; "" if more than one lock holds it.
    """

    number: str
    area: str
    name: str
    locks: tuple[str, ...]
    code: str
    judge: Judge = did
    options: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1
    ends: tuple[Outcome, ...] = ()
    needs: str = ""
    only: str = ""

    @property
    def program(self) -> str:
        return PRELUDE + self.code + _END


def seen_of(attack: Attack, results: tuple[Result, ...]) -> Seen:
    done: list[Any] = []
    refused = failed = ""
    for result in results:
        said = _said(result)
        if said is None:
            if result.outcome not in attack.ends:
                failed = failed or f"it ended as {result.outcome} without an answer"
                if result.error is not None:
                    failed = f"{failed}: {result.error.message}"[:200]
            else:
                refused = refused or str(result.outcome)
            done.append(None)
            continue
        done.append(said.get("did"))
        refused = refused or str(said.get("refused", ""))
        failed = failed or str(said.get("failed", ""))
    return Seen(tuple(done), refused, failed, results)


def _said(result: Result) -> dict[str, Any] | None:
    """The report in the last line of a job's output; None if that isn't a report of _END."""
    last = result.stdout.rpartition(b"\n")[2]
    try:
        said = json.loads(last)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.keys() & {"did", "refused", "failed"} else None


# --- the trial ----------------------------------------------------------------

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

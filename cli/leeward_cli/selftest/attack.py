"""
What a row of the tables is: a program, the locks that hold it, and how to tell whether they did.

Runs in:   the CLI; pure. `PRELUDE` is what every program begins with, in the job.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from typing import Any

from leeward.dataclass import dataclass, field
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward.outcome import Outcome, Result
from leeward.protocols import Protocol

#: Before each program, which defines attack(): `given` is what the client passes, `call` makes a system call by name.
#: The last line of output tells what attack() returned, by which errno it was refused, or which mistake it made.
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


class Scene(Protocol):
    """
    What attacks are after, and whether they got it: canaries.Canaries.
    """

    token: str
    daemon_environment: Mapping[str, str]
    neighbour: int

    def given(self) -> dict[str, Any]: ...
    def victim_is_hurt(self) -> str: ...
    def neighbour_is_hurt(self) -> str: ...
    def somebody_called(self) -> str: ...
    def left_behind(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What came back of one row.

    Attributes:
        did: what attack() returned in each of the row's jobs; None where it was refused or didn't come to that.
        refused: the first refusal, an errno's name, or "".
        failed: why the program itself could not be tried, or "".
        results: of each job.
    """

    did: tuple[Any, ...]
    refused: str
    failed: str
    results: tuple[Result, ...]

    @property
    def any(self) -> Any:
        return next((did for did in self.did if did), None)


#: Says how the attack succeeded, "" if it was held.
Judge = Callable[[Scene, Seen], str]


def did(canaries: Scene, seen: Seen) -> str:
    """
    What attack() returned is the proof.
    """
    return str(seen.any)[:80] if seen.any else ""


def secret_read(canaries: Scene, seen: Seen) -> str:
    """
    The secret came back, in whatever the job wrote.
    """
    found = any(canaries.token.encode() in result.stdout + result.stderr for result in seen.results)
    return "the secret was read" if found else ""


@dataclass(frozen=True, slots=True)
class Attack:
    """
    One row.

    Attributes:
        number: of the attack in tests/escapes/CATALOGUE.md.
        area: under which heading it is shown.
        name: what is tried.
        locks: those that hold it, the one that does so first in front.
        code: the program; it defines attack().
        judge: whether it succeeded.
        options: of the request: limits.
        repeat: so many jobs run it, one after the other.
        ends: outcomes that are an answer though the program says nothing more.
        needs: "controllers" where without those of cgroups less than a processor can't be held, else "".
        only: the lock without which the attack succeeds while all others stand, "" where there are more of them.
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


def calls() -> dict[str, int]:
    """
    Numbers of this machine's system calls, by name.
    """
    return dict(NUMBERS[platform.machine()])


def seen_of(attack: Attack, results: tuple[Result, ...]) -> Seen:
    """
    What *results* say of *attack*. Pure.
    """
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
    """
    The last line of a job's output, if it is what _END writes.
    """
    last = result.stdout.rpartition(b"\n")[2]
    try:
        said = json.loads(last)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.keys() & {"did", "refused", "failed"} else None

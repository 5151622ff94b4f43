"""A row of the tables: a program, the locks that hold it, and the function that judges whether they did."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.dataclass import dataclass, field
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward.outcome import Outcome, Result

if TYPE_CHECKING:
    from leeward_cli.selftest.canaries import Canaries

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
Judge = Callable[["Canaries", Seen], str]


def did(canaries: Canaries, seen: Seen) -> str:
    """Judge by the return value of attack(), which is the proof of success."""
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


def calls() -> dict[str, int]:
    return dict(NUMBERS[platform.machine()])


def seen_of(attack: Attack, results: tuple[Result, ...]) -> Seen:
    """The reports in the *results* of the jobs of *attack*. Pure."""
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

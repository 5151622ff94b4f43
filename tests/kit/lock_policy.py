"""
Each test in tests/escapes has one of these marks, which names the lock that it is about, and this plugin checks the
mark against what the test ran.

    @pytest.mark.lock("seccomp")
        It ran something with all locks, something with that lock alone, and something where that lock was
        off (the control): without any sandbox, or in one that lacks it. Given twice, that holds for each.
    @pytest.mark.lock("namespaces", beside=("mounts",), because="/proc is a mount of a pid namespace")
        The lock and another, since the attack can't be seen to fail with the one alone.
    @pytest.mark.no_single_lock("what holds it is the daemon's own process")
        No lock of a job could be left out or stand alone. It has a control nevertheless.
    @pytest.mark.no_attack("threads still work")
        It states what an honest job can do, or what the source says: there is nothing to be off.

What ran where is in `box.RUNS`. A control is a block, `with control():`, that the test has come through, with what it
asserts inside. Of a test with the mark `lock` it is one only if something ran in it where that lock was off.

Runs in:   pytest, as a plugin of conftest.py.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import box
from kit.locks import BUILT_IN, LOCKS
from kit.skip_policy import require

MARKS = ("lock", "no_single_lock", "no_attack")

_NAMED = re.compile(r"test_c\d{3}_")


@dataclass(frozen=True, slots=True)
class Claim:
    """One mark `lock`: the lock, and what has to be there beside it."""

    lock: str
    beside: frozenset[str] = frozenset()


def claim_of(mark: pytest.Mark) -> Claim:
    """
    Return the claim of a mark `lock`.

    Raises:
        ValueError: the mark can't be checked.
    """
    beside = mark.kwargs.get("beside", ())
    if 1 != len(mark.args) or set(mark.kwargs) - {"beside", "because"} or isinstance(beside, str):
        raise ValueError("lock takes one name, and `beside` with `because`")
    unknown = {*mark.args, *beside} - LOCKS - BUILT_IN
    if unknown:
        raise ValueError(f"tests/kit/locks.py knows no lock {', '.join(sorted(unknown))}")
    if bool(beside) is not bool(mark.kwargs.get("because")):
        raise ValueError("what stands beside a lock needs a reason, `because`")
    return Claim(mark.args[0], frozenset(beside))


def fault_of_marks(marks: Sequence[pytest.Mark]) -> str | None:
    """Return what is wrong with the marks of a test, or None."""
    ours = [mark for mark in marks if mark.name in MARKS]
    kinds = {mark.name for mark in ours}
    if not ours:
        return f"it has none of the marks {', '.join(MARKS)}"
    if 1 < len(kinds):
        return f"it has both {' and '.join(sorted(kinds))}"
    try:
        for mark in ours:
            if "lock" == mark.name:
                claim_of(mark)
            elif not (1 == len(mark.args) and str(mark.args[0]).strip() and not mark.kwargs):
                return f"{mark.name} needs a reason"
    except ValueError as error:
        return str(error)
    return None


def fault_of_runs(claim: Claim, runs: Sequence[box.Run], controls: Iterable[box.Run]) -> str | None:
    """
    Return what a test about this lock has failed to run, or None.

    Args:
        runs: everything that the test ran.
        controls: those of them that ran in its controls.
    """
    lock = claim.lock
    alone = claim.beside | ({lock} & LOCKS)
    if not any(run.whole for run in runs):
        return "nothing ran with all locks"
    if not any(alone == run.locks and not run.lacks for run in runs):
        return f"nothing ran with {', '.join(sorted(alone)) or 'what is built in'} alone"
    if not any(_is_off(lock, run) for run in controls):
        return f"nothing ran without {lock} in a control"
    return None


def _is_off(lock: str, run: box.Run) -> bool:
    return run.outside or lock in run.lacks or (lock in LOCKS and run.locks is not None and lock not in run.locks)


def applies(item: pytest.Item) -> bool:
    """Whether the test cites a case of the catalogue."""
    return "escapes" in Path(item.path).parts and _NAMED.match(item.name) is not None


class LockPolicy:
    """Fails a test without a mark, and one that doesn't run what its mark claims."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Check the marks, before any fixture is made."""
        if not applies(item):
            return
        fault = fault_of_marks(list(item.iter_markers()))
        if fault is not None:
            pytest.fail(f"{fault}; see tests/kit/lock_policy.py", pytrace=False)
        # The others stand without Landlock, where the operator allows that; this one can't stand alone then.
        claims = [claim_of(mark) for mark in item.iter_markers("lock")]
        if any("landlock" in {claim.lock, *claim.beside} for claim in claims):
            require("landlock")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check, after a test that passed, that it ran what its marks claim."""
        box.RUNS.clear()
        box.CONTROLS.clear()
        result = yield
        if applies(item):
            if not box.CONTROLS and item.get_closest_marker("no_attack") is None:
                pytest.fail("it came through no control; see tests/kit/lock_policy.py", pytrace=False)
            controls = [run for control in box.CONTROLS for run in control]
            for mark in item.iter_markers("lock"):
                fault = fault_of_runs(claim_of(mark), box.RUNS, controls)
                if fault is not None:
                    pytest.fail(f"lock({mark.args[0]!r}): {fault}; see tests/kit/lock_policy.py", pytrace=False)
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known, and a judge for this run."""
    config.addinivalue_line("markers", "lock(name, beside=(), because=''): the lock that an escape test is about")
    config.addinivalue_line("markers", "no_single_lock(reason): an escape test that no lock of a job is about")
    config.addinivalue_line("markers", "no_attack(reason): beside the escape tests, and no attack")
    config.pluginmanager.register(LockPolicy(), "leeward-lock-policy")

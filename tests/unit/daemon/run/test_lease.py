"""A lease and the fast path: what is taken back from it, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leeward.daemon.run.beside import Interpreter
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_runner import LiveRunner
from leeward.errors import LeewardError

RUNNER = 7


def leased(told: list[Any], **runner: Any) -> tuple[Lease, Any]:
    """A lease of a runner that does nothing, and who has lent it."""
    owner: Any = SimpleNamespace(terms=None, give_back=lambda runner: told.append("given back"))
    fast_path: Any = SimpleNamespace(withdraw=lambda number: told.append(number))
    whose: Any = SimpleNamespace(number=RUNNER, cpu_before=0.0, **runner)
    reactor: Any = None
    return Lease(reactor, whose, owner, lost=told.append, fast_path=fast_path), owner


def test_a_runner_on_offer_and_a_job_that_runs_are_taken_back() -> None:
    """Files that the fast path reads for either are about to be closed."""
    told: list[Any] = []
    lease, _ = leased(told)
    lease.take_back()
    assert not told
    lease._offered = True
    lease.take_back()
    assert [RUNNER] == told
    turn: Any = SimpleNamespace(take_back=lambda: told.append("the job"))
    lease.turn = turn
    lease.take_back()
    assert [RUNNER, "the job"] == told


def test_a_kernel_whose_group_others_join_is_taken_back_before() -> None:
    told: list[str] = []
    runner: Any = SimpleNamespace(birth=None)
    leaf: Any = SimpleNamespace(leave_group=lambda: told.append("left"))
    nobody: Any = None
    made = Interpreter(nobody, runner, leaf, nobody, nobody, nobody)
    made.take_back = lambda: told.append("taken back")
    made.leave_group()
    assert ["taken back", "left"] == told


def test_a_kernel_that_has_gone_when_it_is_ready_is_lost_once() -> None:
    """That is nobody's bug: it was reset meanwhile, or its sandbox killed it."""
    def limit(_limits: Any) -> None:
        raise LeewardError("init 1 has gone")

    told: list[Any] = []
    live: Any = SimpleNamespace(_reactor=None, _fast_path=lambda: None)
    lease, owner = leased(told, limit=limit)
    made: Any = owner
    LiveRunner._lease(live, made, lease.held, None, lambda lease: told.append("opened"), told.append)  # type: ignore[arg-type]
    assert ["given back", "init 1 has gone"] == told

"""Seeds, and that the simulation notices what it is there for."""

from __future__ import annotations

import os

import pytest

from leeward.daemon.pool.pool import Pool, Ticket
from leeward.daemon.pool.sessions import PoolSession, Seat
from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes
from leeward.daemon.sandboxes.registry import Registry
from leeward.daemon.serving.sandboxes import Sandboxes
from leeward.daemon.serving.sessions import Leases
from simulation.shrink import shrunk
from simulation.world import failure, history

#: Seeds of one test, some six seconds of processor time.
SEEDS = 200
TESTS = 200 if os.environ.get("LEEWARD_LONG") else 4


@pytest.mark.parametrize("part", range(TESTS))
def test_every_request_is_answered_once_and_the_end_state_is_the_start_state(part: int) -> None:
    """Whatever clients do, whatever fails: in bounded time, and no resource of it is left."""
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        if failure(seed, *history(seed)) is not None:
            pytest.fail(shrunk(seed, *history(seed)), pytrace=False)


def test_a_seed_is_one_history() -> None:
    """So that what it found can be looked at."""
    def trace() -> list[str]:
        found = failure(3, *history(3, 200), look=True)
        assert found is not None
        return found[1].kernel.trace

    assert trace() == trace()


@pytest.mark.parametrize(("whose", "method"), [
    (Leases, "end"), (Pool, "lease_over"), (Pool, "forget_session"), (PoolSession, "_give_back"), (Ticket, "answer"),
    (Seat, "close"), (Registry, "end"), (Sandboxes, "_refuse_over"), (LiveSandboxes, "free"), (Pool, "forget_seat"),
])
def test_an_omitted_step_is_noticed(monkeypatch: pytest.MonkeyPatch, whose: type, method: str) -> None:
    """A step that frees or answers, and doesn't any more."""
    monkeypatch.setattr(whose, method, lambda *_: None)

    assert any(failure(seed, *history(seed)) for seed in range(100))

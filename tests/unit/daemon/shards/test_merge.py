"""The division of a pool, and sums of counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.config import Config
from leeward.daemon.shards.messages import added, of_shard, own_part, part
from leeward.daemon.telling.metrics import Metrics, Now
from leeward.errors import PeerError
from leeward.spec.outcome import Limit, Outcome, Result


@given(st.integers(1, 64).flatmap(lambda shards: st.tuples(st.integers(shards, 2000), st.just(shards))))
def test_parts_add_up(pair: tuple[int, int]) -> None:
    total, shards = pair
    parts = [part(total, number, shards) for number in range(shards)]

    assert total == sum(parts)
    assert max(parts) - min(parts) <= 1
    assert min(parts) >= 1


def test_each_process_has_its_part_of_pool_and_queue() -> None:
    config = Config(shards=3, pool_size=7, queue_size=64)

    assert [(3, 22), (2, 21), (2, 21)] == [
        (own.pool_size, own.queue_size) for own in (own_part(config, number) for number in range(3))]


def test_a_shard_has_nothing_but_fresh_jobs() -> None:
    config = of_shard(Config(shards=2, group="7", metrics="/run/m", security_log="/var/log/s", idle_exit=9,
                             users={1000: {"jobs": 1}}, allow_network=True))

    assert ("", "", "", 0, 0, {}, False) == (config.group, config.metrics, config.security_log, config.idle_exit,
                                             config.max_sessions, config.users, config.allow_network)


def test_sums() -> None:
    assert {"a": 3, "b": {"c": 5, "d": 1}, "e": [4, 6], "f": 7} == added(
        {"a": 1, "b": {"c": 2}, "e": [1, 2]}, {"a": 2, "b": {"c": 3, "d": 1}, "e": [3, 4], "f": 7})


@pytest.mark.parametrize("other", [
    {"a": "x"}, {"a": {}}, {"b": 1}, {"e": [1]}, {"a": None}, {"e": [1, "x"]}, {"new": [{}]}])
def test_values_of_another_kind_are_refused(other: dict[str, object]) -> None:
    with pytest.raises(PeerError):
        added({"a": 1, "b": {"c": 2}, "e": [1, 2]}, other)


def test_maps_in_one_another_have_a_bound() -> None:
    """Else a shard could have the daemon recurse until Python's own bound."""
    deep: dict[str, object] = {}
    for _ in range(1000):
        deep = {"a": deep}

    with pytest.raises(PeerError):
        added({}, deep)


def result(outcome: Outcome, limit: Limit | None) -> Result:
    return Result(outcome=outcome, exit_code=0, limit=limit, duration=0.002, cpu_time=0.5, memory_peak=1,
                  denied={}, truncated=False, degraded=(), error=None, stdout=b"", stderr=b"")


def test_metrics_of_two_processes_are_as_those_of_one() -> None:
    one, other, both = Metrics(), Metrics(), Metrics()
    for metrics in (one, both):
        metrics.requests += 3
        metrics.job_ended(result(Outcome.FINISHED, None), 0.001, False, 0)
        metrics.call_denied("chroot", 2)
    for metrics in (other, both):
        metrics.job_ended(result(Outcome.TIMED_OUT, Limit.TIME), 20.0, False, 1000)
        metrics.request_refused("busy", 1000)
        metrics.peer_refused("protocol")
        metrics.callback_failed("shard")

    assert both.text(Now()) == Metrics.of(added(one.counts(), other.counts())).text(Now())

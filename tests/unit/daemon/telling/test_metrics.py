"""What is counted, and that Prometheus can read it."""

from __future__ import annotations

import pytest

from kit import exposition
from leeward.base.dataclass import replace
from leeward.daemon.telling.metrics import MOST_CALLS, MOST_USERS, Histogram, Metrics, Now
from leeward.errors import BY_KIND
from leeward.spec.outcome import Limit, Outcome, Result

NOW = Now(workers={"idle": 3, "busy": 1, "arming": 0}, memory={0: 4096, 7: 1 << 30}, recycles=2, connections=5,
          sessions=4, queued=6, runners_made=9, uptime=1.5)


def result(outcome: Outcome = Outcome.FINISHED, duration: float = 0.001, limit: Limit | None = None) -> Result:
    return Result(b"", b"", 0, outcome, limit=limit, duration=duration, cpu_time=0.25)


def test_the_promised_names_are_there_from_the_start() -> None:
    """With the labels that were promised; a rate over a series that isn't there yet would miss its first step."""
    families = exposition.read(Metrics().text(NOW))
    promised = {
        "leeward_workers_total": ("gauge", "state"), "leeward_worker_recycles_total": ("counter", ""),
        "leeward_executions_total": ("counter", ""), "leeward_executions_failed_total": ("counter", "reason"),
        "leeward_execution_duration_seconds": ("histogram", "le"), "leeward_memory_usage_bytes": ("gauge", "worker"),
        "leeward_cpu_time_seconds_total": ("counter", ""), "leeward_connections_active": ("gauge", ""),
        "leeward_requests_total": ("counter", ""),
    }
    for name, (kind, label) in promised.items():
        family = families[name]
        assert kind == family.kind
        assert {label} - {""} == {key for _, labels in family.samples for key, _ in labels}


def test_current_values_have_their_metrics() -> None:
    """What is looked up goes where it belongs."""
    families = exposition.read(Metrics().text(NOW))

    assert [3, 1, 0] == [families["leeward_workers_total"].value(state=state) for state in ("idle", "busy", "arming")]
    assert [4096, 1 << 30] == [families["leeward_memory_usage_bytes"].value(worker=slot) for slot in ("0", "7")]
    assert [2, 5, 4, 6, 9] == [families[f"leeward_{name}"].value() for name in (
        "worker_recycles_total", "connections_active", "sessions_active", "queue_length", "runners_made_total")]


def test_egress_is_counted_by_verdict_and_direction() -> None:
    """Each from the start, also those of which there has been none."""
    now = replace(NOW, egress={"allowed": 3, "denied": 2, "failed": 0, "closed": 1},
                  egress_bytes={"sent": 10, "received": 4096})
    families = exposition.read(Metrics().text(now))

    assert [3, 2, 0, 1] == [families["leeward_egress_rows_total"].value(verdict=verdict)
                            for verdict in ("allowed", "denied", "failed", "closed")]
    assert [10, 4096] == [families["leeward_egress_bytes_total"].value(direction=direction)
                          for direction in ("sent", "received")]


def test_every_end_is_counted_once() -> None:
    """By outcome; what was cancelled is nobody's failure."""
    metrics = Metrics()
    for outcome in Outcome:
        metrics.job_ended(result(outcome), 0.0, cancelled=False, user=1000)
    metrics.job_ended(result(Outcome.INTERNAL), 0.0, cancelled=True, user=1000)
    metrics.job_ended(result(Outcome.TIMED_OUT, limit=Limit.TIME), 2.0, cancelled=False, user=1000)
    families = exposition.read(metrics.text(NOW))
    failed = families["leeward_executions_failed_total"]

    assert len(Outcome) + 2 == families["leeward_executions_total"].value()
    assert {**{str(outcome): 1 for outcome in Outcome if outcome is not Outcome.FINISHED}, "cancelled": 1,
            "timed_out": 2} == {reason: failed.value(reason=reason) for reason in failed.labels("reason")}
    assert 1 == families["leeward_executions_limited_total"].value(limit="time")
    assert 0.25 * (len(Outcome) + 2) == families["leeward_cpu_time_seconds_total"].value()
    assert 2.0 == families["leeward_queue_wait_seconds"].samples["leeward_queue_wait_seconds_sum", ()]


def test_series_by_user_are_bounded() -> None:
    """The first users have their own, all others share one; together they are the whole."""
    metrics = Metrics()
    for user in range(MOST_USERS + 10):
        for _ in range(2):
            metrics.job_ended(result(), 0.0, cancelled=False, user=user)
        metrics.request_refused("busy", user)
    families = exposition.read(metrics.text(NOW))
    executions, refused = families["leeward_user_executions_total"], families["leeward_user_requests_refused_total"]

    assert {*map(str, range(MOST_USERS)), "other"} == set(executions.labels("user"))
    assert (2, 20, 10) == (executions.value(user="0"), executions.value(user="other"), refused.value(user="other"))
    assert 0.5 == families["leeward_user_cpu_time_seconds_total"].value(user="7")
    assert families["leeward_executions_total"].value() == sum(executions.value(user=user)
                                                               for user in executions.labels("user"))


def test_a_bucket_counts_values_up_to_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.10001, 1.0, 5.0):
        histogram.observe(value)

    assert ['x_bucket{le="0.1"} 2', 'x_bucket{le="1"} 4', 'x_bucket{le="+Inf"} 5',
            "x_sum 6.20001", "x_count 5"] == list(histogram.lines("x"))


def test_a_job_cannot_make_series() -> None:
    """Numbers of calls are its choice: those without a name are one series."""
    metrics = Metrics()
    metrics.call_denied("mount", 3)
    for number in range(10_000):
        metrics.call_denied(f"syscall_{number}", 1)
    for number in range(2 * MOST_CALLS):
        metrics.call_denied(f"call{number}", 1)
    metrics.call_denied("mount", 1)
    denied = exposition.read(metrics.text(NOW))["leeward_denied_syscalls_total"]

    assert 4 == denied.value(syscall="mount")
    assert len(denied.samples) <= MOST_CALLS + 1
    assert 4 + 10_000 + 2 * MOST_CALLS == sum(denied.samples.values())


@pytest.mark.parametrize("kind", [*BY_KIND, "internal"])
def test_every_kind_of_refusal_has_a_series(kind: str) -> None:
    """And what isn't one can't make one."""
    metrics = Metrics()
    metrics.request_refused(kind, 0)
    metrics.request_refused("nonsense", 0)
    refused = exposition.read(metrics.text(NOW))["leeward_requests_refused_total"]

    assert (2 if "internal" == kind else 1) == refused.value(kind=kind)
    assert 2 == sum(refused.samples.values())


@pytest.mark.parametrize("text", [
    "x 1", "# TYPE x counter\nx 1\n", "# HELP x y\n# TYPE x counter\ny 1\n", "# HELP x y\n# TYPE x counter\nx{a=1} 1\n",
    "# HELP x y\n# TYPE x counter\nx 1\nx 2\n", "# HELP x y\n# TYPE x counter\nx{a=\"1\nx\"} 2\n",
    '# HELP x y\n# TYPE x histogram\nx_bucket{le="1"} 2\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 1\n',
])
def test_the_reader_refuses_malformed_text(text: str) -> None:
    """The control of all of these tests."""
    with pytest.raises((AssertionError, KeyError, ValueError)):
        exposition.read(text)

"""The security log: everything that happened is in it, in a number of records that nobody can make grow."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.daemon.supervisor import Denied
from leeward.daemon.telling.metrics import Metrics
from leeward.daemon.telling.observer import (
    BURST,
    KINDS,
    OWN_BURST,
    OWN_RATE,
    RATE,
    SOMEBODY,
    Digest,
    Observer,
    Offender,
)
from leeward.errors import BadRequest
from leeward.spec.job import Job
from leeward.spec.outcome import Limit, Outcome, Result


class Kept:
    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, fields: dict[str, object]) -> None:
        self.rows.append((event, fields))


def test_a_call_is_logged_at_the_first_tenth_and_hundredth_time() -> None:
    """And the rest at the job's end: the counts of the records add up to what was denied."""
    kept = Kept()
    digest = Digest(kept)
    offender = Offender(1000, {"job": 5})
    for _ in range(1234):
        offender.denied(digest, 1.0, "mount", "x86_64", 77, 1)
    offender.denied(digest, 1.0, "bpf", "x86_64", 0, 1)
    offender.over(digest, 1.0)
    told = [(row["syscall"], row["count"], row["total"]) for _, row in kept.rows]

    assert [("mount", 1, 1), ("mount", 9, 10), ("mount", 90, 100), ("mount", 900, 1000), ("bpf", 1, 1),
            ("mount", 234, 1234)] == told
    assert {"reason": "seccomp", "user": 1000, "job": 5, "syscall": "mount", "arch": "x86_64", "pid": 77, "count": 1,
            "total": 1} == kept.rows[0][1]


def test_the_flood_of_many_is_added_up() -> None:
    """At most BURST records and RATE a second, and a summary that holds the rest."""
    kept = Kept()
    digest = Digest(kept)
    users = 3 * BURST // OWN_BURST
    for number in range(BURST * 3):
        digest.record(10.0, "peer refused", "forbidden", 1000 + number % users, {"pid": number})
    assert BURST == len(kept.rows)
    assert digest.owes
    digest.summary()
    assert not digest.owes
    left_out = kept.rows[BURST:]

    assert 2 * BURST == sum(row["records"] for event, row in left_out if "records left out" == event)
    for user in range(BURST):
        digest.record(11.0, "limit", "time", 5000 + user, {})
    assert RATE == len(kept.rows) - BURST - len(left_out)


def test_the_flood_of_one_leaves_room_for_others() -> None:
    """A client that is refused 15,000 times in four seconds has some dozens of records, and everybody else their own."""
    kept = Kept()
    digest = Digest(kept)
    for number in range(15_000):
        digest.record(10.0 + number * 4 / 15_000, "peer refused", "forbidden", 1000, {})
    digest.record(14.0, "peer refused", "forbidden", 1001, {})
    digest.record(14.0, "limit", "time", 1000, {})
    told = Counter((event, row["user"]) for event, row in kept.rows)
    digest.summary()

    assert OWN_BURST <= told["peer refused", 1000] <= OWN_BURST + 4 * OWN_RATE
    assert (1, 1) == (told["peer refused", 1001], told["limit", 1000])
    assert 15_000 == told["peer refused", 1000] + kept.rows[-1][1]["records"]


def test_users_without_end_are_one() -> None:
    """What is left out is kept for a bounded number of users."""
    kept = Kept()
    digest = Digest(kept)
    for user in range(BURST + 5 * KINDS):
        digest.record(0.0, "peer refused", "forbidden", user, {})
    digest.summary()
    rest = [row for event, row in kept.rows if "records left out" == event]

    assert KINDS + 1 == len(rest)
    told = sum("peer refused" == event for event, _ in kept.rows)
    assert KINDS + OWN_BURST == told
    assert BURST + 5 * KINDS - told - KINDS == next(row["records"] for row in rest if SOMEBODY == row["user"])


def denied(runner: int, syscall: str = "mount", count: int = 1) -> Denied:
    return Denied(runner, syscall, "x86_64", 9, count)


class Watch:
    """An observer with a file, and what is in it."""

    def __init__(self, path: Path) -> None:
        self.reactor = ReferenceReactor()
        self.path = path
        self.observer = Observer(self.reactor, Metrics(), str(path))

    def ticket(self, runner: int, user: int = 1000) -> Ticket:
        return Ticket(Job(), None, None, 0.0, user=user, runner=runner)  # type: ignore[arg-type]  # no pool is asked

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        self.observer.close()
        self.reactor.close()


def ended(outcome: Outcome = Outcome.FINISHED, limit: Limit | None = None) -> Report:
    return Report(result=Result(b"", b"", 0, outcome, limit=limit))


@pytest.fixture
def watch(tmp_path: Path):
    watch = Watch(tmp_path / "security.log")
    yield watch
    watch.close()


def test_records_have_job_user_and_reason(watch: Watch) -> None:
    """One JSON object a line, with the time, in a file of mode 0600."""
    ticket = watch.ticket(runner=3)
    watch.observer.denied(denied(3), 0, ticket)
    watch.observer.job_ended(ticket, ended(Outcome.TIMED_OUT, Limit.TIME))
    watch.observer.peer_refused("forbidden", 4711, 99)
    watch.observer.request_refused("forbidden", 1000)
    rows = watch.rows()

    assert [("system call denied", "seccomp", 1000), ("limit", "time", 1000), ("peer refused", "forbidden", 4711),
            ("request refused", "forbidden", 1000)] == [(row["event"], row["reason"], row["user"]) for row in rows]
    assert [ticket.number, ticket.number] == [row["job"] for row in rows[:2]]
    assert "timed_out" == rows[1]["outcome"]
    for row in rows:
        assert abs((datetime.now(UTC) - datetime.fromisoformat(row["time"])).total_seconds()) < 60
    assert 0o600 == watch.path.stat().st_mode & 0o7777


def test_records_have_the_label(watch: Watch) -> None:
    """That of the job, where its client gave one; of a call that comes after the job's end as well."""
    ticket = Ticket(Job(label="run-7"), None, None, 0.0, user=1000, runner=3)  # type: ignore[arg-type]  # no pool is asked
    watch.observer.denied(denied(3), 0, ticket)
    watch.observer.job_ended(ticket, ended(Outcome.TIMED_OUT, Limit.TIME))
    watch.observer.denied(denied(3, "chroot"), 0, None)
    rows = watch.rows()

    assert {("system call denied", "run-7"), ("limit", "run-7")} == {(row["event"], row["label"]) for row in rows}
    assert 3 == len(rows)


def test_every_denied_call_is_in_one_record(watch: Watch) -> None:
    """Those before the job's end, those that were seen after it, and not those of a runner that had no job."""
    first, second = watch.ticket(runner=3), watch.ticket(runner=4)
    watch.observer.denied(denied(2, count=50), None, None)  # a self-check
    for _ in range(25):
        watch.observer.denied(denied(3), 0, first)
    watch.observer.job_ended(first, ended())
    watch.observer.denied(denied(3, count=7), 0, None)
    watch.observer.job_ended(second, ended())
    watch.observer.denied(denied(4, "bpf", count=2), None, None)
    counts: Counter[tuple[int, str]] = Counter()
    for row in watch.rows():
        counts[row["job"], row["syscall"]] += row["count"]

    assert {(first.number, "mount"): 32, (second.number, "bpf"): 2} == counts
    assert {"mount": 32, "bpf": 2} == watch.observer.metrics.denied


def test_jobs_without_refused_calls_leave_no_record(watch: Watch) -> None:
    """Neither records nor memory, however many there are."""
    for runner in range(2000):
        watch.observer.job_ended(watch.ticket(runner), ended())

    assert [] == watch.rows()
    assert len(watch.observer._ended) <= 256
    assert {} == watch.observer._offenders


def test_omitted_records_are_counted_later(watch: Watch) -> None:
    """By the reactor, and at the latest when the daemon ends."""
    for number in range(BURST * 20):
        watch.observer.peer_refused("busy", 1000, number)
    before = watch.rows()
    watch.observer.close()
    last = watch.rows()[-1]

    assert OWN_BURST <= len(before) < BURST * 20
    assert ("records left out", "peer refused", 1000) == (last["event"], last["of"], last["user"])
    assert BURST * 20 == len(before) + last["records"]


def test_reopening_follows_the_path(watch: Watch) -> None:
    """As logrotate wants it: after a rename, records go to a new file by the old name."""
    watch.observer.peer_refused("busy", 1, 1)
    watch.path.rename(watch.path.with_suffix(".1"))
    watch.observer.peer_refused("busy", 2, 1)
    watch.observer.open(str(watch.path))
    watch.observer.peer_refused("busy", 3, 1)

    assert [3] == [row["user"] for row in watch.rows()]
    assert 2 == len(watch.path.with_suffix(".1").read_text().splitlines())


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "writable", "missing folder"])
def test_c149_a_file_that_others_can_write_is_refused(kind: str, tmp_path: Path) -> None:
    """Nothing blocks, and a daemon that runs goes on writing where it did."""
    path = tmp_path / "x.log"
    if "link" == kind:
        path.symlink_to(tmp_path / "elsewhere")
    elif "fifo" == kind:
        os.mkfifo(path)
    elif "folder" == kind:
        path.mkdir()
    elif "writable" == kind:
        path.touch()
        path.chmod(0o666)
    else:
        path = tmp_path / "none" / "x.log"
    watch = Watch(tmp_path / "good.log")
    try:
        with pytest.raises(BadRequest, match="security_log"):
            watch.observer.open(str(path))
        watch.observer.peer_refused("busy", 1, 1)
        assert 1 == len(watch.rows())
    finally:
        watch.close()
    assert not (tmp_path / "elsewhere").exists()

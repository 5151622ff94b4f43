"""The record of egress: whose a row is, what is kept, and in which pages it is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest

from leeward.daemon.pool import egress_record, seals
from leeward.daemon.pool.egress_record import EVERYBODY, EgressRecord
from leeward.daemon.pool.ways_out import LeaseSeals, OpenSeal, PoolWays
from leeward.isolation.egress_route import EgressPlan
from leeward.spec.egress_tls import Seal
from leeward.spec.sandbox import FURTHER
from leeward.wire.egress_control import VERDICTS, Decided

JOB: Mapping[str, Any] = {"kind": "job", "job": 7}


def decided(lease: int, name: str = "a.example.org", verdict: str = "denied", **more: Any) -> Decided:
    return Decided(17.0, lease, 1, name, "", 443, verdict, **more)


def leased(record: EgressRecord, **users: int) -> None:
    """Leases of jobs: l5=1 gives user 1 the lease 5."""
    for lease, user in users.items():
        record.leased(int(lease[1:]), "web")
        record.owned(int(lease[1:]), user, JOB)


def test_a_user_gets_the_users_own_rows_alone() -> None:
    """And his numbers count his alone; the operator hears of everybody's, in their order."""
    record = EgressRecord()
    leased(record, l5=1, l6=2)
    for lease, name in ((5, "one"), (6, "two"), (5, "three")):
        record.add(decided(lease, name))
    first, third = record.after(1, 0)["events"]
    assert ("one", 1) == (first["name"], first["number"])
    assert ("three", 2) == (third["name"], third["number"])
    assert {"number": 1, "user": 2, "kind": "job", "job": 7, "policy": "web", "lease": 6, "try": 1, "time": 17.0,
            "name": "two", "address": "", "port": 443, "verdict": "denied", "rule": "", "reason": "", "sent": 0,
            "received": 0} == record.after(2, 0)["events"][0]
    assert {"events": [], "last": 1, "forgotten": 0} == record.after(2, 1)
    assert {"events": [], "last": 0, "forgotten": 0} == record.after(3, 0)
    assert [(1, "one"), (2, "two"), (3, "three")] == [
        (row["number"], row["name"]) for row in record.after(EVERYBODY, 0)["events"]]


def test_rows_of_a_lease_that_is_over_have_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's last rows come after the end of the job. Those of a lease that nobody knows are the operator's alone."""
    monkeypatch.setattr(egress_record, "MOST_PAST", 1)
    record = EgressRecord()
    leased(record, l5=1, l6=1)
    record.over(5)
    record.add(decided(5, "late"))
    record.over(6)
    record.add(decided(5, "too late"))
    record.add(decided(99, "never leased"))
    assert ["late"] == [row["name"] for row in record.after(1, 0)["events"]]
    assert ["late", "too late", "never leased"] == [row["name"] for row in record.after(EVERYBODY, 0)["events"]]


def test_the_user_with_the_most_rows_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no user displaces another's; and a user is told how many are missing."""
    monkeypatch.setattr(egress_record, "MOST_ROWS", 10)
    record = EgressRecord()
    leased(record, l5=1, l6=2)
    for number in range(3):
        record.add(decided(6, f"two {number}"))
    for number in range(100):
        record.add(decided(5, f"one {number}"))
    assert 10 == len(record)
    assert {"two 0", "two 1", "two 2"} == {row["name"] for row in record.after(2, 0)["events"]}
    flood = record.after(1, 0)
    assert [f"one {number}" for number in range(93, 100)] == [row["name"] for row in flood["events"]]
    assert (100, 93) == (flood["last"], flood["forgotten"])
    assert 93 == record.after(EVERYBODY, 0)["forgotten"]


def test_an_answer_is_a_page() -> None:
    """Its last number asks for the next one."""
    record = EgressRecord()
    leased(record, l5=1)
    for _ in range(egress_record.PAGE + 3):
        record.add(decided(5))
    first = record.after(1, 0)
    assert egress_record.PAGE == len(first["events"]) == first["last"]
    second = record.after(1, first["last"])
    assert (3, egress_record.PAGE + 3) == (len(second["events"]), second["last"])


def test_a_waiter_is_notified_of_the_users_own_rows() -> None:
    """Once, and not after it has withdrawn."""
    record = EgressRecord()
    leased(record, l5=1, l6=2)
    told: list[str] = []
    record.wait(1, lambda: told.append("user 1"))
    record.wait(EVERYBODY, lambda: told.append("operator"))
    record.wait(2, lambda: told.append("taken back"))()
    record.add(decided(6))
    assert ["operator"] == told
    record.add(decided(5))
    record.add(decided(5))
    assert ["operator", "user 1"] == told


def test_rows_and_bytes_are_counted_by_verdict() -> None:
    """By verdict, and the bytes."""
    record = EgressRecord()
    record.add(decided(1))
    record.add(decided(1, verdict="closed", sent=3, received=4))
    assert {**dict.fromkeys(VERDICTS, 0), "denied": 1, "closed": 1} == record.verdicts
    assert (3, 4) == (record.sent, record.received)


@pytest.mark.parametrize(("take", "seat", "about"), [
    (None, "", {"kind": "job", "job": 3}),
    (Mock(), "", {"kind": "session"}),
    (Mock(), "s" * 26, {"kind": "sandbox", "sandbox": "s" * 26}),
])
def test_a_lease_belongs_to_a_job_session_or_sandbox(take: Any, seat: str, about: dict[str, Any]) -> None:
    """A sandbox has its seat before the pool has its ticket; and a worker's next lease ends the one before."""
    record = EgressRecord()
    ways = PoolWays(Mock(), record, Mock(), EgressPlan((53,), ()), {}, "web", None)
    worker = object()
    ways.lease(worker, 41, None)
    if seat:
        record.seated(41, seat)
    ways.owned(41, SimpleNamespace(user=5, number=3, take=take))
    ways.lease(worker, 42, None)
    record.add(decided(41))
    [row] = record.after(5, 0)["events"]
    assert {"user": 5, "policy": "web", **about} == {name: row[name] for name in ("user", "policy", *about)}
    ways.over(worker, lambda: None)
    ways.gone(worker)
    assert not record._held
    assert [41, 42] == list(record._past)


def test_no_two_leases_have_the_same_authority() -> None:
    """There is one in stock for each worker when a lease begins; one is made where none is."""
    seal = Seal("", b"all\n\n", b"the policy's\n", ("KEY",))
    broker = Mock()
    opened = OpenSeal(Mock(), Mock(), seal, ())
    ways = PoolWays(broker, EgressRecord(), Mock(), EgressPlan((53,), ()), {}, "web", LeaseSeals(seal, opened))
    workers = [object(), object()]
    assert b"all\n" + FURTHER + b"the policy's\n" == ways.certificates
    with mock.patch.object(seals, "make_for_lease", side_effect=seals.make_for_lease) as made:
        for worker in workers:
            ways.stand(worker, ())
        lent = []
        for number in range(20):
            asked, worker = made.call_count, workers[number % 2]
            lent.append(ways.lease(worker, number, None))
            assert asked == made.call_count  # no request waits for it
            given = broker.lease.call_args.args[3]
            assert (given.certificate, given.placeholders[0]) == (lent[-1].certificate, lent[-1].variables["KEY"])
            ways.over(worker, lambda: None)
        assert 24 == made.call_count
    for worker in workers:
        ways.gone(worker)
    lent += [ways.lease(workers[0], number, None) for number in range(20, 30)]
    assert 30 == len({each.certificate for each in lent}) == len({each.variables["KEY"] for each in lent})

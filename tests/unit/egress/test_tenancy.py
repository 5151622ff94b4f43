"""What a lease has in the record."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from leeward.egress import tenancy as tenancies
from leeward.egress.policy import Decision
from leeward.egress.tenancy import Tenancy, refusal
from leeward.spec.egress_policy import parse_policy
from leeward.wire.egress_control import Decided


def test_a_job_that_is_refused_again_and_again_does_not_fill_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    In a minute it has as many rows of refusals as it may have connections; a later one says how many were left out.
    What was allowed is told in any case.
    """
    now = [1000.0]
    monkeypatch.setattr(tenancies.time, "monotonic", lambda: now[0])
    rows: list[Decided] = []
    tenancy = Tenancy(1, parse_policy({"limits": {"per_minute": 3}}), bytes(32), rows.append)

    def refuse() -> None:
        tenancy.begin("", None, 80).refused(refusal("no"))

    for _ in range(10):
        refuse()
    assert ["no"] * 3 == [row.reason for row in rows]
    attempt = tenancy.begin("a.example.org", None, 80)
    attempt.allowed(Decision("allow", "*"), ip_address("93.184.216.34"))
    attempt.closed(1, 2)
    now[0] += 61
    refuse()

    assert ["allowed", "closed", "denied"] == [row.verdict for row in rows[3:]]
    assert "no (7 refusals before this one were left out)" == rows[-1].reason

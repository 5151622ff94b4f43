"""One line about each limit that was reached."""

from __future__ import annotations

import re

import pytest

from kit.features import ROOT
from leeward.base.hints import LIMITS, hint
from leeward.spec.outcome import Limit, Outcome, Result

C = (ROOT / "leeward" / "clients" / "c" / "command" / "exec_job.c").read_text()


def test_every_limit_has_one() -> None:
    assert {limit.value for limit in Limit} == set(LIMITS)


@pytest.mark.parametrize("limit", [*Limit, None])
def test_a_result_has_that_of_its_limit(limit: Limit | None) -> None:
    line = Result(b"", b"", 0, Outcome.FINISHED, limit=limit).hint

    assert bool(limit) == bool(line)
    assert hint(limit) == line
    assert "\n" not in line


@pytest.mark.parametrize("limit", Limit)
def test_the_program_in_c_has_the_same(limit: Limit) -> None:
    block = re.split(r",\n(?:\t\[|};)", C.split(f"[LEEWARD_LIMIT_{limit.name}] = ")[1])[0]

    assert hint(limit) == "".join(re.findall(r'"([^"\n]*)"', block))

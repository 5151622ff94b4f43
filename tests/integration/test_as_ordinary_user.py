"""
The integration and escape tests again, by somebody without any privilege.

root's run starts one pytest as an ordinary user, on an installation that he can reach and a copy of the tests
(kit/beside.py), and passes if that passes. What he finds is printed.
"""

from __future__ import annotations

import sys

import pytest

from kit.beside import DEADLINE_S, Run
from kit.lanes import UNSTEADY


@pytest.mark.needs("root", "ordinary-user")
@pytest.mark.timeout(2 * DEADLINE_S + 60)
def test_the_same_holds_for_an_ordinary_user(run_beside: Run, capfd: pytest.CaptureFixture[str],
                                             pytestconfig: pytest.Config):
    """
    Every integration and escape test passes without root. A host that ran two suites at once may have been too slow
    for a bound: what failed has a second chance alone, and is printed, by the lanes at their end as well.
    """
    status = run_beside.wait(DEADLINE_S)
    said = run_beside.said.read_text(errors="replace")
    again = ""
    if 1 == status:
        status, again = run_beside.again(DEADLINE_S)
    if again and 0 == status:
        pytestconfig.cache.set(UNSTEADY, [line.partition(" ")[2].partition(" - ")[0]
                                           for line in said.rpartition(" short test summary info ")[2].splitlines()
                                           if line.startswith(("FAILED ", "ERROR "))])

    with capfd.disabled():
        sys.stdout.write("\n--- as an ordinary user\n" + "".join(said.splitlines(keepends=True)[-60:]) + "---\n")
        if again:
            sys.stdout.write("--- what failed, alone\n" + "".join(again.splitlines(keepends=True)[-40:]) + "---\n")
    assert 0 == status, again or said

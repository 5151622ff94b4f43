"""What `leeward explain` says of an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leeward.errors import BadRequest
from leeward_cli import logs


@pytest.mark.parametrize(("error", "says"), [
    ("Ended: nobody waits for it any more", "process 5: was ended, exit status 125"),
    ("Bug: something", "process 5: was lost by a fault of leeward or the host, exit status 125"),
])
def test_a_job_that_its_client_gave_up_is_no_fault(error: str, says: str) -> None:
    row: dict[str, Any] = {"kind": "process", "sandbox": "s", "process": 5, "outcome": "internal", "exit_code": 125,
                           "error": error, "time": 0.0, "number": 1}

    first, *rest = logs._summary(row)

    assert says in first
    assert any(error in line for line in rest)


@pytest.mark.parametrize("asked", ["x", "-1", "1.5", "a" * 25, "A" * 26])
def test_a_malformed_number_or_id_is_refused(asked: str, tmp_path: Path) -> None:
    """Before a daemon is asked."""
    with pytest.raises(BadRequest, match="is neither a job's number nor a sandbox's id of 26 characters"):
        logs.show(str(tmp_path / "none"), asked, False, False)

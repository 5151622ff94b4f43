"""The table of what serves each operation, and whom it admits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.serving.operations import _SERVES, HANDLERS, Operations
from leeward.errors import Busy, Forbidden
from leeward.wire.requests import OPERATIONS, Slot


class Flight:
    """One that is full."""

    def check(self) -> None:
        raise Busy("requests")

    def check_job(self) -> None:
        raise Busy("results")


def admitted(op: str, guest: bool) -> str:
    """What is said to a client whose connection is full."""
    connection: Any = SimpleNamespace(_share=SimpleNamespace(guest=guest, user=1007), _flight=Flight())
    try:
        Operations._admit(connection, OPERATIONS[op])
    except (Busy, Forbidden) as refusal:
        return refusal.message
    return ""


def test_every_operation_is_served() -> None:
    """By one handler each; no row is left over."""
    kinds = {one.kind for one in OPERATIONS.values()} - {Slot}

    assert kinds == set(HANDLERS)
    for row in _SERVES:
        assert any(issubclass(kind, row) for kind in kinds), row


def test_full_connections_get_what_needs_no_room() -> None:
    said = {op: admitted(op, guest=False) for op in OPERATIONS}

    assert {"requests", "results", ""} == set(said.values())
    assert {"cancel", "ping", "kept_drop", "function_answer", "shutdown"} < {op for op in said if not said[op]}
    assert {"execute", "sandbox_execute", "process_run", "overlay_read"} < {op for op in said if "results" == said[op]}
    assert {"process_start", "session_open", "file_read"} < {op for op in said if "requests" == said[op]}


@pytest.mark.parametrize("op", ["shutdown", "egress_asks", "egress_answer"])
def test_guests_are_refused_by_name(op: str) -> None:
    """Whoever isn't a guest is served."""
    assert "" == admitted(op, guest=False)
    assert admitted(op, guest=True)
    assert "this daemon is not user 1007's to end" == admitted("shutdown", guest=True)

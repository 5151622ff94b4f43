"""Which operations of the wire clients on other machines may ask for."""

from __future__ import annotations

import pytest

from leeward.wire.requests import OPERATIONS

pytestmark = pytest.mark.needs("extra-serve")

#: What no such client may ask for: the daemon itself, what others do, and what needs descriptors.
REFUSED = {"status", "shutdown", "recall", "egress_log", "egress_asks", "egress_answer", "sandbox_dock", "arena", "slot"}


def test_each_operation_is_judged():
    """A new one is refused until somebody has thought about it: here, and in the face."""
    from leeward.apps.serve.wire_face import ABOUT_SANDBOXES, COUNTED, PLAIN

    named = PLAIN | COUNTED | ABOUT_SANDBOXES | {"execute", "sandbox_list"}

    assert REFUSED == OPERATIONS.keys() - named
    assert named <= OPERATIONS.keys()


def test_what_is_about_this_connection_names_no_sandbox():
    from leeward.apps.serve.wire_face import ABOUT_SANDBOXES, PLAIN

    assert not [op for op in PLAIN if "sandbox" in OPERATIONS[op].checks]
    assert ABOUT_SANDBOXES == {op for op in OPERATIONS if "sandbox" in OPERATIONS[op].checks}

"""
libleeward's live sandboxes: what leeward.h promises of them, over a real daemon.

The promises themselves are in tests/native/sandbox_checks.c, which runs plain, under valgrind, and with the library
under ASan and UBSan. Hostile daemons are those of tests/fuzz.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import reactors
from kit.c_client import VALGRIND, checked
from kit.features import ROOT
from kit.live_daemon import LiveDaemon

DAEMON, REACTORS = ("--pool-size", "2"), reactors.WAYS

pytestmark = [pytest.mark.needs("compiler"), pytest.mark.needs("user-namespaces")]

CHECKS = ROOT / "tests" / "native" / "sandbox_checks.c"


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds(daemon: LiveDaemon, plain: Path, what: str) -> None:
    """Programs, streams, terminals, Python, files; and arguments of none."""
    checked(plain, what, daemon.socket)


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds_without_a_fault(any_daemon: LiveDaemon, sanitized: Path, what: str) -> None:
    """The same under ASan and UBSan."""
    checked(sanitized, what, any_daemon.socket)


@pytest.mark.needs("valgrind")
@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_valgrind_reports_no_error(any_daemon: LiveDaemon, plain: Path, what: str) -> None:
    """No byte is lost, none is read unset."""
    checked(*VALGRIND, plain, what, any_daemon.socket)

"""
The option --quick: the unit tests but for those that are marked `thorough`, and of what needs a kernel the tests that
are marked `smoke`.

Runs in:   pytest, as a plugin of conftest.py; `./dev test --quick` is where it comes from.

Each file of tests/escapes has at least one such test (tests/unit/test_quick.py), so that each boundary is tried. The
test runs in a real sandbox, and fails if the sandbox doesn't confine. A quick run in which none of them passed has said
nothing about confinement, and fails.
"""

from __future__ import annotations

from collections import Counter

import pytest


def room_of(nodeid: str) -> str:
    """The folder of tests/ that a test is in: "tests/unit/wire/test_frames.py::test_x" is in "unit"."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 and "tests" == parts[0] else parts[0]


class Quick:
    """Chooses the tests of a quick run, reports what was left out, and fails a run in which no sandbox was tried."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.attacks = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the quick tests."""
        chosen = [item for item in items if item.get_closest_marker("smoke")
                  or ("unit" == room_of(item.nodeid) and not item.get_closest_marker("thorough"))]
        others = list(set(items) - set(chosen))
        self.left_out.update(room_of(item.nodeid) for item in others)
        items[:] = chosen
        if others:
            config.hook.pytest_deselected(items=others)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the attacks that a sandbox has withstood."""
        self.attacks += "call" == report.when and report.passed and "escapes" == room_of(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would have passed without any sandbox."""
        if not self.attacks and pytest.ExitCode.OK == session.exitstatus and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was left out, and what was tried."""
        terminalreporter.section("--quick")
        left = ", ".join(f"{count} of {room}" for room, count in sorted(self.left_out.items()))
        terminalreporter.line(f"{self.attacks} tests of attacks have passed in real sandboxes", red=not self.attacks)
        if left:
            terminalreporter.line(f"left out: {left}, among them the run as an ordinary user, containers, other "
                                  "kernels, other languages and real packages; ./dev test runs all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --quick."""
    parser.addoption("--quick", action="store_true", help="the unit tests and one test or so of each boundary")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and choose if that is asked for."""
    config.addinivalue_line("markers", "thorough: a unit test that takes seconds and says nothing about the machine: "
                                       "it looks at the tree, or at many random inputs; --quick leaves it out")
    config.addinivalue_line("markers", "smoke: what --quick has beside the unit tests; kit/quick.py")
    if config.option.quick:
        config.pluginmanager.register(Quick(), "leeward-quick")

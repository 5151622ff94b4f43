"""
Checks every skipped test: a skip for a feature that this machine has fails the run.

Runs in:   pytest, as a plugin of conftest.py.

A test says what it needs by `@pytest.mark.needs("landlock>=4", "root")`, or calls
`require("landlock>=4")` where only the test itself can tell. A skip by any other means has
to give a reason of the same form, "needs FEATURE: ...", and FEATURE must be absent.
"""

from __future__ import annotations

import re

import pytest

from kit import features

REASON = re.compile(r"(?:Skipped: )?needs ([^\s:,]+(?:, [^\s:,]+)*)")


def reason_for(requirements: tuple[str, ...]) -> str | None:
    """
    Return why a test with these requirements can't run here, or None if it can.

    Raises:
        KeyError: an unknown feature.
    """
    unmet = [requirement for requirement in requirements if not features.is_met(requirement)]
    if not unmet:
        return None
    have = ", ".join(features.shown(requirement.partition(">=")[0]) for requirement in unmet)
    return f"needs {', '.join(unmet)}: this machine has {have}"


def fault_of(reason: str) -> str | None:
    """Return what is wrong with a skip for *reason*, or None."""
    match = REASON.match(reason)
    if match is None:
        return "names no feature of tests/kit/features.py"
    for requirement in match[1].split(", "):
        try:
            if not features.is_met(requirement):
                return None
        except (KeyError, ValueError):
            return f"names {requirement!r}, which tests/kit/features.py doesn't know"
    return f"but this machine has {match[1]}"


def require(*requirements: str) -> None:
    """Skip the running test unless this machine has all of these."""
    reason = reason_for(requirements)
    if reason is not None:
        pytest.skip(reason)


class SkipPolicy:
    """Applies the mark `needs`, and judges every skip of a run."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip the test before a fixture is made that this machine can't make."""
        requirements = [name for mark in item.iter_markers("needs") for name in mark.args]
        try:
            require(*requirements)
        except (KeyError, ValueError) as unknown:
            pytest.fail(f"the mark needs{tuple(requirements)} names what tests/kit/features.py doesn't know: {unknown}",
                        pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Judge a test's skip; an expected failure isn't one."""
        if not hasattr(report, "wasxfail"):
            self._judge(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Judge the skip of a whole module."""
        self._judge(report)

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        fault = fault_of(reason)
        if fault is not None:
            self.faults.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}: {fault}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would have passed."""
        if self.faults and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the skips that failed the run."""
        if self.faults:
            terminalreporter.section("skips that are failures", red=True, bold=True)
            for fault in self.faults:
                terminalreporter.line(fault)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and a judge for this run."""
    config.addinivalue_line("markers", "needs(requirement, ...): skip where the machine lacks one; kit/features.py")
    config.pluginmanager.register(SkipPolicy(), "leeward-skip-policy")

"""What `./dev test --quick` chooses: on small runs of its own, and in the tests that there are."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.quick import room_of

Run = Callable[..., pytest.RunResult]

UNIT = "import pytest\ndef test_it(): pass\n@pytest.mark.thorough\ndef test_many(): pass\n"
ATTACK = "import pytest\n@pytest.mark.smoke\ndef test_marked(): {verdict}\ndef test_long(): pass\n"


@pytest.mark.parametrize("path", sorted((ROOT / "tests/escapes").glob("test_*.py")), ids=lambda path: path.stem)
def test_every_boundary_has_a_quick_test(path: Path) -> None:
    tests = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]

    assert any("pytest.mark.smoke" == ast.unparse(mark) for test in tests for mark in test.decorator_list)


@pytest.mark.parametrize(("nodeid", "room"), [
    ("tests/unit/wire/test_frames.py::test_x[a/b]", "unit"),
    ("tests/escapes/test_files.py::test_x", "escapes"),
    ("escapes/test_files.py::test_x", "escapes"),
])
def test_a_test_is_in_a_room(nodeid: str, room: str) -> None:
    assert room == room_of(nodeid)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a unit test and a file of attacks with these arguments."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each run otherwise

    def run(verdict: str, *arguments: str) -> pytest.RunResult:
        for room, text in (("unit", UNIT), ("escapes", ATTACK.format(verdict=verdict))):
            (pytester.mkdir(room) / f"test_{room}.py").write_text(text)
        return pytester.runpytest_inprocess("-p", "kit.quick", "-p", "no:cacheprovider", *arguments)
    return run


def test_without_the_option_everything_runs(run: Run) -> None:
    run("pass").assert_outcomes(passed=4)


def test_a_quick_run_names_the_tests_that_it_leaves_out(run: Run) -> None:
    result = run("pass", "--quick")

    result.assert_outcomes(passed=2, deselected=2)
    assert pytest.ExitCode.OK == result.ret
    result.stdout.fnmatch_lines(["1 tests of attacks have passed*", "left out: 1 of escapes, 1 of unit*"])


@pytest.mark.parametrize("verdict", ["assert False", "pytest.skip('today')"])
def test_a_quick_run_fails_if_no_sandbox_has_withstood_anything(run: Run, verdict: str) -> None:
    result = run(verdict, "--quick")

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["0 tests of attacks have passed*"])


def test_a_quick_run_fails_if_no_attack_was_chosen(run: Run) -> None:
    assert pytest.ExitCode.TESTS_FAILED == run("pass", "--quick", "unit").ret

"""The check that an escape test is what it says, on tables and on small runs of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.box import Run
from kit.features import ROOT
from kit.lock_policy import Claim, fault_of_marks, fault_of_runs

WHOLE, OUTSIDE, NONE = Run(), Run(outside=True), Run(frozenset())
SECCOMP, BOTH = Run(frozenset({"seccomp"})), Run(frozenset({"seccomp", "mounts"}))
UNSEALED = Run(lacks=frozenset({"sealing"}))


def marks(*made: pytest.MarkDecorator) -> list[pytest.Mark]:
    return [decorator.mark for decorator in made]


@pytest.mark.parametrize(("made", "fault"), [
    ([pytest.mark.lock("seccomp")], None),
    ([pytest.mark.lock("seccomp"), pytest.mark.lock("landlock"), pytest.mark.timeout(3)], None),
    ([pytest.mark.lock("sealing")], None),
    ([pytest.mark.lock("seccomp", beside=("mounts",), because="it is so")], None),
    ([pytest.mark.no_single_lock("it is so")], None),
    ([pytest.mark.no_attack("it is so")], None),
    ([], "none of the marks"),
    ([pytest.mark.timeout(3)], "none of the marks"),
    ([pytest.mark.lock("seccomp"), pytest.mark.no_attack("it is so")], "both lock and no_attack"),
    ([pytest.mark.no_single_lock()], "needs a reason"),
    ([pytest.mark.no_attack(" ")], "needs a reason"),
    ([pytest.mark.lock()], "one name"),
    ([pytest.mark.lock("seccomp", "mounts")], "one name"),
    ([pytest.mark.lock("secomp")], "knows no lock secomp"),
    ([pytest.mark.lock("seccomp", beside=("mount",), because="it is so")], "knows no lock mount"),
    ([pytest.mark.lock("seccomp", beside="mounts", because="it is so")], "one name"),
    ([pytest.mark.lock("seccomp", beside=("mounts",))], "needs a reason"),
])
def test_a_test_has_to_name_its_lock(made: list[pytest.MarkDecorator], fault: str | None) -> None:
    found = fault_of_marks(marks(*made))

    assert (fault is None) is (found is None)
    assert fault is None or fault in str(found)


@pytest.mark.parametrize(("claim", "runs", "controls", "fault"), [
    (Claim("seccomp"), [WHOLE, SECCOMP], [NONE], None),
    (Claim("seccomp"), [SECCOMP, WHOLE], [OUTSIDE], None),
    (Claim("seccomp"), [WHOLE, SECCOMP], [NONE, Run(frozenset({"landlock"}))], None),
    (Claim("seccomp", frozenset({"mounts"})), [WHOLE, BOTH], [OUTSIDE], None),
    (Claim("sealing"), [WHOLE, NONE], [UNSEALED], None),
    (Claim("pipes"), [WHOLE, NONE], [OUTSIDE], None),
    (Claim("seccomp"), [SECCOMP], [NONE], "all locks"),
    (Claim("seccomp"), [UNSEALED, SECCOMP], [NONE], "all locks"),
    (Claim("seccomp"), [WHOLE], [NONE], "with seccomp alone"),
    (Claim("seccomp"), [WHOLE, BOTH], [NONE], "with seccomp alone"),
    (Claim("seccomp", frozenset({"mounts"})), [WHOLE, SECCOMP], [NONE], "with mounts, seccomp alone"),
    (Claim("seccomp"), [WHOLE, SECCOMP], [], "in a control"),
    (Claim("seccomp"), [WHOLE, SECCOMP, NONE], [], "in a control"),
    (Claim("seccomp"), [WHOLE, SECCOMP, NONE], [BOTH], "in a control"),
    (Claim("sealing"), [WHOLE], [UNSEALED], "what is built in alone"),
    (Claim("sealing"), [WHOLE, NONE], [NONE], "in a control"),
    (Claim("pipes"), [WHOLE, NONE], [SECCOMP], "in a control"),
])
def test_sandboxes_that_ran_are_compared_with_the_mark(claim: Claim, runs: list[Run], controls: list[Run],
                                                       fault: str | None) -> None:
    found = fault_of_runs(claim, [*runs, *controls], controls)

    assert (fault is None) is (found is None)
    assert fault is None or fault in str(found)


@pytest.mark.parametrize("path", sorted((ROOT / "tests/escapes").glob("test_*.py")), ids=lambda path: path.stem)
def test_every_control_asserts_something(path: Path) -> None:
    """By itself, or by what it says must raise."""
    blocks = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.With)
              and "control()" in {ast.unparse(item.context_expr) for item in node.items}]

    assert blocks
    for block in blocks:
        assert any(isinstance(node, ast.Assert) for node in ast.walk(block)), block.lineno


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], pytest.RunResult]:
    """Run a test file of tests/escapes under the policy. Nothing is started: it notes runs itself."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each run otherwise

    def run(text: str) -> pytest.RunResult:
        pytester.makeconftest('pytest_plugins = ["kit.lock_policy"]')
        folder = pytester.mkdir("escapes")
        (folder / "test_it.py").write_text("import pytest\nfrom kit.box import RUNS, Run, control\n" + text)
        return pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    return run


def test_a_test_of_a_case_without_a_mark_fails(run: Callable[[str], pytest.RunResult]) -> None:
    result = run("def test_c001_cannot(): 'control'\ndef test_other(): pass\n")

    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*it has none of the marks*"])


def test_a_test_that_comes_through_no_control_fails(run: Callable[[str], pytest.RunResult]) -> None:
    """The word alone is none, nor is a block that isn't reached."""
    result = run("""
@pytest.mark.no_single_lock("so")
def test_c001_cannot():
    if False:
        with control():
            pass  # control

@pytest.mark.no_attack("so")
def test_c002_can(): pass

@pytest.mark.no_single_lock("so")
def test_c003_cannot():
    with control():
        assert "loose"
""")

    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["*it came through no control*"])


def test_a_control_that_fails_is_a_failure(run: Callable[[str], pytest.RunResult]) -> None:
    result = run("@pytest.mark.no_single_lock('so')\ndef test_c001_cannot():\n"
                 "    with control():\n        assert not 'held anyway'\n")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert not 'held anyway'*"])


def test_a_test_that_does_not_run_its_mark_fails(run: Callable[[str], pytest.RunResult]) -> None:
    """Sandboxes that a fixture ran, or the test before, don't count; nor do those without the lock outside a control."""
    result = run("""
@pytest.fixture
def made():
    with control():
        RUNS.append(Run(outside=True))

@pytest.mark.lock("seccomp")
def test_c001_cannot(made):
    with control():
        RUNS.append(Run(frozenset()))
    RUNS.extend([Run(), Run(frozenset({"seccomp"}))])

@pytest.mark.lock("seccomp")
def test_c002_cannot(made):
    RUNS.extend([Run(), Run(frozenset({"seccomp"})), Run(frozenset())])
    with control():
        RUNS.append(Run(frozenset({"seccomp"})))
""")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*lock('seccomp'): nothing ran without seccomp in a control*"])


def test_a_test_that_fails_or_skips_by_itself_says_why(run: Callable[[str], pytest.RunResult]) -> None:
    result = run("@pytest.mark.lock('seccomp')\ndef test_c001_cannot(): assert 'control' == 'its own'\n"
                 "@pytest.mark.lock('seccomp')\ndef test_c002_cannot(): pytest.skip('control')\n")

    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*assert 'control' == 'its own'*"])

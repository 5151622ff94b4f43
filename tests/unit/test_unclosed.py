"""kit/unclosed.py: a test that fails with something open is the only one that fails for it."""

from __future__ import annotations

import pytest

from kit.features import ROOT

FAILS = """
import socket
def test_it():
    left = [socket.socket()]
    left.append(left)
    assert not left
"""
PASSES = "def test_it(): pass"
#: What passes and leaves something open.
LEAVES = FAILS.replace("assert not left", "del left")


def run(pytester: pytest.Pytester, *tests: str, plugin: bool = True) -> tuple[int, str]:
    """The exit status, and what was written, of a run of files with these contents."""
    pytester.makeini("[pytest]\nfilterwarnings = error")
    if plugin:
        pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\npytest_plugins = ['kit.unclosed']")
    for number, text in enumerate(tests):
        (pytester.path / f"test_{number}.py").write_text(text)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    return int(done.ret), done.stdout.str() + done.stderr.str()


@pytest.mark.parametrize("tests", [(FAILS,), (FAILS, PASSES)])
def test_only_the_test_that_failed_fails(pytester: pytest.Pytester, tests: tuple[str, ...]) -> None:
    status, said = run(pytester, *tests)

    assert 1 == status
    assert f"1 failed{', 1 passed' if len(tests) > 1 else ''} in" in said
    assert "unclosed" not in said


def test_without_it_pytest_crashes(pytester: pytest.Pytester) -> None:
    _, said = run(pytester, FAILS, PASSES, plugin=False)

    assert "Traceback" in said
    assert "unclosed <socket" in said


def test_what_a_test_that_passes_leaves_open_is_an_error(pytester: pytest.Pytester) -> None:
    """Of whatever runs next."""
    status, said = run(pytester, LEAVES, PASSES)

    assert 0 != status
    assert "unclosed <socket" in said

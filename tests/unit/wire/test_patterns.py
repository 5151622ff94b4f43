"""Names and patterns as clients write them."""

from __future__ import annotations

import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.wire.patterns import MOST_ALTERNATIVES, alternatives, below_workspace


@pytest.mark.parametrize(("given", "meant"), [
    ("a/b", "a/b"), ("/workspace/a", "a"), ("./a", "a"), ("/workspace", "."), ("/workspace/", "."), (".", "."),
    ("./", "."), ("/workspacea", "/workspacea"), ("/etc/passwd", "/etc/passwd"), ("../a", "../a"), ("", ""),
    ("/workspace/../etc/passwd", "../etc/passwd"), ("/workspace//etc", "/etc"), (".a", ".a"),
])
def test_a_name_below_the_workspace(given: str, meant: str) -> None:
    """What leads elsewhere stays as it is, for the check to find."""
    assert meant == below_workspace(given)


@pytest.mark.parametrize(("pattern", "parts"), [
    ("a", ["a"]), ("{a,b}", ["a", "b"]), ("x.{png,csv}", ["x.png", "x.csv"]), ("{a}", ["{a}"]), ("{a,b", ["{a,b"]),
    ("a,b}", ["a,b}"]), ("{a,{b,c}}", ["a", "b", "c"]), ("{,x}y", ["y", "xy"]),
    ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]),
    ("[{]a,b}", ["[{]a,b}"]), ("{a[,]b}", ["{a[,]b}"]), ("", [""]), ("{{a,b}}", ["{a}", "{b}"]), ("}{", ["}{"]),
])
def test_braces_expand_as_in_bash(pattern: str, parts: list[str]) -> None:
    """As bash has them, but for the brackets."""
    assert sorted(parts) == sorted(alternatives(pattern))
    if "[" not in pattern and pattern:
        shell = subprocess.run(["bash", "-c", f"set -f; printf '%s\\n' {pattern}"], capture_output=True, text=True,
                               check=True)
        assert set(parts) == set(shell.stdout.splitlines())


@given(st.text(alphabet="{},ab[]", max_size=24))
def test_no_pattern_does_harm(pattern: str) -> None:
    """It gives a list within its bound, or ValueError."""
    try:
        parts = alternatives(pattern, 16)
    except ValueError:
        return

    assert 0 < len(parts) <= 16
    assert len(set(parts)) == len(parts)


@pytest.mark.parametrize("pattern", ["{a,b}" * 200, "{" * 1000, "{a," * 300, "{" * 500 + "a,b" + "}" * 500,
                                     "{" + "," * 1000 + "}"])
def test_a_large_one_is_soon_done(pattern: str) -> None:
    """Doubling braces would be 2^200 patterns."""
    start = time.process_time()
    try:
        assert len(alternatives(pattern)) <= MOST_ALTERNATIVES
    except ValueError:
        pass

    assert time.process_time() - start < 1.0

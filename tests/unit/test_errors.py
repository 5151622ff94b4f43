"""What the errors say."""

from __future__ import annotations

import errno

import pytest

from leeward.errors import KernelRefusal


@pytest.mark.parametrize(("number", "hint", "text"), [
    (errno.EFBIG, "", "write(x): EFBIG: a file would be larger than a limit allows; raise it (ulimit -f, LimitFSIZE="),
    (errno.EFBIG, "the hint", "write(x): EFBIG: the hint"),
    (errno.EACCES, "", "write(x): EACCES: permission denied"),
])
def test_a_refused_call_says_what_its_error_means(number: int, hint: str, text: str) -> None:
    assert str(KernelRefusal("write", "x", number, hint)).startswith(text)

"""What the errors say."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
from collections.abc import Callable

import pytest

from leeward.errors import BadRequest, KernelRefusal, told, told_with_place, told_with_type


@pytest.mark.parametrize(("number", "hint", "text"), [
    (errno.EFBIG, "", "write(x): EFBIG: a file would be larger than a limit allows; raise it (ulimit -f, LimitFSIZE="),
    (errno.EFBIG, "the hint", "write(x): EFBIG: the hint"),
    (errno.EACCES, "", "write(x): EACCES: permission denied"),
])
def test_a_refused_call_says_what_its_error_means(number: int, hint: str, text: str) -> None:
    assert str(KernelRefusal("write", "x", number, hint)).startswith(text)


@pytest.mark.parametrize(("does", "text"), [
    (lambda: b"SECRET\xff".decode(), "UnicodeDecodeError"), (lambda: json.loads('{"SECRET'), "JSONDecodeError"),
    (lambda: int("SECRET"), "ValueError"), (lambda: dict[str, int]()["SECRET"], "KeyError"),
    (lambda: os.stat("/SECRET"), "no such file or directory"),
    (lambda: ssl.create_default_context(cadata="SECRET"), "SSLError"),
    (lambda: socket.getaddrinfo("SECRET", "x" * 9), "gaierror"),
])
def test_what_is_told_of_an_error_has_no_byte_of_others(does: Callable[[], object], text: str) -> None:
    with pytest.raises(Exception) as caught:
        does()
    error = caught.value

    assert text == told(error)
    assert "SECRET" not in told_with_type(error) + told_with_place(error)
    assert f"{type(error).__name__}" in told_with_type(error)
    assert "test_errors.py:" in told_with_place(error)


def test_leewards_own_errors_are_told() -> None:
    assert "that is wrong" == told(BadRequest("that is wrong"))
    assert "BadRequest: that is wrong" == told_with_type(BadRequest("that is wrong"))

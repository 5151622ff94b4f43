"""What is an object of JSON, and what only Python takes for one."""

from __future__ import annotations

import pytest

from leeward.base.strict_json import json_object


def test_an_object_is_read() -> None:
    assert {"a": [1, None, "é\U0001f600"]} == json_object('{"a": [1, null, "é\\ud83d\\ude00"]}'.encode())


@pytest.mark.parametrize("content", [
    b"", b"[]", b"1", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": "\\ud83d"}', b'{"a": "\xff"}',
    '{"a": 1}'.encode("utf-16"), b'{"a":' * 100_000, b'{"a": ' + b"1" * 5000 + b"}",
])
def test_anything_else_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        json_object(content)

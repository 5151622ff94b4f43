"""Requests for files, right ones and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.errors import BadRequest
from leeward.wire.file_requests import MAX_CALL_S, FileRequest, call_of, weight
from leeward.wire.frames import HEADER, VERSION, decode
from leeward.wire.requests import OPERATIONS, encode_request, parse_request

ID = "a" * 26
OF_FILES = [op for op, one in OPERATIONS.items() if issubclass(one.kind, FileRequest)]
NEEDED: dict[str, dict[str, Any]] = {
    "file_edit": {"path": b"f", "old": b"a", "new": b"b"}, "file_close": {"handle": 1},
    "file_link": {"to": b"x"}, "file_move": {"to": b"x"}, "file_copy": {"to": b"x"}, "file_glob": {"pattern": b"*"},
    "file_grep": {"pattern": b"a"}, "file_write_many": {"data": b"x"}, "file_read_many": {"paths": b"x"},
}


def request(op: str, **fields: Any) -> dict[str, Any]:
    return {"v": VERSION, "id": 1, "op": op, "sandbox": ID, **NEEDED.get(op, {}), **fields}


@pytest.mark.parametrize("op", OF_FILES)
def test_every_request_is_parsed_encoded_and_passed_on(op: str) -> None:
    """With its defaults; the process in the sandbox gets neither the request's number nor the sandbox's id."""
    got = parse_request(request(op))
    assert got == parse_request(decode(encode_request(got)[HEADER:]))
    assert isinstance(got, FileRequest)
    call = call_of(got)
    assert {"op", *got.operation.fields} - {"sandbox"} == set(call)
    assert weight(call) < 10


@pytest.mark.parametrize("op", OF_FILES)
def test_malformed_requests_are_refused(op: str) -> None:
    for wrong in ({"path": b""}, {"path": b"a\0b"}, {"path": "text"}, {"path": bytes(5000)}, {"timeout": 0},
                  {"timeout": MAX_CALL_S + 1}, {"timeout": float("nan")}, {"timeout": True}, {"weather": 1},
                  {"sandbox": "no"}):
        with pytest.raises(BadRequest):
            parse_request(request(op, **wrong))
    for name in ("sandbox", *NEEDED.get(op, {})):
        with pytest.raises(BadRequest):
            parse_request({key: value for key, value in request(op).items() if key != name})
    for name in set(OPERATIONS[op].fields) - {"path", "timeout", "sandbox"}:
        for value in (-2, 2**64, "text", [], 1.5):
            with pytest.raises(BadRequest):
                parse_request(request(op, **{name: value}))

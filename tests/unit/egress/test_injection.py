"""Values for placeholders in a request to a secret's host, and placeholders for values in its response."""

from __future__ import annotations

import base64
from typing import Any

import h11
import pytest

from leeward.egress.exchanges import ResponseError
from leeward.egress.heads import Head, HeadError, parse_head
from leeward.egress.injection import Injection, Known, Searched

PLACEHOLDER, VALUE = b"leeward-0123", b"sk-live/+ 42"


def head(fields: str, target: str = "/v1", method: str = "GET") -> Head:
    return parse_head(f"{method} {target} HTTP/1.1\r\nHost: api.example.org\r\n{fields}\r\n".encode(), "https")


def injection(of: Head, *places: str) -> Injection:
    return made(of, VALUE, *places)


def made(of: Head, value: bytes, *places: str) -> Injection:
    return Injection(of, [Known(PLACEHOLDER, value, places or ("header",))], Searched([value]))


def test_headers_get_the_value() -> None:
    got = injection(head("Authorization: Bearer leeward-0123\r\nX: leeward-012 leeward-0123,leeward-0123\r\n"))

    assert got.head.fields == ((b"authorization", b"Bearer " + VALUE),
                               (b"x", b"leeward-012 " + VALUE + b"," + VALUE), (b"accept-encoding", b"identity"))


def test_a_path_never_gets_the_value_and_a_query_by_policy() -> None:
    asked = head("", "/leeward-0123?key=leeward-0123")

    assert "/leeward-0123?key=leeward-0123" == injection(asked).head.target
    assert "/leeward-0123?key=sk-live%2F%2B%2042" == injection(asked, "query").head.target
    assert b"leeward-0123" == dict(injection(head("X: leeward-0123\r\n"), "query").head.fields)[b"x"]


def test_a_body_gets_the_value_by_policy_and_is_sent_chunked() -> None:
    asked = head("Content-Length: 12\r\n", method="POST")
    got = injection(asked, "body")

    assert injection(asked).body is None
    assert got.body is not None
    assert VALUE == got.body.feed(b"leeward") + got.body.feed(b"-0123") + got.body.end()
    names = [name for name, _ in got.head.fields]
    assert b"content-length" not in names
    assert (b"transfer-encoding", b"chunked") in got.head.fields
    assert injection(head("Content-Length: 0\r\n", method="POST"), "body").body is None


def test_credentials_in_base64_get_the_value_and_it_comes_back() -> None:
    """As git and curl send them."""
    asked = base64.b64encode(b"user:leeward-0123")
    sent = base64.b64encode(b"user:" + VALUE)
    got = injection(head(f"Authorization: Basic {asked.decode()}\r\n"))

    assert b"Basic " + sent == dict(got.head.fields)[b"authorization"]
    assert got.response(h11.Data(data=b"you said " + sent + b".")).data == b"you said " + asked + b"."
    for other in (b"!!", b"dXNlcjpub25l"):
        kept = injection(head(f"Authorization: Basic {other.decode()}\r\n"))
        assert b"Basic " + other == dict(kept.head.fields)[b"authorization"]


def test_a_host_is_not_asked_for_encodings_that_cannot_be_searched() -> None:
    got = injection(head("Accept-Encoding: gzip\r\nRange: bytes=0-9\r\nIf-Range: x\r\nAccept: a\r\n"))

    assert got.head.fields == ((b"accept", b"a"), (b"accept-encoding", b"identity"))
    with pytest.raises(HeadError, match="another protocol") as refused:
        injection(head("Connection: upgrade\r\nUpgrade: websocket\r\n"))
    assert 501 == refused.value.status


@pytest.mark.parametrize(("status", "fields"), [
    (200, [("Content-Encoding", "gzip")]),
    (200, [("Content-Encoding", "identity"), ("Content-Encoding", "br")]),
    (206, [("Content-Range", "bytes 0-9/90")]),
])
def test_a_response_that_could_not_be_searched_is_refused(status: int, fields: list[Any]) -> None:
    with pytest.raises(ResponseError, match="can't be searched"):
        injection(head("")).response(h11.Response(status_code=status, headers=fields))


def test_a_value_in_a_folded_field_is_refused() -> None:
    """RFC 9112 §5.2: h11 has put a space in the place of the fold."""
    got = made(head(""), b"sk-live/0123456789")
    assert got.response(h11.Response(status_code=200, headers=[("X", "sk-live/ 01234 5678")]))
    for value in ("<sk-live/012 3456789>", "s k-live/0123456 789", "c2stbGl2ZS8wMT IzNDU2Nzg5"):
        with pytest.raises(ResponseError, match="folded"):
            got.response(h11.Response(status_code=200, headers=[("X", value)]))


def test_responses_have_the_placeholder_again() -> None:
    """
    In fields, their names, the reason, and the body, in the forms that URLs and JSON have; without the length that the
    body had.
    """
    got = injection(head(""))
    event: Any = got.response(h11.Response(
        status_code=200, reason=b"for " + VALUE, headers=[
            ("Location", "https://evil.example.org/?k=sk-live%2F%2B%2042"), ("X", VALUE.decode()),
            ("Content-Length", "9")]))

    assert b"for " + PLACEHOLDER == event.reason
    assert [(b"location", b"https://evil.example.org/?k=" + PLACEHOLDER), (b"x", PLACEHOLDER)] == list(event.headers)
    sent = b"<" + VALUE + b"> sk-live/%2B%2042 sk-"
    body = b"".join(got.response(h11.Data(data=bytes([byte]))).data for byte in sent)
    rest = got.rest()
    assert rest is not None
    assert b"<" + PLACEHOLDER + b"> " + PLACEHOLDER + b" sk-" == body + rest.data
    assert got.rest() is None


def test_a_name_of_a_field_is_lower_case() -> None:
    event: Any = made(head(""), b"SK-LIVE-0123").response(h11.Response(status_code=200, headers=[("SK-LIVE-0123", "1")]))

    assert [(PLACEHOLDER, b"1")] == list(event.headers)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_the_length_of_no_body_stays(method: str, status: int) -> None:
    event: Any = injection(head("", method=method)).response(
        h11.Response(status_code=status, headers=[("Content-Length", "9")]))

    assert [(b"content-length", b"9")] == list(event.headers)

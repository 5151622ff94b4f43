"""What a job shows, as the daemon and a client read it. The bytes are hostile on both ways."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.run.reply import ReplyReader
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire import answers, bundles, frames, replies
from leeward.wire.job_frames import HEADER, MAX_FILES, JobReply, read_reply, reply_pieces

GOOD: dict[str, Any] = {"exit": 0, "error": None, "limit": None, "files": {}}
TABLE: list[bundles.Bundle] = [{"text/plain": "a", "text/html": "<b>é</b>"}, {"image/png": b"\x89"}]


def read(**changes: Any) -> JobReply:
    return read_reply(msgpack.packb({**GOOD, **changes}), MAX_FILES, display=True)


def test_bundles_survive_both_ways() -> None:
    frame = reply_pieces(0, None, None, {}, [], TABLE, "x" * 70_000)[0]
    reply = read_reply(frame[HEADER.size:], MAX_FILES, display=True)
    result = Result(b"", b"", 0, Outcome.FINISHED, results=reply.results, value=reply.value)
    sent = replies.parse_reply(frames.decode(answers.encode_result(1, result)[frames.HEADER:]))

    fields = replies.parse_result(sent)

    assert TABLE == list(reply.results) == list(fields["results"])
    assert "x" * bundles.MAX_PLAIN == reply.value == fields["value"]


def test_a_client_that_did_not_ask_gets_no_result() -> None:
    for shown in ({"results": TABLE}, {"value": "1"}):
        assert read(**shown)
        with pytest.raises(PeerError):
            read_reply(msgpack.packb({**GOOD, **shown}), MAX_FILES)


WRONG: dict[str, object] = {
    "nil": None, "text": "a", "a map": {}, "an empty bundle": [{}], "no map": ["a"], "a list in a list": [[]],
    "another type": [{"text/x": "a"}], "a number for a type": [{1: "a"}], "a list for content": [{"text/plain": []}],
    "a map for content": [{"text/plain": {}}], "nil for content": [{"text/plain": None}],
    "bytes for text": [{"text/html": b"a"}], "text for bytes": [{"image/png": "a"}],
    "one too many": [{"text/plain": ""}] * (bundles.MAX_RESULTS + 1),
    "one too large": [{"image/png": bytes(bundles.MAX_ONE + 1)}],
    "too large in all": [{"image/png": bytes(bundles.MAX_TOTAL // 2 + extra)} for extra in (0, 1)],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_wrong_results_are_refused(wrong: object) -> None:
    """By the daemon, and by a client."""
    with pytest.raises(PeerError):
        read(results=wrong)
    with pytest.raises(PeerError):
        bundles.checked(wrong)


@pytest.mark.parametrize("wrong", [1, b"a", [], {}, "x" * (bundles.MAX_PLAIN + 1)])
def test_a_wrong_value_is_refused(wrong: object) -> None:
    with pytest.raises(PeerError):
        read(value=wrong)
    with pytest.raises(PeerError):
        bundles.value_text(wrong)


def test_one_type_twice_is_refused() -> None:
    body = msgpack.packb(GOOD)[1:] + msgpack.packb("results") + b"\x91\x82" + 2 * msgpack.packb("text/plain") * 2

    with pytest.raises(PeerError):
        read_reply(b"\x85" + body, MAX_FILES, display=True)


def test_invalid_utf_8_counts_as_its_replacement() -> None:
    """Each byte becomes three."""
    def body(count: int) -> bytes:
        return (b"\x85" + msgpack.packb(GOOD)[1:] + msgpack.packb("results") + b"\x91\x81" + msgpack.packb("text/html")
                + b"\xdb" + count.to_bytes(4, "big") + b"\xff" * count)

    assert read_reply(body(100), MAX_FILES, display=True).results
    with pytest.raises(PeerError):
        read_reply(body(bundles.MAX_ONE // 2), MAX_FILES, display=True)


KINDS = st.sampled_from(sorted(bundles.IS_TEXT))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KINDS | st.text(max_size=3), inner, max_size=3),
    max_leaves=8)


@given(VALUES, VALUES)
def test_any_values_give_results_or_a_peer_error(results: object, value: object) -> None:
    for attempt in (lambda: read(results=results, value=value), lambda: bundles.checked(results),
                    lambda: bundles.value_text(value)):
        try:
            attempt()
        except PeerError:
            continue


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_bytes_give_results_or_a_peer_error(data: bytes, more: bytes) -> None:
    """As a reply, and in the place of the results."""
    start = b"\x85" + msgpack.packb(GOOD)[1:] + msgpack.packb("results")
    for body in (data, start + data, start + b"\x91\x81" + msgpack.packb("text/plain") + data + more):
        try:
            read_reply(body, MAX_FILES, display=True)
        except PeerError:
            continue


def test_only_a_job_that_may_show_results_has_the_larger_bound() -> None:
    assert ReplyReader(Job(code=b"")).most < bundles.MAX_TOTAL
    assert ReplyReader(Job(code=b"", display=True)).most >= bundles.MAX_TOTAL


def test_the_largest_answer_fits_into_a_reply() -> None:
    """With the output that goes with it, whatever the operator has chosen."""
    from leeward.daemon.run.report import PLACEMENTS

    most = max(each.output_beside_files for each in PLACEMENTS.values())
    half = bytes(bundles.MAX_TOTAL // 2)
    largest = Result(bytes(most), b"", 0, Outcome.FINISHED, value="\U0001f600" * bundles.MAX_PLAIN,
                     results=({"image/png": half}, {"image/jpeg": half}))

    assert answers.encode_result(1, largest)

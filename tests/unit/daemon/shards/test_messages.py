"""Messages between the daemon and its shards: each comes back as it was, and anything else is one error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.config import Config
from leeward.daemon.shards import messages
from leeward.daemon.shards.messages import decode, encode, pack_map, unpack_map
from leeward.errors import PeerError

EACH = (
    messages.ShardStart(Config(shards=2, preload=("json",)), 1, 0, "8:9"), messages.ShardGovern(Config()),
    messages.PassConnection(1000, b"\x00\x01", True), messages.ShardDrain(4.0, False), messages.ShardCut(),
    messages.ShardMakeRoom(),
    messages.SendCounts(3), messages.ShardReady(1024), messages.ConnectionClosed(0), messages.ShardActivity(7, True),
    messages.ShardCounts(3, pack_map({"queued": 1}), pack_map({})), messages.ShardEnds(0, pack_map({"rows": []})),
    messages.ShardRecord("peer refused", pack_map({"user": 1})), messages.ShardFailed("no"),
)


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: messages.Message) -> None:
    assert message == decode(encode(message))


def test_all_kinds_are_tried() -> None:
    assert set(messages._KINDS.values()) == {type(message) for message in EACH}


@given(st.one_of(st.binary(max_size=200), st.sampled_from(EACH).map(encode).flatmap(
    lambda data: st.integers(0, len(data)).map(lambda at: data[:at] + b"\xc1" + data[at + 1:]))))
def test_other_bytes_are_one_error(data: bytes) -> None:
    try:
        decode(data)
    except PeerError:
        pass


@given(st.binary(max_size=100))
def test_other_maps_are_one_error(data: bytes) -> None:
    try:
        assert isinstance(unpack_map(data), dict)
    except PeerError:
        pass


def test_a_map_with_a_map_for_a_key_is_the_same_error() -> None:
    """MessagePack has such keys, Python doesn't."""
    with pytest.raises(PeerError):
        unpack_map(b"\x81\x80\x01")

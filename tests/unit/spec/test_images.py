"""The records of images that `leeward image` has made."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import BadRequest
from leeward.spec.images import (
    MOST_WRITTEN,
    Image,
    ImageConfig,
    LayerRecord,
    config_of,
    groups_of,
    name_path,
    read_image,
    read_layer,
    read_name,
    users_of,
    write_image,
    write_layer,
    write_name,
)

IMAGE = Image(("a" * 64, "b" * 64), ImageConfig((("A", "1"),), "/app", "web", ("/init",), ("x",)), {"web": (33, 44, "/home")},
              {"web": 44}, "/from", 7)
LAYER = LayerRecord(5, 6, ("a/\udcff",), {"devices": 2})


def test_written_records_are_read_back() -> None:
    assert IMAGE == read_image(write_image(IMAGE))
    assert LAYER == read_layer(write_layer(LAYER))
    assert IMAGE.hash == read_name(write_name(IMAGE.hash))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b" " * (MOST_WRITTEN + 1), b'{"image": "../x"}',
                                  write_image(IMAGE).replace(b'"a' + b"a" * 63, b'"../' + b"a" * 61),
                                  write_image(IMAGE).replace(b'"/app"', b'"app"'),
                                  write_image(IMAGE).replace(b'"format": 1', b'"format": 2'),
                                  write_layer(LAYER).replace(b"5", b"-5")])
def test_any_other_record_is_refused(data: bytes) -> None:
    for read in (read_image, read_layer, read_name):
        with pytest.raises(BadRequest, match="not a record of an image"):
            read(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_users_and_groups(data: bytes) -> None:
    for uid, gid, home in users_of(data).values():
        assert 0 <= uid < 1 << 32
        assert 0 <= gid < 1 << 32
        assert home.startswith("/")
    assert all(0 <= gid < 1 << 32 for gid in groups_of(data).values())


@pytest.mark.parametrize("own", [{"Env": ["A=\ud800"]}, {"Env": ["\ud800=1"]}, {"User": "\udfff"}, {"WorkingDir": "/\udc80"},
                                 {"Cmd": ["\ud800"]}, {"Entrypoint": ["\udcff"]}])
def test_half_of_a_pair_of_surrogates_is_refused(own: object) -> None:
    """JSON may have it, and no message of the daemon's."""
    with pytest.raises(ValueError, match="surrogates"):
        config_of({"config": own})


def test_an_id_that_no_sandbox_can_have_is_no_user() -> None:
    assert (2**31 - 1, 0, "/") == IMAGE.identity(f"{2**31 - 1}")
    for user in (f"{2**31}", "4294967294", "-1"):
        with pytest.raises(BadRequest, match="has no user"):
            IMAGE.identity(user)
    with pytest.raises(BadRequest, match="has no group"):
        IMAGE.identity(f"0:{2**31}")


def test_a_number_is_no_name() -> None:
    """An image's user may be called by another one's number, and be root; and a name may be no text."""
    hostile = replace(IMAGE, users=users_of(b"1000:x:0:0::/root:\na\0b:x:5:5::/:\n"),
                      groups=groups_of(b"1000:x:0:\na\0b:x:5:\n"))
    assert (1000, 1000, "/") == hostile.identity("1000:1000")
    assert hostile == read_image(write_image(hostile))


def test_the_first_row_of_a_name_counts() -> None:
    """As getpwnam(3) has it; what is no row is passed over, and so is an id that no namespace maps."""
    assert {"a": (1, 2, "/x")} == users_of(b"a:x:1:2::/x:\na:x:0:0::/:\nb:x:-1:0::/:\nc:x:4294967294:0::/:\nd\n\xff:\n")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda below: st.lists(below, max_size=3)
                    | st.dictionaries(st.sampled_from(["config", "Env", "User", "WorkingDir", "Cmd"]), below, max_size=4)))
def test_any_configuration_is_one_or_no_configuration(about: object) -> None:
    with contextlib.suppress(ValueError, TypeError):
        assert config_of(about).cwd.startswith("/")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "1a", "a" * 65])
def test_a_name_is_one_file(name: str) -> None:
    with pytest.raises(BadRequest, match="can't be an image's name"):
        name_path("/store", name)

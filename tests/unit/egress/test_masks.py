"""Values of secrets in a stream: found in every spelling, wherever the stream is cut."""

from __future__ import annotations

import base64
import html
import json
import quopri
from functools import cache
from html.entities import html5
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.egress.masks import LONGEST, MaskedStream, Masks

VALUE, PLACEHOLDER = b"sk-live/+=&%\\\"<0 a?", b"leeward-0123456789abcdef"


def masked(data: bytes, value: bytes = VALUE, placeholder: bytes = PLACEHOLDER) -> bytes:
    """Return *data* masked, which is the same wherever it is cut."""
    masks = Masks([value])
    instead = masks.instead([placeholder])
    whole = masks.whole(data, instead)
    for size in (1, 2, 7):
        stream = MaskedStream(masks, instead)
        assert whole == b"".join(stream.feed(data[at:at + size]) for at in range(0, len(data), size)) + stream.end()
    return whole


def entities(form: str) -> bytes:
    return "".join(form.format(byte) for byte in VALUE).encode()


@pytest.mark.parametrize("spelled", [
    VALUE,
    quote(VALUE, safe="").encode(), quote(VALUE, safe="").lower().encode(), quote(VALUE, safe="/+=&").encode(),
    quote(VALUE, safe="").replace("%20", "+").encode(), b"".join(b"%%%02x" % byte for byte in VALUE),
    json.dumps(VALUE.decode())[1:-1].encode(), json.dumps(VALUE.decode())[1:-1].replace("/", "\\/").encode(),
    entities("\\u{:04x}"), entities("\\u{:04X}"), entities("\\x{:02x}"),
    VALUE.replace(b"\\", b"\\\\").replace(b"+", rb"\u002B").replace(b"=", rb"\u003d"),
    html.escape(VALUE.decode()).encode(), entities("&#{};"), entities("&#{:03}"), entities("&#x{:02X};"),
    entities("&#X0000{:02x};"),
    VALUE.replace(b"&", b"&amp").replace(b"=", b"&#x3D;").replace(b"+", b"&plus;"),
    quopri.encodestring(VALUE), entities("={:02X}"), entities("={:02x}=\r\n")[:-3],
    b"%73&#107;-live" + VALUE[7:],
])
def test_every_spelling_is_found(spelled: bytes) -> None:
    assert b"<" + PLACEHOLDER + b">" == masked(b"<" + spelled + b">")


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"use", b"user:", b"a longer user:"])
def test_base64_is_found_at_each_offset(before: bytes) -> None:
    """As many letters stand there, of the placeholder; also in the alphabet for URLs, in lines, and percent-encoded."""
    value = b"sk-live-\xbf?>~0123456789abcdef".replace(b"\xbf", b"~")
    plain = base64.b64encode(before + value + b"; and more")
    for spelled in (plain, base64.urlsafe_b64encode(before + value + b"; and more"),
                    plain.replace(b"+", b"%2B").replace(b"/", b"%2f"), plain.replace(b"/", rb"\/"),
                    b"\r\n".join(plain[at:at + 9] for at in range(0, len(plain), 9)),
                    b"\\n".join(plain[at:at + 9] for at in range(0, len(plain), 9))):
        got = masked(spelled, value)
        assert spelled != got
        decoded = base64.b64decode(got) if len(got) == len(plain) else b""
        assert value[1:-1] not in decoded
        assert not decoded or PLACEHOLDER[1:-1] in decoded


def test_what_is_no_value_passes_at_once_and_unchanged() -> None:
    """Also what begins as a value, and texts full of escapes. What could become a value waits, and no more than that."""
    masks = Masks([VALUE])
    stream = MaskedStream(masks, masks.instead([PLACEHOLDER]))
    for text in (b'data: {"text": "sk-l\\n"}\n\n', b"a=b&c=%7&d=\\u00zz&amp;&#x;&#;&nosuch;=\r\n.", bytes(range(256)) + b"."):
        assert text == stream.feed(text)
    assert b"key: " == stream.feed(b"key: sk-l")
    assert b"sk-lo" == stream.feed(b"o")
    assert b"a" == stream.feed(b"a&#11")
    assert b"&#11" == stream.end()


def test_values_that_overlap_are_one() -> None:
    """One that begins another, one within another, and one that overlaps itself: no byte of either is left."""
    masks = Masks([b"abcdefgh", b"abcdefgh-ijkl", b"fgh-ijklmnop", b"aaaaaaaa"])
    instead = masks.instead([b"[1]", b"[2]", b"[3]", b"[4]"])

    assert b"[2]" == masks.whole(b"abcdefgh-ijkl", instead)
    assert b"[1]-ijk." == masks.whole(b"abcdefgh-ijk.", instead)
    assert b"[2]." == masks.whole(b"abcdefgh-ijklmnop.", instead)
    assert b"[4]." == masks.whole(b"aaaaaaaaaaaa.", instead)
    assert b"[1][1]" == masks.whole(b"abcdefghabcdefgh", instead)


def test_the_case_of_letters_may_not_count() -> None:
    masks = Masks([b"SK-live-0123"], fold=True)

    assert b"x-p-y" == masks.whole(b"x-sk-LIVE-0123-y", masks.instead([b"p"]))


def test_no_value_changes_nothing() -> None:
    assert b"as %69s" == Masks([]).whole(b"as %69s", {})


def test_what_is_held_back_is_bounded() -> None:
    """The longest value in its longest spelling, without its last byte, again and again; and values that never end."""
    value = b"a" * 100 + b"b" * 3996
    masks = Masks([value])
    stream = MaskedStream(masks, masks.instead([PLACEHOLDER]))
    for text in (b"&#x0000000061;" * 200 + b"a" * 5000, b"&" * 5000, b"=\r\n" * 3000, b"a\n" * 3000):
        for at in range(0, len(text), 1000):
            stream.feed(text[at:at + 1000])
            assert len(stream._data) <= (LONGEST + 4) * len(value)
            assert sum(map(len, stream._live.values())) <= 2 * len(masks.places)


@cache
def spellings(byte: int) -> list[bytes]:
    """All spellings of a byte, written out one by one."""
    found = [b"%c" % byte]
    for digits in {b"%02x" % byte, b"%02X" % byte}:
        found += [b"%" + digits, b"=" + digits, rb"\u00" + digits, rb"\x" + digits]
        found += [b"&#" + x + b"0" * zeros + digits + end for x in (b"x", b"X") for zeros in range(9) for end in (b";", b"")]
    found += [b"&#" + b"0" * zeros + b"%d" % byte + end for zeros in range(9) for end in (b";", b"")]
    found += [b"&" + name.encode() for name, text in html5.items() if text == chr(byte)]
    if byte == 0x20:
        found.append(b"+")
    elif not chr(byte).isalnum():
        found.append(b"\\%c" % byte)
    return found


BREAKS = [b"\n", b"\r\n", b"=\n", b"=\r\n", b"\\n", b"\\r\\n"]
SMALL = b"a=&%\\b3D"


def ends(data: bytes, value: bytes, begin: int) -> set[int]:
    """Where the value ends in *data* that begins at *begin*, tried out."""
    places = {begin}
    for number, byte in enumerate(value):
        if number:
            places |= {at + len(each) for at in places for each in BREAKS if data.startswith(each, at)}
        places = {at + len(each) for at in places for each in spellings(byte) if data.startswith(each, at)
                  and not (each[:2] == b"&#" and each[2:].isdigit() and data[at + len(each):at + len(each) + 1].isdigit())}
    return places


def tried(data: bytes, value: bytes) -> bytes:
    """What the value is masked to, tried out."""
    said, covered = b"", 0
    for begin in range(len(data)):
        found = ends(data, value, begin)
        if found and begin >= covered:
            said += PLACEHOLDER
        covered = max(covered, *found, 0) if found else covered
        if begin >= covered:
            said += data[begin:begin + 1]
    return said


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Pieces of values, spelled anyhow, among what resembles them; cut anywhere."""
    data = b""
    for _ in range(draw(st.integers(0, 5))):
        part = SMALL[draw(st.sampled_from([0, 0, 0, 1, 3])):draw(st.sampled_from([8, 8, 8, 7, 2]))]
        for byte in part:
            data += draw(st.sampled_from([b"%c" % byte, b"%c" % byte, *spellings(byte)]))
            data += draw(st.sampled_from([b""] * 8 + BREAKS))
        data += draw(st.sampled_from([b"", b"", b" ", b"%", b"=", b"&#", b"\\u00", b"a", b"&am"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=100, deadline=None)
@given(streams())
def test_a_stream_is_masked_as_trying_out_every_spelling_does(pieces: list[bytes]) -> None:
    """
    The value consists of what spellings begin with, so that it is hard to read. What stands in base64 is left out: its
    letters don't occur here.
    """
    masks = Masks([SMALL])
    stream = MaskedStream(masks, masks.instead([PLACEHOLDER]))

    assert tried(b"".join(pieces), SMALL) == b"".join(map(stream.feed, pieces)) + stream.end()


@given(st.lists(st.text("ab", max_size=9), max_size=8))
def test_values_that_repeat_themselves_are_masked_wherever_they_are_cut(pieces: list[str]) -> None:
    masks = Masks([b"abababab"])
    stream = MaskedStream(masks, masks.instead([PLACEHOLDER]))
    data = "".join(pieces).encode()

    assert tried(data, b"abababab") == b"".join(stream.feed(piece.encode()) for piece in pieces) + stream.end()

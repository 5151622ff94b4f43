"""The values of secrets, from their sources."""

from __future__ import annotations

import asyncio
import os

import pytest

from leeward.egress.sealing import LEAST, MOST, Values, checked


@pytest.mark.parametrize(("data", "value"), [
    (b"sk-live-0123\0", b"sk-live-0123"), (b"sk live 0123\r\n\0", b"sk live 0123"), (b"x" * MOST + b"\0", b"x" * MOST)])
def test_a_value_is_read_from_each_source(data: bytes, value: bytes) -> None:
    assert value == checked(data)


@pytest.mark.parametrize(("data", "why"), [
    (b"", "its source has failed"), (b"sk-live-0123", "its source has failed"), (b"short\0", "it has 5 bytes"),
    (b"x" * (MOST + 1) + b"\0", f"it has {MOST + 1} bytes"), (b"x" * (MOST + 3), f"more than {MOST}"),
    (b"-----BEGIN-----\nsecret\0", "printable ASCII"), (b" sk-live-0123\0", "printable ASCII"),
    (b"sk-live\x000123\0", "printable ASCII"), ("sk-live-ä".encode() + b"\0", "printable ASCII"),
    (b"\n" * 9 + b"\0", "0 b"),
])
def test_an_unusable_secret_is_reported_without_its_value(data: bytes, why: str) -> None:
    got = checked(data)

    assert isinstance(got, str)
    assert why in got
    assert not any(part in got for part in ("live", "BEGIN", "short", "xx"))


def test_values_are_waited_for_and_forgotten() -> None:
    async def read() -> None:
        ends = [os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(3)]
        values = Values(["A", "B", "C"], [out for out, _ in ends])
        os.write(ends[0][1], b"sk-live-")
        os.write(ends[1][1], b"sk")
        os.close(ends[1][1])
        asking = asyncio.ensure_future(values.get("A", 60))
        assert "its source has failed" == await values.get("B", 60)
        os.write(ends[0][1], b"0123\0")
        os.close(ends[0][1])
        assert b"sk-live-0123" == await asking
        assert "told nothing for 0.01 s" in str(await values.get("C", 0.01))
        assert "wasn't told" in str(await values.get("D", 0.01))
        values.close()
        assert "wasn't told" in str(await values.get("A", 0.01))
        with pytest.raises(BrokenPipeError):
            os.write(ends[2][1], b"nobody reads it")
        os.close(ends[2][1])

    asyncio.run(read())
    assert LEAST > 1

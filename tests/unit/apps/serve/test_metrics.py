"""Where counts by tenant are served, and to whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from leeward.errors import BadRequest

pytestmark = pytest.mark.needs("extra-serve")

DOOR = SimpleNamespace(named_uses=list)


@pytest.mark.parametrize("place", ["0.0.0.0:9465", "192.0.2.1:9465", "example.org:80", "127.0.0.1:99999", "127.0.0.1:x",
                                   "127.0.0.1:-1", "9465", "relative.sock", "/nonexistent/m.sock"])
def test_a_place_beyond_this_host_is_refused(place):
    from leeward.apps.serve.metrics import exporting

    async def run():
        async with exporting(DOOR, place):
            raise AssertionError

    with pytest.raises(BadRequest):
        asyncio.run(run())


def test_a_file_of_the_operators_is_no_place(tmp_path):
    from leeward.apps.serve.metrics import exporting

    file = tmp_path / "file"
    file.write_text("kept")

    async def run():
        async with exporting(DOOR, str(file)):
            raise AssertionError

    with pytest.raises(BadRequest):
        asyncio.run(run())
    assert "kept" == file.read_text()


@pytest.mark.parametrize(("head", "expected"), [
    (b"Host: localhost:9465\r\n", True), (b"host: [::1]:9465\r\n", True), (b"Host: evil.example\r\n", False), (b"", False),
    (b"Host: localhost\r\nHost: localhost\r\n", False), (b"Host: localhost.evil.example\r\n", False)])
def test_a_page_that_has_another_name_here_learns_nothing(head, expected):
    from leeward.apps.serve.metrics import _is_here

    assert expected == _is_here(b"GET /metrics HTTP/1.1\r\n" + head + b"\r\n")

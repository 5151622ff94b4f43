"""What a node tells of itself, which may be another machine's word."""

from __future__ import annotations

import asyncio
import os
import resource
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest

from leeward.apps.fleet.node_client import NodeClient
from leeward.errors import BadReply, RequestRejected
from leeward.wire.replies import Reply

ROW = {"sandbox": "a" * 26, "metadata": {"a": "b"}, "age": 1.0, "left": 0, "memory_limit": 1 << 20}


class Told(NodeClient):
    """The client of a node that answers each request for a list with the next of *pages*."""

    def __init__(self, pages: Any) -> None:
        super().__init__("/none")
        self.pages = iter(pages)

    async def ask(self, op: str, fields: Any, seconds: float | None = None, *more: Any) -> tuple[Reply, list[int]]:  # type: ignore[override]
        return Reply(1, next(self.pages), "", "", []), []

    async def _simple(self, *_: Any) -> dict[str, Any]:
        return next(self.pages)  # type: ignore[no-any-return]

    status = _simple


def listed(*pages: Any) -> list[dict[str, Any]]:
    return asyncio.run(Told(pages).sandboxes(1.0))


def test_a_list_is_all_its_pages() -> None:
    pages = {"sandboxes": [ROW], "more": True, "last": 7}, {"sandboxes": [{**ROW, "age": 2.0}], "more": False}
    assert [1.0, 2.0] == [row["age"] for row in listed(*pages)]


@pytest.mark.parametrize("wrong", [
    {"sandbox": "a" * 25}, {"sandbox": "A" * 26}, {"sandbox": None}, {"metadata": []}, {"metadata": {"a": 1}},
    {"metadata": {1: "a"}}, {"age": "1"}, {"age": float("nan")}, {"left": float("inf")}, {"left": 1e300},
    {"memory_limit": 1.5}])
def test_a_row_that_is_no_sandboxs_is_refused(wrong: dict[str, Any]) -> None:
    """Else one node would fail the lists of all tenants."""
    with pytest.raises(BadReply):
        listed({"sandboxes": [ROW, {**ROW, **wrong}], "more": False})


def test_a_list_without_end_is_refused() -> None:
    pages = ({"sandboxes": [ROW] * 1000, "more": True, "last": number} for number in count(1))
    with pytest.raises(BadReply):
        asyncio.run(Told(pages).sandboxes(1.0))


@pytest.mark.parametrize(("wrong", "capacity"), [
    ({}, 4), ({}, 0), ({"queued": -1}, 4), ({"sandboxes": True}, 4), ({"sessions": 1 << 60}, 4), ({}, -4), ({}, 1 << 60)])
def test_a_count_that_no_node_has_is_refused(wrong: dict[str, Any], capacity: int) -> None:
    """Else a caller of many jobs would read all of them at once."""
    status = {"workers": {"busy": 1}, "queued": 0, "sandboxes": 0, "sessions": 0, "max_sessions": 9,
              "caps": {"workers": capacity}, **wrong}
    told = Told(repeat(status))
    if not wrong and 0 <= capacity < 1000:
        assert capacity == asyncio.run(told.state(1.0))["capacity"]
    else:
        with pytest.raises(BadReply, match="what a fleet counts by"):
            asyncio.run(told.state(1.0))


def test_a_drain_that_cannot_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    """Else a full disk would give new work to a node that ends soon."""
    node = NodeClient(tmp_path / "s")
    asyncio.run(node.drain(1000.0))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))
    try:
        with pytest.raises(RequestRejected, match="too large"):
            asyncio.run(node.drain(1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)

    assert node._drains()["drains"] > 900


def test_a_drain_is_a_file(tmp_path: Path) -> None:
    """Reading a FIFO would wait for its writer."""
    os.mkfifo(tmp_path / "s.drain")

    assert {} == NodeClient(tmp_path / "s")._drains()

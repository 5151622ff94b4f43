"""OpenSandbox's face, with a process and rows that a test makes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kit.live_daemon import PATIENCE
from leeward.apps.serve import opensandbox_face, opensandbox_network
from leeward.apps.serve.e2b.boxes import NETWORK
from leeward.apps.serve.opensandbox_face import _AT_ONCE, _BEHIND
from leeward.apps.serve.opensandbox_network import asked, policy_of
from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant, ServeVolume, volume_of
from leeward.apps.serve.volumes import MOST_BELOW, mounts_of, wanted
from leeward.client.sandbox_calls import Chunk
from leeward.errors import BadRequest
from leeward.spec.folders import MOST
from leeward.spec.outcome import Outcome, Result

LINES = 10_000


class Program:
    """A process with such chunks of output; at a None it writes nothing for so long as a call waits."""

    number = 1

    def __init__(self, *chunks: bytes | None) -> None:
        self._chunks = list(chunks)

    async def read(self, timeout: float | None = None) -> list[Chunk]:
        while self._chunks:
            data = self._chunks.pop(0)
            if data is not None:
                return [Chunk(1, "stdout", 0.0, data)]
            if timeout is not None:
                break
        return []

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while found := await self.read():
            yield found[0]

    async def wait(self, timeout: float | None = None) -> Result | None:
        return Result(b"", b"", 0, Outcome.FINISHED) if not self._chunks or timeout is None else None


async def pieces(program: Program, is_behind: bool = False) -> list[bytes]:
    return [piece async for piece in opensandbox_face._followed(cast("Any", program), is_behind)]


def kinds(piece: bytes) -> list[str]:
    return [json.loads(line.removeprefix(b"data: "))["type"] for line in piece.split(b"\n\n") if line]


def test_many_lines_leave_turns_to_other_calls():
    async def main() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        found = b"".join(await pieces(Program(b"\n" * LINES)))
        beside.cancel()
        return found.count(b'"stdout"'), turns

    count, turns = asyncio.run(main())

    assert LINES == count
    assert turns >= LINES // _AT_ONCE


def test_a_command_that_is_over_at_once_is_told_in_one_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opensandbox_face, "_EARLY_S", PATIENCE)
    said = asyncio.run(pieces(Program(b"one\n", b"two")))

    assert [["init", "stdout", "stdout", "execution_complete"]] == [kinds(piece) for piece in said]


@pytest.mark.parametrize(("chunks", "rest"), [
    ((None, b"a\n"), ["stdout"]), ((b"a\n", None, b"b"), ["stdout", "stdout"]), ((None, b"", None), [])])
def test_a_command_that_goes_on_is_told_of_before_its_end(chunks: tuple[bytes | None, ...], rest: list[str]):
    said = asyncio.run(pieces(Program(*chunks)))

    assert ["init"] == kinds(said[0])
    assert [*rest, "execution_complete"] == [kind for piece in said[1:] for kind in kinds(piece)]


def test_of_a_command_in_the_background_only_its_beginning_is_told():
    assert [["init"]] == [kinds(piece) for piece in asyncio.run(pieces(Program(b"a\n"), is_behind=True))]


def test_a_program_that_only_looks_like_a_command_in_the_background_is_none():
    assert ("/tmp/a", ["b"]) == opensandbox_face._behind({"argv": ["sh", "-c", _BEHIND, "sh", "/tmp/a", "b"]})
    for argv in (None, [], ["sh", "-c", _BEHIND], ["sh", "-c", _BEHIND, "sh", "/tmp/a"]):
        assert ("", argv or []) == opensandbox_face._behind({"argv": argv})


ONE = ServeTenant("one", "1", egress=("web",))


def rules(*rows: str, default: str = "deny") -> dict[str, Any]:
    return {"networkPolicy": {"defaultAction": default, "egress": [
        dict(zip(("action", "target"), row.split(), strict=True)) for row in rows]}}


@pytest.mark.parametrize(("fields", "allowed", "denied"), [
    (rules(), [], []), (rules("allow a.example", "deny b.example"), ["a.example"], ["b.example"]),
    (rules("deny A.example", "allow a.example"), [], ["a.example"]),  # the first about a name holds
    (rules("deny *.example", "allow a.example", default="allow"), ["a.example", "*"], ["*.example"])])
def test_rules_of_the_network_become_a_policy_within_the_tenants(fields, allowed, denied):
    options, marks = asked(ONE, fields)

    assert "web" == options["egress"]
    assert (allowed, denied) == (options["policy"]["allowed_domains"], options["policy"]["blocked_domains"])
    assert options["policy"] == policy_of(json.loads(marks[NETWORK]))
    assert ({}, {}) == asked(ServeTenant("none", "2"), fields)
    options, marks = asked(ONE, {})
    assert ({"egress": "web"}, policy_of({"defaultAction": "allow", "egress": []})) == (
        options, policy_of(json.loads(marks[NETWORK])))


@pytest.mark.parametrize("fields", [
    rules("allow a.example", "deny *.example"), rules("ask a.example"), rules(default="ask"), {"networkPolicy": []},
    {"networkPolicy": {"egress": ["a"]}}, {"networkPolicy": {"egress": [{"action": "allow"}]}}])
def test_rules_that_cannot_be_held_are_refused(fields):
    with pytest.raises(ServeProblem):
        asked(ONE, fields)


def test_rules_are_too_many_before_each_is_compared_with_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opensandbox_network, "combinations", None)  # which are hundreds of millions for a body

    with pytest.raises(ServeProblem):
        asked(ONE, rules(*(f"deny {number}.example" for number in range(1000))))


def shown(tenant, **row):
    with mounts_of(wanted(tenant, {"volumes": [{"name": "a", "mountPath": "/data", **row}]})) as (mount,):
        return opensandbox_face.posixpath.realpath(mount.source), mount.target, mount.writable


def test_a_volume_shows_what_is_in_its_folder_and_nothing_by_a_link(tmp_path):
    (tmp_path / "data" / "a" / "b").mkdir(parents=True)
    (tmp_path / "data" / "out").symlink_to("/etc")
    (tmp_path / "data" / "file").write_text("x")
    (tmp_path / "database").mkdir()
    read = ServeVolume("read", f"{tmp_path}/data", False)
    own = ServeTenant("one", "1", volumes=(volume_of(f"data={tmp_path}/data"), read))
    host = {"path": f"{tmp_path}/data"}

    assert (f"{tmp_path}/data", "/data", True) == shown(own, host=host)
    assert (f"{tmp_path}/data/a/b", "/data", False) == shown(own, pvc={"claimName": "read"}, subPath="a//b", readOnly=True)
    assert f"{tmp_path}/data/a/b" == shown(own, host={"path": f"{tmp_path}/data/a/"}, subPath="b")[0]
    for row in ({"host": host, "subPath": "out"}, {"host": host, "subPath": "a/../../database"},
                {"host": host, "subPath": "file"}, {"host": host, "subPath": "none"}, {"host": host, "subPath": "a\0b"},
                *({"host": {"path": f"{tmp_path}{path}"}} for path in ("", "/database", "/data/out")),
                {"pvc": {"claimName": "other"}}, {"pvc": {"claimName": "read"}}, {"ossfs": {"bucket": "b"}}):
        with pytest.raises(ServeProblem):
            shown(own, **row)
    with pytest.raises(ServeProblem):
        shown(ONE, host=host)


def test_volumes_have_no_more_descriptors_than_folders(tmp_path):
    below = "/".join("a" * MOST_BELOW)
    (tmp_path / below / "a").mkdir(parents=True)
    own = ServeTenant("one", "1", volumes=(volume_of(f"data={tmp_path}"), volume_of(f"gone={tmp_path}/gone")))
    row = {"pvc": {"claimName": "data"}, "mountPath": "/data", "subPath": f"./././{below}/"}
    before = len(os.listdir("/proc/self/fd"))

    with mounts_of(wanted(own, {"volumes": [row] * MOST})) as mounts:
        assert [str(tmp_path / below)] * MOST == [os.path.realpath(mount.source) for mount in mounts]
        assert before + MOST == len(os.listdir("/proc/self/fd"))
    for rows in ([row] * (MOST + 1), [row, {**row, "subPath": f"{below}/a"}], [row, {"pvc": {"claimName": "gone"}}]):
        with pytest.raises(ServeProblem), mounts_of(wanted(own, {"volumes": rows})):
            pass
    assert before == len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("text", ["", "data", "data=", "data=x", "data=/", "Data=/srv", "=/srv", "a/b=/srv"])
def test_what_is_no_volume_is_refused(text):
    with pytest.raises(BadRequest):
        volume_of(text)

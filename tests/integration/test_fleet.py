"""A fleet of three real daemons on this host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.errors import NodeLost, NoNodeFits

T = TypeVar("T")

NAMES = ("a", "b", "c")


@contextlib.contextmanager
def started(folder: Path, name: str) -> Iterator[LiveDaemon]:
    (folder / name).mkdir(exist_ok=True)
    with LiveDaemon(folder / name, "--pool-size", "2") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LiveDaemon]]:
    """Three that live as long as this module's tests."""
    folder = tmp_path_factory.mktemp("fleet")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(started(folder, name)) for name in NAMES}


def nodes(daemons: dict[str, LiveDaemon]) -> list[dict[str, Any]]:
    return [{"address": f"unix:{daemon.socket}", "name": name, "tags": [f"is:{name}"], "resources": {"gpu": 1}}
            for name, daemon in daemons.items()]


def within(daemons: dict[str, LiveDaemon], what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)


@pytest.mark.smoke
def test_jobs_are_on_all_nodes(daemons: dict[str, LiveDaemon]) -> None:
    """Each has its own result, in the order of the jobs if asked, and each node had some."""
    async def main() -> tuple[list[str], dict[str, int], list[int]]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            before = {row["name"]: fleet._members[row["name"]].status["jobs"]["done"] for row in
                      (await fleet.status())["nodes"]}
            progress: list[int] = []
            texts = [result.text async for _, result in fleet.execute_many(
                (f"print({number})" for number in range(90)), in_order=True, on_progress=progress.append)]
            done = {name: (await member.client.status())["jobs"]["done"] - before[name]
                    for name, member in fleet._members.items()}
            return texts, done, progress

    texts, done, progress = asyncio.run(main())

    assert [f"{number}\n" for number in range(90)] == texts
    assert 90 == sum(done.values())
    assert min(done.values()) >= 10
    assert list(range(1, 91)) == progress


def test_a_job_goes_where_its_tags_and_resources_are(daemons: dict[str, LiveDaemon]) -> None:
    async def main() -> tuple[set[str], dict[str, str]]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            boxes = [fleet.sandbox(tags=["is:b"]) for _ in range(4)]
            found = {(await box.id()).partition("/")[0] for box in boxes}
            for box in boxes:
                await box.close()
            with pytest.raises(NoNodeFits) as nothing:
                await fleet.execute("1", resources={"gpu": 2})
            return found, nothing.value.reasons

    found, reasons = asyncio.run(main())

    assert {"b"} == found
    assert dict.fromkeys(NAMES, "has 1 gpu, and 2 are wanted") == reasons


def test_a_sandbox_works_as_on_one_daemon(daemons: dict[str, LiveDaemon]) -> None:
    """Programs, files, kernels, output as it arrives; and another program finds it by its id."""
    async def main() -> list[object]:
        async with AsyncFleet(nodes(daemons)) as fleet, fleet.sandbox() as box:
            await box.files.write("numbers", b"40 2\n")
            added = await box.run(["awk", "{ print $1 + $2 }", "numbers"])
            pieces: list[bytes] = []
            await box.shell("echo one; echo two", on_stdout=pieces.append)
            kernel = await box.kernel()
            await kernel.execute("x = 6")
            seen = await kernel.execute("print(x * f(7))", functions={"f": lambda number: number})
            async with AsyncFleet(nodes(daemons)) as other:
                again = await other.attach(await box.id())
                read = await again.files.read("numbers")
                await again.detach()
            return [added.text, b"".join(pieces), seen.text, read]

    assert ["42\n", b"one\ntwo\n", "42\n", b"40 2\n"] == asyncio.run(main())


def test_a_session_keeps_its_state(daemons: dict[str, LiveDaemon]) -> None:
    async def main() -> str:
        async with AsyncFleet(nodes(daemons)) as fleet, fleet.session() as session:
            await session.execute("x = 41")
            return (await session.execute("print(x + 1)")).text

    assert "42\n" == asyncio.run(main())


def test_sandboxes_are_spread(daemons: dict[str, LiveDaemon]) -> None:
    async def main() -> Counter[str]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            boxes = [fleet.sandbox() for _ in range(12)]
            found = Counter([(await box.id()).partition("/")[0] for box in boxes])
            await asyncio.gather(*(box.close() for box in boxes))
            return found

    assert {name: 4 for name in NAMES} == asyncio.run(main())


def test_a_node_that_is_killed_costs_its_jobs_alone(tmp_path: Path) -> None:
    """A thousand jobs, one answer each: results, and node_lost for those that were on the node that was killed."""
    folder = tmp_path / "ran"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        daemons = {name: stack.enter_context(started(tmp_path, name)) for name in ("a", "b")}
        victim = LiveDaemon(make(tmp_path / "c"), "--pool-size", "2")
        victim.__enter__()

        async def main() -> tuple[list[tuple[int, Any]], str]:
            async with AsyncFleet(nodes({**daemons, "c": victim})) as fleet:
                answers = []
                async for number, answer in fleet.execute_many(f"print({number})" for number in range(1000)):
                    answers.append((number, answer))
                    if 300 == len(answers):
                        victim.process.send_signal(signal.SIGKILL)
                standing = {row["name"]: row["standing"] for row in (await fleet.status())["nodes"]}
                return answers, standing["c"]

        try:
            answers, standing = asyncio.run(main())
        finally:
            with contextlib.suppress(AssertionError):
                victim.end()

    assert list(range(1000)) == sorted(number for number, _ in answers)
    lost = [answer for _, answer in answers if isinstance(answer, NodeLost)]
    assert 1000 - len(lost) == sum(f"{number}\n" == answer.text for number, answer in answers
                                   if isinstance(answer, leeward.Result))
    assert {"c"} == {error.node for error in lost}
    assert all(error.may_have_run for error in lost)
    assert len(lost) <= 2 * 8
    assert "lost" == standing


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder

"""A sandbox for agents of Strands, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import page
import pytest
from strands import SandboxPathNotFoundError, SandboxTimeoutError
from strands.models import Model
from strands.sandbox import StreamChunk

import leeward
from leeward.apps.integrations.strands import LeewardStrandsSandbox


@pytest.fixture
def box() -> Iterator[LeewardStrandsSandbox]:
    with LeewardStrandsSandbox(env={"GIVEN": "42"}) as made:
        yield made


async def test_commands(box: LeewardStrandsSandbox) -> None:
    done = await box.execute("echo $GIVEN $MORE; pwd; echo err >&2; exit 3", env={"MORE": "1"}, cwd="/tmp")
    assert ("42 1\n/tmp\n", "err\n", 3) == (done.stdout, done.stderr, done.exit_code)
    pieces = [each.data async for each in box.execute_streaming("echo a; sleep 0.2; echo b") if isinstance(each, StreamChunk)]
    assert ["a\n", "b\n"] == pieces

    async def streamed(*given: Any, **options: Any) -> Any:
        return [each async for each in box.execute_streaming(*given, **options)][-1]

    assert 3 == (await streamed("exit 3")).exit_code
    assert "42\n" == (await box.execute_code("print(6 * 7)", "python3")).stdout
    for run in (box.execute, streamed):
        with pytest.raises(SandboxTimeoutError) as late:
            await run("echo begun; sleep 60", timeout=0.5)
        assert "begun\n" == late.value.stdout


async def test_output_is_bounded() -> None:
    """Also where it is streamed."""
    line = "head -c 10000000 /dev/zero; echo end >&2"
    with LeewardStrandsSandbox(output="64K") as box:
        done = await box.execute(line)
        assert (0, True) == (done.exit_code, len(done.stdout) < 100_000)
        *_, done = [each async for each in box.execute_streaming(line)]
        assert (0, True) == (done.exit_code, len(done.stdout) < 100_000)


async def test_files(box: LeewardStrandsSandbox) -> None:
    await box.write_file("deep/a", bytes(range(256)))
    assert bytes(range(256)) == await box.read_file("/workspace/deep/a")
    assert [("a", False, 256)] == [(info.name, info.is_dir, info.size) for info in await box.list_files("deep")]
    assert [("deep", True)] == [(info.name, info.is_dir) for info in await box.list_files(".")]
    await box.remove_file("deep/a")
    for gone in (box.remove_file("deep/a"), box.read_file("deep/a")):
        with pytest.raises(FileNotFoundError):
            await gone
    with pytest.raises(SandboxPathNotFoundError):
        await box.list_files("none")


async def test_a_cancelled_command_is_killed(box: LeewardStrandsSandbox) -> None:
    async def streamed() -> None:
        async for _ in box.execute_streaming("touch begun; sleep 60"):
            pass

    for work in (box.execute("touch begun; sleep 60"), streamed()):
        running = asyncio.create_task(work)
        while (await box.execute("test -e begun")).exit_code:
            pass
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "0\n" == (await box.execute("rm begun; pgrep -c -r S sleep || :")).stdout  # S: no killed one


async def test_the_end(box: LeewardStrandsSandbox) -> None:
    await box.execute("true")
    await asyncio.to_thread(box.close)
    with pytest.raises(leeward.SandboxOver):
        await box.execute("true")


class Scripted(Model):
    """A model that calls the shell once, and then repeats what that said."""

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        last = messages[-1]["content"][-1]
        called = "toolResult" in last
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {} if called else {"toolUse": {"name": "sandbox_shell", "toolUseId": "1"}}}}
        yield {"contentBlockDelta": {"delta": {"text": str(last)} if called else
                                     {"toolUse": {"input": '{"command": "echo $((6 * 7))"}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if called else "tool_use"}}


def test_the_page() -> None:
    """Its two calls have an event loop each."""
    assert "42" in str(page.run("Strands", model=Scripted())["answer"])

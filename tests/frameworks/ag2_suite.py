"""An environment for AG2's tools, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import page
import pytest
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig, TrackingConfig
from ag2.tools.sandbox import CodeAdapter

import leeward
from leeward.apps.integrations.ag2 import LeewardAg2Environment


@pytest.fixture
async def environment() -> AsyncIterator[LeewardAg2Environment]:
    async with LeewardAg2Environment(env={"GIVEN": "42"}) as made:
        yield made


async def test_programs(environment: LeewardAg2Environment) -> None:
    done = await environment.exec(["sh", "-c", "echo $GIVEN $MORE; pwd; echo err >&2; exit 3"], env={"MORE": "1"})
    assert ("42 1\n/workspace\nerr\n", 3) == (done.output, done.exit_code)
    assert 127 == (await environment.exec(["no-such-program"])).exit_code
    late = await environment.exec(["sh", "-c", "echo begun; sleep 60"], timeout=0.5)
    assert ("begun\n", 124) == (late.output, late.exit_code)
    ran = await CodeAdapter(environment).run("print(6 * 7)", "python")
    assert ("42\n", 0) == (ran.output, ran.exit_code)


async def test_files(environment: LeewardAg2Environment) -> None:
    await environment.put_file(PurePosixPath("deep/a"), b"one")
    assert "one" == (await environment.exec(["cat", "deep/a"])).output
    await environment.remove_file(PurePosixPath("deep/a"))
    assert 0 != (await environment.exec(["cat", "deep/a"])).exit_code
    for refused in (environment.put_file(PurePosixPath("/tmp/a"), b""), environment.remove_file(PurePosixPath("/tmp/a"))):
        with pytest.raises(ValueError, match="/tmp/a"):
            await refused


async def test_a_cancelled_program_is_killed(environment: LeewardAg2Environment) -> None:
    running = asyncio.create_task(environment.exec(["sh", "-c", "touch begun; sleep 60"]))
    while (await environment.exec(["test", "-e", "begun"])).exit_code:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0\n" == (await environment.exec(["sh", "-c", "pgrep -c -r S sleep || :"])).output  # S: no killed one


async def test_the_end(environment: LeewardAg2Environment) -> None:
    await environment.exec(["true"])
    await environment.aclose()
    with pytest.raises(leeward.SandboxOver):
        await environment.exec(["true"])


def test_the_page() -> None:
    """What one tool writes the other one reads; the model's client raises what a tool has raised."""
    config = TrackingConfig(TestConfig(
        ToolCallEvent(name="run_shell_command", arguments='{"command": "echo $((6 * 7)) >answer"}'),
        ToolCallEvent(name="run_code", arguments='{"code": "print(open(\\"answer\\").read())", "language": "python"}'),
        "done"))
    assert "done" == page.run("AG2", config=config)["answer"].body
    assert "42" in str(config.mock.call_args_list[-1])

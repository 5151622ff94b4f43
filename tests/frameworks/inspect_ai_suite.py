"""Inspect's own checks of a sandbox, against leeward's. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util._sandbox.environment import SandboxUnavailableError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import leeward
from leeward.apps.integrations.inspect_ai import LeewardConfig, LeewardSandboxEnvironment

#: What it can't satisfy, and why.
EXPECTED = {"test_exec_as_user": "a sandbox has one user, and no program in it makes another"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[LeewardSandboxEnvironment]:
    if request.node.originalname in EXPECTED:
        request.node.add_marker(pytest.mark.xfail(reason=EXPECTED[request.node.originalname], strict=True))
    made = await LeewardSandboxEnvironment.sample_init("checks", LeewardConfig(), {})
    yield made["default"].as_type(LeewardSandboxEnvironment)
    await LeewardSandboxEnvironment.sample_cleanup("checks", None, made, False)


async def test_a_cancelled_command_is_killed(sandbox_env: LeewardSandboxEnvironment) -> None:
    running = asyncio.create_task(sandbox_env.exec(["sh", "-c", "touch begun; sleep 60"]))
    while not (await sandbox_env.exec(["test", "-e", "begun"])).success:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0\n" == (await sandbox_env.exec(["pgrep", "-c", "-r", "S", "sleep"])).stdout  # S: no killed one


async def test_a_sandbox_that_has_ended_is_unavailable(sandbox_env: LeewardSandboxEnvironment) -> None:
    await sandbox_env.exec(["true"])
    await asyncio.to_thread(lambda: leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close())
    for asked in (sandbox_env.exec(["true"]), sandbox_env.read_file("a"), sandbox_env.write_file("a", "x")):
        with pytest.raises(SandboxUnavailableError):
            await asked


pytestmark = pytest.mark.anyio

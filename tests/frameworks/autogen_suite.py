"""A code executor of AutoGen by its contract, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import page
import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult

import leeward
from leeward.apps.integrations.autogen import LeewardCodeExecutor


@pytest.fixture
async def executor() -> AsyncIterator[LeewardCodeExecutor]:
    async with LeewardCodeExecutor(timeout=2) as made:
        yield made


async def ran(executor: LeewardCodeExecutor, *blocks: tuple[str, str]) -> CodeResult:
    return await executor.execute_code_blocks([CodeBlock(code, language) for language, code in blocks], CancellationToken())


async def test_blocks(executor: LeewardCodeExecutor) -> None:
    assert CodeResult(0, "42\ninside") == await ran(executor, ("python", "x = 42; print(x)"), ("bash", "echo inside"))
    assert CodeResult(0, "42") == await ran(executor, ("python", "print(x)"))
    failed = await ran(executor, ("python", "1 / 0"), ("sh", "echo after"))
    assert (1, True, False) == (failed.exit_code, "ZeroDivisionError" in failed.output, "after" in failed.output)
    with pytest.raises(ValueError, match="cobol"):
        await ran(executor, ("cobol", ""))


async def test_a_run_that_takes_too_long(executor: LeewardCodeExecutor) -> None:
    late = await ran(executor, ("bash", "echo begun; sleep 60"))

    assert (124, True) == (late.exit_code, "begun" in late.output)


async def test_a_cancelled_run_is_killed(executor: LeewardCodeExecutor) -> None:
    token = CancellationToken()
    running = asyncio.create_task(executor.execute_code_blocks([CodeBlock("touch begun; sleep 60", "sh")], token))
    while (await ran(executor, ("sh", "test -e begun"))).exit_code:
        pass
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0" == (await ran(executor, ("sh", "pgrep -c -r S sleep || :"))).output  # S: no killed one


async def test_the_end(executor: LeewardCodeExecutor) -> None:
    await ran(executor, ("python", "x = 42"))
    await executor.restart()
    assert "NameError" in (await ran(executor, ("python", "x"))).output
    assert 3 == (await ran(executor, ("python", "import os; os._exit(3)"))).exit_code
    lost = await ran(executor, ("python", "print(42)"))
    assert (1, True) == (lost.exit_code, "all variables are lost" in lost.output), lost
    assert CodeResult(0, "42") == await ran(executor, ("python", "print(42)"))

    await asyncio.to_thread(lambda: leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close())
    with pytest.raises(leeward.SandboxOver):
        await ran(executor, ("sh", "true"))


async def test_it_is_made_again_from_its_configuration(executor: LeewardCodeExecutor) -> None:
    again = LeewardCodeExecutor.load_component(executor.dump_component())

    assert {"timeout": 2} == again._options


async def test_an_agent() -> None:
    async with LeewardCodeExecutor() as executor:
        agent = CodeExecutorAgent("worker", code_executor=executor)
        said = await agent.on_messages([TextMessage(content="```python\nprint(6 * 7)\n```", source="user")],
                                       CancellationToken())
    assert "42" in said.chat_message.to_text()


def test_the_page() -> None:
    assert "42" in page.run("AutoGen")["done"].chat_message.to_text()

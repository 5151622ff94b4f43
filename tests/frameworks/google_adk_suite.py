"""An environment and an executor of code for Google's ADK, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import page
import pytest
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

import leeward
from leeward.apps.integrations.google_adk import LeewardAdkCodeExecutor, LeewardAdkEnvironment


@pytest.fixture
async def environment() -> AsyncIterator[LeewardAdkEnvironment]:
    made = LeewardAdkEnvironment(env={"GIVEN": "42"})
    await made.initialize()
    yield made
    await made.close()


async def test_commands(environment: LeewardAdkEnvironment) -> None:
    done = await environment.execute("echo $GIVEN; pwd; echo err >&2; exit 3")
    assert ("42\n/workspace\n", "err\n", 3, False) == (done.stdout, done.stderr, done.exit_code, done.timed_out)
    assert Path("/workspace") == environment.working_dir

    late = await environment.execute("echo begun; sleep 60", timeout=0.5)
    assert ("begun\n", True) == (late.stdout, late.timed_out)


async def test_files(environment: LeewardAdkEnvironment) -> None:
    await environment.write_file(Path("deep/a"), b"one\ntwo\n")
    await environment.write_file(Path("/workspace/b"), "text")
    assert b"text" == await environment.read_file(Path("b"))
    with pytest.raises(FileNotFoundError):
        await environment.read_file(Path("none"))


async def test_a_cancelled_command_is_killed(environment: LeewardAdkEnvironment) -> None:
    running = asyncio.create_task(environment.execute("touch begun; sleep 60"))
    while (await environment.execute("test -e begun")).exit_code:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0\n" == (await environment.execute("pgrep -c -r S sleep || :")).stdout  # S: no killed one


async def test_the_end(environment: LeewardAdkEnvironment) -> None:
    await asyncio.to_thread(lambda: leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close())
    with pytest.raises(leeward.SandboxOver):
        await environment.execute("true")
    await environment.close()
    assert not environment.is_initialized
    with pytest.raises(leeward.SandboxOver):
        await environment.execute("true")


def test_code() -> None:
    ran = LeewardAdkCodeExecutor().execute_code(None, CodeExecutionInput(
        "print(open('in.txt').read()); open('out.csv', 'w').write('1')", input_files=[File("in.txt", "given")]))
    assert ("given\n", "", [("out.csv", b"1", "text/csv")]) == (
        ran.stdout, ran.stderr, [(file.name, file.content, file.mime_type) for file in ran.output_files])
    assert "ZeroDivisionError" in LeewardAdkCodeExecutor().execute_code(None, CodeExecutionInput("1 / 0")).stderr
    late = LeewardAdkCodeExecutor(options={"timeout": 0.5}).execute_code(None, CodeExecutionInput("while True: pass"))
    assert "timed_out" in late.stderr


class Scripted(BaseLlm):
    """A model that calls a tool once, and then repeats what that said."""

    tool: str = "Execute"

    async def generate_content_async(self, request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        last = request.contents[-1].parts[-1]
        if last.function_response is None:
            name = next(name for name in request.tools_dict if self.tool in name)
            part = types.Part.from_function_call(name=name, args={"command": "echo $((6 * 7))"})
        else:
            part = types.Part.from_text(text=str(last.function_response.response))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def test_the_page() -> None:
    agent = page.run("Google's ADK", model=Scripted(model="scripted"))["agent"]

    async def ask() -> str:
        runner = InMemoryRunner(agent)
        return str([event.content for event in await runner.run_debug("what is the answer?")])
    assert "42" in asyncio.run(ask())

"""
Live sandboxes for rollouts of verifiers: an agent whose commands, and those of its task, run in one.

Runs in:   anybody's program; needs the extra `verifiers`.
Theory of operation. verifiers' own harnesses run in their runtime a program that has to reach the model on the host, to which
a sandbox has no way. So here the loop stays on the host, and only what it runs goes into the sandbox.

    import verifiers.v1 as vf
    from leeward.apps.integrations.verifiers import LeewardAgent

    trace = await LeewardAgent(vf.AgentConfig(model="name", client=client), memory="1G").run(task)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig, SubprocessRuntimeInfo

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.model_text import cut
from leeward.errors import LeewardError

_BASH = {"type": "function", "function": {
    "name": "bash", "description": "Run a line by bash, and see its output and exit code.", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
#: Characters of a command, at most.
_LONGEST = 100_000


@contextmanager
def _told() -> Iterator[None]:
    """What fails in the sandbox, or has ended it, is verifiers' error."""
    try:
        yield
    except (LeewardError, OSError, ValueError) as error:
        raise SandboxError(str(error)) from error


class LeewardVerifiersRuntime(vf.Runtime):
    """
    A runtime in a live sandbox of its own, from `start` until `stop`, to give to `vf.Agent.run`. A trace has no kind for it,
    and tells of processes of this host's, which they are, with the sandbox's id.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.config, self.info = SubprocessConfig(), SubprocessRuntimeInfo()
        self._box = AsyncSandbox(**{"profile": "workdir", "held": True, **options})

    async def start(self) -> None:
        """Open the sandbox; SandboxError if there is none to have."""
        with _told():
            self.info.id = await self._box.id()

    async def teardown(self) -> None:
        """End the sandbox, with all that runs in it. One whose program has died ends by itself."""
        await self._box.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program; SandboxError if the sandbox has ended."""
        with _told():
            result = await self._box.run(argv, env=self.process_env(env))
        hint = f"\n{result.hint}" if result.exit_code and result.hint else ""
        return ProgramResult(result.exit_code, result.stdout_text, result.stderr_text + hint)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with _told():
            return await self._box.files.read(path, size=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders that lead to it; SandboxError if that can't be."""
        with _told():
            await self._box.files.write(path, data)

    async def expose(self, port: int) -> str:
        """Refused: a port of this number on the host isn't the sandbox's."""
        raise SandboxError("tools that listen in the sandbox aren't offered")


class LeewardHarness(vf.Harness[vf.HarnessConfig]):
    """A loop on the host, whose model has one tool: bash in the runtime."""

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False

    async def launch(self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str],
                     data: Any, tool_interception_url: str | None = None) -> ProgramResult:
        """Ask the model, and run what it calls for, until it calls for nothing."""
        system, prompt = self.resolve_text_prompt(data)
        said: list[Any] = [{"role": role, "content": text} for role, text in (("system", system), ("user", prompt)) if text]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as model:
            while True:
                answer = await model.chat.completions.create(model=ctx.model, messages=said, tools=[_BASH])
                message = answer.choices[0].message
                said.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return ProgramResult(0, message.content or "", "")
                said += [{"role": "tool", "tool_call_id": call.id, "content": await _called(runtime, call.function.arguments)}
                         for call in message.tool_calls]


async def _called(runtime: vf.Runtime, arguments: str) -> str:
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError):
        return "the arguments have to be an object with a command"
    try:
        command.encode()
    except (AttributeError, UnicodeError):
        return "the command has to be text"
    if "\0" in command or len(command) > _LONGEST:
        return f"the command has to have no null, and {_LONGEST} characters at most"
    done = await runtime.run(["bash", "-c", command], {})
    return cut(f"{done.stdout}{done.stderr}\nexit code {done.exit_code}")


class LeewardAgent(vf.Agent):
    """
    An agent of LeewardHarness, whose runs each have a sandbox of their own.

    Args:
        config: the model, its client and bounds; its harness and runtime aren't used.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, config: vf.AgentConfig, **options: Any) -> None:
        super().__init__(config.model_copy(update={"runtime": SubprocessConfig()}))
        self.harness, self._options = LeewardHarness(self.config.harness), options

    async def run(self, task: vf.Task, *, runtime: vf.Runtime | None = None, **more: Any) -> vf.Trace:
        """As vf.Agent's, in the runtime that is given, or in a sandbox that ends behind the run."""
        if runtime is not None:
            return await super().run(task, runtime=runtime, **more)
        runtime = LeewardVerifiersRuntime(**self._options)
        try:
            await runtime.start()
            return await super().run(task, runtime=runtime, **more)
        finally:
            await runtime.stop()

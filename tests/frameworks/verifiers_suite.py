"""A runtime and an agent for verifiers, with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import page
import pytest
import verifiers.v1 as vf
from verifiers.v1.errors import SandboxError

from leeward.apps.integrations.verifiers import LeewardAgent, LeewardVerifiersRuntime

CALLS = [{"id": str(number), "type": "function", "function": {"name": "bash", "arguments": arguments}}
         for number, arguments in enumerate(("[]", '{"command": "\\ud800"}', '{"command": "a\\u0000"}', '{"command": 1}',
                                             '{"command": "echo $((6 * 7)) | tee made"}'))]


class Model(BaseHTTPRequestHandler):
    """Calls bash, at first wrongly, and then repeats what that said."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]
        message = {"content": last["content"]} if last["role"] == "tool" else {"content": None, "tool_calls": CALLS}
        body = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "usage": {
            "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, "choices": [
                {"index": 0, "finish_reason": "stop" if last["role"] == "tool" else "tool_calls",
                 "message": {"role": "assistant", **message}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def client() -> Iterator[vf.EvalClientConfig]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever).start()
        yield vf.EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NONE")
        server.shutdown()


class Sum(vf.Task):
    """Its reward is what the agent has left in the sandbox."""

    @vf.reward
    async def made(self, runtime: vf.Runtime) -> float:
        return float(await runtime.read("made", 10) == b"42\n")


TASK = Sum(vf.TaskData(prompt="What is 6 * 7?"))


@pytest.fixture
async def runtime() -> AsyncIterator[LeewardVerifiersRuntime]:
    made = LeewardVerifiersRuntime(env={"GIVEN": "42"})
    await made.start()
    yield made
    await made.stop()


async def test_commands_and_files(runtime: LeewardVerifiersRuntime) -> None:
    done = await runtime.with_env({"MORE": "1"}).run(["sh", "-c", "echo $GIVEN $MORE $LAST; pwd; echo err >&2; exit 3"],
                                                      {"LAST": "2"})
    assert (3, "42 1 2\n/workspace\n", "err\n") == (done.exit_code, done.stdout, done.stderr)
    await runtime.write("deep/a", bytes(range(256)))
    assert bytes(range(256)) == await runtime.read("/workspace/deep/a")
    for refused in (runtime.read("deep/a", 255), runtime.read("none"), runtime.write("/usr/a", b""), runtime.expose(1),
                    runtime.read("a\0")):
        with pytest.raises(SandboxError):
            await refused


async def test_a_cancelled_command_is_killed(runtime: LeewardVerifiersRuntime) -> None:
    running = asyncio.create_task(runtime.run(["sh", "-c", "touch begun; sleep 60"], {}))
    while (await runtime.run(["test", "-e", "begun"], {})).exit_code:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0\n" == (await runtime.run(["sh", "-c", "pgrep -c -r S sleep || :"], {})).stdout  # S: no killed one


async def test_the_end(runtime: LeewardVerifiersRuntime, client: vf.EvalClientConfig) -> None:
    """A run in a sandbox that has ended isn't the task's fault, nor the model's."""
    agent = LeewardAgent(vf.AgentConfig(model="scripted", client=client))
    await runtime._box.kill()
    with pytest.raises(SandboxError):
        await runtime.run(["true"], {})
    assert not await runtime.alive()
    trace = await agent.run(TASK, runtime=runtime)
    assert "SandboxError" == trace.last_error.type
    await runtime.stop()
    with pytest.raises(ValueError, match="torn down"):
        await agent.run(TASK, runtime=runtime)


def test_the_page(client: vf.EvalClientConfig) -> None:
    """Its model's command runs in the sandbox, whose file is the task's reward."""
    trace = page.run("verifiers", client=client, task=TASK)["trace"]
    assert (1.0, None) == (trace.reward, trace.last_error), trace.errors
    assert trace.agent.runtime.borrowed

"""What openai-agents' sessions in sandboxes promise, and an agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import page
import pytest
from agents.sandbox import (
    ExecTimeoutError,
    ExecTransportError,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxError,
    SandboxPathGrant,
    SandboxRunConfig,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import Dir, File
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call

import leeward
from agents import RunConfig, Runner
from leeward.apps.integrations.openai_agents import LeewardSandboxClient, LeewardSandboxClientOptions


def run(what: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(what)


async def opened(**options: Any) -> tuple[LeewardSandboxClient, SandboxSession]:
    client = LeewardSandboxClient()
    asked = LeewardSandboxClientOptions(sandbox={"timeout": 20}, exposed_ports=(8000,))
    session = await client.create(options=asked, **options)
    await session.start()
    return client, session


def test_commands() -> None:
    async def go() -> None:
        client, session = await opened(manifest=Manifest(environment={"value": {"GIVEN": "42"}}))
        done = await session.exec("echo $GIVEN; pwd; echo err >&2; exit 3")
        assert (3, b"42\n/workspace\n", b"err\n") == (done.exit_code, done.stdout, done.stderr)
        assert b"a b\n" == (await session.exec("echo", "a b", shell=False)).stdout
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 60", timeout=0.3)
        with pytest.raises(SandboxError, match="another user"):
            await session.exec("id", user="root")
        with pytest.raises(ExecTransportError):
            await session.exec("echo", "\ud800", shell=False)
        await client.delete(session)
        with pytest.raises(ExecTransportError):
            await session.exec("true")
    run(go())


def test_files() -> None:
    async def go() -> None:
        manifest = Manifest(entries={"given": Dir(children={"a.txt": File(content=b"of the manifest")})})
        client, session = await opened(manifest=manifest)
        assert b"of the manifest" == (await session.read(Path("given/a.txt"))).read()
        await session.write(Path("deep/b.bin"), io.BytesIO(b"\0\1"))
        assert b"\0\1" == (await session.read(Path("/workspace/deep/b.bin"))).read()
        assert b"\0" == await session.read_bounded(Path("deep/b.bin"), max_bytes=1)
        assert {"deep", "given"} <= {Path(entry.path).name for entry in await session.ls("/workspace")}
        await session.mv("deep/b.bin", "deep/c.bin")
        await session.rm("deep", recursive=True)
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("deep/c.bin"))
        for wrong in ("given", "a\0"):
            with pytest.raises(WorkspaceArchiveReadError):
                await session.read(Path(wrong))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.write(Path("given"), io.BytesIO(b"x"))
        with pytest.raises(SandboxError):
            await session.read(Path("../etc/passwd"))
        await client.delete(session)
    run(go())


def test_a_cancelled_command_is_killed() -> None:
    async def go() -> None:
        client, session = await opened()
        task = asyncio.create_task(session.exec("touch begun; sleep 60; touch ended"))
        while not (await session.exec("test -e begun")).ok():
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert b"0\n" == (await session.exec("pgrep -c -r S sleep || :")).stdout  # S: no killed one
        await client.delete(session)
    run(go())


def test_a_port() -> None:
    async def go() -> None:
        client, session = await opened()
        await session.write(Path("hello"), io.BytesIO(b"from inside"))
        await session.exec("python3 -m http.server 8000 >/dev/null 2>&1 & until python3 -c "
                           "'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do :; done")
        where = await session.resolve_exposed_port(8000)
        assert b"from inside" == await asyncio.to_thread(lambda: urlopen(where.url_for("http") + "hello").read())
        with pytest.raises(SandboxError):
            await session.resolve_exposed_port(9)
        await client.delete(session)
    run(go())


def test_a_session_is_resumed_in_its_sandbox_or_from_its_snapshot(tmp_path: Path) -> None:
    async def go() -> None:
        client, session = await opened(snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await session.write(Path("kept"), io.BytesIO(b"x"))
        await session.stop()
        payload = client.serialize_session_state(session.state)

        async def kept() -> str:
            other = LeewardSandboxClient()
            again = await other.resume(other.deserialize_session_state(dict(payload)))
            await again.start()
            assert b"x" == (await again.read(Path("kept"))).read()
            return str(again.state.sandbox_id)

        assert session.state.sandbox_id == await kept()
        await client.delete(session)
        assert session.state.sandbox_id != await kept()
    run(go())
    for row in leeward.Sandbox.list():
        leeward.Sandbox.attach(row["sandbox"]).close()


def test_what_is_ephemeral_is_not_persisted() -> None:
    async def go() -> None:
        manifest = Manifest(entries={"gone.txt": File(content=b"x", ephemeral=True), "kept.txt": File(content=b"y")})
        client, session = await opened(manifest=manifest)
        with tarfile.open(fileobj=await session.persist_workspace()) as archive:
            assert ["kept.txt"] == [name for name in archive.getnames() if name.endswith(".txt")]
        await client.delete(session)
    run(go())


def test_paths_of_the_host_are_refused(tmp_path: Path) -> None:
    grant = SandboxPathGrant(path="/data", host_path=str(tmp_path))
    with pytest.raises(SandboxError, match="mounts"):
        run(LeewardSandboxClient().create(manifest=Manifest(extra_path_grants=(grant,))))


def test_an_agent() -> None:
    model = ScriptedModel([[function_call("exec_command", {"cmd": "echo $((6 * 7)) > answer; cat answer"}, call_id="1")],
                           [assistant_message("42")]])
    agent = SandboxAgent(name="test", model=model, instructions="work")
    where = SandboxRunConfig(client=LeewardSandboxClient())

    done = asyncio.run(Runner.run(agent, "what is the answer?", run_config=RunConfig(sandbox=where, tracing_disabled=True)))

    assert "42" == done.final_output
    assert "42" in str(model.calls[-1].input)


def test_the_page() -> None:
    model = ScriptedModel([[function_call("exec_command", {"cmd": "true"}, call_id="1")], [assistant_message("42")]])
    assert "42" == page.run("openai-agents", model=model)["done"].final_output


#: Puts leeward's client where tests look for the one of sandboxes on the host itself.
PLUGIN = """
import agents.sandbox.sandboxes as every, agents.sandbox.sandboxes.unix_local as unix
from leeward.apps.integrations.openai_agents import LeewardSandboxClient
every.UnixLocalSandboxClient = unix.UnixLocalSandboxClient = LeewardSandboxClient
"""
#: What is about that client by name, makes users, or runs the host's interpreter.
OTHERS = ("unix_local or user_and_group or persists_workspace_and_tool or restores_all_sandbox or restores_legacy or "
          "nested_workdir")
FILES = tuple(f"tests/sandbox/test_{name}.py" for name in ("run_cwd", "exposed_ports", "runtime"))


def test_its_own_tests_of_runs_in_sandboxes(tmp_path: Path) -> None:
    source = os.environ["LEEWARD_TESTS_SOURCES"]
    (tmp_path / "ours.py").write_text(PLUGIN)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(tmp_path), source))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "ours", "-p", "no:cacheprovider", "-W", "ignore", "-o",
         "asyncio_mode=auto", "-k", f"not ({OTHERS})", *FILES],
        cwd=source, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "199 passed, " in done.stdout.splitlines()[-1], done.stdout[-8000:]

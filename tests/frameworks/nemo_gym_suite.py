"""A provider of NeMo Gym's sandboxes, through its own Sandbox and by its contract. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxHandle, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.providers.registry import create_provider

import leeward
from leeward.apps.integrations.nemo_gym import LeewardProvider


@pytest.fixture
async def provider() -> AsyncIterator[LeewardProvider]:
    made = create_provider({"leeward": {"options": {"timeout": 20}, "images": {"python:3.12": {}}}})
    assert isinstance(made, LeewardProvider)
    yield made
    await made.aclose()


@pytest.fixture
async def handle(provider: LeewardProvider) -> SandboxHandle:
    return await provider.create(SandboxSpec(image="python:3.12", env={"GIVEN": "42"}, workdir="/workspace/deep",
                                             files={"/tmp/given": "of the task"}, ttl_s=60,
                                             resources={"memory_mib": 512}))


async def test_commands(provider: LeewardProvider, handle: SandboxHandle) -> None:
    done = await provider.exec(handle, "echo $GIVEN $MORE; pwd; cat /tmp/given; echo err >&2; exit 3", env={"MORE": "x"})
    assert ("42 x\n/workspace/deep\nof the task", "err\n", 3, None) == (
        done.stdout, done.stderr, done.return_code, done.error_type)

    late = await provider.exec(handle, "echo begun; sleep 60", timeout_s=1)
    assert ("begun\n", 125, "timeout") == (late.stdout, late.return_code, late.error_type)
    with pytest.raises(ValueError, match="one user"):
        await provider.exec(handle, "id", user="root")


async def test_files(provider: LeewardProvider, handle: SandboxHandle, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0\1")
    (tmp_path / "a").chmod(0o755)
    await provider.upload_file(handle, tmp_path / "a", "b/c")
    await provider.download_file(handle, "/workspace/deep/b/c", tmp_path / "d/e")

    assert b"\0\1" == (tmp_path / "d/e").read_bytes()
    assert "755\n" == (await provider.exec(handle, "stat -c %a b/c")).stdout
    with pytest.raises(FileNotFoundError):
        await provider.download_file(handle, "none", tmp_path / "f")


async def test_a_port(provider: LeewardProvider, handle: SandboxHandle) -> None:
    await provider.exec(handle, "echo -n inside > hello; python3 -m http.server 8000 >/dev/null 2>&1 & until python3 -c "
                                "'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do :; done")
    where = await provider.endpoint(handle, 8000)
    assert b"inside" == await asyncio.to_thread(lambda: urlopen(f"{where.endpoint}/hello").read())


async def test_the_end(provider: LeewardProvider, handle: SandboxHandle) -> None:
    assert SandboxStatus.RUNNING is await provider.status(handle)

    await asyncio.to_thread(lambda: leeward.Sandbox.attach(handle.sandbox_id).close())

    assert SandboxStatus.STOPPED is await provider.status(handle)
    done = await provider.exec(handle, "true")
    assert (125, "sandbox") == (done.return_code, done.error_type)
    await provider.close(handle)


@pytest.mark.parametrize("asked", [{"image": "no-such-image"}, {"resources": {"gpu": 1}}, {"entrypoint": ["sleep", "1"]},
                                   {"provider_options": {"unknown": 1}}])
async def test_what_leeward_has_not_is_refused(provider: LeewardProvider, asked: dict[str, object]) -> None:
    before = len(await asyncio.to_thread(leeward.Sandbox.list))
    with pytest.raises(SandboxCreateError):
        await provider.create(SandboxSpec(**asked))
    assert before == len(await asyncio.to_thread(leeward.Sandbox.list))


async def test_a_cancelled_command_is_killed(provider: LeewardProvider, handle: SandboxHandle) -> None:
    task = asyncio.create_task(provider.exec(handle, "touch begun; sleep 60"))
    while (await provider.exec(handle, "test -e begun")).return_code:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "0\n" == (await provider.exec(handle, "pgrep -c -r S sleep || :")).stdout  # S: no killed one

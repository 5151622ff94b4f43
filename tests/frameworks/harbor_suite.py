"""Harbor's own program on tasks in its layout, and its environment by its contract. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import page
import pytest
from harbor.environments.base import SandboxBuildFailedError
from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
from harbor.models.trial.config import ServiceVolumeConfig
from harbor.models.trial.paths import TrialPaths

import leeward
from leeward.apps.integrations.harbor import LeewardHarborEnvironment

#: A task for each kind of thing that Harbor asks an environment for.
TASKS = {
    "hello": ('docker_image = "debian"', "mkdir -p /app && echo hello > /app/found", "grep -qx hello /app/found"),
    "files": ('docker_image = "debian"\nworkdir = "/srv/deep"\nmemory_mb = 512\nenv = { GIVEN = "42" }',
              "test $PWD = /srv/deep && cp given found", "grep -qx 'of the task' found && test $GIVEN = 42"),
    "user": ('docker_image = "debian"\nnetwork_mode = "no-network"\n[agent]\nuser = "www-data"',
             "id -un > /logs/agent/who; test $(id -u) = 33", "grep -qx www-data /logs/agent/who && test $(id -u) = 0"),
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, (environment, solution, tests) in TASKS.items():
        written = {"task.toml": f"[environment]\n{environment}\n", "instruction.md": "Do it.",
                   "environment/given": "of the task\n", "solution/solve.sh": f"#!/bin/bash\nset -e\n{solution}\n",
                   "tests/test.sh": f"#!/bin/bash\nif {tests}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"}
        for path, text in written.items():
            (tmp_path / "tasks" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tasks" / name / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_tasks_get_their_rewards(tasks: Path, agent: str, reward: float) -> None:
    """By the line of the page."""
    line = re.search(r"^harbor run .*", page.PAGE, re.MULTILINE)
    assert line is not None
    words = shlex.split(line[0].replace("-a oracle", f"-a {agent}"))
    env = {**os.environ, "HOME": str(tasks), "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([Path(sys.executable).with_name("harbor"), *words[1:], "-q"], cwd=tasks, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    rewards = {}
    for file in (tasks / "jobs").glob("*/*/result.json"):
        found = json.loads(file.read_text())
        rewards[found["task_name"].rpartition("/")[2]] = (found["verifier_result"] or found["exception_info"]).get("rewards")
    assert {name: {"reward": reward} for name in TASKS} == rewards, done.stdout
    assert not leeward.Sandbox.list()


Makes = Callable[..., LeewardHarborEnvironment]


@pytest.fixture
def makes(tmp_path: Path) -> Makes:
    def made(network: str = "no-network", mounts: list[ServiceVolumeConfig] | None = None,
             options: dict[str, Any] | None = None, hosts: tuple[str, ...] = (), **config: Any) -> LeewardHarborEnvironment:
        return LeewardHarborEnvironment(
            tmp_path, "task", "task__env", TrialPaths(tmp_path / "trial"),
            EnvironmentConfig(**{"docker_image": "debian", **config}),
            network_policy=NetworkPolicy(network_mode=network, allowed_hosts=list(hosts)), mounts=mounts,
            enable_environment_dir_upload=False, **options or {})

    return made


@pytest.fixture
async def environment(makes: Makes) -> AsyncIterator[LeewardHarborEnvironment]:
    made = makes(env={"GIVEN": "42"})
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


async def test_commands(environment: LeewardHarborEnvironment) -> None:
    done = await environment.exec("echo $GIVEN $MORE; pwd; id -un; echo err >&2; exit 3", cwd="/srv", env={"MORE": "x"})
    assert ("42 x\n/srv\nroot\n", "err\n", 3) == (done.stdout, done.stderr, done.return_code)
    assert "www-data '\n" == (await environment.exec("echo $(id -un) \"'\"", user=33)).stdout
    assert (await environment.exec("true", user="nobody-here")).return_code

    with pytest.raises(TimeoutError):
        await environment.exec("sleep 60", timeout_sec=1)


async def test_files(environment: LeewardHarborEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/run").write_bytes(b"\0\1")
    (tmp_path / "a/b/run").chmod(0o755)
    (tmp_path / "a/link").symlink_to("b/run")
    await environment.upload_dir(tmp_path / "a", "/new/deep")
    await environment.upload_file(tmp_path / "a/b/run", "/other/deep/run")
    assert "755\n755\nb/run\n" == (await environment.exec(
        "stat -c %a /new/deep/b/run /other/deep/run; readlink /new/deep/link; ln -s /etc/passwd /new/deep/out")).stdout

    await environment.download_dir("/new/deep", tmp_path / "back/to")
    await environment.download_file("/other/deep/run", tmp_path / "one/run")

    assert b"\0\1" == (tmp_path / "back/to/b/run").read_bytes() == (tmp_path / "one/run").read_bytes()
    assert not os.path.lexists(tmp_path / "back/to/out")
    with pytest.raises(FileNotFoundError):
        await environment.download_file("/none", tmp_path / "none")


async def test_the_end(environment: LeewardHarborEnvironment, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="surrogates"):
        await environment.exec("echo \ud800")
    found = await environment._opened().id()
    await asyncio.to_thread(lambda: leeward.Sandbox.attach(found).close())
    for call in (environment.exec("true"), environment.upload_file(__file__, "/x"), environment.upload_dir(tmp_path, "/x"),
                 environment.download_file("/x", tmp_path / "x"), environment.download_dir("/x", tmp_path / "x")):
        with pytest.raises(RuntimeError, match="is over"):
            await call


async def test_a_cancelled_command_is_killed(environment: LeewardHarborEnvironment) -> None:
    task = asyncio.create_task(environment.exec("touch /begun; sleep 60"))
    while (await environment.exec("test -e /begun")).return_code:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "0\n" == (await environment.exec("grep -l '^State:.[RS]' /proc/[0-9]*/status | xargs grep -c '^Name:.sleep' "
                                            "| grep -c :1")).stdout


@pytest.mark.parametrize(("asked", "why"), [
    ({"docker_image": "no-such-image"}, "no-such-image"), ({"network": "public"}, "network"),
    ({"network": "allowlist", "hosts": ("example.org",)}, "network"), ({"options": {"sandbox": {"unknown": 1}}}, "unknown")])
async def test_what_the_daemon_refuses_is_no_build(makes: Makes, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(SandboxBuildFailedError, match=why):
        await makes(**asked).start(force_build=False)
    assert not await asyncio.to_thread(leeward.Sandbox.list)


@pytest.mark.parametrize("asked", [
    {"docker_image": None}, {"gpus": 1}, {"network": "allowlist", "hosts": ("192.0.2.1",)},
    {"mounts": [{"type": "bind", "source": "/etc", "target": "/x"}]}, {"options": {"unknown": 1}}])
async def test_what_leeward_has_not_is_refused(makes: Makes, asked: dict[str, Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        makes(**asked)

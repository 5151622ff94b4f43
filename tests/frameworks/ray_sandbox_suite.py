"""leeward as a backend of `ray.experimental.sandbox`, on the daemon of LEEWARD_FLEET_SOCKETS. No cluster is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray.experimental.sandbox.backend.base import SandboxStatus
from ray.experimental.sandbox.exceptions import (
    SandboxCreationError,
    SandboxError,
    SandboxExecError,
    SandboxNotFoundError,
    SandboxTimeoutError,
)

from leeward.apps.fleet.fleet import Fleet
from leeward.apps.integrations.ray_sandbox import LeewardRuntime


@pytest.fixture(scope="module")
def runtime() -> Iterator[LeewardRuntime]:
    with Fleet([f"unix:{os.environ['LEEWARD_FLEET_SOCKETS']}"]) as fleet:
        yield LeewardRuntime(fleet, {"python": {}})


@pytest.fixture
def box(runtime: LeewardRuntime) -> Iterator[str]:
    found = runtime.create("python", env={"A": "1"}, workdir="/workspace/w", memory="64Mi")
    yield found
    runtime.delete(found)


def test_a_command_runs(runtime: LeewardRuntime, box: str) -> None:
    done = runtime.exec(box, "echo $A $B; pwd; echo no >&2; exit 3", env={"B": "2"}, shell="/bin/sh")

    assert (3, "1 2\n/workspace/w\n", "no\n") == (done.exit_code, done.stdout, done.stderr)
    assert "42\n" == runtime.exec(box, ["python3", "-c", "print(6 * 7)"], cwd="/tmp").stdout


def test_files(runtime: LeewardRuntime, box: str) -> None:
    runtime.write_file(box, "d/a", b"one")
    runtime.write_file(box, "d/a", "two", append=True)

    assert b"onetwo" == runtime.read_file(box, "d/a") == runtime.read_file(box, "/workspace/w/d/a")
    with pytest.raises(SandboxError):
        runtime.read_file(box, "none")
    with pytest.raises(SandboxError):
        runtime.write_file(box, "/usr/a", b"")


def test_a_command_that_takes_too_long(runtime: LeewardRuntime, box: str) -> None:
    with pytest.raises(SandboxTimeoutError):
        runtime.exec(box, ["sleep", "60"], timeout=0.2)


def test_the_status(runtime: LeewardRuntime) -> None:
    found = runtime.create("python")
    assert SandboxStatus.RUNNING is runtime.get_status(found)

    runtime.delete(found)
    assert SandboxStatus.TERMINATED is runtime.get_status(found)
    with pytest.raises(SandboxNotFoundError):
        runtime.exec(found, "true")


@pytest.mark.parametrize("asked", [
    {"image": "other"}, {"network": "host"}, {"network": "sandbox", "rootless": False}, {"readonly": False},
    {"capabilities": ["CAP_CHOWN"]},
    {"network": "public", "dns": ["192.0.2.1"]}, {"_oci_spec_transform_fn": dict},
])
def test_what_leeward_has_not_is_refused(runtime: LeewardRuntime, asked: dict[str, object]) -> None:
    with pytest.raises(SandboxCreationError, match="leeward has no"):
        runtime.create(**{"image": "python", **asked})


def test_another_user_is_refused(runtime: LeewardRuntime, box: str) -> None:
    with pytest.raises(SandboxExecError):
        runtime.exec(box, ["id"], user="0")

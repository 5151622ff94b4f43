"""Inspect's own checks of a sandbox, against leeward's. Run by test_frameworks.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

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


pytestmark = pytest.mark.anyio

"""
Pydantic AI's own tests of a workspace, against leeward's backend, its optional parts among them. Run by
test_frameworks.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai.workspaces import WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

import leeward
from leeward.apps.integrations.pydantic_ai import LeewardWorkspace

Destroy = Callable[[LeewardWorkspace], Awaitable[None]]


class TestLeeward(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def backend(self) -> AsyncIterator[LeewardWorkspace]:
        async with leeward.AsyncSandbox() as box:
            made = LeewardWorkspace(box)
            with pytest.raises(ValueError, match="NUL"):
                await made.run(["echo", "a\0b"])
            yield made

    @pytest.fixture
    def fresh_backend(self) -> Callable[[], LeewardWorkspace]:
        return lambda: LeewardWorkspace(leeward.AsyncSandbox())

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], LeewardWorkspace]:
        return LeewardWorkspace.attach

    @pytest.fixture
    def destroy_environment(self) -> Destroy:
        async def destroy(workspace: LeewardWorkspace) -> None:
            assert workspace.ref is not None
            box = await leeward.AsyncSandbox.attach(workspace.ref.id)
            await box.close()

        return destroy

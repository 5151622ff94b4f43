"""LangChain's own tests of a sandbox, against leeward's backend. Run by test_frameworks.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

import leeward
from leeward.apps.integrations.langchain import LeewardSandbox


class TestLeeward(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[LeewardSandbox]:
        with leeward.Sandbox() as box:
            backend = LeewardSandbox(box)
            for wrong in ("echo a\0b", "echo \ud800"):
                with pytest.raises(ValueError, match=r"NUL|surrogates"):  # which Deep Agents tells the model
                    backend.execute(wrong)
            yield backend

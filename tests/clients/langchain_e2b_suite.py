"""LangChain's own tests of a sandbox, by langchain-e2b as it is, against `leeward serve e2b`. Run by test_serve_e2b.py."""

from __future__ import annotations

import e2b
import pytest
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestServed(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        box = e2b.Sandbox.create(timeout=600)
        yield E2BSandbox(sandbox=box)
        box.kill()

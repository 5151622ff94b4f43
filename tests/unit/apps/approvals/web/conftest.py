"""The app with a real queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kit.approvals_page import PageService, as_caller, page_service
from leeward.apps.approvals.web.application import application
from leeward.apps.approvals.web.gate import Operator


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PageService]:
    with page_service(tmp_path) as made:
        yield made


@pytest.fixture
def app(service: PageService) -> Starlette:
    return application(service)


@pytest.fixture
def operator(app: Starlette) -> TestClient:
    """One that comes by the operator's socket."""
    return TestClient(as_caller(app, Operator("cli")), follow_redirects=False)

"""
SWE-ReX's own tests of a runtime, from its source archive, against a server in a sandbox; what a hostile server can't do;
and the sandbox's end. Run by test_frameworks.py, with an environment `swe-rex` of the daemon's.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import page
import pytest
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError, SwerexException
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

import leeward
from leeward.apps.integrations import swe_rex
from leeward.apps.integrations.swe_rex import LeewardDeployment

sys.path.insert(0, os.environ["LEEWARD_TESTS_SOURCES"])


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5


# Their archive lacks this module of their tests.
sys.modules["tests.conftest"] = SimpleNamespace(_Action=_Action, _Command=_Command)  # type: ignore[assignment]
THEIRS = importlib.import_module("tests.test_execution")
#: That of a name that doesn't resolve waits for a name server; that of a pager fails outside as well, with Debian's less.
LEFT_OUT = ("test_server_dead", "test_interrupt_pager")
globals().update({name: test for name, test in vars(THEIRS).items() if name.startswith("test_") and name not in LEFT_OUT})

OPTIONS: dict[str, Any] = {"environment": "swe-rex", "memory": "1G", "processes": 64}


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeewardDeployment]:
    """Of a sandbox that shows the tests' folders at their own paths; in a thread, since each test has its own loop."""
    folder = tmp_path_factory.getbasetemp()
    folder.chmod(0o777)
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    deployment = LeewardDeployment(**OPTIONS, mounts=[leeward.Mount(str(folder), str(folder), writable=True)])
    asyncio.run_coroutine_threadsafe(deployment.start(), loop).result()
    yield deployment
    asyncio.run_coroutine_threadsafe(deployment.stop(), loop).result()


@pytest.fixture
def remote_runtime(deployed: LeewardDeployment, tmp_path: Path) -> RemoteRuntime:
    tmp_path.chmod(0o777)
    return deployed.runtime


@pytest.fixture
async def runtime_with_default_session(remote_runtime: RemoteRuntime) -> AsyncIterator[RemoteRuntime]:
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


async def test_a_deployment_that_has_ended() -> None:
    with pytest.raises(DeploymentStartupError, match="none such"):
        await LeewardDeployment(profile="none such").start()
    deployment = LeewardDeployment(**OPTIONS)
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()

    await asyncio.to_thread(lambda: leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close())

    assert not await deployment.is_alive()
    await deployment.stop()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[int]:
    """The port of a server that names `os.system` as the class of its exception."""
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = (b'{"swerexception": {"class_path": "os.system", "message": "touch %s/mark", "traceback": ""}}'
                    % str(tmp_path).encode())
            self.send_response(511)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


async def test_cannot_run_a_command_here_by_an_exceptions_name(hostile: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"auth_token": "x", "host": "http://127.0.0.1", "port": hostile}
    mark = tmp_path / "mark"
    with pytest.raises(Exception, match=""):
        await RemoteRuntime(**settings).execute(Command(command="true", shell=True))
    assert mark.exists()  # control: SWE-ReX's own client does it
    mark.unlink()

    with pytest.raises(SwerexException):
        await swe_rex._Runtime(**settings).execute(Command(command="true", shell=True))

    assert not mark.exists()


async def test_exceptions_are_still_their_own(remote_runtime: RemoteRuntime) -> None:
    with pytest.raises(FileNotFoundError):
        await remote_runtime.read_file(ReadFileRequest(path="/none"))


def test_the_page() -> None:
    assert "42\n" == page.run("SWE-ReX", options=OPTIONS)["done"].stdout

"""The operator's socket, and calls without one."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from leeward.apps.approvals.bridge.bridge import BridgeRequest
from leeward.apps.approvals.operator_connection import ApprovalsAway, OperatorConnection
from leeward.apps.approvals.web import listening
from leeward.apps.approvals.web.gate import AskingSandbox, Operator, credential_of
from leeward.errors import BadRequest, Busy, Forbidden, PeerError, Stale, Unsupported
from leeward.spec.bounded_log import BoundedLog


async def who(request: Request) -> JSONResponse:
    fields = await request.json() if await request.body() else None
    return JSONResponse({"who": repr(credential_of(request.scope)), "fields": fields, "query": str(request.url.query)})


async def refused(request: Request) -> JSONResponse:
    return JSONResponse({"error": request.query_params.get("error", ""), "detail": "why"},
                        int(request.query_params["status"]))


async def text(request: Request) -> PlainTextResponse:
    return PlainTextResponse("<html>")


APP = Starlette(routes=[Route("/who", who, methods=["GET", "POST"]), Route("/refused", refused), Route("/text", text)])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Of a socket on which the app is served until the test's end."""
    path = str(tmp_path / "folder" / "s")
    bound = listening.bind_operator(path)
    server = listening.server_of(listening.with_credential(APP, Operator("cli")), listening.OwnerOnly)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
    thread.start()
    yield path
    server.should_exit = True
    thread.join()
    bound.close()


def test_the_credential_is_the_listeners(path: str) -> None:
    found = OperatorConnection(path).call("POST", "/who", {"leeward.credential": "me"})

    assert repr(Operator("cli")) == found["who"]
    assert 0o600 == os.stat(path).st_mode & 0o777
    assert 0o700 == os.stat(os.path.dirname(path)).st_mode & 0o777


def test_a_peer_that_is_not_the_operators_is_not_heard(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "is_hosts", lambda connected: False)

    with pytest.raises(ApprovalsAway):
        OperatorConnection(path).call("GET", "/who")


def test_no_byte_is_sent_to_another_users_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who was first in /tmp isn't the service, and would be told of projects and could name a page."""
    user = os.geteuid()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(ApprovalsAway, match="another user"):
            OperatorConnection(str(tmp_path / "s")).call("POST", "/api/sandboxes", {"path": "/home/me/project"})
        with other.accept()[0] as made:
            assert b"" == made.recv(1)


def test_a_refused_bind_is_an_error_of_leeward(path: str) -> None:
    connection = OperatorConnection(path)
    for query, kind in (("status=400", BadRequest), ("status=403", Forbidden), ("status=429", Busy),
                        ("status=409&error=stale", Stale), ("status=409&error=decided", BadRequest)):
        with pytest.raises(kind, match="why"):
            connection.call("GET", f"/refused?{query}")
    with pytest.raises(PeerError):
        connection.call("GET", "/text")


def test_two_services_do_not_share_a_socket(path: str) -> None:
    with pytest.raises(Busy):
        listening.bind_operator(path)


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        listening.bind_operator(str(tmp_path / "s" / "s")).close()


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(Unsupported, match="chmod"):
        listening.bind_operator(str(tmp_path / "open" / "s"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Unsupported):
        listening.bind_operator(str(tmp_path / "link" / "s"))


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Busy):
            listening.bind_loopback(taken.getsockname()[1])


def test_an_exception_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn and the routes log a traceback, at whose end is what a caller has sent."""
    listening.server_of(Starlette())
    try:
        b"SECRET\xff".decode()
    except UnicodeDecodeError:
        for name in ("uvicorn.error", "leeward.apps.approvals", "asyncio"):
            logging.getLogger(name).exception("%s has failed\n", name)

    assert 3 == caplog.text.count("has failed: UnicodeDecodeError, at test_listening.py:")
    assert "SECRET" not in caplog.text
    assert "0xff" not in caplog.text


def test_a_bridges_request_is_a_call_of_the_app() -> None:
    async def main() -> list[Any]:
        answering = listening.answering_of(APP, asyncio.get_running_loop())("box")
        asked = [BridgeRequest(1, "POST", "/who?a=%20b", b'{"x": 1}'), BridgeRequest(2, "GET", "/text", b""),
                 BridgeRequest(3, "GET", "/none", b"")]
        return [await asyncio.wrap_future(answering(each)) for each in asked]

    first, second, third = asyncio.run(main())

    assert (200, {"who": repr(AskingSandbox("box")), "fields": {"x": 1}, "query": "a=%20b"}) == first
    assert (200, {"detail": "<html>"}) == second
    assert 404 == third[0]


def test_each_logger_has_one_bound() -> None:
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "leeward.apps.approvals", "asyncio")]
    before = [list(logger.filters) for logger in loggers]
    try:
        listening.server_of(APP)
        listening.server_of(APP)
        assert [1, 1, 1] == [sum(isinstance(each, BoundedLog) for each in logger.filters) for logger in loggers]
    finally:
        for logger, filters in zip(loggers, before, strict=True):
            logger.filters[:] = filters

"""
The app of approvals with a real queue, and a service that carries files out and runs nothing.

Runs in:   the tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from leeward.apps.approvals.carrying.apply import Project, in_project
from leeward.apps.approvals.carrying.orders import file_request, write_order
from leeward.apps.approvals.daemon_view import DaemonLook, DaemonView
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, IntakeBounds, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.apps.approvals.service import ApprovalService
from leeward.apps.approvals.sync.changes import SyncOutcome
from leeward.apps.approvals.web.gate import SCOPE_KEY, Credential
from leeward.apps.audit.record import AuditRecord
from leeward.errors import BadRequest, DaemonAway, ShuttingDown

#: A sandbox that asks without end.
WIDE = IntakeBounds(pending=100_000, all_pending=100_000, each_minute=1_000_000)

BASE = "http://127.0.0.1:3700"


class ShownDaemon(DaemonView):
    """
    Attributes:
        found: what is seen of a daemon that is made up; None if it is away.
    """

    found: DaemonLook | None = None

    def look(self) -> DaemonLook:
        if self.found is None:
            raise DaemonAway("no daemon answers")
        return self.found


class PageService(ApprovalService):
    """A service that carries files out, and whose sandboxes and daemon are made up."""

    daemon: ShownDaemon
    rows: Sequence[dict[str, Any]] = (  # of sandboxes
        {"sandbox": "box", "project": "/home/me/project", "age": 75.0, "bridge": True, "fault": "", "git": True,
         "git_fault": "", "sync": {
             "state": "on", "to_host": 3, "to_sandbox": 1, "left": 0, "more": 2, "trouble": "",
             "notes": [{"path": "<script>a", "kind": "conflict", "why": "<img src=x>\u202e", "request": 7}]}},)

    def write(self, path: str, content: bytes | str, *, sandbox: str = "box", description: str = "",
              reason: str = "", where: str = "") -> ApprovalRequest:
        """
        Ask for a file of the project.

        Args:
            where: the project's path as it is shown; "" for the path of the service's own project.
        """
        assert self.project is not None
        state, before = self.project.content(path)
        order = write_order(path, state, content.encode() if isinstance(content, str) else content)
        new = file_request(order, before=before, sandbox=sandbox, description=description, reason=reason)
        made = in_project(new, self.project)
        return self.queue.submit(replace(made, project=where) if where else made)

    def sandboxes(self) -> list[dict[str, Any]]:
        return list(self.rows)

    def open_sandbox(self, path: Any, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.sandboxes()[0]

    def close_sandbox(self, sandbox: str, *, left: bool = False) -> bool:
        if "box" != sandbox:
            raise BadRequest("there is no such sandbox")
        return left

    def sync_files(self, sandbox: str, reason: str = "", asker: str = "") -> SyncOutcome:
        return SyncOutcome((self.write("synced", "1\n", sandbox=sandbox),), (("fifo", "it is a FIFO"),), 2, 0)

    def sync_git(self, sandbox: str, reason: str = "", asker: str = "") -> SyncOutcome:
        return SyncOutcome((self.queue.submit(NewRequest(branch("feature/x"), "push", sandbox=sandbox)),))


def fill(service: ApprovalService, count: int) -> None:
    """Make requests of a hundred sandboxes, without a wait for the disk after each."""
    store = service.queue._store
    with service.queue._lock, store.transaction():
        for number in range(count):
            store.insert(NewRequest(branch(f"x{number}"), "push", "d" * 200, sandbox=f"box{number % 100}"), time.time(),
                         None)


@contextmanager
def page_service(folder: Path, bounds: IntakeBounds = WIDE) -> Iterator[PageService]:
    """Start a service in *folder*, whose project is *folder*/project."""
    (folder / "project").mkdir(exist_ok=True)
    queue, project = ApprovalQueue(str(folder / "approvals"), bounds=bounds), Project(str(folder / "project"))
    journal = AuditRecord(str(folder / "audit"))
    service = PageService(queue, journal, str(folder / "approvals"), project, socket=str(folder / "none"))
    service.daemon = ShownDaemon(str(folder / "none"))
    try:
        yield service
    finally:
        try:
            service.stop()
        except ShuttingDown:
            pass  # the test has stopped it
        queue.close()
        journal.close()
        project.close()


def as_caller(app: ASGIApp, credential: Credential) -> ASGIApp:
    """Return *app* behind a listener that reports the caller's uid."""
    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope[SCOPE_KEY] = credential
        await app(scope, receive, send)
    return behind


def tcp_client(app: Starlette, **options: Any) -> TestClient:
    """Return a client of the app that connects by TCP from this machine."""
    return TestClient(app, base_url=BASE, client=("127.0.0.1", 50000), follow_redirects=False, **options)


def browser(app: Starlette) -> tuple[TestClient, str]:
    """Return a client that has used a login link, and its CSRF token."""
    parts = app.state.parts
    made = tcp_client(app)
    answer = made.get("/login", params={"token": parts.access.login_token()})
    assert 200 == answer.status_code
    session = parts.access.session(made.cookies["leeward_3700"])
    assert session is not None
    made.headers["Origin"] = BASE
    return made, session.csrf

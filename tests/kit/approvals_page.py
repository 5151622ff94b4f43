"""
The app of approvals with a real queue, and a service that carries files out and runs nothing.

Runs in:   the tests.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from leeward.approvals.apply import Project, carry_out
from leeward.approvals.credentials import SCOPE_KEY, Credential
from leeward.approvals.files import digest, file_request, unpacked, write_order
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest, IntakeBounds, NewRequest, Resolution
from leeward.approvals.service import ApprovalService
from leeward.approvals.subjects import branch, endpoint, invocation, package, sandbox_action
from leeward.approvals.web.app import approval_app
from leeward.audit.journal import Journal
from leeward.errors import BadRequest

#: A sandbox that asks without end.
WIDE = IntakeBounds(pending=100_000, all_pending=100_000, each_minute=1_000_000)

BASE = "http://127.0.0.1:3700"


class PageService(ApprovalService):
    """
    A service whose files are real, and whose sandboxes and commands are made up.
    """

    settings: dict[str, Any]

    def begin(self) -> None:
        self.settings = {"exec.timeout": 300, "notify": True}
        self._threads: list[threading.Thread] = []
        self.queue.subscribe(self._told)

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def _told(self, request: ApprovalRequest) -> None:
        if "due" == request.stage and "filesystem" == request.category and self.project is not None:
            thread = threading.Thread(target=carry_out, args=(self.queue, self.project, request.id))
            self._threads.append(thread)
            thread.start()

    def ask(self, fields: Mapping[str, Any], sandbox: str = "") -> ApprovalRequest:
        if "host" in fields:
            new = NewRequest(endpoint(str(fields["host"]), 443), "connect")
        elif "path" in fields:
            return self.write(str(fields["path"]), str(fields["content"]).encode(), sandbox=sandbox)
        else:
            raise BadRequest("nothing is asked")
        return self.queue.submit(NewRequest(new.subject, new.action, str(fields.get("description", "")),
                                            str(fields.get("reason", "")), sandbox=sandbox))

    def write(self, path: str, content: bytes, *, sandbox: str = "box", description: str = "",
              reason: str = "") -> ApprovalRequest:
        assert self.project is not None
        state, before = self.project.content(path)
        order = write_order(path, state, content)
        return self.queue.submit(file_request(order, "write", before=before, sandbox=sandbox, description=description,
                                              reason=reason))

    def detail(self, number: int) -> dict[str, Any]:
        payload, request = self.queue.payload(number), self.queue.get(number)
        if request is None:
            raise BadRequest("there is no such request")
        if payload is None or "filesystem" != request.category or self.project is None:
            return {}
        order = unpacked(payload)
        state, before = self.project.content(order.path)
        old, new = before.decode(errors="replace").split("\n"), order.content.decode(errors="replace").split("\n")
        return {"path": order.path, "before": "\n".join(old), "after": "\n".join(new), "stale": state != order.base,
                "hunks": [{"old_start": i1 + 1, "old": old[i1:i2], "new_start": j1 + 1, "new": new[j1:j2]}
                          for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, False).get_opcodes()
                          if "equal" != tag]}

    def approve_hunks(self, number: int, hunks: Sequence[int], by: str) -> Resolution:
        if list(hunks) != [0]:
            raise BadRequest("no such change")
        return self.queue.decide([number], True, by)

    def config(self) -> dict[str, Any]:
        return dict(self.settings)

    def set_config(self, key: str, value: Any) -> Resolution:
        if key not in self.settings:
            raise BadRequest("there is no such key")
        self.settings[key] = value
        return Resolution()

    def propose_config(self, key: str, value: Any, *, reason: str = "", sandbox: str = "",
                       asker: str = "") -> ApprovalRequest:
        return self.queue.submit(NewRequest(sandbox_action(f"set {key} to {value}"), "set", "", reason,
                                            sandbox=sandbox, asker=asker))

    def submit_exec(self, command: str | Sequence[str], *, cwd: str = "", reason: str = "", timeout: float = 300.0,
                    profile: str = "", sandbox: str = "", asker: str = "") -> ApprovalRequest:
        return self.queue.submit(NewRequest(invocation(command), "run", "", reason, sandbox=sandbox, asker=asker))

    def submit_packages(self, command: str | Sequence[str], *, reason: str = "", sandbox: str = "",
                        asker: str = "") -> list[ApprovalRequest]:
        name = command.split()[-1] if isinstance(command, str) else command[-1]
        return [self.queue.submit(NewRequest(package("npm", name), "add", "", reason, sandbox=sandbox, asker=asker))]

    def sandboxes(self) -> list[dict[str, Any]]:
        return [{"sandbox": "box", "project": "/home/me/project", "age": 75.0, "bridge": True, "pending": 2,
                 "refused": 0}]

    def open_sandbox(self, path: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"sandbox": "box", "env": {}}

    def close_sandbox(self, sandbox: str) -> None:
        if "box" != sandbox:
            raise BadRequest("there is no such sandbox")

    def sync_files(self, sandbox: str) -> list[ApprovalRequest]:
        return [self.write("synced", b"1\n", sandbox=sandbox)]

    def sync_git(self, sandbox: str) -> list[ApprovalRequest]:
        return [self.queue.submit(NewRequest(branch("feature/x"), "push", sandbox=sandbox))]

    def runs(self) -> list[dict[str, Any]]:
        return [{"id": 1, "status": "completed", "exit_code": 0, "note": ""}]

    def run(self, number: int, wait: float = 0.0) -> dict[str, Any]:
        return {"id": number, "status": "pending", "exit_code": None, "output": "", "truncated": False, "note": ""}

    def audit(self, limit: int = 100, sandbox: str = "") -> list[dict[str, Any]]:
        return [{"time": 1000.0, "category": "network", "action": "connect", "decision": "approved", "by": "page",
                 "sandbox": "box"}, {"bad": "its hash isn't its own"}][:limit]


@contextmanager
def page_service(folder: Path, bounds: IntakeBounds = WIDE) -> Iterator[PageService]:
    """
    A service in *folder*, whose project is *folder*/project.
    """
    (folder / "project").mkdir(exist_ok=True)
    queue, project = ApprovalQueue(str(folder / "approvals"), bounds=bounds), Project(str(folder / "project"))
    journal = Journal(str(folder / "audit"))
    service = PageService(queue, journal, project)
    service.begin()
    try:
        yield service
    finally:
        service.end()
        queue.close()
        journal.close()
        project.close()


def as_caller(app: ASGIApp, credential: Credential) -> ASGIApp:
    """
    *app* behind a listener that says who calls.
    """
    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope[SCOPE_KEY] = credential
        await app(scope, receive, send)
    return behind


def tcp_client(app: Starlette, **options: Any) -> TestClient:
    """
    A program on this machine that comes by TCP.
    """
    return TestClient(app, base_url=BASE, client=("127.0.0.1", 50000), follow_redirects=False, **options)


def browser(app: Starlette) -> tuple[TestClient, str]:
    """
    One that has used a login link, and its CSRF token.
    """
    parts = app.state.parts
    made = tcp_client(app)
    answer = made.get("/login", params={"token": parts.access.login_token()})
    assert 200 == answer.status_code
    session = parts.access.session(made.cookies["leeward_3700"])
    assert session is not None
    made.headers["Origin"] = BASE
    return made, session.csrf


Make = Callable[[], Starlette]

__all__ = ["BASE", "WIDE", "PageService", "approval_app", "as_caller", "browser", "digest", "page_service", "tcp_client"]

"""
A client of the operator's socket, one request at a time, for the command line and for programs on the host. Each has a
connection of its own: none is sent on one that the service closes at that moment.

Trust:     none in the texts of answers, which come from a sandbox. SO_PEERCRED shows that the service is this user's.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any
from urllib.parse import quote

from leeward.errors import BadRequest, Busy, Forbidden, LeewardError, PeerError, Stale, told
from leeward.spec.paths import approvals_socket
from leeward.spec.peers import credentials

#: Seconds that a request may take; opening a sandbox takes the longest.
_S = 120.0

#: Bytes of an answer, at most.
_MOST = 64 << 20


class ApprovalsAway(LeewardError):
    """No service for approvals answers."""


def check_own(connected: socket.socket, path: str) -> None:
    """
    Close *connected*, and raise ApprovalsAway, if its listener is another user: without XDG_RUNTIME_DIR and /run/user
    the socket is in /tmp, where one could have made it first. unix(7), SO_PEERCRED.
    """
    _, uid, _ = credentials(connected)
    if uid != os.geteuid():
        connected.close()
        raise ApprovalsAway(f"on {path} another user listens, with the id {uid}; nothing was sent")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("leeward", timeout=_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        check_own(self.sock, self._path)


class OperatorConnection:
    """
    Calls the service's routes as the operator.

    Args:
        socket: the operator's; None for that of LEEWARD_APPROVALS_SOCKET, or without it the default.
    """

    def __init__(self, socket: str | None = None) -> None:
        self.path = approvals_socket(socket, os.environ, os.geteuid())

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """
        Call a route with *body* as JSON (None: none); returns the answer's JSON, within 120 seconds.

        Raises:
            ApprovalsAway: no service listens, another user does, or the service ended before it answered.
            BadRequest, Busy, Forbidden, Stale: the service refused the request; the message says why.
            PeerError: the listener answers with something else than JSON.
        """
        connection = _Connection(self.path)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read(_MOST)
        except (OSError, http.client.HTTPException) as error:
            why = told(error)
            raise ApprovalsAway(f"no service for approvals answers on {self.path}: {why}; start one by "
                                "`leeward approvals serve`") from None
        finally:
            connection.close()
        try:
            said = json.loads(text) if text else None
        except ValueError:
            raise PeerError(f"{self.path} answers with something else than JSON") from None
        if answer.status >= 400:
            raise _refusal(answer.status, said)
        return said

    def open_sandbox(self, project: str, **options: Any) -> dict[str, Any]:
        """
        Open a sandbox over a copy of the folder *project*, whose processes can make requests.

        *options* are those of `ApprovalService.open_sandbox`; returns a row of `sandboxes`, whose `sandbox`
        `Sandbox.attach` takes.
        """
        body = {"path": os.path.abspath(project), "options": options}
        made: dict[str, Any] = self.call("POST", "/api/sandboxes", body)
        return made

    def close_sandbox(self, sandbox: str, *, left: bool = False) -> bool:
        """
        End a sandbox of the service, with *left* not before the changes are decided that `collect_files` has left in
        it.

        Returns whether it stays.
        """
        said = self.call("DELETE", f"/api/sandboxes/{quote(sandbox, safe='')}", {"left": True} if left else None)
        return bool(said["stays"])

    def collect_files(self, sandbox: str) -> dict[str, Any]:
        """
        Make requests of all that a sandbox has changed, when its work is over; returns the answer of `POST
        /api/sync/files`.
        """
        body: dict[str, Any] = {"sandbox": sandbox, "over": True}
        found: dict[str, Any] = self.call("POST", "/api/sync/files", body)
        while found["again"]:
            part = self.call("POST", "/api/sync/files", {**body, "again": True})
            found = {**part, **{name: found[name] + part[name] for name in ("requests", "pending")}}
        return found


def _refusal(status: int, said: Any) -> LeewardError:
    why = said.get("detail") or said.get("error") if isinstance(said, dict) else said
    text = str(why or f"status {status}")
    if status == 409 and isinstance(said, dict) and said.get("error") == "stale":
        return Stale(text, "")
    return {403: Forbidden, 429: Busy}.get(status, BadRequest)(text)

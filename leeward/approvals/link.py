"""
The operator's side of the operator's socket: one request at a time, for the command line and for programs on the host.

Runs in:   a program of the operator's.
Trust:     none in the texts of answers, which come from a sandbox. The kernel says that the service is this user's own.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from typing import Any
from urllib.parse import quote

from leeward.approvals.places import operator_socket
from leeward.errors import BadRequest, Busy, Forbidden, LeewardError, PeerError, Stale

#: Seconds that a request may take: a sandbox is opened within them.
_S = 120.0

#: Bytes of an answer.
_MOST = 64 << 20


class ApprovalsAway(LeewardError):
    """
    No service for approvals answers.
    """


def check_own(connected: socket.socket, path: str) -> None:
    """
    See that who listens at the other end is this user: without XDG_RUNTIME_DIR and /run/user the folder is in /tmp,
    where another user may have been first.

    Raises:
        ApprovalsAway: another user listens there.
    """
    _, uid, _ = struct.unpack("=iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
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


class OperatorLink:
    """
    Calls the service's routes as the operator.

    Args:
        socket: the operator's; None for LEEWARD_APPROVALS_SOCKET, and without it the default.

    Attributes:
        path: of the socket.
    """

    def __init__(self, socket: str | None = None) -> None:
        self.path = operator_socket(socket, os.environ, os.geteuid())

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """
        One request.

        Args:
            method: of HTTP.
            path: of a route, with its query.
            body: for JSON; None for none.

        Returns:
            The answer's JSON.

        Raises:
            ApprovalsAway: nobody listens, or another user; or the service ended before it answered.
            BadRequest, Busy, Forbidden, Stale: it was refused. The message says why.
            PeerError: what listens there is something else.
        """
        connection = _Connection(self.path)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read(_MOST)
        except (OSError, http.client.HTTPException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "no answer"
            raise ApprovalsAway(f"no service for approvals answers on {self.path}: {why.lower()}; start one by "
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
        Open a sandbox over a copy of the folder *project*, whose processes can ask; `Sandbox.attach` takes its
        `sandbox`.

        Args:
            project: a path.
            options: as for `ApprovalService.open_sandbox`.

        Raises:
            LeewardError: as for `call`.
        """
        body = {"path": os.path.abspath(project), "options": options}
        made: dict[str, Any] = self.call("POST", "/api/sandboxes", body)
        return made

    def close_sandbox(self, sandbox: str) -> None:
        """
        End a sandbox.
        """
        self.call("DELETE", f"/api/sandboxes/{quote(sandbox, safe='')}")


def _refusal(status: int, said: Any) -> LeewardError:
    why = said.get("detail") or said.get("error") if isinstance(said, dict) else said
    text = str(why or f"status {status}")
    if 409 == status and isinstance(said, dict) and "stale" == said.get("error"):
        return Stale(text, "")
    return {403: Forbidden, 429: Busy}.get(status, BadRequest)(text)

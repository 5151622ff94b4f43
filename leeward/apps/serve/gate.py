"""
Looks at each request before any face does: its Host, its Origin, its size.

Against:   a page of somebody else in a browser on this machine (Host: DNS rebinding; Origin: forged requests).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from leeward.apps.serve.problems import ServeProblem

if TYPE_CHECKING:
    from leeward.apps.serve.ports import PortsFace

#: Bytes of all heads of one request together, and of its path with the query: at most.
MOST_HEAD, MOST_PATH = 16384, 8192

_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


#: A Host: a name or an address, and a port. What could be read as another one, such as `localhost:@evil.example`, is none.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::[0-9]*)?", re.ASCII)


def host_name(host: str) -> str:
    """The name in a Host, without its port; "" if it is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


class HostGate:
    """
    The middleware around the application.

    Args:
        names: the names and addresses by which the server is reached, and those below each name that isn't an address.
        origins: of pages that may call.
        ports: what serves ports of sandboxes, of which each page may have another origin; None if nothing does.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], origins: Iterable[str],
                 ports: PortsFace | None = None) -> None:
        self._app, self._ports = app, ports
        self._names = {name.lower() if is_address(name) else host_name(name) for name in names} - {""} | {*_LOCAL}
        self._origins = {origin.lower() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ports = self._ports if self._ports is not None and self._ports.takes(scope) else None
        problem = self._refusal(scope, ports is not None)
        if problem is None:
            await (ports or self._app)(scope, receive, send)
        else:
            if scope["type"] == "websocket":
                await receive()
            await form(problem)(scope, receive, send)

    def _refusal(self, scope: Scope, is_port: bool) -> ServeProblem | None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEAD:
            return ServeProblem(431, f"a head has {MOST_HEAD} bytes at most here")
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_PATH:
            return ServeProblem(414, f"an address has {MOST_PATH} bytes at most here")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(host_name(hosts[0])):
            return ServeProblem(421, "this server doesn't have this name: `leeward serve --name` adds one")
        if not is_port and any(origin.lower() not in self._origins for origin in headers.getlist("origin")):
            return ServeProblem(403, "pages of this origin may not call: `leeward serve --origin` adds one")
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._names or any(name.endswith(f".{own}") for own in self._names if not is_address(own))


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def form(problem: ServeProblem) -> JSONResponse:
    """The answer where no face has been chosen yet."""
    body: dict[str, Any] = {"code": problem.status, "message": problem.message, "detail": problem.message}
    return JSONResponse(body, problem.status, problem.headers)

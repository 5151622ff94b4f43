"""
Identifies the caller of a call over TCP before any other code runs, and sets the security headers of each answer.

Runs in:   the operator's program that decides, around the app.
Trust:     none in a head. A scope with a credential comes from the operator's socket or a bridge and isn't checked
           here; a scope without one comes from TCP.
Against:   a page of somebody else in the operator's browser (Host: DNS rebinding; Origin and Sec-Fetch-Site: forged
           forms and WebSockets; the headers of answers: frames, scripts, sniffed types), and other users of the host,
           who can connect, but have neither session nor token.
Source:    RFC 6265bis (SameSite), RFC 6455 §10.2 (Origin), www.w3.org/TR/CSP3, www.w3.org/TR/fetch-metadata
"""

from __future__ import annotations

import ipaddress
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leeward.approvals.web.access import BrowserSession, PageAccess
from leeward.approvals.web.credentials import SCOPE_KEY, Operator
from leeward.approvals.web.problems import WebProblem, forbidden

#: The key of the browser's session in the scope; its value is None for other callers.
SESSION_KEY = "leeward.session"

#: Methods that change nothing.
SAFE = ("GET", "HEAD", "OPTIONS")

#: Bytes of all heads of one call together, at most.
MOST_HEAD = 16384

NAMES = ("127.0.0.1", "localhost", "[::1]")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types leeward"),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: a form would come with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def cookie_name(port: int) -> str:
    """The name of the session's cookie. A browser sends the cookies of a host to all its ports, so the name has the port."""
    return f"leeward_{port}"


class WebGate:
    """
    The middleware around the app.

    Args:
        app: the application behind it.
        access: sessions and tokens.
    """

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope.setdefault(SESSION_KEY, None)
        try:
            if SCOPE_KEY not in scope:
                self._admit(scope)
        except WebProblem as problem:
            await _refuse(problem, scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _admit(self, scope: Scope) -> None:
        """
        Give the scope a credential if its headers have a valid session or token.

        Raises:
            WebProblem: the peer isn't on this host, or the Host, the Origin or the size of the head is wrong.
        """
        port = _port(scope)
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEAD:
            raise WebProblem(431, "too_large", f"a head has {MOST_HEAD} bytes at most here")
        names = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in names:
            raise forbidden("this is for a browser on this machine, by the address that the login link has")
        token = headers.get("authorization", "")
        if token.lower().startswith("bearer "):
            if self._access.is_program(token[7:].strip()):
                scope[SCOPE_KEY] = Operator("page")
            return
        session = self._session(headers.getlist("cookie"), port)
        if session is None:
            return
        _check_origin(scope, headers, f"http://{hosts[0].lower()}")
        scope[SCOPE_KEY], scope[SESSION_KEY] = Operator("page"), session

    def _session(self, cookies: list[str], port: int) -> BrowserSession | None:
        try:
            jar = SimpleCookie("; ".join(cookies))
        except CookieError:
            return None
        found = jar.get(cookie_name(port))
        return None if found is None else self._access.session(found.value)


def _port(scope: Scope) -> int:
    """
    The port of the listener.

    Raises:
        WebProblem: the listener or the peer isn't on loopback.
    """
    server, client = scope.get("server"), scope.get("client")
    if server is None or client is None or not _is_loopback(server[0]) or not _is_loopback(client[0]):
        raise forbidden("this is for a browser on this machine")
    return int(server[1])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _check_origin(scope: Scope, headers: Headers, own: str) -> None:
    """
    Check that a call with a cookie comes from a page of this app: a browser sends it for other sites' pages too.

    Raises:
        WebProblem: the call is a change or a WebSocket of another site, or embeds a page in one.
    """
    site, origins = headers.get("sec-fetch-site"), headers.getlist("origin")
    if scope["type"] == "http" and scope["method"] in SAFE:
        # A link of another site may lead here, but it may not load a frame, script or image from here.
        leads = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site in ("cross-site", "same-site") and not leads:
            raise forbidden("this is for pages of its own")
        return
    if [own] != [origin.lower() for origin in origins] or site not in (None, "same-origin"):
        raise forbidden("this is for pages of its own")


async def _refuse(problem: WebProblem, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        return
    headers = {**HEADERS, **problem.headers, "Cache-Control": "no-store"}
    await JSONResponse(problem.body, problem.status, headers)(scope, receive, send)

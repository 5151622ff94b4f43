"""
Identifies the caller of a call over TCP before any other code runs, and sets the security headers of each answer; login
links that work once, sessions of browsers, tokens of programs.

Trust:     none in a head. A scope with a credential comes from the operator's socket or a bridge, whose listener makes it
           from the connection and not from any byte of a request; a scope without one comes from TCP and has no rights.
Holds:     the tables have only hashes of links, cookies and tokens. Each table is bounded: the oldest entry is dropped
           first.
Against:   a page of somebody else in the operator's browser (Host: DNS rebinding; Origin and Sec-Fetch-Site: forged
           forms and WebSockets; the headers of answers: frames, scripts, sniffed types), and other users of the host,
           who can connect, but have neither session nor token.
Source:    RFC 6265bis (SameSite), RFC 6455 §10.2 (Origin), www.w3.org/TR/CSP3, www.w3.org/TR/fetch-metadata
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Literal, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leeward.apps.approvals.web.problems import WebProblem, forbidden

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
        "require-trusted-types-for 'script'; trusted-types leeward leeward-daemon"),
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
    """The middleware around the app."""

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
        Give the scope a credential if its headers have a valid session or token. WebProblem if the peer isn't on this
        host, or the Host, the Origin or the size of the head is wrong.
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
    """The port of the listener; WebProblem if it or the peer isn't on loopback."""
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
    WebProblem if it is a change or a WebSocket of another site, or embeds a page in one.
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


#: The key of the credential in the scope of ASGI.
SCOPE_KEY = "leeward.credential"


@dataclass(frozen=True, slots=True)
class Operator:
    """A person, or a program of the same user on the host: by "cli" at the operator's socket, by "page" over TCP."""

    by: Literal["cli", "page"]


@dataclass(frozen=True, slots=True)
class AskingSandbox:
    """A process of a sandbox. The processes of one sandbox share a bridge, so they can't be distinguished."""

    sandbox: str


Credential = Operator | AskingSandbox


def credential_of(scope: Mapping[str, Any]) -> Credential | None:
    """The credential in *scope*; None if there is none."""
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, (Operator, AskingSandbox)) else None


#: Lifetimes in seconds: of a login link, of a session without a request, of any session.
LINK_LASTS, IDLE_LASTS, SESSION_LASTS = 300.0, 8 * 3600.0, 24 * 3600.0

#: Entries of each table, at most.
MOST_LINKS, MOST_SESSIONS, MOST_TOKENS = 8, 16, 32

#: Characters of a token, at most; those made here have 43.
MOST_TOKEN = 128


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A browser that has used a login link."""

    csrf: str  # the token that each form and each change by the page has to send
    begun: float  # seconds of a monotonic clock
    key: str  # of the session in the table; no secret


class PageAccess:
    """The tables of login links, sessions and tokens. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._links: dict[str, float] = {}
        self._sessions: dict[str, tuple[BrowserSession, float]] = {}
        self._tokens: dict[str, None] = {}

    def login_token(self) -> str:
        """The token of a new login link, which works once, within LINK_LASTS seconds."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            _put(self._links, _key(token), self._clock() + LINK_LASTS, MOST_LINKS)
        return token

    def log_in(self, token: str) -> str | None:
        """
        Use a login link up; returns the cookie of a new session, None if there is no such link, or it was used or is
        too old.
        """
        now = self._clock()
        with self._lock:
            if len(token) > MOST_TOKEN or self._links.pop(_key(token), now) <= now:
                return None
            cookie = secrets.token_urlsafe(32)
            session = BrowserSession(secrets.token_urlsafe(32), now, _key(cookie))
            _put(self._sessions, session.key, (session, now), MOST_SESSIONS)
        return cookie

    def session(self, cookie: str) -> BrowserSession | None:
        """The session of *cookie*; None if there is none, or it has ended."""
        now = self._clock()
        if len(cookie) > MOST_TOKEN:
            return None
        with self._lock:
            found = self._sessions.pop(_key(cookie), None)
            if found is None or now - found[1] > IDLE_LASTS or now - found[0].begun > SESSION_LASTS:
                return None
            self._sessions[found[0].key] = found[0], now  # at the end of the table, since it was used last
        return found[0]

    def is_over(self, session: BrowserSession) -> bool:
        """Whether *session* was logged out or dropped, or has lasted too long."""
        with self._lock:
            return session.key not in self._sessions or self._clock() - session.begun > SESSION_LASTS

    def log_out(self, session: BrowserSession) -> None:
        with self._lock:
            self._sessions.pop(session.key, None)

    def program_token(self) -> str:
        """A new bearer token for a program; it works until this process ends or MOST_TOKENS newer ones were made."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            _put(self._tokens, _key(token), None, MOST_TOKENS)
        return token

    def is_program(self, token: str) -> bool:
        """Whether *token* is a bearer token of this process."""
        with self._lock:
            return len(token) <= MOST_TOKEN and _key(token) in self._tokens


def _key(token: str) -> str:
    # The time of a look-up of a hash says nothing about the token.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _put(table: dict[str, Value], key: str, value: Value, most: int) -> None:
    while len(table) >= most:
        del table[next(iter(table))]
    table[key] = value

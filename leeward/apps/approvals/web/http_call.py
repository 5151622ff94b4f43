"""
One call: the caller's rights, the body, and the answer if the call fails.

Holds:     each route goes through `answered`: a sandbox can call only the routes that are for it, and a change by a
           browser needs the session's CSRF token.
"""

from __future__ import annotations

import hmac
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from leeward.apps.approvals.daemon_view import DaemonView
from leeward.apps.approvals.service import ApprovalService
from leeward.apps.approvals.web.blocking_calls import in_thread_of
from leeward.apps.approvals.web.bodies import MOST_BODY, BodyReader, form_fields, json_fields
from leeward.apps.approvals.web.feed import LiveFeed
from leeward.apps.approvals.web.gate import (
    SAFE,
    SESSION_KEY,
    AskingSandbox,
    BrowserSession,
    Credential,
    Operator,
    PageAccess,
    credential_of,
)
from leeward.apps.approvals.web.held import HeldDecisions
from leeward.apps.approvals.web.problems import WebProblem, forbidden, problem_of
from leeward.apps.approvals.web.routes import WebRoute
from leeward.errors import LeewardError

#: Calls of one sandbox that aren't answered yet, at most.
MOST_CALLS = 48

CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf"

_log = logging.getLogger("leeward.apps.approvals")


@dataclass(frozen=True, slots=True)
class PageFrame:
    """What is around each page."""

    tabs: Mapping[str, str]  # their names by their paths; the first one is home
    login: str  # the command that prints a login link
    decides: bool = False  # whether there is something to decide

    @property
    def home(self) -> str:
        return next(iter(self.tabs))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageParts:
    """What all routes share that only show."""

    frame: PageFrame
    access: PageAccess
    daemon: DaemonView
    bodies: BodyReader = field(default_factory=BodyReader)
    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebParts(PageParts):
    """What all routes share."""

    service: ApprovalService
    feed: LiveFeed
    held: HeldDecisions
    syncing: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class WebCall:
    shared: PageParts
    request: Request
    credential: Credential | None  # the caller; None only on routes for anyone
    session: BrowserSession | None  # of a browser; None for other callers
    fields: Mapping[str, Any]  # of the body's object or form

    @property
    def parts(self) -> WebParts:
        assert isinstance(self.shared, WebParts), "a route that needs the service"
        return self.shared

    @property
    def service(self) -> ApprovalService:
        return self.parts.service

    @property
    def sandbox(self) -> str:
        """The id of the sandbox that calls; "" for the operator."""
        return self.credential.sandbox if isinstance(self.credential, AskingSandbox) else ""

    @property
    def operator(self) -> Operator:
        """
        The operator as the caller; WebProblem for a sandbox, which `answered` has refused before on routes that need
        the operator.
        """
        if not isinstance(self.credential, Operator):
            raise forbidden("a sandbox asks, and doesn't decide")
        return self.credential

    @property
    def in_browser(self) -> bool:
        """Whether a person decides on the page, which has shown what it is about."""
        return self.session is not None

    @property
    def id(self) -> int:
        return int(self.request.path_params["id"])


def answered(parts: PageParts, route: WebRoute) -> Callable[[Request], Awaitable[Response]]:
    """
    The endpoint of a route: checks the caller, the body and the fields, and calls the handler. For a page's call
    without a session the answer redirects to /login.
    """
    async def answer(request: Request) -> Response:
        caller = ""
        try:
            credential = credential_of(request.scope)
            if credential is None and route.who != "anyone":
                raise WebProblem(401, "unauthorized", "this needs a session or a token")
            if isinstance(credential, AskingSandbox):
                if route.who == "operator":
                    raise forbidden("a sandbox asks, and doesn't decide")
                caller = credential.sandbox or "?"
                if parts.calls[caller] >= MOST_CALLS:
                    caller = ""
                    raise WebProblem(429, "busy", f"{MOST_CALLS} calls of this sandbox aren't answered yet",
                                     retry_after=1)
                parts.calls[caller] += 1
            session = request.scope.get(SESSION_KEY)
            fields = await _fields(parts, request, caller, route.most_body)
            if session is not None and request.method not in SAFE and not is_csrf(
                    session, request.headers.get(CSRF_HEADER) or fields.get(CSRF_FIELD)):
                raise forbidden("the form is of another session; load the page again")
            values = route.values(request.query_params if request.method in SAFE else fields,
                                  isinstance(credential, AskingSandbox))
            found = await route.handler(WebCall(parts, request, credential, session, fields), **values)
            return found if isinstance(found, Response) else JSONResponse(found, route.status)
        except LeewardError as error:
            problem = problem_of(error)
            if problem.status == 500:
                _log.exception("%s failed", request.url.path)
            return _reply_to(problem, request, route.page, parts.frame)
        finally:
            if caller:
                parts.calls[caller] -= 1
                if not parts.calls[caller]:
                    del parts.calls[caller]
    return answer


async def _fields(parts: PageParts, request: Request, caller: str, most: int) -> Mapping[str, Any]:
    if request.method in SAFE:
        return {}
    body = await parts.bodies.read(request, caller, most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return form_fields(body)
    if body and kind != "application/json":
        # A form of another site can send text/plain without a preflight request.
        raise WebProblem(415, "bad_request", "a body is application/json")
    return json_fields(body) if len(body) <= MOST_BODY else await in_thread_of(caller, json_fields, body)


def is_csrf(session: BrowserSession, given: object) -> bool:
    """Whether *given* is the session's CSRF token."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode())


def _reply_to(problem: WebProblem, request: Request, page: bool, frame: PageFrame) -> Response:
    if not page:
        return JSONResponse(problem.body, problem.status, problem.headers)
    if problem.status == 401:
        return RedirectResponse("/login", 303)
    from leeward.apps.approvals.web.rendering import draw  # of the extra `web`: 40 ms

    values = {"problem": problem, "frame": frame, "tab": "", "pending": 0, "session": request.scope.get(SESSION_KEY)}
    return draw("problem.html", values, problem.status, problem.headers)

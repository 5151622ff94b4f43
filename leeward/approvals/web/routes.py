"""
A route of the service: its method, path, fields with their checks, callers, status and handler, declared once.

Runs in:   the operator's program that decides, on its event loop; pure.
Holds:     a route is the operator's alone unless it says otherwise: the application answers 403 to a sandbox at each one
           that isn't for "asks". A handler gets the values of the declared fields, checked, by their names.

    @route("POST", "/api/rules", "Store a rule.", {"rule": WebField(text(), "its text")}, status=201)
    async def add_rule(call: WebCall, rule: str) -> Row:

From this come the application, the description for OpenAPI (openapi.py) and the table in docs/approvals.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from leeward.approvals.web.bodies import MOST_BODY
from leeward.approvals.web.fields import WebField

#: Who may call a route: the operator alone; a sandbox as well, which gets its own requests alone; or anyone, also without
#: a credential.
Caller = Literal["operator", "asks", "anyone"]

#: The object of an answer.
Row = dict[str, Any]

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class WebRoute:
    """
    One route.

    Attributes:
        name: of its handler; one for Python's own name ends in _ there.
        method: of HTTP; "WEBSOCKET" for the one that stays open.
        path: as Starlette writes it.
        about: for people and for OpenAPI, one sentence or two.
        handler: takes the call and the fields' values; returns the answer's object, or of a page the Response.
        fields: by name: of the query if the method is GET, of the body otherwise.
        who: may call it.
        status: of an answer.
        most_body: bytes.
        page: whether it is for a browser.
    """

    name: str
    method: str
    path: str
    about: str
    handler: Callable[..., Awaitable[Any]]
    fields: Mapping[str, WebField]
    who: Caller = "operator"
    status: int = 200
    most_body: int = MOST_BODY
    page: bool = False

    def values(self, given: Mapping[str, Any], by_sandbox: bool) -> dict[str, Any]:
        """
        The checked values for the handler. Left out are the operator's fields if a sandbox calls, those that aren't
        looked at beside the others, and those that the handler checks.

        Raises:
            WebProblem: a value isn't valid, or one is missing; the message says which.
        """
        return {name: field.read(given, name) for name, field in self.fields.items()
                if field.check.read is not None and not (field.operator and by_sandbox)
                and (field.only is None or field.only(given))}


#: Each route whose module is imported; `application` imports all of them.
ROUTES: list[WebRoute] = []


def route(method: str, path: str, about: str, fields: Mapping[str, WebField] | None = None, *, who: Caller = "operator",
          status: int = 200, most_body: int = MOST_BODY, page: bool = False) -> Callable[[Handler], Handler]:
    """Make a function the handler of a route; the arguments are those of WebRoute."""
    def declared(handler: Handler) -> Handler:
        ROUTES.append(WebRoute(handler.__name__.rstrip("_"), method, path, about, handler, fields or {}, who, status,
                               most_body, page))
        return handler
    return declared

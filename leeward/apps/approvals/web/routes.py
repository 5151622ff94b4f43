"""
A route of the service: its method, path, fields with their checks, callers, status and handler, declared once.

Trust:     none. Any value of a field is a checked one, or WebProblem with status 400.
Holds:     a route is the operator's alone unless it says otherwise: the application answers 403 to a sandbox at each one
           that isn't for "asks". A handler gets the values of the declared fields, checked, by their names.

    @route("POST", "/api/rules", "Store a rule.", {"rule": WebField(text(), "its text")}, status=201)
    async def add_rule(call: WebCall, rule: str) -> Row:

From this come the application, the description for OpenAPI (application.py) and the table in docs/approvals.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from leeward.apps.approvals.queue.rules import CATEGORIES
from leeward.apps.approvals.web.bodies import MOST_BODY
from leeward.apps.approvals.web.problems import bad
from leeward.base.dataclass import MISSING

#: Who may call a route: the operator alone; a sandbox as well, which gets its own requests alone; or anyone, also without
#: a credential.
Caller = Literal["operator", "asks", "anyone"]

#: The object of an answer.
Row = dict[str, Any]

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class WebRoute:
    """One route."""

    name: str  # of its handler; one for Python's own name ends in _ there
    method: str  # of HTTP; "WEBSOCKET" for the one that stays open
    path: str  # as Starlette writes it
    about: str  # for people and for OpenAPI, one sentence or two
    #: Takes the call and the fields' values; returns the answer's object, or of a page the Response.
    handler: Callable[..., Awaitable[Any]]
    fields: Mapping[str, WebField]  # by name: of the query if the method is GET, of the body otherwise
    who: Caller = "operator"  # may call it
    status: int = 200  # of an answer
    most_body: int = MOST_BODY  # bytes
    page: bool = False  # whether it is for a browser

    def values(self, given: Mapping[str, Any], by_sandbox: bool) -> dict[str, Any]:
        """
        The checked values for the handler. Left out are the operator's fields if a sandbox calls, those that aren't
        looked at beside the others, and those that the handler checks.
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


@dataclass(frozen=True, slots=True)
class FieldCheck:
    #: Takes a value (MISSING if it is missing) and the field's name, and returns the checked value or raises WebProblem;
    #: None if whoever takes the whole body checks it.
    read: Callable[[Any, str], Any] | None
    schema: Mapping[str, Any]  # of the value, for OpenAPI


@dataclass(frozen=True, slots=True)
class WebField:
    """A field of a route."""

    check: FieldCheck
    about: str  # for people and for OpenAPI, part of a sentence
    default: Any = MISSING  # its value if it is left out; MISSING if it has to be given
    operator: bool = False  # it is the operator's alone, and isn't looked at if a sandbox gives it
    #: Whether it is looked at, by all fields that are given; None if always.
    only: Callable[[Mapping[str, Any]], bool] | None = None

    @property
    def is_needed(self) -> bool:
        return self.default is MISSING and self.only is None

    def read(self, given: Mapping[str, Any], name: str) -> Any:
        """The checked value, or the default."""
        assert self.check.read is not None
        if name not in given and self.default is not MISSING:
            return self.default
        return self.check.read(given.get(name, MISSING), name)


def text(most: int = 70000) -> FieldCheck:
    """A text of *most* characters at most."""
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise bad(f"{name}: a text")
        if len(value) > most:
            raise bad(f"{name}: {most} characters at most")
        return value
    return FieldCheck(read, {"type": "string", "maxLength": most})


def one_of(values: Sequence[str], said: str = "") -> FieldCheck:
    """One of these texts; *said* is what the message says in place of their list."""
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise bad(f"{name}: a text")
        if value not in values:
            raise bad(f"{name}: {said or ' or '.join(values)}")
        return value
    return FieldCheck(read, {"type": "string", "enum": list(values)})


def number(least: float = 0, most: float = 2**53) -> FieldCheck:
    """A number; of a query or a form also as text."""
    def read(value: Any, name: str) -> float:
        if isinstance(value, str):
            try:
                value = float(value[:30])
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise bad(f"{name}: a number from {least:g} to {most:g}")
        return value
    return FieldCheck(read, {"type": "number", "minimum": least, "maximum": most})


def whole(least: int = 0, most: int = 2**53) -> FieldCheck:
    """A whole number; of a query or a form also as text."""
    checked = number(least, most).read
    assert checked is not None

    def read(value: Any, name: str) -> int:
        found = checked(value, name)
        if found != int(found):
            raise bad(f"{name}: a whole number")
        return int(found)
    return FieldCheck(read, {"type": "integer", "minimum": least, "maximum": most})


def wholes(most: int) -> FieldCheck:
    """A list of *most* whole numbers at most, or null, which is as if the field were missing."""
    def read(value: Any, name: str) -> list[int] | None:
        if value is not None and (not isinstance(value, list) or len(value) > most or not all(
                isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= 2**53 for each in value)):
            raise bad(f"{name}: a list of {most} whole numbers at most")
        return value
    return FieldCheck(read, {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": most})


def _switch(value: Any, name: str) -> bool:
    if isinstance(value, str) and value in ("true", "false"):  # of a form
        return value == "true"
    if not isinstance(value, bool):
        raise bad(f"{name}: true or false")
    return value


def _command(value: Any, name: str) -> str | list[str]:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise bad(f"{name}: a line, or a list of arguments")
    return value


def _project(value: Any, name: str) -> str | None:
    if value is None:
        return None
    assert _PATH.read is not None
    found: str = _PATH.read(value, name)
    if found and not found.startswith("/"):
        raise bad(f"{name}: the absolute path of a project, or nothing for all projects")
    return found


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(f"{name}: an object")
    return value


def _value(value: Any, name: str) -> Any:
    if value is MISSING:
        raise bad(f"{name}: of the key")
    return value


def unchecked(schema: Mapping[str, Any]) -> FieldCheck:
    """A value that is checked by whoever takes the whole body."""
    return FieldCheck(None, schema)


_PATH = text(4096)
SWITCH = FieldCheck(_switch, {"type": "boolean"})
OBJECT = FieldCheck(_object, {"type": "object"})
#: Of a key of the configuration, which knows its type.
VALUE = FieldCheck(_value, {})
COMMAND = FieldCheck(_command, {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
#: The path of the project in which a rule holds; "" for all projects, None if it isn't said.
PROJECT = FieldCheck(_project, _PATH.schema)
CATEGORY = one_of(CATEGORIES, f"one of {', '.join(CATEGORIES)}")
EFFECT = one_of(("allow", "deny"))

"""
The fields of routes and messages: the type and bounds of each, as a check and as a schema of JSON.

Runs in:   the operator's program that decides; pure.
Trust:     none. Any value is a checked one, or WebProblem with status 400.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward.approvals.queue.rules import CATEGORIES
from leeward.approvals.web.problems import bad
from leeward.dataclass import MISSING


@dataclass(frozen=True, slots=True)
class FieldCheck:
    """
    Attributes:
        read: takes a value (MISSING if it is missing) and the field's name, and returns the checked value or raises
            WebProblem; None if whoever takes the whole body checks it.
        schema: of the value, for OpenAPI.
    """

    read: Callable[[Any, str], Any] | None
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WebField:
    """
    A field of a route.

    Attributes:
        check: of its value.
        about: for people and for OpenAPI, part of a sentence.
        default: its value if it is left out; MISSING if it has to be given.
        operator: it is the operator's alone, and isn't looked at if a sandbox gives it.
        only: whether it is looked at, by all fields that are given; None if always.
    """

    check: FieldCheck
    about: str
    default: Any = MISSING
    operator: bool = False
    only: Callable[[Mapping[str, Any]], bool] | None = None

    @property
    def is_needed(self) -> bool:
        return self.default is MISSING and self.only is None

    def read(self, given: Mapping[str, Any], name: str) -> Any:
        """
        The checked value, or the default.

        Raises:
            WebProblem: the value isn't valid, or is missing without a default.
        """
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
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise bad(f"{name}: a line, or a list of arguments")


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

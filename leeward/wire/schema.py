"""
Operations of the wire as data: each is declared once, as a class of its request, and the rest follows from that.

Runs in:   anywhere; pure.

    @operation("file_mkdir", answers=ANSWERS["file_mkdir"])
    class FileMkdir(FileRequest):
        \"\"\"Make a folder.\"\"\"

        parents: bool = field(flag, "and those that lead there", default=False)

From this come the decoder and the encoder (`requests`), whom the daemon admits and what it refuses to guests
(daemon/serving/operations.py), the tables of docs/wire.md, and the names and types of the client for Node
(packaging/wire_files.py). A field's annotation is its type on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

from leeward.base.dataclass import MISSING, dataclass, factory, methods_of
from leeward.errors import PeerError, brief

T = TypeVar("T")
D = TypeVar("D")

#: Takes a value that MessagePack can hold, and the name of its field. Returns it as the product uses it, or raises
#: BadRequest.
Check = Callable[[object, str], T]

#: When the daemon takes a request. `at once`: always, because it is answered at once, or counted elsewhere. `if it
#: waits`: what serves it checks that the connection has room for a request in flight, if the answer comes later.
#: `request`: if there is room for a request in flight. `job`: if there is, and few enough large results wait to be
#: read, because its answer may be one.
Admission = Literal["at once", "if it waits", "request", "job"]

#: The largest id of a request. Clients choose ids from 1 on; 0 stands for the whole connection in the daemon's answers.
MAX_ID = 2**53 - 1


class Field:
    """
    A field of a message. It is *absent* if it is left out, MISSING if it must be given; *default* is that, or what makes
    it. The documentation has *doc*, *shown* in place of the default, and *type* where the annotation doesn't tell.
    """

    __slots__ = ("absent", "check", "default", "doc", "shown", "type")

    def __init__(self, check: Check[Any], doc: str, default: Any, absent: Any, shown: str | None, type: str) -> None:
        self.check, self.doc, self.default, self.absent, self.shown, self.type = check, doc, default, absent, shown, type


def field(check: Check[T], doc: str, *, default: D = MISSING, default_factory: Callable[[], D] = MISSING,
          shown: str | None = None, type: str = "", kw_only: bool = True) -> T | D:
    """A field of a message, which must be given unless it has a default. Only a type checker looks at *kw_only*."""
    made: Any = (Field(check, doc, default, default, shown, type) if default_factory is MISSING else
                 Field(check, doc, factory(default_factory), default_factory(), shown, type))
    return cast("T | D", made)


@dataclass(frozen=True, slots=True)
class Operation:
    """What the wire knows of an operation."""

    name: str
    kind: type[ClientRequest]  # the class of its request
    fields: Mapping[str, Field]  # by name, those of the base classes first
    checks: Mapping[str, Check[Any]]  # those of the fields
    needed: tuple[str, ...]  # the fields that must be given
    #: the fields of its answer, each with its type on the wire, or with its check, whose annotation says it
    answers: Mapping[str, str | Callable[..., Any]]
    admits: Admission  # see `Admission`
    guests: str  # why a guest is refused, with {user} for the guest; "" if none is
    rule: Callable[[Mapping[str, Any]], None] | None  # checks what fields say together; raises BadRequest
    since: str  # the version of leeward that has brought it


#: By name: each operation whose module is imported. `requests` imports all of them.
OPERATIONS: dict[str, Operation] = {}

R = TypeVar("R", bound="ClientRequest")


def operation(name: str, *, answers: Mapping[str, str | Callable[..., Any]], admits: Admission = "request",
              guests: str = "", rule: Callable[[Mapping[str, Any]], None] | None = None,
              since: str = "0.1") -> Callable[[type[R]], type[R]]:
    """Make a class the request of the operation *name*; the arguments are those of `Operation`."""
    def made(kind: type[R]) -> type[R]:
        fields = {name: one for name, one in kind.fields.items() if name != "id"}
        kind.op = name
        kind.operation = OPERATIONS[name] = Operation(
            name, kind, fields, {name: one.check for name, one in fields.items()},
            tuple(name for name, one in fields.items() if one.default is MISSING), answers, admits, guests, rule, since)
        return kind
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class MessageType(type):
    """
    Makes the classes of messages: frozen dataclasses with slots, which have the fields of their base class, too. Those
    that must be given come first in `__init__`. A metaclass, because slots can't be added to an existing class: a
    decorator would make each class twice, which takes half of the time that this module's users take to import.
    """

    fields: Mapping[str, Field]

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> MessageType:
        own = {each: body.pop(each) for each, text in body.get("__annotations__", {}).items()
               if not text.startswith("ClassVar")}
        base: Mapping[str, Field] = bases[0].fields if bases else {}  # type: ignore[attr-defined]  # a message, too
        fields = {**base, **own}
        defaults = {each: MISSING for each, one in fields.items() if one.default is MISSING}
        methods = methods_of(name, defaults | {each: one.default for each, one in fields.items()})
        made = super().__new__(cls, name, bases, {
            **methods, **body, "__slots__": tuple(each for each in own if each not in base)})
        made.fields = fields
        return made


def is_id(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_ID


def check_id(value: object, _what: str = "id") -> int:
    """The id of a request, which its answer must have; PeerError if it is none, so that the request can't be answered."""
    if not is_id(value):
        raise PeerError(f"a request's id must be a whole number from 1 to 2**53 - 1, not {brief(value)}")
    assert isinstance(value, int)
    return value


class ClientRequest(metaclass=MessageType):
    """A request with its number, by which it is answered."""

    op: ClassVar[str]
    operation: ClassVar[Operation]

    id: int = field(check_id, "the client's choice", kw_only=False)

"""Operations as data: what their classes have, and what follows from that."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest

from leeward.base.dataclass import MISSING
from leeward.wire.file_answers import ANSWERS
from leeward.wire.file_requests import FileEdit, FileMkdir, FileRequest, FileWrite
from leeward.wire.frames import HEADER, decode
from leeward.wire.requests import OPERATIONS, encode_request
from leeward.wire.sandbox_requests import KernelClose, ProcessRun, SandboxExecute
from leeward.wire.schema import ClientRequest

BOX = "a" * 26
MKDIR = FileMkdir(1, sandbox=BOX, path=b"x", parents=True)


def test_a_request_has_the_fields_of_its_base_and_its_own() -> None:
    """As a frozen dataclass with slots."""
    assert ["id", "sandbox", "path", "timeout", "parents", "there"] == [one.name for one in fields(MKDIR)]
    assert ("sandbox", "path", "timeout", "parents", "there") == tuple(MKDIR.operation.fields)
    assert MKDIR == FileMkdir(1, sandbox=BOX, path=b"x", timeout=30.0, parents=True, there=False)
    assert MKDIR != FileRequest(1, sandbox=BOX, path=b"x")
    assert "FileMkdir(id=1, sandbox='" in repr(MKDIR)
    assert MKDIR == copy.copy(MKDIR) == pickle.loads(pickle.dumps(MKDIR))
    assert hash(MKDIR) == hash(copy.deepcopy(MKDIR))
    assert not hasattr(MKDIR, "__dict__")
    for name in ("there", "id", "more"):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(MKDIR, name, 1)


def test_a_field_can_be_another_one_than_the_base_classs() -> None:
    assert FileMkdir(1, sandbox=BOX).path == b"."
    with pytest.raises(TypeError, match="path"):
        FileEdit(1, sandbox=BOX, old=b"a", new=b"b")  # type: ignore[call-arg]  # it must be given here


def test_what_makes_a_default_makes_it_for_each() -> None:
    assert ProcessRun(1, sandbox=BOX).env is not ProcessRun(1, sandbox=BOX).env


def test_every_operation_is_described() -> None:
    """In full: what it does, what each field says, of which type it is, and its answer."""
    for name, operation in OPERATIONS.items():
        assert name == operation.kind.op
        assert operation is operation.kind.operation
        assert operation.kind.__doc__
        types = {field: text for kind in operation.kind.__mro__
                 for field, text in getattr(kind, "__annotations__", {}).items()}
        for field, one in operation.fields.items():
            assert one.doc, (name, field)
            assert types[field], (name, field)
        assert all(isinstance(kind, str) or kind.__annotations__["return"] for kind in operation.answers.values())
    assert set(ANSWERS) == {name for name, one in OPERATIONS.items() if issubclass(one.kind, FileRequest)}
    assert ["sandbox", "kernel"] == list(KernelClose.operation.fields)


def test_only_what_isnt_the_default_is_encoded() -> None:
    """A value that is false is another one than the default where that is true; what must be given is there in any case."""
    def fields_of(request: ClientRequest) -> set[str]:
        return set(decode(encode_request(request)[HEADER:])) - {"v", "id", "op", "sandbox"}

    assert set() == fields_of(FileWrite(1, sandbox=BOX))
    assert {"mode", "time"} == fields_of(FileWrite(1, sandbox=BOX, mode=0, time=0))
    assert {"code"} == fields_of(SandboxExecute(1, sandbox=BOX, code=b""))
    assert {"code", "env"} == fields_of(SandboxExecute(1, sandbox=BOX, code=b"", env={"A": ""}))


def test_guests_are_refused_what_is_the_operators() -> None:
    """Three operations, and each says why."""
    assert {"egress_asks", "egress_answer", "shutdown"} == {name for name, one in OPERATIONS.items() if one.guests}


def test_a_field_that_must_be_given_has_no_default() -> None:
    for operation in OPERATIONS.values():
        assert set(operation.needed) == {name for name, one in operation.fields.items() if one.absent is MISSING}

"""What the clients' docstrings list, from which the reference is made, is what there is."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum

import pytest

from leeward.client.blocking import Client
from leeward.client.options import Options, SessionOptions, TurnOptions
from leeward.client.session import Session
from leeward.spec.outcome import JobError, Limit, Outcome, Result


def listed(what: object, section: str) -> set[str]:
    """The names in a section of a docstring: its lines "name: ..." or "name (type): ..."."""
    text = re.search(rf"^( *){section}:\n((?:\1 .*\n|\n)+)", what.__doc__ or "", re.MULTILINE)
    assert text is not None
    return set(re.findall(rf"^{text[1]}    (\w+)(?: \([^)]*\))?: ", text[2], re.MULTILINE))


@pytest.mark.parametrize(("call", "options"), [
    (Client.execute, Options), (Client.session, SessionOptions), (Session.execute, TurnOptions)])
def test_a_call_describes_each_of_its_options(call: object, options: type):
    assert set(options.__annotations__) == listed(call, "Keyword Args")


@pytest.mark.parametrize("kind", [Outcome, Limit])
def test_every_enum_member_is_described(kind: type[Enum]):
    assert set(kind.__members__) == listed(kind, "Attributes")


@pytest.mark.parametrize("kind", [Result, JobError])
def test_every_field_is_described(kind: type):
    assert {field.name for field in dataclasses.fields(kind)} == listed(kind, "Attributes")

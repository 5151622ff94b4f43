"""
The interpreter that jobs get, and what else it needs to be shown.
"""

from __future__ import annotations

import sys

import pytest

from leeward.isolation import interpreter
from leeward.spec import profiles
from leeward.spec.limits import Limits

NIX = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-python3-3.13.1"


@pytest.mark.parametrize(("prefix", "shown"), [
    (NIX, ("/nix/store",)),
    ("/usr", ()),
    ("/opt/nix/store/python", ()),
])
def test_a_python_of_nix_gets_the_store_shown(monkeypatch: pytest.MonkeyPatch, prefix: str,
                                              shown: tuple[str, ...]) -> None:
    """
    Its libc and libraries are packages of their own there; elsewhere they lie below /usr or the prefix.
    """
    monkeypatch.setattr(sys, "base_prefix", prefix)
    found = interpreter.find()
    binds = [bind.source for bind in profiles.python(found, {}, limits=Limits()).view.binds]

    assert shown == found.shown
    assert bool(shown) == ("/nix/store" in binds)
    assert (NIX in binds) is False  # the store holds it

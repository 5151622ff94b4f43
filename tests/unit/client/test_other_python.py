"""What an environment of another Python is made of: by what that interpreter says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from leeward.client.environments import of_another
from leeward.dataclass import replace
from leeward.errors import BadRequest, Unsupported
from leeward.spec.stored import Recipe

RECIPE = Recipe(("flavour",), os.path.realpath(getattr(sys, "_base_executable", sys.executable)), sys.version_info[:2])


def program(folder: Path, says: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_the_own_interpreter_leaves_the_recipe_unchanged() -> None:
    assert RECIPE is of_another(RECIPE, sys.executable)


def test_another_interpreter_gets_leewards_own_packages(tmp_path: Path) -> None:
    """Its base and its library are as it reports them; so the environment has another name."""
    python = program(tmp_path, """echo '["cpython", [3, 13], "/py/bin/python3.13", "/py"]'""")
    made = of_another(RECIPE, python)
    assert replace(RECIPE, requirements=("flavour", "cffi", "msgpack"), python="/py/bin/python3.13", version=(3, 13),
                   prefix="/py") == made
    assert RECIPE.hash != made.hash


@pytest.mark.parametrize(("says", "error", "why"), [
    ("""echo '["pypy", [3, 11], "/py", "/py"]'""", Unsupported, "pypy 3.11"),
    ("""echo '["cpython", [3, 10], "/py", "/py"]'""", Unsupported, "CPython 3.11 or later"),
    ("echo nothing", BadRequest, "version can't be read"), ("echo '[1]'", BadRequest, "version can't be read"),
    ("exit 1", BadRequest, "version can't be read"),
])
def test_an_interpreter_that_leeward_does_not_run_on_is_refused(tmp_path: Path, says: str, error: type[Exception],
                                                                why: str) -> None:
    with pytest.raises(error, match=why):
        of_another(RECIPE, program(tmp_path, says))


def test_a_missing_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no such program"):
        of_another(RECIPE, str(tmp_path / "none"))

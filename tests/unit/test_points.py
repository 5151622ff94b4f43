"""
Injection points: in the product they are nothing, and a test build fills each that the product has.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import leeward
from kit import points as kit_points
from kit.features import ROOT
from leeward import points
from leeward.crossing import keeper, zygote
from leeward.isolation import rlimits

NAMED = re.compile(r'\bpoint\("([^"]+)"\)')
FILLED = re.compile(r'\b(?:fill|original)\("([^"]+)"')


def named() -> list[str]:
    """
    Every point in the product's source.
    """
    sources = Path(leeward.__path__[0]).rglob("*.py")
    return [name for source in sources for name in NAMED.findall(source.read_text())]


def test_in_the_product_a_point_is_its_function() -> None:
    def made() -> int:
        return 1

    assert made is points.point("made")(made)
    assert {"point"} == {name for name in vars(points) if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}
    for module, name in ((keeper, "_runner_namespaces"), (zygote, "_keeper_namespaces"), (rlimits, "steps")):
        assert not hasattr(getattr(module, name), "__wrapped__")


def test_tests_fill_every_point_and_no_other() -> None:
    """
    A point that no test fills is dead; one that the product hasn't any more would leave a lock on.
    """
    filled = FILLED.findall((ROOT / "tests/kit/halfway.py").read_text())
    assert sorted(named()) == sorted(set(filled))


def test_a_test_build_has_them_all() -> None:
    """
    In a process of its own: each lock can be taken out, an unknown point is refused, and a second build as well.
    """
    code = ("import sys\nfrom kit import points\npoints.build()\nfrom kit import halfway\nhalfway.strip([])\n"
            "from leeward.isolation import rlimits\nassert [] == rlimits.steps(((7, 1, 1),))\n"
            "try:\n    points.fill('keeper.keeps', len)\nexcept LookupError as error:\n    print(error)\n"
            "try:\n    points.build()\nexcept RuntimeError as error:\n    print(error)\n"
            "print(*sorted(points.names()))")
    path = os.pathsep.join((str(Path(leeward.__path__[0]).parent), str(ROOT / "tests")))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path})

    assert (0, "") == (done.returncode, done.stderr)
    unknown, late, names = done.stdout.splitlines()
    assert "keeper.keeps is no point of the product's" == unknown
    assert "has been imported" in late
    assert sorted(named()) == names.split()


def test_a_test_build_is_made_before_the_products_points() -> None:
    """
    Here it is too late, so nothing is changed.
    """
    with pytest.raises(RuntimeError, match="the product's"):
        kit_points.build()
    assert points is importlib.import_module("leeward.points")

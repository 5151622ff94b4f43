"""
The recipe of an environment for another Python than the daemon's.

Runs in:   the program of `leeward env create --python`, which starts that interpreter with its own user's rights.
"""

from __future__ import annotations

import json
import shutil
import subprocess

from leeward.dataclass import replace
from leeward.errors import BadRequest, Unsupported
from leeward.spec.stored import Recipe

#: The oldest Python that leeward runs on.
_OLDEST = (3, 11)
#: Packages with compiled code that leeward needs in a job's interpreter. The daemon's copies of them are compiled for
#: the daemon's version of Python.
_NEEDED = ("cffi", "msgpack")
_REPORT = """
import json, os, sys
print(json.dumps([sys.implementation.name, sys.version_info[:2],
                  os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
                  os.path.realpath(sys.base_prefix)]))
"""
_REPORT_S = 30.0


def of_another(recipe: Recipe, python: str) -> Recipe:
    """
    A copy of *recipe* for the interpreter *python*, which is a path or a name in PATH.

    Raises:
        BadRequest: there is no such program, or it doesn't report its version.
        Unsupported: leeward doesn't run on this interpreter.
    """
    base, version, prefix = _ask(python)
    if base == recipe.python:
        return recipe
    return replace(recipe, python=base, version=version, prefix=prefix,
                   requirements=(*recipe.requirements, *_NEEDED))


def _ask(python: str) -> tuple[str, tuple[int, int], str]:
    """
    The base interpreter of *python*, its version, and its prefix.

    Raises:
        BadRequest, Unsupported: as for `of_another`.
    """
    path = shutil.which(python)
    if path is None:
        raise BadRequest(f"--python {python!r}: there is no such program")
    try:
        said = subprocess.run([path, "-I", "-c", _REPORT], capture_output=True, timeout=_REPORT_S, check=True,
                              stdin=subprocess.DEVNULL).stdout
        kind, (major, minor), base, prefix = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        raise BadRequest(f"--python {python!r}: its version can't be read: {error}") from None
    if kind != "cpython" or (major, minor) < _OLDEST:
        raise Unsupported("python", have=f"{kind} {major}.{minor} at {path}",
                          need=f"CPython {_OLDEST[0]}.{_OLDEST[1]} or later")
    return base, (major, minor), prefix

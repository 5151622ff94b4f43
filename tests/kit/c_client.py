"""
The C client for tests: built once a run, and the program `leeward` beside the Python one.

Runs in:   pytest, as a plugin of conftest.py.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.skip_policy import require

CLIENT = ROOT / "leeward" / "capi"
#: The library's C files.
SOURCES = tuple(CLIENT / f"{stem}.c" for stem in runpy.run_path(str(ROOT / "build_client.py"))["LIBRARY"])
PYTHON_PROGRAM = (sys.executable, "-P", "-m", "leeward_cli")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"


def build(folder: Path, flags: str = "") -> Path:
    """
    Everything that build_client.py makes, in *folder*, with the Python program beside it.
    """
    subprocess.run([sys.executable, ROOT / "build_client.py", folder], check=True, capture_output=True,
                   env={**os.environ, **({"LEEWARD_CFLAGS": flags} if flags else {})})
    beside = folder / "leeward-python"
    beside.write_text(f'#!/bin/sh\nexec {shlex.join(PYTHON_PROGRAM)} "$@"\n')
    beside.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def c_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A folder with libleeward, leeward.h and the program `leeward`.
    """
    require("compiler")
    return build(tmp_path_factory.mktemp("c-client"))


@pytest.fixture(scope="session")
def c_inside(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """
    The library with its inner functions for all to call.
    """
    require("compiler")
    made = tmp_path_factory.mktemp("c-inside") / "inside.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE", '-DLEEWARD_LIBRARY_VERSION="test"', "-O1",
                    "-o", made, *SOURCES], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(params=["python", "c"])
def program(request: pytest.FixtureRequest) -> list[str]:
    """
    The start of a `leeward` command line: each test runs over the Python and over the C one.
    """
    if "python" == request.param:
        return list(PYTHON_PROGRAM)
    return [str(request.getfixturevalue("c_build") / "leeward")]

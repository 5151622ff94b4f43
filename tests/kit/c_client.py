"""
The C client for tests. It is built once in a run, and its program `leeward` lies beside the Python one.

Runs in:   pytest, as a plugin of conftest.py.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon
from kit.skip_policy import require

CLIENT = ROOT / "leeward" / "clients" / "c"
#: The library's C files.
SOURCES = tuple(CLIENT / f"{stem}.c" for stem in runpy.run_path(str(ROOT / "build_client.py"))["LIBRARY"])
PYTHON_PROGRAM = (sys.executable, "-P", "-m", "leeward_cli")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"


def build(folder: Path, flags: str = "") -> Path:
    """Everything that build_client.py makes, in *folder*, with the Python program beside it."""
    subprocess.run([sys.executable, ROOT / "build_client.py", folder], check=True, capture_output=True,
                   env={**os.environ, **({"LEEWARD_CFLAGS": flags} if flags else {})})
    beside = folder / "leeward-python"
    beside.write_text(f'#!/bin/sh\nexec {shlex.join(PYTHON_PROGRAM)} "$@"\n')
    beside.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def c_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libleeward, leeward.h and the program `leeward`."""
    require("compiler")
    return build(tmp_path_factory.mktemp("c-client"))


@pytest.fixture(scope="session")
def c_inside(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library with its inner functions for all to call."""
    require("compiler")
    made = tmp_path_factory.mktemp("c-inside") / "inside.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE", '-DLEEWARD_LIBRARY_VERSION="test"', "-O1",
                    "-o", made, *SOURCES], check=True)
    return ctypes.CDLL(str(made))


class File(ctypes.Structure):
    """leeward_file."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Options(ctypes.Structure):
    """leeward_options."""

    kept: object  # what it points to
    _fields_ = (
        ("size", ctypes.c_size_t), ("timeout", ctypes.c_double), ("memory", ctypes.c_uint64),
        ("output", ctypes.c_uint64), ("processes", ctypes.c_uint64), ("name", ctypes.c_char_p),
        ("module", ctypes.c_char_p), ("arguments", ctypes.POINTER(ctypes.c_char_p)),
        ("argument_count", ctypes.c_size_t), ("environment", ctypes.POINTER(ctypes.c_char_p)),
        ("environment_count", ctypes.c_size_t), ("files", ctypes.POINTER(File)), ("file_count", ctypes.c_size_t),
        ("collect", ctypes.POINTER(ctypes.c_char_p)), ("collect_count", ctypes.c_size_t),
        ("stdin_data", ctypes.c_char_p), ("stdin_length", ctypes.c_size_t), ("deadline", ctypes.c_double),
        ("idempotent", ctypes.c_int32), ("no_retry", ctypes.c_int32), ("label", ctypes.c_char_p),
        ("no_retry_busy", ctypes.c_int32), ("display", ctypes.c_int32),
        ("overflow", ctypes.c_int32), ("descriptors", ctypes.c_uint64), ("wall", ctypes.c_double),
        ("cpu_time", ctypes.c_double),
    )


def options_of(asked: Mapping[str, Any], **more: Any) -> Options:
    """The options of a job for what the client in Python is *asked*; they keep what they point to."""
    def strings(texts: Iterable[str]) -> Any:
        given = [text.encode() for text in texts]
        return (ctypes.c_char_p * len(given))(*given)

    args, env, collect = asked.get("args", ()), asked.get("env", {}), asked.get("collect", ())
    files, stdin = asked.get("files", {}), asked.get("stdin")
    made = Options(
        **{name: asked[name] for name in ("timeout", "memory", "output", "processes", "descriptors", "wall", "cpu_time")
           if name in asked},
        **{name: asked[name].encode() for name in ("name", "module", "label") if name in asked},
        arguments=strings(args), argument_count=len(args), collect=strings(collect), collect_count=len(collect),
        environment=strings(f"{key}={value}" for key, value in env.items()), environment_count=len(env),
        files=(File * len(files))(*(File(key.encode(), ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p), len(value))
                                    for key, value in files.items())),
        file_count=len(files), stdin_data=stdin, stdin_length=len(stdin or b""), **more)
    made.kept = files
    return made


LANGUAGE = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest, c_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file's CHECKS, a program in C, with the static library."""
    made = tmp_path_factory.mktemp("plain") / "checks"
    subprocess.run(["gcc", *LANGUAGE, "-g", f"-I{c_build}", "-o", made, request.module.CHECKS,
                    c_build / "libleeward.a", "-pthread"], check=True)
    return made


@pytest.fixture(scope="session")
def sanitized_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as an archive, under ASan and UBSan."""
    require("sanitizers")
    folder = tmp_path_factory.mktemp("sanitized-library")
    subprocess.run(["gcc", *LANGUAGE, *SANITIZERS.split(), '-DLEEWARD_LIBRARY_VERSION="test"', "-c", *SOURCES],
                   cwd=folder, check=True)
    archive = folder / "library.a"
    subprocess.run(["ar", "rcs", archive, *sorted(folder.glob("*.o"))], check=True)
    return archive


@pytest.fixture(scope="module")
def sanitized(request: pytest.FixtureRequest, sanitized_library: Path,
              tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file's CHECKS, with the library, under ASan and UBSan."""
    made = tmp_path_factory.mktemp("sanitized") / "checks"
    subprocess.run(["gcc", *LANGUAGE, *SANITIZERS.split(), f"-I{CLIENT}", "-o", made, request.module.CHECKS,
                    sanitized_library, "-pthread"], check=True)
    return made


@pytest.fixture(scope="module")
def any_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """Where the transport is tried by another test already."""
    with LiveDaemon(tmp_path_factory.mktemp("any"), "--pool-size", "2") as daemon:
        yield daemon


#: Before a program of checks: an error or a leak ends it with 9.
VALGRIND = ("valgrind", "--quiet", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
            "--error-exitcode=9", "--track-fds=no")


def checked(*command: str | Path) -> None:
    """Run a program of checks to its end, and assert that it prints nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.fixture(params=["python", "c"])
def program(request: pytest.FixtureRequest) -> list[str]:
    """The start of a `leeward` command line: each test runs over the Python and over the C one."""
    if "python" == request.param:
        return list(PYTHON_PROGRAM)
    return [str(request.getfixturevalue("c_build") / "leeward")]

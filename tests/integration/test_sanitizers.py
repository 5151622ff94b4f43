"""
The shim under AddressSanitizer and UndefinedBehaviorSanitizer.

An instrumented build takes the place of the usual shim in a run of its own, in the process
of the tests alone: the zygote starts without its environment and loads the usual one, as the
jobs' interpreters needn't be instrumented.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from features import ROOT

pytestmark = pytest.mark.needs("sanitizers", "compiler")

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1"

#: Loads the instrumented shim under its usual name before anybody asks for it.
SITECUSTOMIZE = """\
import importlib.util, os, sys
where = os.environ["LEEWARD_TEST_SHIM"]
spec = importlib.util.spec_from_file_location("leeward._native._shim", where)
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory):
    """
    The environment in which Python loads an instrumented shim.
    """
    folder = tmp_path_factory.mktemp("instrumented")
    subprocess.run([sys.executable, ROOT / "build_ffi.py", folder], check=True, capture_output=True,
                   env={**os.environ, "LEEWARD_CFLAGS": FLAGS, "LEEWARD_LDFLAGS": FLAGS})
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    runtimes = [subprocess.run([*compiler, f"-print-file-name=lib{name}.so"], check=True, capture_output=True,
                               text=True).stdout.strip() for name in ("asan", "ubsan")]
    return {
        **os.environ,
        "LEEWARD_TEST_SHIM": str(folder / "_shim.abi3.so"),
        "PYTHONPATH": str(folder),
        # First of all libraries, as the interpreter itself isn't linked with them.
        "LD_PRELOAD": " ".join(runtimes),
        # CPython doesn't free everything at its end. Leaks of ours show in the test of 10,000 jobs.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True,
                          check=False)


def test_the_sanitizers_are_awake(instrumented, tmp_path):
    """
    The same flags on a function with a fault in it do find it.
    """
    (tmp_path / "fault.c").write_text("int fault(int at) { int four[4] = {0}; return four[at]; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", *shlex.split(FLAGS), "-o", tmp_path / "fault.so", tmp_path / "fault.c"],
                   check=True)
    program = (f"import ctypes; fault = ctypes.CDLL({str(tmp_path / 'fault.so')!r}).fault\n"
               "print('fine', fault(3), flush=True); fault(4)")

    got = run(instrumented, "-c", program)

    assert "fine 0\n" == got.stdout
    assert 0 != got.returncode
    assert "out of bounds" in got.stderr


def test_the_instrumented_shim_is_the_one_that_is_loaded(instrumented):
    got = run(instrumented, "-c", "from leeward._native import landlock, _shim; print(_shim.__file__)")

    assert (instrumented["LEEWARD_TEST_SHIM"] + "\n", "") == (got.stdout, got.stderr)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tests", sorted(
    str(path.relative_to(ROOT)) for source in ROOT.glob("leeward/_native/src/*.c")
    for path in ROOT.glob(f"tests/**/test_{source.stem}.py")))
def test_no_fault_shows(instrumented, tests):
    """
    The tests of each part of the shim, run again: part and test share their stem.
    """
    got = run(instrumented, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)

    assert 0 == got.returncode, got.stdout[-10000:] + got.stderr[-10000:]

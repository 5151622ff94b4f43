"""Another interpreter runs `inside` by its sources alone; and says why it doesn't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leeward.wire import job_frames as wire

#: Starts the image's interpreter with a job, which then can't reply: there is no /workspace.
CHILD = """
import os, sys
from leeward.inside import image_python, main
image_python.pack(sys.modules)
job, reply = os.pipe(), os.pipe()
body = bytes.fromhex(sys.argv[1])
if not os.fork():
    image_python.start(body, (job[0], reply[1], -1))
os.wait()
"""


def ran(path: Path, code: str) -> str:
    """What the job in *code* prints by the interpreter in the folder *path*."""
    got = subprocess.run([sys.executable, "-c", CHILD, (wire.CODE + code.encode()).hex()], capture_output=True, text=True,
                         env={"PATH": str(path)}, check=False, timeout=60)
    return got.stdout + got.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with this Python, which has no environment of its own."""
    (tmp_path / "python3").symlink_to(os.path.realpath(sys.executable))
    return tmp_path


def test_another_interpreter_runs_a_job(path: Path) -> None:
    """Which sees nothing of leeward's, nor its msgpack."""
    said = ran(path, "import sys; print(__name__, sys.argv, sorted(name for name in sys.modules"
                            " if name.split('.')[0] in ('leeward', 'msgpack', 'cffi')), [x for x in sys.meta_path"
                            " if getattr(x, '__name__', '') == 'Sources'], sys.path[0])")

    assert "__main__ ['-c'] [] [] /workspace\n" == said


def test_its_errors_are_as_everywhere(path: Path) -> None:
    """No frame of leeward's is in a traceback."""
    said = ran(path, "def f():\n    1 / 0\nf()")

    assert said.startswith("Traceback (most recent call last):\n  File \"<string>\", line 3, in <module>\n    f()\n")
    assert said.endswith("\nZeroDivisionError: division by zero\n")


def test_without_one_the_process_says_so(tmp_path: Path) -> None:
    assert "leeward: the image has no python3, which runs code and kernels; run() starts programs\n" == ran(tmp_path, "1")
    (tmp_path / "python3").write_text("#!/nonexistent\n")
    (tmp_path / "python3").chmod(0o755)

    assert f"leeward: {tmp_path}/python3: No such file or directory\n" == ran(tmp_path, "1")


def test_one_that_is_too_old_says_so(path: Path) -> None:
    """Its version is told by what it runs first."""
    real = os.path.realpath(sys.executable)
    (path / "python3").unlink()
    (path / "python3").write_text(f"#!/bin/sh\ncode=\"import sys; sys.version_info = (3, 9, 2, 'final', 0)\n$2\"\nshift 2\n"
                                  f"exec {real} -c \"$code\" \"$@\"\n")
    (path / "python3").chmod(0o755)

    assert "leeward: the image's Python is 3.9, and code needs 3.11 or newer; run() starts it\n" == ran(path, "1")

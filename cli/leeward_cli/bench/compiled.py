"""
The floors that are written in C, compiled for the time of the bench.

Runs in:   the CLI.

They are no part of the installation: nobody but the bench runs them. Where there is no compiler
the hops are peers.py's, which take a little longer, and the bench says so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("floors.c")

_FLAGS = ("-std=c11", "-O2")


@contextlib.contextmanager
def floors() -> Iterator[str | None]:
    """
    The path of the program; None without a compiler that makes it.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        program = f"{folder}/floors"
        made = subprocess.run([*compiler, *_FLAGS, "-o", program, str(SOURCE)], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False)
        yield program if 0 == made.returncode else None

"""
The floors that are written in C, compiled for the time of the bench.

Runs in:   the CLI.

They aren't part of the installation, since only the bench runs them. Without a compiler
the hops are those of peers.py, which take a little longer, and the bench says so.
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
    """A context with the path of the compiled program; None if no compiler can make it."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        program = f"{folder}/floors"
        made = subprocess.run([*compiler, *_FLAGS, "-o", program, str(SOURCE)], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False)
        yield program if made.returncode == 0 else None

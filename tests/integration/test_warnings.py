"""
The C for the architecture that this machine isn't: no warning. For its own, the linters ask the compiler.

`./dev lint` asks too, where clang and the headers are; it installs neither, and `./dev test` does.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT, clang, other_headers


@pytest.mark.needs("other-architecture")
@pytest.mark.parametrize("builder", ["build_ffi.py", "build_client.py"])
def test_the_c_has_no_warning_for_the_other_architecture(builder: str) -> None:
    other = other_headers().parent.name.removesuffix("-linux-gnu")
    assert other != platform.machine()

    done = subprocess.run(
        [sys.executable, ROOT / builder, "--check"], cwd=ROOT, check=False, capture_output=True, text=True,
        env={**os.environ, "LEEWARD_PLATFORM": other,
             "CC": f"{clang()} --target={other} -nostdlibinc -isystem {other_headers()}"})

    assert (0, "") == (done.returncode, done.stdout + done.stderr)


@pytest.mark.needs("other-architecture")
def test_a_warning_is_found(tmp_path: Path) -> None:
    """The control: what only that architecture's compiler minds, a long that is put into an int there alone, say."""
    source = tmp_path / "fault.c"
    target = other_headers().parent.name
    machine = "__aarch64__" if target.startswith("aarch64") else "__x86_64__"
    source.write_text(f"#include <stdio.h>\n#ifdef {machine}\nint lost(long value) {{ return value; }}\n#endif\n")
    command = [clang(), f"--target={target.removesuffix('-gnu')}", "-nostdlibinc", "-isystem", other_headers(), "-c",
               "-o", os.devnull, "-Wconversion", "-Werror", source]

    assert b"-Wshorten-64-to-32" in subprocess.run(command, check=False, capture_output=True).stderr

"""
What is handed to others: wheels for other platforms and what audits them, the package for Debian.

The default run holds the audit to a wheel that isn't what it says. LEEWARD_LONG=1 builds everything, as the
commands of docs/packaging.md do.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from features import ROOT

AUDIT = runpy.run_path(str(ROOT / "packaging/audit.py"))["audit"]

#: Seconds. Four wheels, with a C library for two, on two cores that do something else as well.
BUILD_S = 3600


def renamed(wheel: Path, tag: str, folder: Path) -> Path:
    """
    The same wheel by another name, and by that name inside too.
    """
    parts = wheel.stem.split("-")
    other = folder / f"{'-'.join([*parts[:4], tag])}.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(other, "w") as copy:
        for member in source.infolist():
            data = source.read(member)
            if member.filename.endswith("/WHEEL"):
                data = data.replace(parts[4].encode(), tag.encode())
            copy.writestr(member, data)
    return other


@pytest.mark.needs("x86-64")
@pytest.mark.parametrize(("tag", "faults"), [
    ("manylinux_2_5_x86_64", ("_shim.abi3.so: needs GLIBC_2.",)),
    ("manylinux_2_99_aarch64", ("_shim.abi3.so: is for Advanced Micro Devices X86-64",
                                "leeward: is for Advanced Micro Devices X86-64",
                                "libleeward.a: is for Advanced Micro Devices X86-64")),
    ("musllinux_1_2_x86_64", ("_shim.abi3.so: needs libc.so.6", "libleeward.so.0: was linked with glibc")),
    ("manylinux_2_99_riscv64", ("manylinux_2_99_riscv64 is no platform of leeward's",)),
])
def test_the_audit_finds_a_tag_that_is_not_true(wheel, tmp_path, tag, faults):
    """
    This machine's own wheel, under names of other platforms.
    """
    found = AUDIT(renamed(wheel, tag, tmp_path))

    for fault in faults:
        assert [line for line in found if fault in line], found


def test_the_audit_reads_what_the_wheel_says_of_itself(wheel, tmp_path):
    """
    A file that was only renamed.
    """
    other = tmp_path / wheel.name.replace("linux_", "manylinux_2_99_")
    shutil.copyfile(wheel, other)

    assert [line for line in AUDIT(other) if line.startswith("its WHEEL doesn't say cp311-abi3-manylinux_2_99_")]


if os.environ.get("LEEWARD_LONG"):
    @pytest.mark.timeout(BUILD_S)
    @pytest.mark.needs("root", "compiler")
    def test_the_wheels_for_every_platform_are_what_they_say():
        done = subprocess.run([ROOT / "dev", "build", "--all"], capture_output=True, text=True, check=False)

        assert 0 == done.returncode, done.stderr
        assert 4 == done.stdout.count(".whl: audited, ")
        assert 4 == done.stderr.count("leeward: shim built; transport: socket only\n")

    @pytest.mark.timeout(BUILD_S)
    @pytest.mark.needs("root", "compiler", "x86-64")
    def test_the_shim_for_aarch64_passes_its_unit_tests():
        done = subprocess.run([ROOT / "dev", "emulate"], capture_output=True, text=True, check=False)

        assert 0 == done.returncode, done.stdout + done.stderr

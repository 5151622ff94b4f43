"""
What is handed to others: wheels for other platforms and what audits them, the package for Debian.

The default run holds the audit to a wheel that isn't what it says. LEEWARD_LONG=1 builds everything, as the
commands of docs/packaging.md do.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from kit.features import ROOT
from leeward_cli import full
from leeward_cli.daemon_commands import daemon

AUDIT = runpy.run_path(str(ROOT / "packaging/audit.py"))["audit"]

#: Seconds. Four wheels, with a C library for two, on two cores that do something else as well.
BUILD_S = 3600


def renamed(wheel: Path, tag: str, folder: Path) -> Path:
    """The same wheel by another name, and by that name inside too."""
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
    """This machine's own wheel, under names of other platforms."""
    found = AUDIT(renamed(wheel, tag, tmp_path))

    for fault in faults:
        assert [line for line in found if fault in line], found


def test_the_audit_reads_the_wheels_own_metadata(wheel, tmp_path):
    """A file that was only renamed."""
    other = tmp_path / wheel.name.replace("linux_", "manylinux_2_99_")
    shutil.copyfile(wheel, other)

    assert [line for line in AUDIT(other) if line.startswith("its WHEEL doesn't say cp311-abi3-manylinux_2_99_")]


DEBIAN = ROOT / "packaging/debian"

#: Debian's packages for those that aren't called python3-NAME.
DEBIANS_NAMES = {"cffi": "python3-cffi-backend"}


def test_the_debian_package_has_leewards_dependencies():
    """
    The same libraries in the same versions as pyproject.toml, and no others; and it suggests those of egress and of the
    page of approvals.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    depends, _, suggests = (DEBIAN / "control").read_text().split("\nPackage: ")[1].partition("\nSuggests:")

    assert {**_debians(project["dependencies"]),
            "python3": project["requires-python"].removeprefix(">=")} == _stated(depends)
    extras = project["optional-dependencies"]
    assert _debians([*extras["egress"], *extras["web"]]) == _stated(suggests)


def _stated(fields):
    return dict(re.findall(r"^ (python3[\w-]*) \(>= ([\d.]+)\),$", fields, re.MULTILINE))


def _debians(requirements):
    wanted = dict(requirement.partition(";")[0].split(">=") for requirement in requirements)
    return {DEBIANS_NAMES.get(name, f"python3-{name}"): version for name, version in wanted.items()}


def test_debians_package_is_of_this_version():
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "leeward/__init__.py").read_text(), re.MULTILINE)

    assert (DEBIAN / "changelog").read_text().startswith(f"leeward ({version[1]}-")


def test_the_manual_page_has_every_command():
    page = (ROOT / "packaging/leeward.1").read_text().replace(r"\-", "-")
    commands = [name for name in full.commands() if "daemon" != name]
    commands += [f"daemon {name}" for name in daemon.commands]

    assert len(commands) > 10
    assert [] == [name for name in commands if not re.search(rf"^\.B.*\b{name}\b", page, re.MULTILINE)]


if os.environ.get("LEEWARD_LONG"):
    @pytest.mark.timeout(BUILD_S)
    @pytest.mark.needs("root", "compiler")
    def test_the_wheels_match_their_platform_tags():
        done = subprocess.run([ROOT / "dev", "build", "--all"], capture_output=True, text=True, check=False)

        assert 0 == done.returncode, done.stderr
        assert 5 == done.stdout.count(".whl: audited, ")
        assert 4 == done.stderr.count("leeward: shim built; transport: socket only, as liburing for another platform")

    @pytest.mark.timeout(BUILD_S)
    @pytest.mark.needs("root", "compiler", "x86-64")
    def test_the_shim_for_aarch64_passes_its_unit_tests():
        done = subprocess.run([ROOT / "dev", "emulate"], capture_output=True, text=True, check=False)

        assert 0 == done.returncode, done.stdout + done.stderr

    @pytest.mark.timeout(BUILD_S)
    @pytest.mark.needs("root", "debian")
    def test_the_packages_for_debian_run_a_job_in_a_minimal_root_and_purge_cleanly():
        done = subprocess.run([ROOT / "dev", "deb", "--try"], capture_output=True, text=True, check=False)

        assert 0 == done.returncode, done.stderr
        assert "a job in the package: 42 1000\n" in done.stdout
        assert "a job of its daemon: 42\n" in done.stdout
        assert "purged, and nothing is left\n" in done.stdout

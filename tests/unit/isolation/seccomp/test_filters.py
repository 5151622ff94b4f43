"""
The programs in the package: the table's, all of them, and small.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leeward.errors import Unsupported
from leeward.isolation.seccomp import bpf, filters
from leeward.isolation.seccomp import programs as module
from leeward.isolation.seccomp.__main__ import programs
from leeward.isolation.seccomp.compile import check
from leeward.isolation.seccomp.plan import init_plan, plan
from leeward.isolation.seccomp.syscalls import ARCHES

HOSTS = [(arch, counted, fixed) for arch in ARCHES for counted in (True, False) for fixed in (True, False)]


def test_they_are_made_from_the_table() -> None:
    """
    `python -m leeward.isolation.seccomp programs` prints the module.
    """
    assert programs() == Path(module.__file__).read_text()


@pytest.mark.parametrize(("arch", "counted", "fixed"), HOSTS)
def test_a_host_gets_the_program_of_its_plan(arch: str, counted: bool, fixed: bool) -> None:
    wanted = plan(memory_counted=counted, affinity_fixed=fixed, arch=arch)
    program = filters.program(memory_counted=counted, affinity_fixed=fixed, arch=arch)
    check(wanted, bpf.disassemble(program.insns))

    assert wanted.rules == program.rules
    assert len(program.insns) == 8 * program.instructions


@pytest.mark.parametrize("arch", ARCHES)
def test_the_inits_is_tiny(arch: str) -> None:
    """
    One question for the architecture, one for the number.
    """
    program = bpf.disassemble(filters.init_program(arch))
    check(init_plan(arch), program)

    assert len(program) < 20


@pytest.mark.parametrize(("arch", "counted", "fixed"), HOSTS)
def test_its_size_is_what_a_job_pays_for(arch: str, counted: bool, fixed: bool) -> None:
    """
    Each job installs the filter, at a cost by the instruction: a table that doubles it should be noticed.
    """
    assert filters.program(memory_counted=counted, affinity_fixed=fixed, arch=arch).instructions < 256


@pytest.mark.parametrize("arch", ["i686", "armv7l", "aarch64_be", "riscv64", ""])
def test_no_other_architecture_has_one(arch: str) -> None:
    """
    Better no start than a filter for another machine.
    """
    with pytest.raises(Unsupported, match=r"seccomp.*x86_64 or aarch64"):
        filters.program(memory_counted=True, affinity_fixed=False, arch=arch)
    with pytest.raises(Unsupported, match=r"seccomp.*x86_64 or aarch64"):
        filters.init_program(arch)

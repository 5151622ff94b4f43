"""The programs in the package: the table's, all of them, and small."""

from __future__ import annotations

import pytest

from kit.bpf import disassemble
from leeward.errors import Unsupported
from leeward.isolation.seccomp import filters
from leeward.isolation.seccomp.compiler.compile import check
from leeward.isolation.seccomp.compiler.plan import init_plan, plan
from leeward.isolation.seccomp.compiler.texts import WIDENED
from leeward.isolation.seccomp.syscalls import ARCHES

HOSTS = [(arch, counted, fixed) for arch in ARCHES for counted in (True, False) for fixed in (True, False)]


@pytest.mark.parametrize(("arch", "counted", "fixed"), HOSTS)
@pytest.mark.parametrize("name", WIDENED)
def test_a_host_gets_the_program_of_its_plan(name: str, arch: str, counted: bool, fixed: bool) -> None:
    wanted = plan(memory_counted=counted, affinity_fixed=fixed, arch=arch, **WIDENED[name])
    program = filters.program(memory_counted=counted, affinity_fixed=fixed, arch=arch, **WIDENED[name])
    check(wanted, disassemble(program.insns))

    assert wanted.rules == program.rules
    assert program.instructions < 440


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", WIDENED)
def test_workers_of_one_user_have_a_program_of_their_own(name: str, arch: str, fixed: bool) -> None:
    """But where no cgroup counts memory, when the supervisor is asked for watches whoever the worker is."""
    def made(counted: bool, shared: bool) -> filters.Program:
        return filters.program(memory_counted=counted, affinity_fixed=fixed, arch=arch, shared=shared, **WIDENED[name])

    check(plan(memory_counted=True, affinity_fixed=fixed, arch=arch, shared=True, **WIDENED[name]),
          disassemble(made(True, True).insns))
    assert made(True, True) != made(True, False)
    assert made(False, True) == made(False, False)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_filter_of_the_init_is_tiny(arch: str) -> None:
    """One question for the architecture, one for the number."""
    program = disassemble(filters.init_program(arch))
    check(init_plan(arch), program)

    assert len(program) < 20


@pytest.mark.parametrize(("arch", "counted", "fixed"), HOSTS)
def test_a_filters_size_is_bounded(arch: str, counted: bool, fixed: bool) -> None:
    """Each job installs the filter, at a cost by the instruction: a table that doubles it should be noticed."""
    assert filters.program(memory_counted=counted, affinity_fixed=fixed, arch=arch).instructions < 330


@pytest.mark.parametrize("arch", ["i686", "armv7l", "aarch64_be", "riscv64", ""])
def test_no_other_architecture_has_one(arch: str) -> None:
    """Better no start than a filter for another machine."""
    with pytest.raises(Unsupported, match=r"seccomp.*x86_64 or aarch64"):
        filters.program(memory_counted=True, affinity_fixed=False, arch=arch)
    with pytest.raises(Unsupported, match=r"seccomp.*x86_64 or aarch64"):
        filters.init_program(arch)

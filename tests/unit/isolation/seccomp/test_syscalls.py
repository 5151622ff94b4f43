"""The numbers of system calls, against libseccomp's as a witness."""

from __future__ import annotations

import pyseccomp
import pytest

from leeward.isolation.seccomp.syscalls import ALL, ARCHES, NAMES, NUMBERS, name_of

UNKNOWN = -1


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_are_those_of_libseccomp(arch: str) -> None:
    """Where libseccomp knows a name, its number is ours; it knows all but the newest."""
    token = getattr(pyseccomp.Arch, arch.upper())
    theirs = {name: pyseccomp.resolve_syscall(token, name) for name in NUMBERS[arch]}

    assert {} == {name: number for name, number in theirs.items() if number not in (UNKNOWN, NUMBERS[arch][name])}
    assert all(NUMBERS[arch][name] in (335, 336) or NUMBERS[arch][name] > 456
               for name, number in theirs.items() if UNKNOWN == number)


@pytest.mark.parametrize("arch", ARCHES)
def test_no_call_of_libseccomp_is_missing(arch: str) -> None:
    """Every number below the newest is either named here or named by nobody."""
    token = getattr(pyseccomp.Arch, arch.upper())

    for number in set(range(max(NAMES[arch]) + 1)) - set(NAMES[arch]):
        with pytest.raises(ValueError, match="Unknown syscall"):
            pyseccomp.resolve_syscall(token, number)


def test_no_number_has_two_names() -> None:
    """The table can be read both ways."""
    assert [(len(ALL), len(ALL))] == [(len(set(ALL)), len(NUMBERS["x86_64"]))]
    for arch in ARCHES:
        assert len(NUMBERS[arch]) == len(NAMES[arch])


def test_a_number_without_a_name_gets_one() -> None:
    """Results name every call, also those that no kernel has."""
    assert "openat" == name_of(257, "x86_64")
    assert "openat" == name_of(56, "aarch64")
    assert "syscall_9999" == name_of(9999, "x86_64")
    assert "syscall_1" == name_of(1, "riscv64")

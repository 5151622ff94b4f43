"""
Chooses the filter for this host among the programs of the package.

`compiler` makes the programs when leeward is developed. Before each is a line with the architecture, its circumstances
and the number of the table's rows that count there; then come its instructions in hexadecimal digits, little-endian as
both architectures are, and an empty line.
"""

from __future__ import annotations

from leeward.base.dataclass import dataclass
from leeward.errors import Bug, Unsupported

_FOLDER = __file__.rpartition("/")[0] + "/programs"


@dataclass(frozen=True, slots=True)
class Program:
    """A filter, ready for seccomp(2): BPF instructions of 8 bytes each, for so many *rules*, rows of the table."""

    insns: bytes
    rules: int

    @property
    def instructions(self) -> int:
        return len(self.insns) // 8


def program(*, memory_counted: bool, affinity_fixed: bool, arch: str, loopback: bool = False,
            terminal: bool = False, host: bool = False, shared: bool = False, root: bool = False) -> Program:
    """The filter of a job; `plan.plan` explains the arguments. Unsupported if there is none for *arch*."""
    if host and (loopback or root):
        raise Bug("there is no filter for TCP or an image's root where the host is in view")
    asked = (("host", host), ("root", root), ("loopback", loopback), ("terminal", terminal))
    widened = "_".join(name for name, wanted in asked if wanted)
    # If no cgroup counts memory, the supervisor decides on watches with or without a shared user id: one program serves
    # both cases.
    memory = "uncounted" if not memory_counted else "shared" if shared else "counted"
    return _packaged(widened or "usual", arch, memory, "fixed" if affinity_fixed else "free")


def init_program(arch: str) -> bytes:
    """The filter of the sandbox's init, which may wait, exit and wake the keeper. Any other call kills it."""
    return _packaged("init", arch).insns


def broker_program(arch: str) -> bytes:
    return _packaged("broker", arch).insns


def _packaged(name: str, arch: str, *circumstances: str) -> Program:
    with open(f"{_FOLDER}/{name}.txt") as file:
        _, found, rest = file.read().partition(f"\n{' '.join((arch, *circumstances))} ")
    if not found:
        raise Unsupported("seccomp", have=arch, need="x86_64 or aarch64")
    rules, _, digits = rest.partition("\n\n")[0].partition("\n")
    return Program(bytes.fromhex(digits), int(rules))

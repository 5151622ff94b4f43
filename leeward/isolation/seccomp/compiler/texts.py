"""
What is made from the table (`./dev generate`): docs/seccomp.md, and the programs of the package, as `filters` reads
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from leeward.isolation.seccomp.compiler import bpf
from leeward.isolation.seccomp.compiler.compile import compile
from leeward.isolation.seccomp.compiler.plan import SeccompPlan, broker_plan, init_plan, plan
from leeward.isolation.seccomp.rules import NOTIFY, Needs, Rule
from leeward.isolation.seccomp.syscalls import ARCHES, NUMBERS
from leeward.isolation.seccomp.table import RULES

HEAD = f"""\
# System calls

The system calls that a job may make, and why. `./dev generate` makes this page from
`leeward/isolation/seccomp/table.py` and the `widen_*.py` beside it. For each call the first row decides whose arguments
match. A call without such a row, and each call that a row refuses with EACCES, goes to the supervisor, which refuses,
counts and logs it, unless the row says otherwise. Numbers that no call has, including -1, get ENOSYS; calls of another
architecture, and x32, kill the process.
Of {len(NUMBERS["x86_64"])} calls of x86_64, aarch64 has {len(NUMBERS["aarch64"])}; rows for others have no effect.

| calls | with | what happens | why |
| --- | --- | --- | --- |
"""


def listing() -> str:
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for (action, reason, needs), group in groupby(RULES, key=lambda rule: (rule.action, rule.reason, rule.needs)):
        members = list(group)
        calls = " ".join(f"`{name}`" for name in dict.fromkeys(rule.name for rule in members))
        otherwise = "" if needs in _TOLD else f"; else {NOTIFY.text}"
        described = f"{action.text} {needs.value}{otherwise}" if needs is not Needs.NOTHING else action.text
        yield f"| {calls} | {_arguments(members)} | {described} | {reason} |\n"


def _arguments(members: list[Rule]) -> str:
    shown = dict.fromkeys(" and ".join(test.text for test in rule.tests) for rule in members if rule.tests)
    return ", ".join(f"`{text}`" for text in shown)


#: What says itself what happens elsewhere, or is said by another row of the same call.
_TOLD = (Needs.MEMORY_CHARGED, Needs.WATCHES_GRANTED, Needs.ROOT, Needs.NOT_ROOT)

#: Bytes of a line: seven instructions.
_LINE = 56

#: The files of jobs' programs, and the arguments of `plan` for each: what an operator can add, beside the usual.
WIDENED: dict[str, dict[str, bool]] = {
    "usual": {}, "loopback": {"loopback": True}, "terminal": {"terminal": True},
    "loopback_terminal": {"loopback": True, "terminal": True},
    "root": {"root": True}, "root_loopback": {"root": True, "loopback": True},
    "root_terminal": {"root": True, "terminal": True},
    "root_loopback_terminal": {"root": True, "loopback": True, "terminal": True},
    "host": {"host": True}, "host_terminal": {"host": True, "terminal": True},
}


def programs() -> dict[str, str]:
    """The texts of the files with programs, by their names."""
    return {
        **{f"{name}.txt": "".join(_jobs(more)) for name, more in WIDENED.items()},
        "init.txt": "".join(_shown(arch, init_plan(arch)) for arch in ARCHES),
        "broker.txt": "".join(_shown(arch, broker_plan(arch)) for arch in ARCHES),
    }


def _jobs(more: dict[str, bool]) -> Iterator[str]:
    for arch in ARCHES:
        for memory in ("counted", "uncounted", "shared"):
            for fixed in (True, False):
                yield _shown(f"{arch} {memory} {'fixed' if fixed else 'free'}",
                             plan(memory_counted=memory != "uncounted", affinity_fixed=fixed, arch=arch,
                                  shared=memory == "shared", **more))


def _shown(key: str, made: SeccompPlan) -> str:
    """A line with the key and the number of rows of the table that count, the instructions, and an empty line."""
    program = bpf.assemble(compile(made))
    lines = (program[at:at + _LINE].hex() for at in range(0, len(program), _LINE))
    return "\n".join([f"{key} {made.rules}", *lines, "\n"])

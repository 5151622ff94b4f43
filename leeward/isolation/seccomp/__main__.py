"""
Prints what is made from the table: docs/seccomp.md, or with `programs` the module of that name.

    python -m leeward.isolation.seccomp >docs/seccomp.md
    python -m leeward.isolation.seccomp programs >leeward/isolation/seccomp/programs.py

Runs in:   a developer's shell, and the tests that keep both true.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

from leeward.isolation.seccomp import bpf
from leeward.isolation.seccomp.compile import compile
from leeward.isolation.seccomp.plan import SeccompPlan, init_plan, plan
from leeward.isolation.seccomp.rules import NOTIFY, Needs, Rule
from leeward.isolation.seccomp.syscalls import ARCHES, NUMBERS
from leeward.isolation.seccomp.table import RULES

HEAD = f"""\
# System calls

What a job may call, and why; made from `leeward/isolation/seccomp/table.py` by
`python -m leeward.isolation.seccomp`. The first row of a call whose arguments fit decides. Where none does,
and for all that a row refuses with EACCES, the supervisor answers, counts and logs. Numbers that no call has,
-1 among them, get ENOSYS; calls of another architecture, and x32, end the process. Of {len(NUMBERS["x86_64"])} calls
x86_64 has, aarch64 has {len(NUMBERS["aarch64"])}; rows for others have no effect there.

| calls | with | what happens | why |
| --- | --- | --- | --- |
"""


def listing() -> str:
    """
    The whole document.
    """
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for (action, reason, needs), group in groupby(RULES, key=lambda rule: (rule.action, rule.reason, rule.needs)):
        members = list(group)
        calls = " ".join(f"`{name}`" for name in dict.fromkeys(rule.name for rule in members))
        told = f"{action.text} {needs.value}; else {NOTIFY.text}" if Needs.NOTHING is not needs else action.text
        yield f"| {calls} | {_arguments(members)} | {told} | {reason} |\n"


def _arguments(members: list[Rule]) -> str:
    shown = dict.fromkeys(" and ".join(test.text for test in rule.tests) for rule in members if rule.tests)
    return ", ".join(f"`{text}`" for text in shown)


PROGRAMS_HEAD = '''\
"""
The filters as the kernel gets them: made from `table` by `python -m leeward.isolation.seccomp programs`.

Runs in:   the daemon; pure data. Little-endian, as both architectures are.
"""

from __future__ import annotations

'''

#: Bytes of a line: seven instructions.
_LINE = 56


def programs() -> str:
    """
    The whole module.
    """
    both = (True, False)
    lines = [PROGRAMS_HEAD, "#: By architecture, whether a cgroup counts memory, and whether the affinity is fixed.\n",
             "#: Rows of the table that count there, and instructions.\n", "PROGRAMS = {\n"]
    for arch in ARCHES:
        for counted in both:
            for fixed in both:
                made = plan(memory_counted=counted, affinity_fixed=fixed, arch=arch)
                lines += [f'    ("{arch}", {counted}, {fixed}): ({made.rules}, (\n', *_hex(made, 8), "    )),\n"]
    lines += ["}\n\n#: Of the sandbox's init, by architecture.\n", "INIT = {\n"]
    for arch in ARCHES:
        lines += [f'    "{arch}": (\n', *_hex(init_plan(arch), 8), "    ),\n"]
    return "".join([*lines, "}\n"])


def _hex(plan: SeccompPlan, indent: int) -> Iterator[str]:
    program = bpf.assemble(compile(plan))
    for at in range(0, len(program), _LINE):
        yield f'{" " * indent}"{program[at:at + _LINE].hex()}"\n'


if __name__ == "__main__":
    print(programs() if ["programs"] == sys.argv[1:] else listing(), end="")

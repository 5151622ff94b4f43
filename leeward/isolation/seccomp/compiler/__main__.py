"""
Prints a file that is generated from the table: docs/seccomp.md, or with an argument a module of compiled filters.

    python -m leeward.isolation.seccomp.compiler >docs/seccomp.md
    python -m leeward.isolation.seccomp.compiler programs >leeward/isolation/seccomp/_generated_programs.py
    for what in broker loopback terminal loopback_terminal host host_terminal; do
        python -m leeward.isolation.seccomp.compiler $what >leeward/isolation/seccomp/_generated_$what.py
    done

Runs in:   a developer's shell, and the tests that compare these files with the table.
"""

from __future__ import annotations

import sys
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

The system calls that a job may make, and why. `python -m leeward.isolation.seccomp.compiler` makes this page from
`leeward/isolation/seccomp/table.py` and the `widen_*.py` beside it. For each call the first row decides whose arguments
match. A call without such a row, and each call that a row refuses with EACCES, goes to the supervisor, which refuses,
counts and logs it, unless the row says otherwise. Numbers that no call has, including -1, get ENOSYS; calls of another
architecture, and x32, kill the process.
Of {len(NUMBERS["x86_64"])} calls of x86_64, aarch64 has {len(NUMBERS["aarch64"])}; rows for others have no effect.

| calls | with | what happens | why |
| --- | --- | --- | --- |
"""


def listing() -> str:
    """The text of docs/seccomp.md."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for (action, reason, needs), group in groupby(RULES, key=lambda rule: (rule.action, rule.reason, rule.needs)):
        members = list(group)
        calls = " ".join(f"`{name}`" for name in dict.fromkeys(rule.name for rule in members))
        otherwise = "" if needs in (Needs.MEMORY_CHARGED, Needs.WATCHES_GRANTED) else f"; else {NOTIFY.text}"
        described = f"{action.text} {needs.value}{otherwise}" if Needs.NOTHING is not needs else action.text
        yield f"| {calls} | {_arguments(members)} | {described} | {reason} |\n"


def _arguments(members: list[Rule]) -> str:
    shown = dict.fromkeys(" and ".join(test.text for test in rule.tests) for rule in members if rule.tests)
    return ", ".join(f"`{text}`" for text in shown)


PROGRAMS_HEAD = '''\
"""
The filters as the kernel gets them, made by `python -m leeward.isolation.seccomp.compiler programs`.

Runs in:   the daemon; pure data. Little-endian, as both architectures are.
"""

from __future__ import annotations

'''

#: Bytes of a line: seven instructions.
_LINE = 56


#: The modules of programs with optional rows, and the arguments of `plan` for each.
WIDENED: dict[str, dict[str, bool]] = {
    "loopback": {"loopback": True}, "terminal": {"terminal": True},
    "loopback_terminal": {"loopback": True, "terminal": True},
    "host": {"host": True}, "host_terminal": {"host": True, "terminal": True},
}


def programs(widened: str = "") -> str:
    """
    The text of the module of programs; if *widened* isn't empty, of that module of WIDENED, without the init's program,
    which is the same.
    """
    both = (True, False)
    more = WIDENED.get(widened, {})
    lines = [PROGRAMS_HEAD, "#: By architecture, whether a cgroup counts memory, and whether the affinity is fixed.\n",
             "#: Rows of the table that count there, and instructions.\n", "PROGRAMS = {\n"]
    for arch in ARCHES:
        for counted in both:
            for fixed in both:
                made = plan(memory_counted=counted, affinity_fixed=fixed, arch=arch, **more)
                lines += [f'    ("{arch}", {counted}, {fixed}): ({made.rules}, (\n', *_hex(made), "    )),\n"]
    lines += ["}\n\n#: Where a cgroup counts memory and workers share a user id.\n",
              "#: By architecture, and whether the affinity is fixed.\n", "SHARED = {\n"]
    for arch in ARCHES:
        for fixed in both:
            made = plan(memory_counted=True, affinity_fixed=fixed, arch=arch, shared=True, **more)
            lines += [f'    ("{arch}", {fixed}): ({made.rules}, (\n', *_hex(made), "    )),\n"]
    if widened:
        return "".join([*lines, "}\n"]).replace("compiler programs`", f"compiler {widened}`")
    lines += ["}\n\n#: Of the sandbox's init, by architecture.\n", "INIT = {\n"]
    for arch in ARCHES:
        lines += [f'    "{arch}": (\n', *_hex(init_plan(arch)), "    ),\n"]
    return "".join([*lines, "}\n"])


def broker() -> str:
    """The text of the module with the broker's programs."""
    lines = [PROGRAMS_HEAD.replace("The filters as the kernel gets them", "The egress broker's filter")
             .replace("compiler programs`", "compiler broker`"), "#: By architecture.\n", "BROKER = {\n"]
    for arch in ARCHES:
        lines += [f'    "{arch}": (\n', *_hex(broker_plan(arch)), "    ),\n"]
    return "".join([*lines, "}\n"])


def _hex(plan: SeccompPlan) -> Iterator[str]:
    program = bpf.assemble(compile(plan))
    for at in range(0, len(program), _LINE):
        yield f'        "{program[at:at + _LINE].hex()}"\n'


if __name__ == "__main__":
    what = "".join(sys.argv[1:])
    print(broker() if what == "broker" else programs("" if what == "programs" else what) if what else listing(), end="")

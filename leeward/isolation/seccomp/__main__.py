"""
Prints the table as docs/seccomp.md has it: `python -m leeward.isolation.seccomp`.

Runs in:   a developer's shell, and the test that keeps the document true.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from leeward.isolation.seccomp.rules import NOTIFY, Needs, Rule
from leeward.isolation.seccomp.syscalls import NUMBERS
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


if __name__ == "__main__":
    print(listing(), end="")

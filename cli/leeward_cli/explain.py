"""`leeward explain NAME`: a name in a result's `denied`, by the rows of the table of system calls, and what allows it."""

from __future__ import annotations

import difflib
from itertools import groupby

from leeward.errors import BadRequest
from leeward.isolation.seccomp.rules import NOTIFY, Needs, Rule
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward.isolation.seccomp.table import RULES

_NETWORK = """\
network: the job asked for a socket that isn't a Unix socket, or to resolve a name. There is no network in the sandbox,
unless a policy of egress is named.
  to allow it     a policy of the daemon's configuration, `[egress.NAME]`, and `--egress NAME` with the request
  instead         give the job what it needs as files or standard input
  for servers     `loopback = true` in the daemon's configuration lets a job use TCP and UDP on 127.0.0.1 and ::1, for
                  servers and their clients within the job
"""

_LOOPBACK = """\
loopback: the job asked for TCP or UDP, and a sandbox has neither until the operator says so, not even within itself.
  to allow it     `loopback = true` in the daemon's configuration, or a profile that has it (`leeward profiles`):
                  servers and their clients within the job, on 127.0.0.1 and ::1
  instead         Unix sockets, pipes, multiprocessing.Pipe and socket.socketpair() work as they are
  what it costs   a part of the kernel more in the reach of jobs; nothing leaves the sandbox by it
"""

_TERMINAL = """\
terminal: the job asked for a terminal of its own making (pty, pexpect, script, tmux), and may not have one.
  to allow it     `terminal = true` in the daemon's configuration: a devpts of the job's own, 16 terminals at most
  instead         pipes; `leeward shell` and a sandbox's terminal are made outside, and need no such right
  what it costs   a part of the kernel more in the reach of jobs
"""

#: Explanations of names that aren't system calls.
_TOPICS = {"network": _NETWORK, "loopback": _LOOPBACK, "terminal": _TERMINAL}

_NAMES = sorted({name for numbers in NUMBERS.values() for name in numbers})


def explain(name: str) -> str:
    """
    The explanation of *name*: a system call, or one of "network", "loopback" and "terminal"; BadRequest if it is
    neither.
    """
    if name in _TOPICS:
        return _TOPICS[name]
    if name not in _NAMES:
        near = difflib.get_close_matches(name, [*_TOPICS, *_NAMES], 1)
        raise BadRequest(f"there is no system call {name!r:.80}" + (
            f"; did you mean {near[0]!r}?" if near else "; a job's number, a sandbox's id and the words"
            f" {', '.join(_TOPICS)} can be explained as well"))
    rules = [rule for rule in RULES if name == rule.name]
    lines = [f"{name}: refused with EACCES, and counted in `denied`, " +
             ("where no row below applies" if any(rule.action != NOTIFY for rule in rules) else "in any case"),
             *(line for _, rows in groupby(rules, key=lambda rule: (rule.action, rule.reason, rule.needs))
               for line in _row(list(rows)))]
    return "\n".join(lines) + "\n"


def _row(rules: list[Rule]) -> list[str]:
    """Lines for rules that differ only in their tests of arguments."""
    rule = rules[0]
    tests = ", ".join(" and ".join(test.text for test in each.tests) for each in rules if each.tests)
    only = "" if Needs.NOTHING is rule.needs else f", {rule.needs.value}"
    return [f"  {rule.action.text}{only}", *([f"    with {tests}"] if tests else []), f"    {rule.reason}"]

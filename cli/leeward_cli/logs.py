"""
`leeward logs`, and `leeward explain`: how and why jobs and sandboxes of the user ended, and what they were denied.

Trust:     none in titles and in names of refused calls: they are shown escaped.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import click

from leeward.base.hints import LIMITS
from leeward.client.daemon_rows import ends, is_fine, name_of
from leeward.errors import BadRequest
from leeward.isolation.seccomp.rules import NOTIFY, Needs, Rule
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward.isolation.seccomp.table import RULES
from leeward.spec.paths import client_socket
from leeward.spec.sizes import size_text
from leeward.wire.sandbox_ids import ID_LENGTH
from leeward_cli.click_options import FOLLOW, JSON_LINES, SOCKET
from leeward_cli.egress_log import explained
from leeward_cli.sandbox_names import asked_id, is_id
from leeward_cli.terminal_rows import matches, plain, second
from leeward_cli.terminal_rows import show as show_rows

_CEILING = "up to the ceiling of the daemon's configuration (`leeward daemon run --print-config`)"

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

_TOPICS = {"network": _NETWORK, "loopback": _LOOPBACK, "terminal": _TERMINAL}

_NAMES = sorted({name for numbers in NUMBERS.values() for name in numbers})

_OUTCOMES = {
    "finished": "ran to its end",
    "raised": "an exception left its main module",
    "signalled": "a signal ended its main process",
    "timed_out": "was ended when its time was up",
    "out_of_memory": "was ended at its memory limit",
    "output_limit": "was ended when it had written too much",
    "internal": "was lost by a fault of leeward or the host",
}


def line(row: Mapping[str, Any]) -> str:
    how = [str(row.get("outcome") or row.get("reason") or "")]
    if row.get("exit_code"):
        how.append(f"exit {row['exit_code']}")
    if row.get("limit"):
        how.append(f"limit {row['limit']}")
    if row.get("denied"):
        how.append("denied " + " ".join(f"{call}:{count}" for call, count in sorted(row["denied"].items())))
    if row.get("seconds") is not None:
        how.append(f"{row['seconds']:.3f}s")
    how += [str(row[field]) for field in ("error", "detail", "title") if row.get(field)]
    return f"{second(row['time'])}  {name_of(row)}  {'  '.join(how)}"


def explained_name(name: str) -> str:
    """The explanation of *name*: a system call, or "network", "loopback" or "terminal"; BadRequest if it is neither."""
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
               for line in _rule_lines(list(rows)))]
    return "\n".join(lines) + "\n"


def _rule_lines(rules: list[Rule]) -> list[str]:
    rule = rules[0]
    tests = ", ".join(" and ".join(test.text for test in each.tests) for each in rules if each.tests)
    only = "" if rule.needs is Needs.NOTHING else f", {rule.needs.value}"
    return [f"  {rule.action.text}{only}", *([f"    with {tests}"] if tests else []), f"    {rule.reason}"]


def is_end(asked: str) -> bool:
    """Whether *asked* has the form of a job's number or a sandbox's id."""
    return asked.isdecimal() or is_id(asked)


def show(path: str, asked: str, follow: bool, as_json: bool) -> None:
    """Print the rows of the job or sandbox *asked*, or all rows if it is ""; BadRequest if it is neither."""
    if asked and not is_end(asked):
        raise BadRequest(f"{asked!r:.80} is neither a job's number nor a sandbox's id of {ID_LENGTH} characters;"
                         " `leeward logs` without it shows both")
    show_rows(ends(path).pages(follow), line, asked, as_json,
              f"the daemon remembers no end of {asked}" if asked else "no job or sandbox of yours has ended yet")


def of(path: str, asked: str) -> str:
    """All that is known about the job or sandbox *asked*, as text; "" stands for the last one that didn't end normally."""
    wanted = [row for row in ends(path).rows() if (matches(row, asked) if asked else not is_fine(row))]
    if not wanted:
        raise BadRequest(f"the daemon remembers no job or sandbox {asked!r} of yours: `leeward logs` lists what it does"
                         if asked else "nothing that the daemon remembers of you ended by a limit, a signal or a fault,"
                         " and nothing was denied")
    return "".join(plain(text) + "\n" for text in (*_summary(wanted[-1]), *explained(path, wanted[-1])))


def _outcome(row: Mapping[str, Any]) -> str:
    outcome = row.get("outcome") or ""
    if outcome == "internal" and (row.get("error") or "").startswith("Ended: "):
        return "was ended"  # the error says why, such as that no client waited
    return _OUTCOMES.get(outcome, outcome or "over")


def _summary(row: Mapping[str, Any]) -> list[str]:
    lines = [f"{name_of(row)}: {_outcome(row)}"
             + (f", exit status {row['exit_code']}" if row.get("exit_code") is not None else "")
             + (f", after {row['seconds']:.3f} s" if row.get("seconds") is not None else "")]
    if row["kind"] == "sandbox":
        lines = [f"{name_of(row)}: over ({row.get('reason')})"]
    lines += [f"  {what:14}  {row[field]}" for what, field in (("title", "title"), ("error", "error"),
                                                             ("detail", "detail")) if row.get(field)]
    if row.get("memory_peak"):
        lines.append(f"  {'memory peak':14}  {size_text(int(row['memory_peak']))}")
    limit = row.get("limit") or ("memory" if row.get("reason") == "memory" else "")
    if limit in LIMITS:
        why, cure = LIMITS[limit]
        lines += [f"  {'limit':14}  {limit}: {why}", f"  {'to allow more':14}  {cure}; {_CEILING}"]
    if row.get("reason") == "files":
        lines += [f"  {'limit':14}  files: the file system of a folder of the host is full, by the daemon's folder_reserve",
                  f"  {'to allow more':14}  remove files there, or have the operator set a smaller folder_reserve"]
    if row.get("reason") == "lifetime" or row.get("reason") == "idle":
        lines.append(f"  {'to allow more':14}  {row['reason']}= at its opening, or `extend`; {_CEILING}")
    denied = row.get("denied") or {}
    for call, count in sorted(denied.items()):
        lines.append(f"  {'denied':14}  {call}, {count} times:")
        try:
            lines += [f"    {text}" for text in explained_name(call).splitlines()]
        except BadRequest:  # a number without a name
            lines.append("    refused with EACCES: no row of the table allows it")
    return lines


@click.command()
@SOCKET
@click.argument("names", nargs=-1, metavar="[JOB|NAME]...")
def explain(socket: str | None, names: tuple[str, ...]) -> None:
    """
    Say why a job ended as it did, what it was denied, by which row of the policy, and what would allow it.

    JOB is a number, or a sandbox's id or name, that `leeward logs` shows; without any, the last one that a limit, a signal or
    a fault has ended, or that was denied something. NAME is "network", "loopback", "terminal", or a system call as
    `denied` and the security log have it.
    """
    for name in names or ("",):
        click.echo(_explained(name, socket), nl=False)


def _explained(name: str, socket: str | None) -> str:
    if name and not is_end(name):
        try:
            return explained_name(name)
        except BadRequest:  # it may name a sandbox
            name = asked_id(name, socket)
            if not is_end(name):
                raise
    return of(client_socket(socket), name)


@click.command()
@SOCKET
@FOLLOW
@JSON_LINES
@click.argument("job", metavar="[JOB]", default="")
def logs(socket: str | None, follow: bool, as_json: bool, job: str) -> None:
    """
    Show how your jobs and sandboxes ended: limits that they hit, and calls that they were denied.

    JOB is a job's number, or a sandbox's id or name. The daemon remembers the last 256 ends of each user, of
    normal ends the last 64.
    """
    show(client_socket(socket), asked_id(job, socket), follow, as_json)

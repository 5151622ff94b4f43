"""
`leeward logs`, and `leeward explain`: how and why jobs and sandboxes of the user ended.

Trust:     none in titles and in names of refused calls: they are shown escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from leeward.client.link import Link
from leeward.errors import BadReply, BadRequest
from leeward.hints import LIMITS
from leeward.spec.paths import client_socket
from leeward.spec.sizes import size_text
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH
from leeward_cli.click_options import FOLLOW, JSON_LINES, SOCKET
from leeward_cli.egress_log import explained
from leeward_cli.explain import explain as explain_name
from leeward_cli.rows import matches, plain
from leeward_cli.rows import show as show_rows

_ANSWER_S = 5.0
#: Seconds that one request waits for more rows.
_WAIT_S = 60.0
_TEXTS = ("kind", "outcome", "reason", "detail", "limit", "error", "title", "sandbox")
_NUMBERS = ("number", "time", "job", "process", "exit_code", "seconds", "memory_peak")

_CEILING = "up to the ceiling of the daemon's configuration (`leeward daemon run --print-config`)"

_OUTCOMES = {
    "finished": "ran to its end",
    "raised": "an exception left its main module",
    "signalled": "a signal ended its main process",
    "timed_out": "was ended when its time was up",
    "out_of_memory": "was ended at its memory limit",
    "output_limit": "was ended when it had written too much",
    "internal": "was lost by a fault of leeward or the host",
}


def rows(path: str, follow: bool) -> Iterator[list[dict[str, Any]]]:
    """The rows that the daemon remembers; then new ones, if *follow*."""
    link = Link(path)
    try:
        after, wait = 0, 0.0
        while True:
            reply, _ = link.call("recall", {"after": after, "wait": wait}, time.monotonic() + wait + _ANSWER_S)
            found = _checked(reply.ok)
            yield found
            if not follow:
                return
            after, wait = max([after, *(row["number"] for row in found)]), _WAIT_S
    finally:
        link.close()


def _checked(answer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    events = (answer or {}).get("events")
    if not isinstance(events, list) or not all(isinstance(row, dict) and _fits(row) for row in events):
        raise BadReply("the daemon's rows are malformed")
    return events


def _fits(row: Mapping[str, Any]) -> bool:
    denied = row.get("denied", {})
    return (isinstance(denied, dict) and all(type(one) is str and type(count) is int for one, count in denied.items())
            and type(row.get("number")) is int and type(row.get("time")) is float and type(row.get("kind")) is str
            and all(type(row.get(name)) in (str, type(None)) for name in _TEXTS)
            and all(type(row.get(name)) in (int, float, type(None)) for name in _NUMBERS))


def name_of(row: Mapping[str, Any]) -> str:
    if row["kind"] == "job":
        return f"job {row.get('job')}"
    process = f" process {row['process']}" if row.get("process") else " python" if row["kind"] == "process" else ""
    return f"sandbox {row.get('sandbox')}{process}"


def line(row: Mapping[str, Any]) -> str:
    """One row as a line of text."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
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
    return f"{when}  {name_of(row)}  {'  '.join(how)}"


def is_end(asked: str) -> bool:
    """Whether *asked* has the form of a job's number or a sandbox's id."""
    return asked.isdecimal() or (len(asked) == ID_LENGTH and not asked.strip(ID_ALPHABET))


def show(path: str, asked: str, follow: bool, as_json: bool) -> None:
    """Print the rows of the job or sandbox *asked*, or all rows if it is ""; BadRequest if it is neither."""
    if asked and not is_end(asked):
        raise BadRequest(f"{asked!r:.80} is neither a job's number nor a sandbox's id of {ID_LENGTH} characters;"
                         " `leeward logs` without it shows both")
    show_rows(rows(path, follow), line, asked, as_json,
              f"the daemon remembers no end of {asked}" if asked else "no job or sandbox of yours has ended yet")


def of(path: str, asked: str) -> str:
    """All that is known about the job or sandbox *asked*, as text; "" stands for the last one that didn't end normally."""
    [found] = rows(path, False)
    wanted = [row for row in found if (matches(row, asked) if asked else not _is_fine(row))]
    if not wanted:
        raise BadRequest(f"the daemon remembers no job or sandbox {asked!r} of yours: `leeward logs` lists what it does"
                         if asked else "nothing that the daemon remembers of you ended by a limit, a signal or a fault,"
                         " and nothing was denied")
    return "".join(plain(text) + "\n" for text in (*_summary(wanted[-1]), *explained(path, wanted[-1])))


def _is_fine(row: Mapping[str, Any]) -> bool:
    if row["kind"] == "sandbox":
        return row.get("reason") in ("killed", "parted", "idle", "shutdown")
    return row.get("outcome") in ("finished", "raised") and not row.get("limit") and not row.get("denied")


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
            lines += [f"    {text}" for text in explain_name(call).splitlines()]
        except BadRequest:  # a number without a name
            lines.append("    refused with EACCES: no row of the table allows it")
    return lines


@click.command()
@SOCKET
@click.argument("names", nargs=-1, metavar="[JOB|NAME]...")
def explain(socket: str | None, names: tuple[str, ...]) -> None:
    """
    Say why a job ended as it did, what it was denied, by which row of the policy, and what would allow it.

    JOB is a number, or a sandbox's id, that `leeward logs` shows; without any, the last one that a limit, a signal or
    a fault has ended, or that was denied something. NAME is "network", "loopback", "terminal", or a system call as
    `denied` and the security log have it.
    """
    for name in names or ("",):
        click.echo(of(client_socket(socket), name) if not name or is_end(name) else explain_name(name), nl=False)


@click.command()
@SOCKET
@FOLLOW
@JSON_LINES
@click.argument("job", metavar="[JOB]", default="")
def logs(socket: str | None, follow: bool, as_json: bool, job: str) -> None:
    """
    Show how your jobs and sandboxes ended: limits that they hit, and calls that they were denied.

    JOB is a job's number or a sandbox's id. The daemon remembers the last 256 ends of each user, of
    normal ends the last 64.
    """
    show(client_socket(socket), job, follow, as_json)

"""
`leeward egress log`: the hosts that sandboxes tried to reach, and the rules that would have allowed it.

Trust:     none in the names and other texts of a row, which jobs choose: they are shown escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from leeward.client.daemon_rows import decisions, subject_of, target
from leeward.errors import BadRequest, quoted
from leeward.spec.sizes import size_text
from leeward_cli.messages import complain
from leeward_cli.terminal_rows import matches, plain, second
from leeward_cli.terminal_rows import show as show_rows

#: The greatest number of rows of one job that `leeward explain` shows.
_MOST_EXPLAINED = 20


def line(row: Mapping[str, Any]) -> str:
    more = [f"({row['address']})"] if row["name"] and row["address"] else []
    more += [f"rule {row['rule']!r}"] if row["rule"] else []
    if row["verdict"] == "closed":
        more.append(f"sent {size_text(row['sent'])}, received {size_text(row['received'])}")
    more += [row["reason"]] if row["reason"] else []
    return "  ".join((second(row["time"]), subject_of(row), f"{row['verdict']:7}", target(row), *more))


def show(path: str, asked: str, follow: bool, as_json: bool) -> None:
    show_rows(decisions(path).pages(follow), line, asked, as_json,
              "the daemon remembers no connection" + (f" of {asked}" if asked else ""))


def names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines "allowed NAME" and "denied NAME" of *rows*, each once, sorted. A row without a name has its address."""
    return sorted({f"{row['verdict']} {row['name'] or row['address']}" for row in rows
                   if row["verdict"] in ("allowed", "denied") and (row["name"] or row["address"])})


def write_names(path: str, asked: str, file: str, folder: int | None = None) -> None:
    """Write the `names` of *asked* to *file*, in *folder*, opened before the sandbox could put a link in its place."""
    log = decisions(path)
    text = "".join(plain(each) + "\n" for each in names(row for row in log.rows() if matches(row, asked)))
    if log.forgotten:
        complain(f"the daemon has forgotten {log.forgotten} older rows, whose names may be missing")
    try:
        with open(file, "w", encoding="utf-8", opener=partial(_written, folder=folder)) as out:
            out.write(text)
    except OSError as error:
        raise BadRequest(f"{quoted(file)} can't be written: {error.strerror}") from None


def _written(path: str, flags: int, folder: int | None) -> int:
    """
    Open a file for writing, as the opener of `open`. The sandbox may have written to the file's folder, so no link is
    followed, and opening a FIFO doesn't wait. Names in /dev are links by intention, and are followed.
    """
    here = 0 if path.startswith("/dev/") else os.O_NOFOLLOW | os.O_NONBLOCK
    name = path if folder is None else os.path.basename(path)
    return os.open(name, flags | here | os.O_NOCTTY, 0o666, dir_fd=folder)


def explained(path: str, event: Mapping[str, Any]) -> list[str]:
    """Lines about the connections that the job or sandbox of *event*, a row of `leeward logs`, was refused."""
    found = {(row["name"], row["address"], row["port"], row["reason"]): row for row in decisions(path).rows()
             if row["user"] == os.geteuid() and row["verdict"] in ("denied", "failed") and _is_of(row, event)}
    lines = []
    for row in list(found.values())[:_MOST_EXPLAINED]:
        lines.append(f"  {'egress':14}  {row['verdict']}: {row['reason'] or row['name']}")
        cure = would_allow(row)
        if cure:
            lines.append(f"  {'to allow it':14}  {cure}")
    if len(found) > _MOST_EXPLAINED:
        lines.append(f"  {'egress':14}  {len(found) - _MOST_EXPLAINED} more: leeward egress log")
    return lines


def _is_of(row: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    if event.get("sandbox"):
        return bool(row.get("sandbox") == event["sandbox"])
    if row.get("job") is not None:
        return bool(row["job"] == event.get("job"))
    # The rows of a session don't name its job; the job that was running at the row's time is meant.
    begun = event["time"] - (event.get("seconds") or 0.0)
    return bool(row["kind"] == "session" and begun <= row["time"] <= event["time"])


def would_allow(row: Mapping[str, Any]) -> str:
    """The line of the configuration that would allow the denied connection of *row*; "" if none is known."""
    if row["verdict"] != "denied":
        return ""
    cause, _, about = row["reason"].partition(": ")
    place = f"[egress.{row['policy']}]" if row["policy"] else "the policy"
    if cause == "domain is blocked":
        return f"in {place}: take {row['rule']!r} out of `deny`, which is asked before `allow`"
    if cause == "private IP blocked" and " leads to " in about:
        address = about.partition(" leads to ")[2].partition(",")[0]
        return f"in {place}: addresses = [\"{address}\"]"
    if cause in ("domain not in allowlist", "port not allowed", "protocol not allowed", "private IP blocked") or (
            about == "" and "waits for approval" in cause):
        return f"in {place}: allow = [\"{target(row)}\"]"
    return ""

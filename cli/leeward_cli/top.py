"""
`leeward top`: workers, jobs and sandboxes, shown once or updated.

Trust:     none in the metadata of sandboxes: it is shown escaped.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import click

from leeward.client.connection import BlockingConnection
from leeward.client.sandbox import Sandbox
from leeward.spec.paths import client_socket
from leeward.spec.sizes import size_text
from leeward_cli.agent_ends import ending_by_signals
from leeward_cli.click_options import JSON_LINES, SOCKET
from leeward_cli.interrupts import EndRequested
from leeward_cli.messages import escape, write
from leeward_cli.screen import alternate_screen, draw

_ANSWER_S = 5.0
#: Up to the metadata it has the 80 columns that every terminal has.
_HEAD = f"{'SANDBOX':26} {'AGE':>6} {'UNUSED':>6} {'PROCS':>5} {'PEAK':>8} {'OF':>7} {'CPU':>5} {'TIME':>8} METADATA"


def look(path: str) -> dict[str, Any]:
    with contextlib.closing(BlockingConnection(path)) as connection:
        reply, _ = connection.call("status", {}, time.monotonic() + _ANSWER_S)
    return {"time": time.monotonic(), "status": reply.ok, "sandboxes": Sandbox.list(socket=path)}


def table(now: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    """The lines to show. CPU is the share of one processor since *before*."""
    status = now["status"]
    lines = [f"{what:8} {', '.join(f'{count} {kind}' for kind, count in status.get(what, {}).items())}"
             for what in ("workers", "jobs")]
    lines += [f"degraded {', '.join(status.get('degraded', [])) or 'nothing'}", "", _HEAD]
    spent = {row["sandbox"]: row["cpu_time"] for row in before["sandboxes"]} if before else {}
    elapsed = now["time"] - before["time"] if before else 0.0
    for row in sorted(now["sandboxes"], key=lambda row: -_rate(row, spent, elapsed)):
        share = f"{100 * _rate(row, spent, elapsed):.0f}%" if row["sandbox"] in spent and elapsed else "-"
        about = " ".join(f"{name}={value}" for name, value in row["metadata"].items())
        lines.append(f"{row['sandbox']:26} {row['age']:5.0f}s {row['unused']:5.0f}s {row['processes']:5}"
                     f" {_size(row['memory_peak']):>8} {size_text(row['memory_limit']):>7} {share:>5}"
                     f" {row['cpu_time']:7.2f}s {about}".rstrip())
    return lines


def _rate(row: dict[str, Any], spent: dict[str, float], elapsed: float) -> float:
    return max(0.0, row["cpu_time"] - spent.get(row["sandbox"], row["cpu_time"])) / elapsed if elapsed else 0.0


def _size(count: int) -> str:
    for unit in ("", "KiB", "MiB"):
        if count < 10240:
            return f"{count}{unit}"
        count //= 1024
    return f"{count}GiB"


def show_once(path: str, as_json: bool) -> None:
    now = look(path)
    text = json.dumps({"status": now["status"], "sandboxes": now["sandboxes"]}) if as_json else "\n".join(table(now))
    write(1, (text.encode() if as_json else escape(text.encode())) + b"\n")


def follow(path: str, seconds: float, as_json: bool) -> int:
    """Show the table every *seconds*, until Ctrl-C or q. Returns the exit status."""
    before = None

    def lines() -> list[str]:
        nonlocal before
        now, last = look(path), before
        before = now
        return table(now, last)

    if as_json or not os.isatty(1):
        while True:
            show_once(path, as_json)
            time.sleep(seconds)
    return redraw(lines, seconds)


def redraw(lines: Callable[[], list[str]], seconds: float) -> int:
    """Draw *lines* every *seconds*, until Ctrl-C or q, and restore the terminal then. Returns the exit status."""
    try:
        with ending_by_signals(signal.SIGTERM, signal.SIGHUP), alternate_screen():
            while True:
                now = lines()
                columns, rows = os.get_terminal_size(1)
                draw([escape(line.encode()).decode()[:columns or 80] for line in now[:max(1, (rows or 24) - 1)]])
                if _pressed(seconds):
                    return 0
    except KeyboardInterrupt:
        return 0
    except EndRequested as asked:
        return 128 + int(asked.args[0])


def _pressed(seconds: float) -> bool:
    """Wait for the next update. Returns whether the user has ended the command."""
    if not os.isatty(0):
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0] and os.read(0, 64) in (b"q", b"Q", b"\x04", b""):
            return True
    return False


@click.command()
@click.option("--once", is_flag=True, help="Show one picture, and end.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, metavar="SECONDS",
              help="Seconds between updates.  [default: 2]")
@JSON_LINES
@SOCKET
def top(once: bool, interval: float, as_json: bool, socket: str | None) -> int:
    """Show workers, jobs and your sandboxes, and update them until q or Ctrl-C."""
    if once:
        show_once(client_socket(socket), as_json)
        return 0
    return follow(client_socket(socket), interval, as_json)

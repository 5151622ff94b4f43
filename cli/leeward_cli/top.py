"""
`leeward top`: workers, jobs and sandboxes, shown once or updated.

Trust:     none in the metadata of sandboxes: it is shown escaped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType
from typing import Any

import click

from leeward.client.link import Link
from leeward.client.sandbox import Sandbox
from leeward.spec.paths import client_socket
from leeward.spec.sizes import size_text
from leeward_cli.click_options import JSON_LINES, SOCKET
from leeward_cli.messages import escape, write

_ANSWER_S = 5.0
#: Escape sequences: switch to the alternate screen, and back; cursor to the top; clear to the end of the line, and of
#: the screen.
_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = b"\x1b[H", b"\x1b[K", b"\x1b[J"

_HEAD = (f"{'SANDBOX':26}  {'AGE':>7}  {'UNUSED':>7}  {'PROCS':>5}  {'PEAK':>9}  {'OF':>9}  {'CPU':>6}  {'TIME':>8}"
         "  METADATA")


def look(path: str) -> dict[str, Any]:
    """The present state: `time` (seconds of time.monotonic), and the daemon's `status` and `sandboxes`."""
    link = Link(path)
    try:
        reply, _ = link.call("status", {}, time.monotonic() + _ANSWER_S)
    finally:
        link.close()
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
        share = f"{100 * _rate(row, spent, elapsed):5.0f}%" if row["sandbox"] in spent and elapsed else "     -"
        about = " ".join(f"{name}={value}" for name, value in row["metadata"].items())
        lines.append(f"{row['sandbox']:26}  {row['age']:6.0f}s  {row['unused']:6.0f}s  {row['processes']:5}"
                     f"  {_size(row['memory_peak']):>9}  {size_text(row['memory_limit']):>9}  {share}"
                     f"  {row['cpu_time']:7.2f}s  {about}".rstrip())
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


class _Over(BaseException):
    """A signal has asked this process to end. The argument is the signal's number."""


def _end(number: int, _frame: FrameType | None) -> None:
    raise _Over(number)


def follow(path: str, seconds: float, as_json: bool) -> int:
    """Show the table every *seconds*, until Ctrl-C or q, and restore the terminal then. Returns the exit status."""
    if as_json or not os.isatty(1):
        while True:
            show_once(path, as_json)
            time.sleep(seconds)

    modes = termios.tcgetattr(0) if os.isatty(0) else None
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = None
    try:
        if modes is not None:
            tty.setcbreak(0)
        write(1, _ENTER)
        while True:
            now = look(path)
            _draw(table(now, before))
            before = now
            if _pressed(modes is not None, seconds):
                return 0
    except KeyboardInterrupt:
        return 0
    except _Over as over:
        return 128 + int(over.args[0])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        write(1, _LEAVE)
        if modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _draw(lines: list[str]) -> None:
    columns, rows = os.get_terminal_size(1)
    shown = [escape(line.encode()).decode()[:columns or 80].encode() for line in lines[:max(1, (rows or 24) - 1)]]
    write(1, _HOME + b"".join(line + _END_OF_LINE + b"\r\n" for line in shown) + _END_OF_SCREEN)
    sys.stdout.flush()


def _pressed(keys: bool, seconds: float) -> bool:
    """Wait for the next update. Returns whether the user has ended the command."""
    until = time.monotonic() + seconds
    while keys and (left := until - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0] and os.read(0, 64) in (b"q", b"Q", b"\x04", b""):
            return True
    if not keys:
        time.sleep(seconds)
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

"""
`leeward fleet`: the nodes of a fleet, their state, and what an operator does with them.

Trust:     none in what nodes say of themselves: it is shown escaped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import click

from leeward.apps.fleet import Fleet, connect
from leeward.apps.fleet.addresses import is_cluster
from leeward.apps.fleet.exposition import exposition
from leeward_cli.click_options import JSON, JSON_LINES, CommandGroup
from leeward_cli.messages import complain, escape, write
from leeward_cli.progress import Progress
from leeward_cli.top import redraw

_HEAD = ("NODE", "STATE", "WORKERS", "BUSY", "WAITING", "OPEN", "ROOM", "")
_NODES = click.option("-n", "--node", "nodes", metavar="ADDRESS", multiple=True,
                      help="A node, such as unix:/run/leeward/leeward.sock, or the cluster: auto or ray://HOST:PORT. "
                           "[default: LEEWARD_FLEET, else fleet.toml]")


def _fleet(nodes: Sequence[str]) -> Fleet:
    if len(nodes) == 1 and is_cluster(nodes[0]):
        return connect(nodes[0])
    return connect(nodes or None)


def table(status: dict[str, Any]) -> list[str]:
    """The lines to show."""
    rows = [_HEAD, *(_row(row) for row in status["nodes"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) if column in (0, 1, len(_HEAD) - 1) else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]
    each = status["waiting_per_worker"]
    return [*lines, "", f"{status['workers']} workers, {status['waiting']} waiting"
                        + ("" if each is None else f", {each:g} for each worker")]


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    about = row["why"] or " ".join([*row["tags"], *(f"{name}={amount:g}" for name, amount in row["resources"].items())])
    return (row["name"], row["standing"], *(str(row[key]) for key in ("workers", "busy", "waiting", "open", "room")), about)


def _show(lines: Sequence[str]) -> None:
    write(1, escape("\n".join(lines).encode()) + b"\n")


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Several daemons together: their state, and what an operator does with them."""


@fleet.command()
@JSON
@click.option("--prometheus", is_flag=True, help="Print the figures as Prometheus reads them.")
@_NODES
def status(nodes: Sequence[str], as_json: bool, prometheus: bool) -> int:
    """Show each node: workers, jobs that wait for them, sandboxes and sessions that are open. 1 if one doesn't answer."""
    with _fleet(nodes) as found:
        now = found.status()
    _show([json.dumps(now)] if as_json else exposition(now) if prometheus else table(now))
    return int(any(row["standing"] == "lost" for row in now["nodes"]))


@fleet.command()
@click.option("--once", is_flag=True, help="Show one picture, and end.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, metavar="SECONDS",
              help="Seconds between updates.  [default: 2]")
@JSON_LINES
@_NODES
def top(once: bool, interval: float, as_json: bool, nodes: Sequence[str]) -> int:
    """Show the nodes, and update them until q or Ctrl-C."""
    with _fleet(nodes) as found:
        while once or as_json or not os.isatty(1):
            _show([json.dumps(found.status())] if as_json else table(found.status()))
            if once:
                return 0
            time.sleep(interval)
        return redraw(lambda: table(found.status()), interval)


@fleet.command()
@click.argument("node")
@click.option("--seconds", type=click.FloatRange(0.1), default=600.0, metavar="SECONDS",
              help="After which what is open there ends.  [default: 600]")
@click.option("--undo", is_flag=True, help="Give the node work again.")
@_NODES
def drain(node: str, seconds: float, undo: bool, nodes: Sequence[str]) -> None:
    """
    Give NODE no new work. Programs that have sandboxes there are told, and these end after SECONDS.

    It lasts until `leeward fleet drain --undo NODE`. This command doesn't wait: `leeward fleet status` shows what is
    open there.
    """
    with _fleet(nodes) as found:
        if undo:
            found.undrain(node)
        else:
            found.begin_drain(node, seconds)


@fleet.command()
@click.argument("packages", nargs=-1, required=True)
@click.option("-t", "--timeout", type=click.FloatRange(1), default=600.0, metavar="SECONDS",
              help="For all nodes together.  [default: 600]")
@_NODES
def prefetch(packages: Sequence[str], timeout: float, nodes: Sequence[str]) -> int:
    """Have each node make the environment of PACKAGES, such as "pandas==2.2", before jobs need it. 1 if one can't."""
    with _fleet(nodes) as found, Progress(f"making an environment of {len(packages)} packages on each node"):
        return _each(found.prefetch(packages, timeout), "ready")


@fleet.command()
@_NODES
def doctor(nodes: Sequence[str]) -> int:
    """Have each node run a job, and say what is wrong where. 1 if anything is."""
    with _fleet(nodes) as found, Progress("asking each node"):
        failed = _each(found.check(), "runs jobs")
        versions = {row["name"]: row["version"] for row in found.status()["nodes"] if row["version"]}
    if len({*versions.values()}) > 1:
        complain("the nodes have different versions: " + ", ".join(f"{name} {each}" for name, each in versions.items()))
        return 1
    return failed


def _each(found: dict[str, str], well: str) -> int:
    """Show of each node that it is *well*, or why it isn't. Returns the exit status."""
    if not found:
        complain("no node answers; `leeward fleet status` says why")
    _show([f"{name}: {why or well}" for name, why in found.items()] or [])
    return int(not found or any(found.values()))

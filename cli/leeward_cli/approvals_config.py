"""
`leeward approvals status`, `mode` and `config`: the service's state, its modes for requests without a rule, and its
configuration.

Runs in:   the CLI, which talks to the service over the operator's socket.
"""

from __future__ import annotations

import json

import click

from leeward.approvals.durations import duration_text
from leeward.approvals.link import OperatorLink
from leeward.approvals.queue.rules import CATEGORIES, MODES
from leeward.errors import BadRequest
from leeward_cli.approvals import JSON, SOCKET, resolved
from leeward_cli.approvals import approvals as approvals  # the group with these commands
from leeward_cli.rows import plain


@approvals.command()
@SOCKET
@JSON
def status(socket: str | None, as_json: bool) -> None:
    """Show since when the service decides and how long it has left, what waits, and whether the record is written."""
    found = OperatorLink(socket).call("GET", "/api/status")
    if as_json:
        click.echo(json.dumps(found))
        return
    left = "no end" if found["remaining"] is None else f"{duration_text(round(found['remaining']))} left"
    waiting = ", ".join(f"{count} {category}" for category, count in found["pending_by_category"].items())
    lost = f"lacks {found['lost']} lines" if found["lost"] else "written"
    rows = {"up": f"{duration_text(round(found['uptime']))}, {left}",
            "page": "none" if found["port"] is None else f"port {found['port']}",
            "pending": f"{found['pending']}{f' ({waiting})' if waiting else ''}", "sandboxes": str(found["sandboxes"]),
            "record": lost + (f": {found['trouble']}" if found["trouble"] else "")}
    if found["asks"]:
        rows["connections"] = f"not heard of: {found['asks']}"
    for name, text in rows.items():
        click.echo(plain(f"{name:9}  {text}"))


@approvals.command("mode")
@SOCKET
@click.argument("category", type=click.Choice(CATEGORIES))
@click.argument("mode", type=click.Choice(MODES))
def set_mode(socket: str | None, category: str, mode: str) -> int:
    """Set what happens to requests of CATEGORY that no rule decides, and decide by it what is pending."""
    return resolved(OperatorLink(socket).call("PUT", "/api/modes", {"category": category, "mode": mode}))


@approvals.command()
@SOCKET
@JSON
@click.argument("key", metavar="[KEY]", default="")
@click.argument("value", metavar="[VALUE]", default=None, required=False)
def config(socket: str | None, as_json: bool, key: str, value: str | None) -> None:
    """Show the configuration, or one KEY of it; with VALUE, set it."""
    link = OperatorLink(socket)
    found = (link.call("GET", "/api/config") if value is None
             else link.call("PUT", "/api/config", {"key": key, "value": _value(value)}))
    if key and key not in found:
        raise BadRequest(f"no such key; these are: {', '.join(found)}")
    if key:
        found = {key: found[key]}
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, each in found.items():
        click.echo(plain(f"{name} = {f'{each:g}' if isinstance(each, float) else each}"))


def _value(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text

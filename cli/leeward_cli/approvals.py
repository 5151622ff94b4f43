"""
`leeward approvals`: the service for approvals, and the operator's commands, which talk to it over a socket.

Trust:     none in the descriptions, paths and commands that are shown, which come from a sandbox. They are escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from leeward.apps.approvals.durations import duration_text, parse_duration
from leeward.apps.approvals.operator_connection import OperatorConnection
from leeward.apps.approvals.queue.rules import CATEGORIES, MODES
from leeward.apps.approvals.queue.store import recover as recovered
from leeward.apps.approvals.service_paths import state_folder
from leeward.errors import BadRequest
from leeward_cli.approvals_watch import attend, line_of, lines_of
from leeward_cli.approved_sandboxes import ask_at_end, close_asked, note_lines, tell_notes
from leeward_cli.click_options import JSON_LINES, CommandGroup, socket_option
from leeward_cli.messages import complain
from leeward_cli.sandbox_command import in_sandbox, split_words
from leeward_cli.terminal_rows import plain

SOCKET = socket_option("The operator's socket; else LEEWARD_APPROVALS_SOCKET, else the default.")
#: Requests that the service returns in one answer at most.
_PAGE = 500
_DAEMON = click.option("--daemon", metavar="PATH", help="The daemon's socket; else LEEWARD_SOCKET, else the default.")


@click.group(cls=CommandGroup)
def approvals() -> None:
    """Decide what leaves sandboxes of the profile `approved`: files, commands, packages, pushes, connections."""


def _lasting(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    try:
        return parse_duration(f"{given}ms" if given.isascii() and given.isdigit() else given)
    except BadRequest as error:
        raise click.BadParameter(str(error), ctx, param) from None


@approvals.command()
@SOCKET
@_DAEMON
@click.option("--max-uptime", "lasts", metavar="TIME", callback=_lasting, envvar="MAX_UPTIME",
              help="End after this time, such as 4h or 1h30m, or a number of milliseconds; else MAX_UPTIME.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", is_flag=False, flag_value=3700,
              help="Serve the page and REST on this port of 127.0.0.1 as well; 3700 where none is given.")
@click.option("--head", metavar="DIR", help="Keep the head of the record there.")
@click.option("--config", metavar="FILE", help="What is forbidden for good, and allowed endpoints; else "
                                               "~/.config/leeward/approvals.toml, if it is there.")
@click.argument("project", metavar="[PROJECT]", default="")
def serve(socket: str | None, daemon: str | None, lasts: float | None, port: int | None, head: str | None,
          config: str | None, project: str) -> int:
    """
    Serve approvals in the foreground, until SIGTERM, Ctrl-C or the end of its time. Then what is pending is denied, except
    changes of files and pushes, which the next service shows.

    PROJECT is the folder that requests without a sandbox of their own are about.
    """
    try:
        from leeward.apps.approvals.serving import ServeOptions  # of the extra `web`
        from leeward.apps.approvals.serving import serve as run
    except ImportError as error:
        complain(f"{error.name} is missing: pip install 'leeward[web]'")
        return 1

    def ready(path: str, link: str) -> None:
        click.echo(f"leeward approvals: process {os.getpid()} decides on {path}", err=True)
        if link:
            click.echo(f"leeward approvals: the page, by a link that works once within five minutes: {link}", err=True)

    return run(ServeOptions(project, socket, daemon, lasts, port, head, config), ready)


@approvals.command("list")
@SOCKET
@JSON_LINES
@click.option("--recent", is_flag=True, help="Show the newest 50, decided ones included.")
@click.option("--category", type=click.Choice(CATEGORIES), help="Only rows of this category.")
def list_(socket: str | None, as_json: bool, recent: bool, category: str | None) -> None:
    """Show what waits for a decision, the oldest first."""
    rows = _requests(OperatorConnection(socket), recent, category)
    if not rows and not as_json:
        complain("there was no request" if recent else "no request waits for a decision")
    for row in rows:
        click.echo(json.dumps(row) if as_json else line_of(row))


def _requests(connection: OperatorConnection, recent: bool = False, category: str | None = None) -> list[dict[str, Any]]:
    if recent:
        newest: list[dict[str, Any]] = connection.call("GET", "/api/requests?which=recent&limit=50")["requests"]
        return [row for row in newest if category in (None, row["category"])]
    query = f"/api/requests?limit={_PAGE}" + (f"&category={category}" if category else "")
    found = list[dict[str, Any]]()
    while True:
        rows = connection.call("GET", f"{query}&after={found[-1]['id'] if found else 0}")["requests"]
        found += rows
        if len(rows) < _PAGE:
            return found


@approvals.command()
@SOCKET
@JSON_LINES
@click.option("--color/--no-color", default=None, help="Colours.  [default: on a terminal]")
@click.argument("number", metavar="ID", type=int)
def show(socket: str | None, as_json: bool, color: bool | None, number: int) -> None:
    """Show a request, and what it would carry out: of a file, the diff."""
    connection = OperatorConnection(socket)
    request = connection.call("GET", f"/api/requests/{number}")
    detail = connection.call("GET", f"/api/requests/{number}/detail")
    if as_json:
        click.echo(json.dumps({"request": request, "detail": detail}))
        return
    for line in lines_of(request, detail, os.isatty(1) if color is None else color):
        click.echo(line, color=True)


def _decide(socket: str | None, approved: bool, numbers: tuple[int, ...], category: str | None, always: bool,
            everywhere: bool, hunks: str | None = None, profile: str | None = None) -> int:
    connection = OperatorConnection(socket)
    if bool(numbers) == bool(category):
        raise click.UsageError("either ID, or --all CATEGORY")
    if (always or hunks or profile is not None) and len(numbers) != 1:
        raise click.UsageError("--always, --hunks and --profile are about one request")
    if everywhere and not always:
        raise click.UsageError("--everywhere is about the rule that --always stores")
    if category:
        rows = _requests(connection, category=category)
        if not rows:
            click.echo(f"nothing of {category} is pending")
            return 0
        found = connection.call("POST", "/api/bulk", {"approved": approved, "category": category, "upto": rows[-1]["id"]})
    elif len(numbers) > 1:
        found = connection.call("POST", "/api/bulk", {"approved": approved, "ids": list(numbers)})
    else:
        more: dict[str, Any] = {"always": True, "everywhere": everywhere} if always else {}
        if profile is not None:
            more["profile"] = profile
        if hunks:
            more["hunks"] = _places(hunks)
        found = connection.call("POST", f"/api/requests/{numbers[0]}/{'approve' if approved else 'deny'}", more)
    return resolved(found)


def _places(text: str) -> list[int]:
    try:
        return [int(word) - 1 for word in text.split(",")]
    except ValueError:
        raise click.UsageError("--hunks is numbers from 1 on, with commas between") from None


def resolved(found: Mapping[str, Any]) -> int:
    """Say of each request what happened; returns the exit status."""
    lost = False
    for row in found.get("decided", []):
        is_lost = row.get("stage") == "failed"
        lost |= is_lost
        done = {"applied": "approved, done", "failed": "failed"}.get(row.get("stage", ""), row["status"])
        why = f": {row['note']}" if is_lost else ""
        click.echo(plain(f"{row['id']:>5}  {done}  {row['action']} {row['title']}{why}")[:500])
    if found.get("decided_count", 0) > len(found.get("decided", [])):
        click.echo(f"and {found['decided_count'] - len(found['decided'])} more")
    for row in found.get("before", []):
        complain(f"{row['id']} was {row['status']} before, by {row['decided_by']}")
    for number in found.get("unknown", []):
        complain(f"there is no request {number}")
    if found.get("rule"):
        click.echo(plain(f"rule: {found['rule']}, {_where(found)}"))
    return 1 if lost or found.get("before") or found.get("unknown") else 0


def _where(row: Mapping[str, Any]) -> str:
    return f"in {row['project']}" if row.get("project") else "everywhere"


_ALL = click.option("--all", "category", type=click.Choice(CATEGORIES), help="All pending requests of this category.")
_ALWAYS = click.option("--always", is_flag=True, help="Also store a rule for requests like it, in this project.")
_EVERYWHERE = click.option("--everywhere", is_flag=True, help="With --always: the rule holds in all projects.")


@approvals.command()
@SOCKET
@_ALL
@_ALWAYS
@_EVERYWHERE
@click.option("--profile", metavar="NAME", help="Run this command in a new sandbox of profile NAME; '' for the one "
                                                "that asked.")
@click.option("--hunks", metavar="N,N...", help="Only these pieces of a change of a file, as `show` counts them.")
@click.argument("numbers", metavar="[ID...]", type=int, nargs=-1)
def approve(socket: str | None, category: str | None, always: bool, everywhere: bool, profile: str | None,
            hunks: str | None, numbers: tuple[int, ...]) -> int:
    """Approve requests. The exit status is 1 if somebody had decided one before, or there is none of an id."""
    return _decide(socket, True, numbers, category, always, everywhere, hunks, profile)


@approvals.command()
@SOCKET
@_ALL
@_ALWAYS
@_EVERYWHERE
@click.argument("numbers", metavar="[ID...]", type=int, nargs=-1)
def deny(socket: str | None, category: str | None, always: bool, everywhere: bool, numbers: tuple[int, ...]) -> int:
    """Deny requests. The exit status is as that of `approve`."""
    return _decide(socket, False, numbers, category, always, everywhere)


@approvals.command()
@SOCKET
@JSON_LINES
def rules(socket: str | None, as_json: bool) -> None:
    """Show the rules with where they hold, and each category's mode."""
    found = OperatorConnection(socket).call("GET", "/api/rules")
    if as_json:
        click.echo(json.dumps(found))
        return
    for row in found.get("forbidden", []):
        click.echo(plain(f"forbid {row['rule']}  for good, by the configuration"))
    for host in found.get("endpoints", []):
        click.echo(plain(f"allow  {host} and what is below it, by the configuration"))
    for effect in ("deny", "allow"):
        for row in found.get(effect, []):
            click.echo(plain(f"{effect:6} {row['rule']}  {_where(row)}") + "  (never matches)" * row["never_matches"])
    for category, mode in found.get("modes", {}).items():
        click.echo(plain(f"mode   {category} = {mode}"))


_PROJECT = click.option("--project", metavar="PATH", help="Only in this project.")


def _add(socket: str | None, rule: str, effect: str, project: str | None) -> int:
    body = {"rule": rule, "effect": effect, "project": "" if project is None else os.path.realpath(project)}
    found = OperatorConnection(socket).call("POST", "/api/rules", body)
    if found["never_matches"]:
        complain("this rule never matches: it would allow everything")
    return resolved(found["resolution"])


@approvals.command("allow")
@SOCKET
@_PROJECT
@click.argument("rule")
def allow(socket: str | None, project: str | None, rule: str) -> int:
    """
    Store a RULE that allows, such as 'network(*.example.org)', and decide by it what is pending. It holds everywhere
    unless --project says where.
    """
    return _add(socket, rule, "allow", project)


@approvals.command("deny-rule")
@SOCKET
@_PROJECT
@click.argument("rule")
def deny_rule(socket: str | None, project: str | None, rule: str) -> int:
    """Store a RULE that denies, and decide by it what is pending. It holds everywhere unless --project says where."""
    return _add(socket, rule, "deny", project)


@approvals.command("remove-rule")
@SOCKET
@_PROJECT
@click.option("--everywhere", is_flag=True, help="Only the rule that applies to every project.")
@click.argument("rule")
def remove_rule(socket: str | None, project: str | None, everywhere: bool, rule: str) -> None:
    """Remove a RULE from both lists, wherever it holds."""
    if project is not None and everywhere:
        raise click.UsageError("either --project or --everywhere")
    where = "" if everywhere else None if project is None else os.path.realpath(project)
    OperatorConnection(socket).call("DELETE", "/api/rules", {"rule": rule, "project": where})


@approvals.command()
@click.option("--without-rules", is_flag=True, help="Go on where it can't be found out which rules were stored.")
def recover(without_rules: bool) -> None:
    """
    Make a new file of requests and rules in place of one that is damaged or was removed, with the rules that were
    stored. The service mustn't run. Requests that were pending, and what was approved and not carried out, are lost.
    """
    found = recovered(state_folder(os.environ), without_rules=without_rules)
    if found is None:
        complain("the file of approvals is whole; there is nothing to do")
        return
    old, rules = found
    click.echo(plain(f"a new file with {len(rules.rules)} rules and {len(rules.modes)} modes was made; the old one is {old}"))
    for effect, text, project in rules.rules:
        click.echo(plain(f"{effect:6} {text}  {_where({'project': project})}"))


@approvals.command()
@SOCKET
def watch(socket: str | None) -> int:
    """Show pending requests as they come, and decide by keys: ? shows which."""
    return attend(OperatorConnection(socket))


@approvals.command()
@SOCKET
def page(socket: str | None) -> int:
    """Print a link to the page, which works once and for five minutes. The service has to serve a --port."""
    connection = OperatorConnection(socket)
    port = connection.call("GET", "/api/status")["port"]
    if port is None:
        complain("the service serves no page: start it with --port")
        return 1
    click.echo(f"http://127.0.0.1:{port}{connection.call('POST', '/api/login-links')['path']}")
    return 0


@approvals.command(context_settings={"ignore_unknown_options": False})
@SOCKET
@_DAEMON
@click.option("--profile", metavar="NAME", help="Another profile than `approved`.")
@click.option("--egress", metavar="NAME", help="The policy of egress, by its name in the daemon's configuration.")
@click.option("--environment", metavar="NAME", help="Another interpreter and its packages.")
@click.option("--sync", is_flag=True, help="Changes flow to the project as they are made; the host's edits flow in.")
@click.option("--sync-after", metavar="FILE", help="Sync nothing before FILE is in the sandbox, such as .git/HEAD.")
@click.option("--keep", is_flag=True, help="Leave the sandbox open, and print its id.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[PATH] [-- COMMAND...]")
def run(socket: str | None, daemon: str | None, keep: bool, words: tuple[str, ...],
        **options: str | bool | None) -> int:
    """
    Run COMMAND, or a shell, in a sandbox over a copy of the project PATH, whose processes can ask.

    When it has ended, what it has changed and pushed becomes requests. PATH is the current folder by default. The exit
    status is the command's.
    """
    path, argv = split_words(words, sys.argv)
    connection = OperatorConnection(socket)
    made = connection.open_sandbox(path or ".", agent=os.path.basename(argv[0])[:40] if argv else "shell",
                                   **{name: value for name, value in options.items() if value})
    box = made["sandbox"]
    try:
        status = in_sandbox(box, daemon, {}, argv, None, None, False)
    finally:
        asked = ask_at_end(connection, box, daemon, git=bool(made.get("git")))
        if asked and made.get("sync"):
            tell_notes(connection, box)
        if keep:
            click.echo(box, err=True)
        elif asked:
            close_asked(connection, box)
    return status if asked else status or 1


@approvals.command()
@SOCKET
@JSON_LINES
def sandboxes(socket: str | None, as_json: bool) -> None:
    """Show the sandboxes that can ask, and what live sync has written and held back."""
    for row in OperatorConnection(socket).call("GET", "/api/sandboxes")["sandboxes"]:
        if as_json:
            click.echo(json.dumps(row))
            continue
        sync = row.get("sync")
        flow = "" if not sync else (f"  sync {sync['state']}: {sync['to_host']} to the host, {sync['to_sandbox']} to "
                                    f"the sandbox, {sync['left']} wait")
        click.echo(plain(f"{row['sandbox']}  {row['project']}  {row['age']:.0f} s{flow}"))
        for line in note_lines(row):
            click.echo(f"    {line}")


@approvals.command()
@SOCKET
@JSON_LINES
def status(socket: str | None, as_json: bool) -> None:
    """Show since when the service decides and how long it has left, what waits, and whether the record is written."""
    found = OperatorConnection(socket).call("GET", "/api/status")
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
    return resolved(OperatorConnection(socket).call("PUT", "/api/modes", {"category": category, "mode": mode}))


@approvals.command()
@SOCKET
@JSON_LINES
@click.argument("key", metavar="[KEY]", default="")
@click.argument("value", metavar="[VALUE]", default=None, required=False)
def config(socket: str | None, as_json: bool, key: str, value: str | None) -> None:
    """Show the configuration, or one KEY of it; with VALUE, set it."""
    connection = OperatorConnection(socket)
    found = (connection.call("GET", "/api/config") if value is None
             else connection.call("PUT", "/api/config", {"key": key, "value": _value(value)}))
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

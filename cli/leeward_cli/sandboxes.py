"""
`leeward sandbox`, `leeward shell` and `leeward python`: live sandboxes from the command line.

Theory of operation of `shell`. If this command is on a terminal, the program gets one (`leeward_cli.terminal`), else
pipes (`leeward_cli.passing`). A sandbox that `shell` has opened ends with it in any case, also after kill -9: it is
held by this command's connection. A sandbox that the user has named stays, and what was started in it is held.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from leeward.client.mounts import Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, LeewardError
from leeward.spec.sizes import size_text
from leeward_cli.click_options import JSON, JSON_LINES, RAW, SOCKET, TERMINAL, CommandGroup
from leeward_cli.messages import complain
from leeward_cli.prompt import main
from leeward_cli.sandbox_command import attached, in_sandbox, opened, split_words, used
from leeward_cli.sandbox_names import NAME, names, sandbox_id
from leeward_cli.terminal_rows import plain

if TYPE_CHECKING:
    from leeward.client.ports import Published

#: Seconds between two looks at whether a sandbox still lives, which aren't use of it.
_LOOK_S = 2.0


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{pair!r:.60} is not NAME=VALUE", ctx, param)
        found[name] = value
    return found


def _known(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    try:
        rows = Sandbox.list(socket=ctx.params.get("socket"))
    except DaemonError:
        return []
    return [each for each in names(rows) if each.startswith(begun)]


def _mounts(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[Mount, ...]:
    """The mounts in options of the form SOURCE:TARGET, with an optional `:rw` or `:overlay` at the end."""
    found = []
    for one in given:
        source, colon, rest = one.partition(":")
        target, _, how = rest.partition(":")
        if not (source and colon and target) or how not in ("", "ro", "rw", "overlay"):
            raise click.BadParameter(f"{one!r:.80} is not SOURCE:TARGET, SOURCE:TARGET:rw or SOURCE:TARGET:overlay",
                                     ctx, param)
        found.append(Mount(source, target, writable=how == "rw", overlay=how == "overlay"))
    return tuple(found)


def _opening(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--name", "called", metavar="NAME", help="A name, by which commands find the sandbox as by its id."),
        click.option("--memory", metavar="SIZE", help="Memory of the whole sandbox, such as 512M."),
        click.option("--processes", type=int, metavar="N", help="Processes and threads at once."),
        click.option("--descriptors", type=int, metavar="N", help="Open descriptors in each process."),
        click.option("--files", metavar="SIZE",
                     help="Files in /workspace, /tmp and /dev/shm together; they count as memory."),
        click.option("-t", "--timeout", type=float, metavar="SECONDS",
                     help="Time limit of each command that has none of its own."),
        click.option("--idle", type=float, metavar="SECONDS", help="End the sandbox after this time without use."),
        click.option("--lifetime", type=float, metavar="SECONDS", help="End the sandbox after this time in any case."),
        click.option("--env", "env", multiple=True, metavar="NAME=VALUE", callback=_pairs,
                     help="Set this variable for every process in the sandbox."),
        click.option("--workdir", metavar="FOLDER", help="Mount this folder of the host as /workspace."),
        click.option("--overlay", is_flag=True,
                     help="With --workdir: work on a copy, see `leeward diff` and `leeward apply`."),
        click.option("--copy", is_flag=True, help="With --workdir: copy it into the sandbox, also on another machine; "
                                                  "`leeward cp` brings it back."),
        click.option("--mount", "mounts", multiple=True, metavar="SOURCE:TARGET[:rw|:overlay]", callback=_mounts,
                     help="Mount a folder of the host: read-only, with rw writable, with overlay as a copy."),
        click.option("--egress", metavar="NAME",
                     help="The policy of the daemon's configuration that says what the sandbox may reach."),
        click.option("--network", "allow_network", is_flag=True,
                     help="The sandbox may reach all public names and addresses."),
        click.option("--environment", metavar="NAME", help="Another interpreter and its packages."),
        click.option("--package", "packages", metavar="REQUIREMENT", multiple=True,
                     help="Install this package, such as 'pandas==2.2'; instead of --environment."),
        click.option("--image", metavar="NAME", help="The root file system of this image: see `leeward image`."),
        click.option("--user", metavar="USER", help="With --image: who runs in it, a name of the image's or a number."),
        click.option("--show-secrets", is_flag=True, help="With --profile shell: hide nothing."),
        click.option("--profile", metavar="NAME", help="The kind of sandbox: see `leeward profiles`."),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def sandbox() -> None:
    """Open, list and end live sandboxes."""


@sandbox.command()
@SOCKET
@_opening
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", callback=_pairs, help="Shown by list and info.")
@click.option("--json", "by_json", is_flag=True,
              help="For programs: read the options from standard input, as one JSON object, and print one.")
@click.option("--stay", is_flag=True, help="With --json: hold the sandbox, and answer requests, a line each, until"
                                           " standard input ends.")
def new(socket: str | None, by_json: bool, stay: bool, **options: Any) -> int | None:
    """Open a sandbox, and print its id. The sandbox stays until it is killed, or was idle for too long."""
    if by_json:
        if _given(options):
            raise click.UsageError("with --json all options except --socket are read from standard input")
        from leeward_cli import for_programs  # people don't need it

        return for_programs.stay(socket) if stay else for_programs.open_by_json(socket)
    if stay:
        raise click.UsageError("--stay needs --json")
    click.echo(opened(socket, _given(options), held=False).detach())
    return None


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, {}, (), False)}
    called = given.pop("called", None)
    return given if called is None else {**given, "metadata": {**given.get("metadata", {}), NAME: called}}


@sandbox.command("list")
@SOCKET
@JSON_LINES
def list_(socket: str | None, as_json: bool) -> None:
    """Show your sandboxes, the oldest first."""
    rows = Sandbox.list(socket=socket)
    if as_json:
        _as_json(*rows)
        return
    if not rows:
        complain("you have no sandbox; `leeward sandbox new` opens one")
    for row in rows:
        about = " ".join(f"{name}={value}" for name, value in row["metadata"].items())
        click.echo(f"{row['sandbox']}  {row['age']:8.0f} s  {row['processes']:3} processes"
                   f"  {size_text(row['memory_peak']):>8}  {plain(about)}".rstrip())


@sandbox.command()
@SOCKET
@click.argument("name", metavar="ID", shell_complete=_known)
@JSON
def info(socket: str | None, name: str, as_json: bool) -> None:
    """Show a sandbox and its processes."""
    with attached(name, socket) as box:
        found, processes = box.info(), box.processes()
    if as_json:
        _as_json({**found, "processes": processes})
        return
    for what, value in found.items():
        click.echo(f"{what:13} {plain(_readable(what, value))}")
    for row in processes:
        state = f"exit {row['exit_code']}" if row["over"] else "runs"
        click.echo(f"{row['process']:5}  {state:8}  {row['age']:8.0f} s  {plain(str(row['title']))}")


@sandbox.command()
@SOCKET
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=_known)
def kill(socket: str | None, names: tuple[str, ...]) -> int:
    """
    End sandboxes, with everything in them.

    The exit status is 1 if one of them had ended already.
    """
    status = 0
    for name in names:
        try:
            Sandbox.attach(sandbox_id(name, socket), socket=socket).close()
        except LeewardError as error:
            complain(str(error))
            status = 1
    return status


@sandbox.command()
@SOCKET
@click.option("--on", "host_port", type=click.IntRange(0, 65535), default=0, metavar="PORT",
              help="The port on 127.0.0.1 of the host.  [default: a free one]")
@click.option("--until-eof", is_flag=True, help="Until the end of standard input as well, for programs that run this one.")
@click.argument("name", metavar="ID", shell_complete=_known)
@click.argument("inside", metavar="PORT", type=click.IntRange(1, 65535))
def port(socket: str | None, host_port: int, until_eof: bool, name: str, inside: int) -> None:
    """
    Make a server in a sandbox reachable on 127.0.0.1 of the host, until Ctrl-C or the sandbox's end.

    Prints the address. Every user of the host can connect to it.
    """
    with attached(name, socket) as box, box.publish(inside, host_port) as published:
        click.echo(f"127.0.0.1:{published.port}")
        if until_eof:
            threading.Thread(target=_close_at_eof, args=(published,), daemon=True).start()
        while not published.wait(_LOOK_S):
            if all(row["sandbox"] != box.id for row in Sandbox.list(socket=socket)):
                box.info()  # raises the reason


def _close_at_eof(published: Published) -> None:
    while os.read(0, 4096):
        pass
    published.close()


@click.command(context_settings={"ignore_unknown_options": False})
@SOCKET
@_opening
@click.option("--cwd", metavar="FOLDER", help="Start there.  [default: /workspace]")
@TERMINAL
@RAW
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ID] [-- COMMAND...]", shell_complete=_known)
def shell(socket: str | None, cwd: str | None, terminal: bool | None, raw: bool, words: tuple[str, ...],
          **options: Any) -> int:
    """
    Run COMMAND, or a shell, in a sandbox: in the one that ID names, or in one of its own.

    On a terminal the command gets a terminal of the same size, and every key goes to it. Else standard input, output
    and error are passed on; Ctrl-C then interrupts the command, and a second one ends it. The exit status is the
    command's.
    """
    name, argv = split_words(words, sys.argv)
    return in_sandbox(name, socket, _given(options), argv, cwd, terminal, raw)


@click.command(context_settings={"ignore_unknown_options": False})
@SOCKET
@click.option("--cwd", metavar="FOLDER", help="Start there.  [default: /workspace]")
@TERMINAL
@RAW
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="ID [-- COMMAND...]", shell_complete=_known)
def attach(socket: str | None, cwd: str | None, terminal: bool | None, raw: bool, words: tuple[str, ...]) -> int:
    """
    Run COMMAND, or a shell, in the sandbox that ID names: its id, the beginning of that, or its name.

    Same as `leeward shell ID`, but it never opens a sandbox.
    """
    name, argv = split_words(words, sys.argv)
    if name is None:
        raise click.UsageError("ID is missing; `leeward sandbox list` shows the ids")
    return in_sandbox(name, socket, {}, argv, cwd, terminal, raw)


sandbox.add_command(attach)


@click.command(context_settings={"ignore_unknown_options": False})
@SOCKET
@_opening
@RAW
@click.argument("name", metavar="[ID]", required=False, shell_complete=_known)
def python(socket: str | None, raw: bool, name: str | None, **options: Any) -> int:
    """
    A Python prompt in a sandbox: in the one that ID names, or in one of its own.

    Variables stay from one statement to the next, and the value of an expression is shown. Ctrl-C interrupts what runs;
    a second one ends the Python, and its variables are lost. If standard input isn't a terminal, all of it is run.
    """
    with used(name, socket, _given(options)) as box:
        return main(box, raw)


def _as_json(*rows: Any) -> None:
    for row in rows:
        click.echo(json.dumps(row))


#: The fields of `info` in seconds, and those in bytes.
_SECONDS = ("age", "idle", "unused", "left", "cpu_time")
_BYTES = ("memory_limit", "memory_peak", "memory")


def _readable(what: str, value: object) -> str:
    if isinstance(value, float) and what in _SECONDS:
        return f"{value:.3f} s" if value < 1 else f"{value:.0f} s"
    if isinstance(value, int) and what in _BYTES:
        return size_text(value)
    if isinstance(value, list):
        return ", ".join(f"{row['path']} at {row['target']}" for row in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "-"
    return str(value)

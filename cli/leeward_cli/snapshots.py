"""`leeward snapshot`: the snapshots of kernels that the user has in the daemon."""

from __future__ import annotations

import json
import time

import click

from leeward.client.snapshot import Snapshot
from leeward.errors import DaemonError
from leeward_cli.click_options import JSON, JSON_LINES, SOCKET, CommandGroup
from leeward_cli.messages import complain
from leeward_cli.terminal_rows import plain


def _known(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    try:
        rows = Snapshot.list(socket=ctx.params.get("socket"))
    except DaemonError:
        return []
    return [row["snapshot"] for row in rows if row["snapshot"].startswith(begun)]


@click.group(cls=CommandGroup)
def snapshot() -> None:
    """List, remove and save snapshots of kernels, which take memory of the daemon's."""


@snapshot.command("list")
@SOCKET
@JSON_LINES
def list_(socket: str | None, as_json: bool) -> None:
    """Show your snapshots, the oldest first."""
    rows = Snapshot.list(socket=socket)
    if not rows and not as_json:
        complain("you have no snapshot; a kernel's `snapshot()` takes one")
    for row in rows:
        click.echo(json.dumps(row) if as_json else f"{row['snapshot']}  {_when(row['made'])}  {_size(row['size']):>11}"
                                                   f"  Python {plain(str(row['python']))}")


@snapshot.command()
@SOCKET
@click.argument("name", metavar="ID", shell_complete=_known)
@JSON
def info(socket: str | None, name: str, as_json: bool) -> None:
    """Show what a snapshot is: its packages, and what copies of it don't have."""
    found = Snapshot.find(name, socket)
    if as_json:
        click.echo(json.dumps({"snapshot": found.id, "size": found.size, "made": found.made, "python": found.python,
                               "packages": found.packages, "lost": found.lost}))
        return
    packages = " ".join(f"{package} {version}".strip() for package, version in found.packages.items())
    for what, value in (("made", _when(found.made)), ("size", _size(found.size)), ("python", found.python),
                        ("packages", packages or "-"), *(("lost", each) for each in found.lost)):
        click.echo(f"{what:9} {plain(value)}")


@snapshot.command()
@SOCKET
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=_known)
def rm(socket: str | None, names: tuple[str, ...]) -> int:
    """
    Remove snapshots. Kernels that have begun with one live on.

    The exit status is 1 if one of them wasn't there.
    """
    status = 0
    for name in names:
        try:
            Snapshot.find(name, socket).remove()
        except DaemonError as error:
            complain(str(error))
            status = 1
    return status


@snapshot.command()
@SOCKET
@click.argument("name", metavar="ID", shell_complete=_known)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
def export(socket: str | None, name: str, path: str) -> None:
    """
    Write a snapshot into a file, which a later daemon can import.

    Only you can read the file. Whoever reads it can read what the kernel could.
    """
    Snapshot.find(name, socket).save(path)


@snapshot.command("import")
@SOCKET
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
def import_(socket: str | None, path: str) -> None:
    """
    Take a snapshot out of a file, and print its ID.

    It is refused on another kernel, processor or version of leeward than it was taken with.
    """
    click.echo(Snapshot.load(path, socket).id)


def _when(made: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made))


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

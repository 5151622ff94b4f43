"""`leeward snapshot`: the snapshots of kernels that the user has in the daemon, and those kept on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from leeward.client.snapshot import Snapshot
from leeward.client.snapshot_store import SnapshotStore, is_kept
from leeward.errors import DaemonError
from leeward_cli.click_options import JSON, JSON_LINES, SOCKET, CommandGroup
from leeward_cli.messages import complain
from leeward_cli.terminal_rows import mebibytes, plain, second

STORE = click.option("--store", metavar="FOLDER", help="Where snapshots are kept, instead of your own folder for them.")


def _known(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    names = [row["snapshot"] for row in SnapshotStore(ctx.params.get("store")).list()]
    try:
        names += [row["snapshot"] for row in Snapshot.list(socket=ctx.params.get("socket"))]
    except DaemonError:
        pass
    return [name for name in names if name.startswith(begun)]


@click.group(cls=CommandGroup)
def snapshot() -> None:
    """
    List, remove and save snapshots of kernels, which take memory of the daemon's.

    Those that are kept on disk have names of 64 digits, and outlive the daemon.
    """


@snapshot.command("list")
@SOCKET
@click.option("--kept", is_flag=True, help="Those on disk alone, without asking a daemon.")
@STORE
@JSON_LINES
def list_(socket: str | None, kept: bool, store: str | None, as_json: bool) -> None:
    """Show your snapshots: the daemon's, the oldest first, and those kept on disk, the longest unused first."""
    rows = [] if kept else Snapshot.list(socket=socket)
    on_disk = SnapshotStore(store).list()
    if not rows and not on_disk and not as_json:
        complain("you have no snapshot; a kernel's `snapshot()` takes one")
    for row in [*rows, *on_disk]:
        where = f"kept, unused since {second(row['used'])}" if "used" in row else f"Python {plain(str(row['python']))}"
        click.echo(json.dumps(row) if as_json else f"{row['snapshot']}  {second(row['made'])}  {mebibytes(row['size']):>11}"
                                                   f"  {where}")


@snapshot.command()
@SOCKET
@click.argument("name", metavar="ID", shell_complete=_known)
@STORE
@JSON
def info(socket: str | None, name: str, store: str | None, as_json: bool) -> None:
    """Show what a snapshot is: its packages, what copies of it don't have, and of one on disk where it can be loaded."""
    found = SnapshotStore(store).info(name) if is_kept(name) else _facts(Snapshot.find(name, socket))
    if as_json:
        click.echo(json.dumps(found))
        return
    packages = " ".join(f"{package} {version}".strip() for package, version in found["packages"].items())
    for what, value in (("made", second(found["made"])), ("size", mebibytes(found["size"])), ("python", found["python"]),
                        ("packages", packages or "-"), *(("lost", each) for each in found["lost"]),
                        *found.get("key", {}).items()):
        click.echo(f"{plain(what):9} {plain(str(value))}")


def _facts(found: Snapshot) -> Mapping[str, Any]:
    return {"snapshot": found.id, "size": found.size, "made": found.made, "python": found.python,
            "packages": found.packages, "lost": found.lost}


@snapshot.command()
@SOCKET
@STORE
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=_known)
def rm(socket: str | None, store: str | None, names: tuple[str, ...]) -> int:
    """
    Remove snapshots. Kernels that have begun with one live on.

    The exit status is 1 if one of them wasn't there.
    """
    status = 0
    for name in names:
        try:
            if is_kept(name):
                SnapshotStore(store).remove(name)
            else:
                Snapshot.find(name, socket).remove()
        except DaemonError as error:
            complain(str(error))
            status = 1
    return status


@snapshot.command()
@SOCKET
@STORE
@click.argument("name", metavar="ID", shell_complete=_known)
def keep(socket: str | None, store: str | None, name: str) -> None:
    """
    Keep a snapshot on disk, and print its name there. `import` takes it back.

    Those that nobody has used for 30 days are removed; all together may have 20 GiB.
    """
    click.echo(SnapshotStore(store).keep(Snapshot.find(name, socket)))


@snapshot.command()
@click.option("--days", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Without use.")
@STORE
def prune(days: float, store: str | None) -> None:
    """Remove snapshots on disk that nobody has used for long, and print their names."""
    for name in SnapshotStore(store).prune(days):
        click.echo(name)


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
@STORE
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
def import_(socket: str | None, store: str | None, path: str) -> None:
    """
    Take a snapshot out of a file, or one that is kept by its name, and print its ID.

    It is refused on another kernel, processor or version of leeward than it was taken with.
    """
    try:
        click.echo((SnapshotStore(store).load(path, socket) if is_kept(path) else Snapshot.load(path, socket)).id)
    except FileNotFoundError as error:
        raise click.FileError(path, error.strerror) from None

"""`leeward image`: imports, lists and removes root file systems, as the user whose daemon uses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import click

from leeward.apps.images import committing, registry
from leeward.apps.images.sources import FoundImage, find
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import ImageBounds
from leeward.daemon.config_sources import load
from leeward.errors import LeewardError, quoted
from leeward.spec.images import Image, name_path
from leeward.spec.stored import default_folder
from leeward_cli.click_options import CONFIG, JSON_ALL, JSON_LINES, SOCKET, CommandGroup
from leeward_cli.messages import complain
from leeward_cli.overlays import line, row_of
from leeward_cli.progress import Progress, amount
from leeward_cli.sandbox_command import attached
from leeward_cli.terminal_rows import fields, mebibytes, stored


@click.group("image", cls=CommandGroup)
def image() -> None:
    """Keep images: root file systems for --image of sandboxes."""


def _open(config_file: str | None) -> Images:
    config = load(config_file)
    folder = config.images_folder or default_folder(os.environ, os.geteuid(), "images")
    return Images(folder, config.images_size)


@image.command("import")
@click.argument("source", metavar="FILE|FOLDER", type=click.Path(exists=True))
@click.option("--name", required=True, help="The image's name.")
@click.option("--tag", default="", help="The image to take from an archive that holds several.")
@CONFIG
def import_(source: str, name: str, tag: str, config_file: str | None) -> None:
    """
    Import an image: an OCI layout or its archive, an archive of `docker save`, a tar of a root, or a folder with one.

    Each layer is unpacked once, after bounds and digests were checked. A name that exists stands for the new image from
    its pool's next start on. Devices, set-id bits, extended attributes and owners aren't kept.
    """
    store = _open(config_file)
    bounds = ImageBounds(size=store.size)
    with store.locked(shared=True):  # makes the folder
        pass
    _add(store, name, find(source, bounds, tag, spool=store.folder), os.path.abspath(source), bounds)


@image.command("pull")
@click.argument("ref", metavar="REF")
@click.option("--name", default="", help="The image's name; else the last part of the repository's.")
@click.option("--mirror", metavar="URL", default="", help="Ask this registry instead, a pull-through cache.")
@CONFIG
def pull(ref: str, name: str, mirror: str, config_file: str | None) -> None:
    """
    Pull the image REF from its registry: [HOST[:PORT]/]REPOSITORY[:TAG][@sha256:DIGEST], as docker reads it.

    Logins are those of `docker login`. A registry on this machine's loopback is asked over HTTP, others over HTTPS.
    """
    wanted = registry.reference(ref)
    name = name or wanted.repository.rpartition("/")[2]
    name_path("", name)  # BadRequest before anything is asked
    store = _open(config_file)
    _add(store, name, registry.pull(wanted, mirror), str(wanted), ImageBounds(size=store.size))


@image.command("diff")
@click.argument("sandbox", metavar="ID")
@SOCKET
@JSON_LINES
@CONFIG
def diff(sandbox: str, socket: str | None, as_json: bool, config_file: str | None) -> None:
    """Show what a live sandbox has changed of its image's root, as `leeward diff` shows it for a folder."""
    store = _open(config_file)
    with attached(sandbox, socket) as box, Progress("comparing"):
        found = committing.diff(box, store)
    for change in found:
        click.echo(json.dumps(row_of(change)) if as_json else line(change))


@image.command("commit")
@click.argument("sandbox", metavar="ID")
@click.argument("name")
@SOCKET
@CONFIG
def commit(sandbox: str, name: str, socket: str | None, config_file: str | None) -> None:
    """
    Make the image NAME of a live sandbox's image and what the sandbox has changed of its root, as one more layer.

    The sandbox goes on; what it writes meanwhile may be in the layer or not. Environment, user and entry point stay those
    of its image.
    """
    name_path("", name)  # BadRequest before anything is read
    store, far, began = _open(config_file), ImportProgress(), time.monotonic()
    with attached(sandbox, socket) as box, Progress(
            f"committing {quoted(sandbox)}", lambda: amount(far.done, far.total, time.monotonic() - began)):
        made, left = committing.commit(box, store, name, far)
    _tell(store, name, made, left, began)


def _add(store: Images, name: str, finding: AbstractContextManager[FoundImage], source: str, bounds: ImageBounds) -> None:
    far, began = ImportProgress(), time.monotonic()
    with Progress(f"importing {quoted(source)}", lambda: amount(far.done, far.total, time.monotonic() - began)), (
            finding) as found:
        made, left = store.add(name, found, source, far, bounds)
    _tell(store, name, made, left, began)


def _tell(store: Images, name: str, made: Image, left: Mapping[str, int], began: float) -> None:
    told = "".join(f", without {number} {what}" for what, number in sorted(left.items()))
    click.echo(f"{name}: {len(made.layers)} layers, {mebibytes(store.size_of(made))}, in {time.monotonic() - began:.1f} s"
               + told)


@image.command("list")
@CONFIG
@JSON_ALL
def list_(config_file: str | None, as_json: bool) -> None:
    """List the images: name, layers, size and time of import."""
    store = _open(config_file)
    rows: list[dict[str, Any]] = [
        {"name": name, "image": made.hash if made else "", "layers": len(made.layers) if made else 0,
         "size": store.size_of(made) if made else 0, "created": made.created if made else 0}
        for name, made in store.names().items()]
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        complain("there is no image; `leeward image pull` and `import` make some")
    click.echo("".join(f"{each}\n" for each in stored(rows, "layers")), nl=False)


@image.command("show")
@click.argument("name")
@CONFIG
@JSON_ALL
def show(name: str, config_file: str | None, as_json: bool) -> None:
    """Show the layers of the image NAME, and how its programs are started."""
    store = _open(config_file)
    made = store.image(name)
    try:
        uid, gid, home = made.identity("")
    except LeewardError:
        uid, gid, home = -1, -1, ""
    found = {"name": name, "image": made.hash, "source": made.source, "created": made.created, "size": store.size_of(made),
             "user": made.config.user or "root", "uid": uid, "gid": gid, "home": home, "cwd": made.config.cwd,
             "entrypoint": list(made.config.entrypoint), "cmd": list(made.config.cmd),
             "env": [f"{key}={value}" for key, value in made.config.env], "layers": list(made.layers)}
    click.echo(json.dumps(found) if as_json else "\n".join(fields(found, 12)))


@image.command("remove")
@click.argument("name")
@CONFIG
def remove(name: str, config_file: str | None) -> None:
    """Remove NAME. Its layers are removed by `prune`, if no other image has them."""
    _open(config_file).remove(name)


@image.command("prune")
@CONFIG
def prune(config_file: str | None) -> None:
    """Remove images without a name, their layers, and what was never finished."""
    gone, size, busy = _open(config_file).prune()
    stay = f", {busy} stay: a daemon has used them since it started" if busy else ""
    click.echo(f"{gone} layers removed, {mebibytes(size)}{stay}")


@image.command("export")
@click.argument("name")
@click.argument("file", type=click.Path(exists=False))
@CONFIG
def export(name: str, file: str, config_file: str | None) -> None:
    """Write the image NAME to the new FILE, as an archive of an OCI layout. All files in it belong to root."""
    began = time.monotonic()

    def far() -> str:
        return amount(os.path.getsize(file) if os.path.exists(file) else 0, 0, time.monotonic() - began)

    with Progress(f"exporting {name}", far):
        _open(config_file).export(name, file)

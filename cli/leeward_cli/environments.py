"""`leeward env`: makes, lists and removes the environments that requests can name, as the user whose daemon uses them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

import click

from leeward.client.blocking import Client
from leeward.client.environments import Environments, PackageSource, of_another
from leeward.client.packages import wanted_packages
from leeward.daemon.config_sources import load
from leeward.errors import BadRequest, LeewardError
from leeward.spec.stored import Named, default_folder, unencrypted_host
from leeward_cli.click_options import CONFIG, JSON_ALL, CommandGroup, socket_option
from leeward_cli.messages import EscapedStream, complain
from leeward_cli.progress import Progress, amount
from leeward_cli.terminal_rows import fields, mebibytes, stored


@click.group("env", cls=CommandGroup)
def env() -> None:
    """Make environments: interpreters with packages, for --environment of jobs and sandboxes."""


def _open(config_file: str | None) -> tuple[Environments, Any]:
    config = load(config_file)
    return Environments(config.environments_folder or default_folder(os.environ, os.geteuid())), config


@env.command("create")
@click.argument("name")
@click.argument("requirements", nargs=-1, metavar="[REQUIREMENT]...")
@click.option("-r", "files", metavar="FILE", multiple=True, help="Read requirements from this file, a line each.")
@click.option("--egress", metavar="POLICY", default="", help="The daemon's policy by which pip reaches the index.")
@click.option("--index-url", metavar="URL", default="", help="The index, instead of pip's default one.")
@click.option("--trusted-host", "trusted", metavar="HOST", multiple=True,
              help="Accept this index without TLS, or with a certificate that the sandbox can't verify.")
@click.option("--find-links", "folders", metavar="FOLDER", multiple=True,
              help="Find packages in this folder of the host; without --egress only there.")
@click.option("--allow-source", is_flag=True, help="Build packages that have no wheel, in the sandbox.")
@click.option("--python", metavar="PYTHON", default="",
              help="Another CPython, 3.11 or later, by its path or its name: python3.13. pip installs cffi and msgpack"
                   " beside.")
@click.option("--preload", metavar="MODULE", multiple=True, help="Import this module before any job.")
@click.option("--min", "least", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Workers that are kept while the environment is in use.")
@click.option("--max", "most", type=click.IntRange(1, 256), default=4, show_default=True, help="Workers at most.")
@click.option("-t", "--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for pip.")
@socket_option("The socket of the daemon in whose sandbox pip runs.")
@CONFIG
def create(name: str, requirements: tuple[str, ...], files: tuple[str, ...], egress: str, index_url: str,
           trusted: tuple[str, ...], folders: tuple[str, ...], allow_source: bool, python: str,
           preload: tuple[str, ...], least: int, most: int, timeout: float, socket: str | None,
           config_file: str | None) -> None:
    """
    Make the environment NAME from REQUIREMENTs of pip, such as 'pandas==2.2'.

    pip runs in a sandbox that reaches what --egress allows and nothing else. The same requirements are made once. A
    name that exists stands for the new environment from its pool's next start on.
    """
    made, config = _open(config_file)
    if not egress and not folders and not index_url:
        egress, index_url = config.environments_egress, config.environments_index
        trusted = (*trusted, *unencrypted_host(index_url))
    source = PackageSource(socket, egress, index_url, trusted, folders, timeout, config.environments_size)
    for folder in folders:
        if not os.path.isdir(folder):
            raise BadRequest(f"--find-links {folder!r} is not a folder")
    if (index_url or trusted) and not egress:
        raise BadRequest("--index-url needs --egress, the policy by which pip reaches the index")
    lines = [*requirements, *(line for file in files for line in _lines(file))]
    recipe = made.recipe(lines, source, from_source=allow_source)
    if python:
        recipe = of_another(recipe, python)
    if recipe.requirements and not egress and not folders:
        raise BadRequest("pip has no source of packages: `leeward env setup` allows the index that pip has here;"
                         " --egress names a policy by which it reaches one (docs/environments.md), --find-links a folder"
                         " of this host")
    started, sizes = time.monotonic(), [0]
    # Escaped: a package's build can write anything.
    with (contextlib.closing(EscapedStream(sys.stderr.fileno(), raw=False)) as stderr,
          Progress(f"installing {name}", lambda: amount(sizes[-1], 0, time.monotonic() - started)) as line):
        manifest, new = made.create(
            name, recipe, source, lambda built: Named(built, preload, least, max(least, most)),
            lambda data: line.above(stderr.write, data), sizes.append)
    spent = f", made in {time.monotonic() - started:.1f} s" if new else ", which was there already"
    click.echo(f"{name}: {len(manifest.packages)} packages, {mebibytes(manifest.size)}{spent}")


def _lines(file: str) -> list[str]:
    """The requirements in a file. Options of pip are refused, because they could name another index or another file."""
    try:
        with open(file, encoding="utf-8") as text:
            lines = [line.split(" #")[0].strip() for line in text.read().replace("\\\n", " ").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"-r {file!r}: {error}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    for line in found:
        if line.startswith("-") or " --" in line:
            raise BadRequest(f"-r {file!r}: {line!r:.80} has an option of pip; write only requirements, and give"
                             " --index-url or --find-links to this command")
    return found


@env.command("setup")
@click.option("--index-url", metavar="URL", default="", help="The index, instead of the one that pip uses here.")
@click.option("--config", "named", metavar="FILE", help="Write this configuration, not the daemon's default one.")
@click.option("--show", is_flag=True, help="Show what would be allowed, and write nothing.")
def setup(index_url: str, named: str | None, show: bool) -> None:
    """
    Let pip in a sandbox reach the package index: for --package, `packages=` and `leeward env create`.

    Asks pip for its index, and the index for the hosts of its files. Writes a policy for these hosts into the daemon's
    configuration, and says what it allows.
    """
    from leeward_cli import env_setup  # imports urllib and an HTML parser, for this command alone

    found = env_setup.look(*env_setup.pips_index(index_url))
    path = env_setup.config_file(named)
    click.echo(f"index: {found.url}\nallowed, while packages are installed: {' '.join(found.origins)}")
    if found.addresses:
        click.echo(f"at addresses of a private network: {' '.join(found.addresses)}")
    if not show:
        env_setup.write(path, found)
        click.echo(f"written: {path}, environments_egress and [egress.{env_setup.POLICY}]; a running daemon reads them when"
                   " it starts again: leeward daemon stop")


@env.command("ensure")
@click.argument("requirements", nargs=-1, metavar="REQUIREMENT...", required=True)
@socket_option("The socket of the daemon that serves the environment.")
@JSON_ALL
def ensure(requirements: tuple[str, ...], socket: str | None, as_json: bool) -> int:
    """
    Print the name of an environment with REQUIREMENTs. If the daemon has none, it is made.

    It is the one that `leeward exec --package` uses, for programs in other languages.
    """
    try:
        with Client(socket) as client:
            client.execute("", packages=requirements)
            name = wanted_packages(requirements, client.socket, client.status()).name
    except LeewardError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        return 1
    click.echo(json.dumps({"environment": name}) if as_json else name)
    return 0


@env.command("list")
@CONFIG
@JSON_ALL
def list_(config_file: str | None, as_json: bool) -> None:
    """List the environments: name, packages, size and time of making."""
    made, config = _open(config_file)
    rows: list[dict[str, Any]] = []
    for name, named in made.names().items():
        manifest = made.manifest(named.built) if named is not None else None
        rows.append({"name": name, "built": named.built if named else "", "packages": len(manifest.packages)
                     if manifest else 0, "size": manifest.size if manifest else 0,
                     "created": manifest.created if manifest else 0})
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows and not config.environments:
        complain("there is no environment; `leeward env create` makes one")
    width = max([4, *(len(row["name"]) for row in rows)])
    click.echo("".join(f"{each}\n" for each in (*stored(rows, "packages"), *(
        f"{name:<{width}}  by the configuration: {one.path or 'no packages'}"
        for name, one in config.environments.items()))), nl=False)


@env.command("show")
@click.argument("name")
@CONFIG
@JSON_ALL
def show(name: str, config_file: str | None, as_json: bool) -> None:
    """Show the requirements and the packages of the environment NAME."""
    made, _ = _open(config_file)
    named = made.named(name)
    manifest = made.manifest(named.built)
    if manifest is None:
        raise BadRequest(f"environment {name!r} was removed; `leeward env create` makes it again")
    found = {"name": name, "folder": os.path.join(made.folder, "built", named.built), "python": manifest.python,
             "requirements": list(manifest.requirements), "packages": dict(manifest.packages), "size": manifest.size,
             "content": manifest.content, "created": manifest.created, "preload": list(named.preload),
             "min": named.min, "max": named.max}
    if as_json:
        click.echo(json.dumps(found))
        return
    shown = {**found, "packages": [f"{package} {version}" for package, version in dict(manifest.packages).items()]}
    click.echo("\n".join(fields(shown, 12)))


@env.command("remove")
@click.argument("name")
@CONFIG
def remove(name: str, config_file: str | None) -> None:
    """Remove NAME. Its environment is removed by `prune`, if no other name stands for it."""
    _open(config_file)[0].remove(name)


@env.command("prune")
@CONFIG
def prune(config_file: str | None) -> None:
    """Remove environments without a name, and those that were never finished."""
    gone, busy = _open(config_file)[0].prune()
    stay = f", {len(busy)} stay: a daemon has used them since it started" if busy else ""
    click.echo(f"{len(gone)} removed{stay}")

"""
Aids for a person at a shell: `leeward top` and `leeward completion`.

Runs in:   the CLI, by click.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from leeward.spec.paths import client_socket
from leeward_cli import top as showing
from leeward_cli.click_options import SOCKET


@click.command()
@click.option("--once", is_flag=True, help="Show one picture, and end.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, metavar="SECONDS",
              help="Seconds between updates.  [default: 2]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@SOCKET
def top(once: bool, interval: float, as_json: bool, socket: str | None) -> int:
    """Show workers, jobs and your sandboxes, and update them until q or Ctrl-C."""
    if once:
        showing.once(client_socket(socket), as_json)
        return 0
    return showing.follow(client_socket(socket), interval, as_json)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes this command: leeward completion bash > FILE, and source that."""
    click.echo(script(shell, click.get_current_context().find_root().command))


def script(shell: str, command: click.Command) -> str:
    """The script by which *shell* completes *command*, which is `leeward`."""
    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"this click has no completion for {shell}")
    return made(command, {}, "leeward", "_LEEWARD_COMPLETE").source()

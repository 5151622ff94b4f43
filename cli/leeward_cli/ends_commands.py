"""
`leeward explain` and `leeward logs`, as commands.

Runs in:   the CLI, by click.
"""

from __future__ import annotations

import click

from leeward.spec.paths import client_socket
from leeward_cli.click_options import SOCKET
from leeward_cli.explain import explain as of_a_name
from leeward_cli.logs import is_end, of, show


@click.command()
@SOCKET
@click.argument("names", nargs=-1, metavar="[JOB|NAME]...")
def explain(socket: str | None, names: tuple[str, ...]) -> None:
    """
    Say why a job ended as it did, what it was denied, by which row of the policy, and what would allow it.

    JOB is a number, or a sandbox's id, that `leeward logs` shows; without any, the last one that a limit, a signal or
    a fault has ended, or that was denied something. NAME is "network", "loopback", "terminal", or a system call as
    `denied` and the security log have it.
    """
    for name in names or ("",):
        click.echo(of(client_socket(socket), name) if not name or is_end(name) else of_a_name(name), nl=False)


@click.command()
@SOCKET
@click.option("-f", "--follow", is_flag=True, help="Follow: show what is added, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.argument("job", metavar="[JOB]", default="")
def logs(socket: str | None, follow: bool, as_json: bool, job: str) -> None:
    """
    Show how your jobs and sandboxes ended: limits that they hit, and calls that they were denied.

    JOB is a job's number or a sandbox's id. The daemon remembers the last 256 ends of each user, of
    normal ends the last 64.
    """
    show(client_socket(socket), job, follow, as_json)

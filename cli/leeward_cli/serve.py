"""`leeward serve`: sandboxes and jobs by HTTP, for clients of other people's; and its tokens."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import click

from leeward.apps.fleet.addresses import Nodes, configured
from leeward.apps.serve.tokens import FLEET, TenantQuota, TokenFile, quota_of, volume_of
from leeward.errors import BadRequest
from leeward_cli.click_options import JSON_LINES, socket_option
from leeward_cli.messages import complain

_TOKENS = click.option("--tokens", metavar="FILE", help="The file of tokens; else LEEWARD_SERVE_TOKENS, else "
                                                        "~/.config/leeward/serve.json.")


class _Serve(click.Group):
    """A group whose words are the faces to serve, unless the first one is a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] in self.commands:
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args = True
        click.Command.parse_args(self, ctx, args)
        ctx.params["names"], ctx.args = tuple(ctx.args), []
        return []

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx) if "names" in ctx.params else super().invoke(ctx)


@click.group(cls=_Serve, options_metavar="[OPTIONS]", subcommand_metavar="FACE... | token COMMAND")
@click.option("--listen", metavar="ADDRESS:PORT", default="127.0.0.1:8080", show_default=True,
              help="Where to listen; beyond loopback only with tokens and TLS. Port 0 takes a free one.")
@_TOKENS
@click.option("--open", "is_open", is_flag=True, help="Ask for no token; every user of this host can call.")
@click.option("--tls-cert", metavar="FILE", help="A certificate with its chain, for TLS.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--behind-proxy", is_flag=True, help="A proxy in front has TLS. Nothing else of it is believed.")
@click.option("--name", "hosts", metavar="NAME", multiple=True, help="A name by which clients reach the server.")
@click.option("--origin", "origins", metavar="ORIGIN", multiple=True, help="Of pages that may call; by default none may.")
@click.option("--domain", metavar="NAME[:PORT]", default="", help="Below it sandboxes have names: PORT-ID.NAME.")
@click.option("--profile", metavar="NAME", default="", help="The sandboxes' profile, where a request doesn't choose one.")
@click.option("--environment", metavar="NAME", default="", help="Another interpreter and its packages.")
@click.option("--at-once", metavar="N", type=click.IntRange(1, 10000), default=None,
              help="Jobs that run at once; as many as the daemon has workers by default.")
@click.option("--wait", metavar="SECONDS", type=click.FloatRange(0, 3600), default=8.0, show_default=True,
              help="How long a job waits for its turn, before the answer is 504.")
@click.option("--fleet", is_flag=True,
              help="Use the nodes of LEEWARD_FLEET or fleet.toml, in place of one daemon.")
@click.option("--servers", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="How many servers like this one there are, with the same tokens: each gives out its part of the quotas.")
@click.option("--log-calls", is_flag=True,
              help="Print a line of JSON for each call and each sandbox's end, with its tenant, on standard error.")
@click.option("--metrics", metavar="PLACE", default="",
              help="Serve counts by tenant for Prometheus: at an ADDRESS:PORT of loopback, or the path of a socket.")
@socket_option("The daemon's socket.")
def serve(hosts: tuple[str, ...], origins: tuple[str, ...], socket: str | None, is_open: bool, domain: str, profile: str,
          environment: str, at_once: int | None, wait: float, fleet: bool, names: tuple[str, ...] = (), **given: Any) -> int:
    """
    Serve sandboxes and jobs by HTTP, to clients of other people's, in the foreground, until SIGTERM or Ctrl-C.

    A FACE is what they speak: `e2b`, for E2B's clients, `run-code`, for those of SandboxFusion, `mcp`, for models,
    `jupyter`, for those of kernels, `opensandbox`, for OpenSandbox's SDK, or `leeward`, for its own on other machines; with
    `ports` servers in sandboxes are reached as well. Each caller needs a token, which `leeward serve token create` makes.
    """
    if not names:
        return 0  # a command of `token`
    try:
        from leeward.apps.serve.door import DoorOptions  # of the extra `serve`
        from leeward.apps.serve.serving import DoorCommand
        from leeward.apps.serve.serving import serve as run
        door = DoorOptions(socket, is_open, profile, environment, wait, at_once or 0, domain, _nodes() if fleet else None)
        return run(DoorCommand(names, names=hosts, origins=origins, door=door, **given),
                   lambda url: click.echo(f"leeward serve: process {os.getpid()} serves {', '.join(names)} at {url}",
                                          err=True))
    except ImportError as error:
        complain(f"{error.name} is missing: pip install 'leeward[serve,mcp]'")
        return 1


def _nodes() -> Nodes:
    nodes = configured(os.environ)
    if isinstance(nodes, str):
        raise BadRequest("--fleet takes a list of nodes, not a cluster of Ray's")
    return nodes


@serve.group()
def token() -> None:
    """Make, list and revoke the tokens of tenants."""


@token.command()
@_TOKENS
@click.option("--quota", "quotas", metavar="NAME=VALUE", multiple=True,
              help="sandboxes, jobs, streams, connections: at once. rate: calls a second. body, memory: bytes, or 64M."
                   " lifetime: seconds.")
@click.option("--profile", "profiles", metavar="NAME", multiple=True, help="A profile that this tenant may choose.")
@click.option("--egress", "policies", metavar="NAME", multiple=True,
              help="A policy that this tenant's sandboxes may have; the first is for those who ask for the Internet.")
@click.option("--volume", "folders", metavar="NAME=FOLDER[:ro]", multiple=True,
              help="A folder of this host that this tenant's sandboxes may show; what they write there nothing but "
                   "`folder_reserve` bounds. With :ro they only read it.")
@click.option("--fleet", is_flag=True, help="It places work on several servers' daemons, so it may ask how busy this one is;"
                                            " by default with the quota of a server before this one.")
@click.argument("name")
def create(tokens: str | None, quotas: tuple[str, ...], profiles: tuple[str, ...], policies: tuple[str, ...],
           folders: tuple[str, ...], fleet: bool, name: str) -> None:
    """Make a token for the tenant NAME, and print it. It isn't stored, and can't be shown again."""
    words = dict[str, str]()
    for each in quotas:
        key, equals, value = each.partition("=")
        if not equals:
            raise BadRequest(f"--quota takes NAME=VALUE, not {each!r:.40}")
        words[key] = value
    quota = quota_of(words, FLEET if fleet else TenantQuota())
    click.echo(TokenFile(tokens).create(name, quota, profiles, policies, fleet, tuple(map(volume_of, folders))))


@token.command("list")
@_TOKENS
@JSON_LINES
def list_(tokens: str | None, as_json: bool) -> None:
    """List the tenants, without their tokens."""
    for each in TokenFile(tokens).tenants():
        quota = {name: getattr(each.quota, name) for name in each.quota.__slots__}
        if as_json:
            click.echo(json.dumps({"name": each.name, "id": each.id, "created": each.created, "quota": quota,
                                   "profiles": each.profiles, "egress": each.egress,
                                   "volumes": {volume.name: volume.folder for volume in each.volumes}}))
        else:
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
            click.echo(f"{each.name:<20} {made}  " + " ".join(f"{name}={value}" for name, value in quota.items()))


@token.command()
@_TOKENS
@click.argument("name")
def revoke(tokens: str | None, name: str) -> int:
    """Forget the token of the tenant NAME. Servers that run refuse it within a second."""
    if not TokenFile(tokens).revoke(name):
        complain("there is no token of this name")
        return 1
    return 0

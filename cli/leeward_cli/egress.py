"""`leeward egress test`, which shows the rule of a policy that decides, without a query or a connection; and `log`."""

from __future__ import annotations

import json

import click

from leeward.daemon.config_sources import load
from leeward.egress.addresses import parse_url
from leeward.egress.policy import PROTOCOLS, Request, decide, rule_for
from leeward.errors import BadRequest
from leeward.spec.egress_policy import Policy
from leeward.spec.hosts import InvalidHost, parse_host
from leeward.spec.paths import client_socket
from leeward_cli import egress_log
from leeward_cli.click_options import FOLLOW, JSON_LINES, SOCKET, CommandGroup
from leeward_cli.sandbox_names import asked_id

#: The protocol of a connection, by the URL's scheme. The broker passes TLS through; `tcp` stands for anything else.
_PROTOCOLS = {"http": "http", "https": "tls", "tcp": "tcp"}


@click.group(cls=CommandGroup)
def egress() -> None:
    """Test a policy of egress, and show what sandboxes tried to reach."""


@egress.command("log")
@SOCKET
@FOLLOW
@JSON_LINES
@click.option("--names", "file", metavar="FILE", help="Write the names that were allowed and denied to FILE, sorted,"
              " each once, in place of the rows.")
@click.argument("job", metavar="[ID]", default="")
def log(socket: str | None, follow: bool, as_json: bool, file: str | None, job: str) -> None:
    """
    Show what your jobs and sandboxes tried to reach, and what was decided: a row each.

    ID is a job's number, or a sandbox's id or name. The user who runs the daemon sees the rows of all users. The daemon
    remembers the last 10,000 rows; where users share them, the user with the most rows loses their oldest first.
    """
    job = asked_id(job, socket)
    if file is None:
        egress_log.show(client_socket(socket), job, follow, as_json)
    elif follow or as_json:
        raise click.UsageError("--names writes a list of names: it takes neither --follow nor --json")
    else:
        egress_log.write_names(client_socket(socket), job, file)


@egress.command("test")
@click.option("--policy", metavar="NAME", required=True, help="The policy, [egress.NAME] of the configuration.")
@click.option("--config", "config_file", metavar="FILE", help="Read this file as well, as `leeward daemon run` does.")
@click.option("--method", metavar="METHOD", default="GET", show_default=True, help="The method of requests by http.")
@click.option("--address", metavar="ADDRESS", help="The address that the names resolve to; default: a public one.")
@click.option("--fetch", is_flag=True, help="Decide as for `fetch`, which sees methods and paths by https too.")
@JSON_LINES
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
def test(policy: str, config_file: str | None, method: str, address: str | None, fetch: bool, as_json: bool,
         urls: tuple[str, ...]) -> int:
    """
    Say which rule of a policy decides about URL: http, https, or tcp://HOST:PORT.

    No name is resolved and no connection is made. The exit status is 1 if one of them isn't allowed.
    """
    policies = load(config_file).egress
    if policy not in policies:
        raise BadRequest(f"there is no policy {policy!r:.80}; the configuration has: {', '.join(policies) or 'none'};"
                         ' `allow = ["example.org"]` below [egress.NAME] makes one')
    allowed = True
    for url in urls:
        found = verdict(policies[policy], url, method.upper(), address, fetch)
        allowed = allowed and found["verdict"] == "allow"
        click.echo(json.dumps(found) if as_json else line(found))
    return 0 if allowed else 1


def verdict(policy: object, text: str, method: str, address: str | None, fetch: bool) -> dict[str, str]:
    """The decision of *policy* about a URL whose name leads to *address* (None: a public one); BadRequest if it is none."""
    assert isinstance(policy, Policy)
    try:
        url = parse_url(text)
        leads = parse_host(address).address if address else None
    except InvalidHost as error:
        raise BadRequest(f"{text!r:.200}: {error}") from None
    if address and leads is None:
        raise BadRequest(f"{address!r:.80} is not an address")
    protocol = url.scheme if fetch else _PROTOCOLS.get(url.scheme, "")
    if protocol not in PROTOCOLS or (fetch and url.scheme == "tcp"):
        raise BadRequest(f"{text!r:.200}: the scheme must be http{' or https' if fetch else ', https or tcp'}")
    seen = protocol in ("http", "https")
    request = Request(url.host.name, url.host.address or leads, url.port, protocol, method if seen else "",
                      url.target if seen else "")
    decision = decide(policy, request)
    found = {"url": url.text, "verdict": "allow" if decision.verdict == "need-address" else decision.verdict,
             "rule": decision.rule, "reason": decision.reason}
    if decision.verdict == "need-address":
        found["reason"] = "to public addresses, and those that the policy names"
    if decision.cause in ("unlisted", "port", "unseen"):
        found["would"] = rule_for(request)
    return found


def line(found: dict[str, str]) -> str:
    by = f" by {found['rule']!r}" if found["rule"] and found["verdict"] == "allow" else ""
    why = f": {found['reason']}" if found["reason"] else ""
    would = f"; allow = [\"{found['would']}\"] would allow it" if "would" in found else ""
    return f"{found['verdict']:5}  {found['url']}{by}{why}{would}"

"""`leeward fetch`: one request by a policy. The broker resolves, connects and decides; this process does nothing of it."""

from __future__ import annotations

import sys

import click

from leeward.client.fetching import Fetched
from leeward.client.sandbox import Sandbox
from leeward.errors import FetchFailed
from leeward_cli.click_options import SOCKET


@click.command()
@SOCKET
@click.option("--policy", metavar="NAME", required=True, help="A policy of the daemon's configuration.")
@click.option("-X", "--method", metavar="METHOD", help="GET, or POST with --data.")
@click.option("-H", "--header", "headers", metavar="NAME: VALUE", multiple=True,
              help="A header field; may be repeated.")
@click.option("-d", "--data", metavar="TEXT|@FILE|-", help="The request's body: a text, a file's, or standard input's.")
@click.option("-i", "--include", is_flag=True, help="Print the status and the header fields before the body.")
@click.argument("url", metavar="URL")
def fetch(socket: str | None, policy: str, method: str | None, headers: tuple[str, ...], data: str | None,
          include: bool, url: str) -> int:
    """
    Send one request by http or https, as a policy allows it, and print the body of the response.

    Redirects are followed, and each is decided anew. The exit status is 0 if the response's status is one of success,
    22 if it isn't, and 1 if there is no response.
    """
    body = _body(data)
    pairs = [_pair(each) for each in headers]
    with Sandbox(socket=socket, egress=policy, held=True) as box:
        try:
            got = box.fetch(url, method or ("GET" if data is None else "POST"), pairs, body)
        except FetchFailed as error:
            print(f"leeward: {error}", file=sys.stderr)
            return 1
    _show(got, include)
    return 0 if got.ok else 22


def _body(data: str | None) -> bytes:
    if data is None:
        return b""
    if data == "-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode("utf-8", "surrogateescape")
    try:
        with open(data[1:], "rb") as file:
            return file.read()
    except OSError as error:
        raise click.UsageError(f"--data {data}: {error.strerror}") from None


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.UsageError(f"--header {text!r:.80} is not 'NAME: VALUE'")
    return name.strip(), value.strip()


def _show(got: Fetched, include: bool) -> None:
    out = sys.stdout.buffer
    if include:
        lines = [f"HTTP/1.1 {got.status}", *(f"{name}: {value}" for name, value in got.headers), "", ""]
        # Header fields come from the host, so control characters are replaced.
        out.write("\n".join("".join(letter if letter.isprintable() else "?" for letter in line)
                            for line in lines).encode())
    out.write(got.body)
    out.flush()

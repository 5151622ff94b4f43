"""
`leeward bug-report`: one file with what somebody needs who is to find a fault.

Trust:     none in the daemon's rows, of which only checked words and numbers are written. Whoever reads the file gets no
           code, output, title, name of a file of a job, and no value of a secret.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import click

from leeward import __version__
from leeward.apps.host import features
from leeward.apps.host.probe import look
from leeward.base.whole_files import write_whole
from leeward.client import autostart, daemon_rows
from leeward.daemon import config_sources
from leeward.errors import BadRequest, LeewardError
from leeward.spec.paths import client_socket
from leeward_cli.click_options import SOCKET
from leeward_cli.doctor import as_object
from leeward_cli.top import look as ask

#: What a row of an end has that isn't somebody's text.
_KEPT = ("number", "time", "kind", "outcome", "reason", "limit", "exit_code", "seconds", "memory_peak", "denied")
#: Keys of the configuration whose values may be secret, or lead to one.
_SECRET = re.compile(r"^(secrets|variables) = (.*)$", re.MULTILINE)
#: A URL in quotes: its scheme, what stands before a path, and the rest, which may be a token of an index or of a hook.
_URL = re.compile(r"(\w+://)([^\"/?#\\\s]*)((?:[^\"\\]|\\.)*)")
#: A host of a URL or of a rule.
_HOST = re.compile(r"(?:[\w.*-]*|\[[\da-f:.]*\])(?::\d+)?")
#: From here on an error may quote what is wrong.
_QUOTES = re.compile(r"['\"`]|, not ")


def hidden(text: str) -> str:
    """*text* of a configuration without the values of secrets, and without all of URLs but schemes and hosts."""
    return _URL.sub(_short, _SECRET.sub(lambda found: found[0] if found[2] == "{}" else f'{found[1]} = "hidden"', text))


def _short(url: re.Match[str]) -> str:
    """Of a URL that programs may read in two ways, no more than the scheme."""
    scheme, place, rest = url.groups()
    _, login, host = place.rpartition("@")
    if "@" in rest or not _HOST.fullmatch(host):
        return f"{scheme}..."
    return f"{scheme}{login and '...@'}{host}{rest and '/...'}"


def report(socket: str | None) -> dict[str, Any]:
    """The file's object, of this host and of the daemon on *socket*; what can't be had is said in its place."""
    variables = sorted(name for name in os.environ if name.startswith("LEEWARD_"))
    os.environ[autostart.VARIABLE] = "0"  # a daemon that was started for the report would know nothing
    return {
        "versions": {"leeward": __version__, "python": sys.version, "executable": sys.executable,
                     "kernel": platform.version(), "release": platform.release(), "machine": platform.machine(),
                     "libc": " ".join(platform.libc_ver()),
                     **{name: _version(name) for name in ("cffi", "click", "msgpack", "structlog")}},
        "variables": variables,
        "doctor": _or_error(_doctor),
        "configuration": _or_error(_configuration),
        "daemon": _or_error(lambda: ask(client_socket(socket))["status"]),
        "ends": _or_error(lambda: [{key: row[key] for key in _KEPT if key in row}
                                   for row in daemon_rows.ends(client_socket(socket)).rows()]),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _or_error(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (LeewardError, OSError) as error:
        return {"error": str(error)}


def _doctor() -> Any:
    record = look()
    return as_object(features(record), record)


def _configuration() -> Any:
    """The values, without the comments; where they can't be read, which file and key has what is wrong, without that."""
    try:
        text = hidden(config_sources.print_config(config_sources.load()))
    except BadRequest as error:
        return {"error": _QUOTES.split(str(error))[0] + "..."}
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@click.command("bug-report")
@click.argument("file", default="leeward-bug-report.json", type=click.Path(dir_okay=False))
@SOCKET
def bug_report(file: str, socket: str | None) -> int:
    """
    Write FILE for a report of a fault: versions, doctor, configuration, the daemon's state, how the last jobs ended.

    It has no code, output, file or name of a job, and no secret; FILE is leeward-bug-report.json, a new one, or - for
    standard output. Read it before you send it.
    """
    text = json.dumps(report(socket), indent=1) + "\n"
    if file == "-":
        click.echo(text, nl=False)
        return 0
    if os.path.lexists(file):
        raise BadRequest(f"{file} is there already; name another FILE, or - for standard output")
    try:
        write_whole(file, text.encode())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}; name another FILE, or - for standard output") from None
    click.echo(f"{file}: {len(text)} bytes; read it before you send it")
    return 0

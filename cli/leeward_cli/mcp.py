"""`leeward mcp`: a server of the Model Context Protocol, which gives an agent outside, its parent, a sandbox as tools."""

from __future__ import annotations

import os
from typing import Any

import click

from leeward import __version__
from leeward.apps.faces.mcp.tools import SandboxTools
from leeward.client.mounts import WORKDIR
from leeward.client.protecting import FolderGuard
from leeward.client.sandbox import Sandbox
from leeward_cli.click_options import socket_option
from leeward_cli.messages import complain
from leeward_cli.saved_work import close_keeping

_HELP = """\
Serve the Model Context Protocol on standard input and output: an agent outside gets a sandbox as its tools.

    claude mcp add leeward -- leeward mcp

The sandbox is opened by the first call, and closed with the server. With --workdir it can't write what programs on the
host run at once, such as .git/config, .mcp.json or .envrc. Nothing else of the agent is confined. Needs
pip install 'leeward[mcp]'."""


@click.command("mcp", help=_HELP)
@click.option("--workdir", metavar="FOLDER", help="The folder that the sandbox has as /workspace, and can write to.")
@click.option("--overlay", is_flag=True, help="With --workdir: keep changes in the sandbox.")
@click.option("--no-protect", is_flag=True,
              help="With --workdir: let the sandbox write what programs on the host run at once, too.")
@click.option("--profile", metavar="NAME", default="", help="The sandbox's profile.")
@click.option("--environment", metavar="NAME", default="", help="Another interpreter and its packages.")
@click.option("--package", "packages", metavar="REQUIREMENT", multiple=True,
              help="Install this package, such as 'pandas==2.2'; instead of --environment.")
@click.option("--memory", metavar="SIZE", default="", help="Memory for everything in the sandbox, such as 2G.")
@click.option("-t", "--timeout", metavar="SECONDS", type=click.FloatRange(0, 86400, min_open=True), default=120,
              help="The longest time of a command or of Python code; 120 by default.")
@click.option("--egress", metavar="NAME", default="", help="A policy of the operator's, by which hosts are reached.")
@socket_option("The daemon's socket.")
def mcp(workdir: str | None, overlay: bool, no_protect: bool, timeout: float, socket: str | None, **given: Any) -> int:
    if overlay and workdir is None:
        raise click.UsageError("--overlay needs --workdir")
    if no_protect and (workdir is None or overlay):
        raise click.UsageError("--no-protect is for --workdir without --overlay")
    try:
        import anyio  # of the extra `mcp`

        from leeward.apps.faces.mcp.server import serve
    except ImportError as missing:
        complain(f"{missing.name} is missing: pip install 'leeward[mcp]'")
        return 1

    folder = None if workdir is None else os.path.abspath(workdir)
    options = {name: value for name, value in given.items() if value}

    def made() -> tuple[Sandbox, FolderGuard | None]:
        guard = None if folder is None or overlay or no_protect else FolderGuard(folder)
        protect = [] if guard is None else [os.path.join(WORKDIR, name) for name in guard.names]
        return Sandbox(socket=socket, workdir=folder, overlay=overlay, held=True, protect=protect,
                       metadata={"mcp": str(os.getpid())}, **options), guard

    tools = SandboxTools(made, timeout, close_keeping if overlay else lambda box: box.close())
    try:
        anyio.run(serve, tools, __version__)
    except* OSError as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        complain(f"the client can't be reached: {error}")
        tools.close()
        os._exit(1)  # the thread that reads may wait for ever
    finally:
        tools.close()
    return 0

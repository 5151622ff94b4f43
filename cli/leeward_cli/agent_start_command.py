"""The command line of `leeward agent start`. A user waits: the rest is imported when it is parsed."""

from __future__ import annotations

import os
from typing import Any

import click

from leeward_cli.click_options import RAW, SOCKET
from leeward_cli.options import UsageError

# Imported in functions: what not every start needs; 6 ms of processor time for all of it.



class _Start(click.Command):
    """The command `start`. Words after the first `--` are the agent's, with or without AGENT and PATH."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        given = ctx.params
        if "/" in given["name"] or given["name"] in (".", ".."):  # no agent is called so
            given["name"], given["path"], given["arguments"] = "", given["name"], (
                *(() if given["path"] == "." else (given["path"],)), *given["arguments"])
        given["arguments"] = (*given["arguments"], *args[end + 1:])
        return rest


def _ports(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Each port in the sandbox with the one of the host, 0 for the same one or else a free one."""
    found = []
    for text in given:
        words = text.split(":")
        if len(words) > 2 or not all(word.isascii() and word.isdecimal() and len(word) < 6 and 0 < int(word) < 65536
                                     for word in words):
            raise click.BadParameter(f"{text!r:.40} is not PORT or HOST:PORT, of numbers up to 65535", ctx, param)
        found.append((int(words[-1]), int(words[0]) if len(words) == 2 else 0))
    return tuple(found)


def known_agents(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from leeward.apps.agents.definition import definition_names
    from leeward.apps.agents.settings_paths import config_home

    return [name for name in definition_names(config_home(os.environ)) if name.startswith(begun)]


@click.command("start", cls=_Start)
@SOCKET
@click.option("--debug", is_flag=True, help="Run ARGUMENTS, or a shell, instead of the agent, in the same sandbox.")
@click.option("--overlay", is_flag=True, help="Work on a copy: show what has changed at the end, and ask.")
@click.option("--apply/--no-apply", "applied", default=None,
              help="With --overlay: apply, or discard, the changes at the end without asking.")
@click.option("--approved", is_flag=True, help="Work on a copy in the profile `approved`: a person decides what leaves"
                                               " it, by `leeward approvals`.")
@click.option("--profile", metavar="NAME", default="", help="Another profile than `agent`, based on it.")
@click.option("--image", metavar="NAME", default="", help="An image for the root file system, instead of the host's /usr.")
@click.option("--rebuild", is_flag=True, help="Fetch and unpack the packages of `dependencies` again.")
@click.option("--unrestricted-network", is_flag=True, help="Allow all public hosts, instead of only the agent's own.")
@click.option("--dump-network-access", metavar="FILE", help="Write the names that were allowed and denied to FILE.")
@click.option("--library", "libraries", metavar="PATH[:MOUNT][:rw]", multiple=True,
              help="Mount a further folder of the host, read-only unless :rw is given.")
@click.option("--publish", "ports", metavar="[HOST:]PORT", multiple=True, callback=_ports,
              help="Make the agent's server on PORT reachable at 127.0.0.1 of this host, on the same port, or on HOST.")
@click.option("--persist", is_flag=True, help="Keep the sandbox's home, with its caches and tools, for the agent's next"
                                              " start with --persist on this project.")
@click.option("--egress", metavar="NAME", default="",
              help="The daemon's policy that bounds what the agent may reach.  [default: agent]")
@click.option("--trust-project", is_flag=True, help="Accept the grants that the project's own settings ask for.")
@click.option("-t", "--timeout", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True),
              help="End the agent after this time.")
@click.option("--memory", metavar="SIZE", default="", help="Memory of the whole sandbox, such as 2G.")
@click.option("--terminal/--no-terminal", default=None,
              help="Give the agent a terminal.  [default: if standard input and output are terminals]")
@RAW
@click.argument("name", metavar="[AGENT]", default="", shell_complete=known_agents)
@click.argument("path", metavar="[PATH]", default=".", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
def start(name: str, path: str, arguments: tuple[str, ...], **options: Any) -> int:
    """
    Start AGENT on the project PATH, connected to this terminal, and wait until it ends.

    If one agent alone is installed, AGENT may be left out, as in leeward agent start ~/project. ARGUMENTS are passed to
    the agent. The exit status is the agent's; 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP.
    """
    from leeward_cli import agent_start

    try:
        return agent_start.start(name, path, arguments, **options)
    except UsageError as error:
        raise click.UsageError(str(error)) from None


#: The group `leeward agent` with only this command.
alone = click.Group("agent", {"start": start})

"""The commands that needn't start fast, each imported when it is run; and all help."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import get_completion_class

from leeward import __version__
from leeward_cli.click_options import Tabled, run_group

#: The file of each command; the function has the command's name.
FILES = {
    "agent": "agent", "apply": "overlays", "approvals": "approvals", "audit": "audit", "bench": "bench.report",
    "checkpoint": "overlays", "config": "library", "cp": "copying", "daemon": "daemon_commands",
    "diff": "overlays", "discard": "overlays", "doctor": "doctor", "egress": "egress", "env": "environments",
    "explain": "logs", "fetch": "fetching", "fleet": "fleet", "image": "images", "logs": "logs", "map": "mapping",
    "mcp": "mcp", "profiles": "profiles", "python": "sandboxes", "restore": "overlays", "sandbox": "sandboxes",
    "selftest": "selftest.command", "serve": "serve", "shell": "sandboxes", "shell-prefix": "agents_outside",
    "snapshot": "snapshots", "top": "top",
}


class LazyGroup(click.Group):
    """A group that knows its commands by FILES. To import all of them takes 75 ms, and one of them about 20."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *FILES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in FILES:
            command: click.Command = getattr(import_module(f"leeward_cli.{FILES[cmd_name]}"), cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="leeward")
def cli() -> None:
    """Run untrusted Python code in warm, fully confined processes."""


cli.add_command(Tabled("exec", help="""
    Run code in the daemon's sandbox: CODE, a file, a module, or standard input (-).

    Arguments after -- are the job's sys.argv[1:]; with --profile they are a line of the
    shell, which is run in a sandbox of that kind. Its output and exit status are passed
    through: 124 means its time limit, 137 its memory limit, 153 its output limit, 128 + n
    signal n. 1 may also mean that no daemon answers, and 2 a mistake in this command line;
    a message says so.
    """))
cli.add_command(Tabled("run", help="""
    Run code without a daemon, with the same isolation, in a sandbox made for this one job.

    Exit statuses are those of exec.
    """))
cli.add_command(Tabled("ping", help="Ask whether the daemon answers."))
cli.add_command(Tabled("status", help="Show workers, jobs and layers of the daemon."))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes this command: leeward completion bash > FILE, and source that."""
    click.echo(script(shell, click.get_current_context().find_root().command))


def script(shell: str, command: click.Command) -> str:
    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"this click has no completion for {shell}")
    return made(command, {}, "leeward", "_LEEWARD_COMPLETE").source()


def commands() -> dict[str, click.Command]:
    ctx = click.Context(cli)
    return {name: command for name in cli.list_commands(ctx) if (command := cli.get_command(ctx, name)) is not None}


def app(argv: Sequence[str]) -> int:
    return run_group(cli, argv)

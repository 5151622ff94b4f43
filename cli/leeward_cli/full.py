"""The commands that needn't start fast, each imported when it is run; and all help."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import get_completion_class

from leeward import __version__
from leeward_cli.click_options import CommandGroup, Tabled, run_group
from leeward_cli.messages import FOR_LINUX

#: The commands in the order of the help, by group: a word for `leeward help`, its head, and for each command its file;
#: "" for one of this file. The function has the command's name.
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "code": ("Run code", {
        "run": "", "exec": "", "map": "mapping", "env": "environments", "image": "images", "fetch": "fetching"}),
    "sandboxes": ("Live sandboxes", {
        "sandbox": "sandboxes", "shell": "sandboxes", "python": "sandboxes", "attach": "sandboxes", "cp": "copying",
        "diff": "overlays", "apply": "overlays", "discard": "overlays", "checkpoint": "overlays", "restore": "overlays",
        "snapshot": "snapshots", "profiles": "profiles"}),
    "agents": ("Agents and approvals", {
        "agent": "agent", "approvals": "approvals", "mcp": "mcp", "shell-prefix": "agents_outside"}),
    "operating": ("Operate", {
        "daemon": "daemon_commands", "serve": "serve", "fleet": "fleet", "egress": "egress", "audit": "audit",
        "config": "library", "completion": ""}),
    "looking": ("Look", {
        "status": "", "ping": "", "top": "top", "ui": "ui", "logs": "logs", "explain": "logs", "doctor": "doctor",
        "selftest": "selftest.command", "bench": "bench.report", "bug-report": "bug_report", "help": ""}),
}

#: The file of each command that isn't in this one.
FILES = {name: file for _, commands in GROUPS.values() for name, file in commands.items() if file}


def _refuse() -> None:
    raise click.ClickException(FOR_LINUX)


class LazyGroup(CommandGroup):
    """A group that knows its commands by GROUPS. To import all of them takes 75 ms, and one of them about 20."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *FILES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in FILES:
            try:
                command: click.Command = getattr(import_module(f"leeward_cli.{FILES[cmd_name]}"), cmd_name.replace("-", "_"))
            except (ImportError, AttributeError):
                if sys.platform != "linux":
                    return click.Command(cmd_name, callback=_refuse, help="For Linux alone.", add_help_option=False,
                                         context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
                raise
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.values():
            self.write_commands(ctx, formatter, title, names)


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


@cli.command("help")
@click.argument("topic", nargs=-1, metavar="[TOPIC]...")
def help_(topic: tuple[str, ...]) -> None:
    """Show what a command does, as in leeward help agent start, or the commands of one group, as in leeward help agents."""
    ctx = click.get_current_context().find_root()
    command: click.Command = cli
    if len(topic) == 1 and topic[0] in GROUPS:
        formatter = ctx.make_formatter()
        cli.write_commands(ctx, formatter, *GROUPS[topic[0]])
        click.echo(formatter.getvalue().strip())
        return
    for number, word in enumerate(topic):
        group = command if isinstance(command, click.Group) else click.Group()
        found = group.get_command(ctx, word)
        if found is None:
            known = [*(() if number else GROUPS), *group.list_commands(ctx)]
            near = difflib.get_close_matches(word, known, 1)
            raise click.UsageError(f"there is no command {' '.join(topic[:number + 1])!a:.80}" + (
                f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}" if known else ""))
        command, ctx = found, click.Context(found, ctx, word)
    click.echo(command.get_help(ctx))


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

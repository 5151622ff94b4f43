"""
The commands that needn't start fast, such as `daemon`, `doctor`, `bench` and `config`; and all help.

Runs in:   the CLI, by click.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from leeward import __version__
from leeward.daemon.config_keys import RENAMED
from leeward.errors import LeewardError
from leeward_cli import (
    agent,
    agents_outside,
    approvals_config,
    audit,
    copying,
    egress,
    ends_commands,
    environments,
    fetching,
    mcp,
    overlays,
    profiles,
    sandboxes,
    shell_aids,
)
from leeward_cli.daemon import DEGRADABLE, configuration, serve
from leeward_cli.daemon import OPTIONS as DAEMON_OPTIONS
from leeward_cli.groups import run_group
from leeward_cli.options import OPTIONS, USAGE, Option

PROFILES = ("apparmor", "seccomp")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="leeward")
def cli() -> None:
    """Run untrusted Python code in warm, fully confined processes."""


class Described(click.Command):
    """A command that `leeward_cli.main` runs without click. Click only shows its help."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, help=text, params=[_click_option(option) for option in OPTIONS[name]])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"Usage: {USAGE[self.name or '']}\n")


def _click_option(option: Option) -> click.Option:
    names = [option.name, "module"] if option.name == "-m" else [option.name]
    if not option.value:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(names, metavar=option.value, multiple=option.many, help=option.help)


cli.add_command(Described("exec", """
    Run code in the daemon's sandbox: CODE, a file, a module, or standard input (-).

    Arguments after -- are the job's sys.argv[1:]; with --profile they are a line of the
    shell, which is run in a sandbox of that kind. Its output and exit status are passed
    through: 124 means its time limit, 137 its memory limit, 153 its output limit, 128 + n
    signal n. 1 may also mean that no daemon answers, and 2 a mistake in this command line;
    a message says so.
    """))
cli.add_command(Described("run", """
    Run code without a daemon, with the same isolation, in a sandbox made for this one job.

    Exit statuses are those of exec.
    """))
cli.add_command(Described("ping", "Ask whether the daemon answers."))
cli.add_command(Described("status", "Show workers, jobs and layers of the daemon."))


@cli.group()
def daemon() -> None:
    """Run, start and stop the daemon, and look after it."""


def _degradable(ctx: click.Context, param: click.Parameter, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Check that each layer may be missing, by the check of the configuration."""
    from leeward.daemon.config_checks import degradable

    for layer in layers:
        try:
            degradable(layer)
        except ValueError as error:
            raise click.BadParameter(f"{error}, not {layer!r:.60}", ctx, param) from None
    return layers


def _daemon_option(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (option.name, option.parameter)
    if bool is option.kind:
        if option.off:
            names = (f"{option.name}/--no-{option.name[2:]}", option.parameter)
        return click.option(*names, is_flag=True, default=None, help=option.help)
    if DEGRADABLE is option.kind:
        return click.option(*names, multiple=True, metavar=option.value, help=option.help, callback=_degradable)
    kind = click.Choice(option.kind) if isinstance(option.kind, tuple) else option.kind
    return click.option(*names, type=kind, multiple=option.many, metavar=option.value or None, help=option.help)


def _renamed(ctx: click.Context, param: click.Parameter, given: bool | None) -> None:
    """Refuse an option's former name, with its present name."""
    if given is not None and param.name is not None:
        no = "" if given else "no-"
        new = RENAMED[param.name].replace("_", "-")
        raise click.UsageError(f"--{no}{param.name} is called --{no}{new} now", ctx)


def _daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for old in RENAMED:
        command = click.option(f"--{old}/--no-{old}", default=None, hidden=True, expose_value=False,
                               callback=_renamed)(command)
    for option in reversed(DAEMON_OPTIONS):  # the last one applied is shown first
        command = _daemon_option(option)(command)
    return command


@daemon.command("run")
@_daemon_options
@click.option("--print-config", is_flag=True, help="Print the configuration, with every key's default and unit.")
@click.option("--ready-fd", type=int, hidden=True, help="Of `daemon start`: become a background process when ready.")
def daemon_run(print_config: bool, ready_fd: int | None, **options: Any) -> int:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C."""
    if print_config:
        from leeward.daemon import descriptors
        from leeward.daemon.config_print import print_config as as_toml

        config = configuration(**options)
        click.echo(as_toml(config), nl=False)
        click.echo("\n# max_connections in force: " + descriptors.in_force(
            descriptors.limit(), workers=config.pool_size, spares=config.spares, asked=config.max_connections,
            metrics=bool(config.metrics)))
        return 0
    return serve(ready_fd, options)


@daemon.command("start")
@_daemon_options
def daemon_start(**options: Any) -> int:
    """Start the daemon in the background, and wait until it is ready."""
    from leeward_cli.background import start

    return start(_words(options), configuration(**options).socket)


def _words(options: dict[str, Any]) -> list[str]:
    """*options* of the daemon as words of a command line."""
    arguments: list[str] = []
    for name, value in options.items():
        option = "--config" if name == "config_file" else f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        elif value is False:
            arguments.append(f"--no-{option[2:]}")
        elif isinstance(value, tuple):
            arguments += [f"{option}={item}" for item in value]
        elif value is not None:
            arguments.append(f"{option}={os.path.abspath(value) if name in ('socket', 'config_file') else value}")
    return arguments


@daemon.command("stop")
@click.option("--socket", metavar="PATH",
              help="The daemon's socket; else LEEWARD_SOCKET, else the configuration's, else the default.")
@click.option("--now", is_flag=True, help="End running jobs at once; their clients get an answer that says so.")
def daemon_stop(socket: str | None, now: bool) -> int:
    """
    Stop the daemon, and wait until its process has ended. Running jobs have 4 seconds to finish.

    Called again, it waits as well and changes nothing. The exit status is 0 if the process has ended, and 1 if no
    daemon answers, if the daemon isn't yours to stop, or if it is still there after 15 seconds.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.stopping import stop

    return stop(client_socket(socket), now)


_SOCKET = click.option("--socket", metavar="PATH",
                       help="The daemon's socket; else LEEWARD_SOCKET, else the configuration's, else the default.")


@daemon.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_SOCKET
def daemon_status(as_json: bool, socket: str | None) -> int:
    """
    Show which daemon answers: its process, socket and log, and who started it. `leeward status` has the rest.

    The exit status is 1 if none answers.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.control import status

    return status(client_socket(socket), as_json)


@daemon.command("restart")
@_daemon_options
@click.option("--now", is_flag=True, help="End running jobs at once.")
def daemon_restart(now: bool, **options: Any) -> int:
    """
    Stop the daemon in the background and start it again, or a service by its manager; where none runs, start one.

    Without options it gets those that it had. They are checked, with the configuration, before it is stopped.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.control import restart

    given = _words({name: value for name, value in options.items() if name != "socket"})
    configuration(**options)
    return restart(client_socket(options["socket"]), given, now)


@daemon.command("reload")
@_SOCKET
def daemon_reload(socket: str | None) -> int:
    """
    Make the daemon read its configuration again, and show its answer.

    The exit status is 1 if it refuses the configuration: then the old one stays in force.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.control import reload

    return reload(client_socket(socket))


@daemon.command("logs")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=100, metavar="N",
              help="How many of the last lines.  [default: 100]")
@click.option("-f", "--follow", is_flag=True, help="Follow: show what is added, until Ctrl-C.")
@_SOCKET
def daemon_logs(lines: int, follow: bool, socket: str | None) -> int:
    """Show the log of a daemon in the background, also after its end; of a service, its journal."""
    from leeward.spec.paths import client_socket
    from leeward_cli.control import logs

    return logs(client_socket(socket), lines, follow)


def _unit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--user/--system", "user", default=None, help="For you alone, or for the system."
                                                                   "  [default: --system as root, --user else]"),
        click.option("--root", metavar="FOLDER", default="/", help="Write below this folder in place of /; start"
                                                                   " nothing."),
    ):
        command = option(command)
    return command


@daemon.command("install")
@_unit_options
@click.option("--group", metavar="NAME", default="", help="With --system: a group whose members may use the daemon;"
                                                          " else only root may.")
def daemon_install(user: bool | None, root: str, group: str) -> None:
    """Make the daemon a service of systemd, which starts it now and at each boot."""
    from leeward_cli.install import Place, install

    place = Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))
    if group and place.user:
        raise click.UsageError("--group needs --system: a user's own service is for that user alone")
    for path in install(place, group):
        click.echo(path)


@daemon.command("uninstall")
@_unit_options
def daemon_uninstall(user: bool | None, root: str) -> None:
    """Stop the service that `install` made, and remove its files."""
    from leeward_cli.install import Place, uninstall

    for path in uninstall(Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))):
        click.echo(path)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with what was read and tried.")
@click.option("--profile", type=click.Choice(PROFILES), help="Print this profile, for the host or for an engine.")
def doctor(as_json: bool, profile: str | None) -> int:
    """
    Check this host: what it offers, what leeward does without the rest, and what to type to get it.

    The exit status is 1 if leeward can't start on this host.
    """
    from leeward_cli.doctor import as_object, as_text

    if profile is not None:
        from leeward.host.profiles import text
        from leeward_cli.install import executable

        click.echo(text(profile, executable()), nl=False)
        return 0
    from leeward.host import features
    from leeward.host.probe import look

    record = look()
    found = features(record)
    if as_json:
        import json

        click.echo(json.dumps(as_object(found, record)))
    else:
        click.echo(as_text(found), nl=False)
    return int(any(feature.stops for feature in found))


cli.add_command(ends_commands.explain)
cli.add_command(ends_commands.logs)


@cli.command()
@click.option("--private", is_flag=True, help="Test a daemon that is started for this; the default if none answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_SOCKET
def selftest(private: bool, as_json: bool, socket: str | None) -> int:
    """
    Attack this host from inside the sandbox, harmlessly, and show which lock held each attack.

    Each row is an attack of the project's catalogue, run as a job. Whether it succeeded is checked outside, by
    the file, the process or the socket that it aimed at. The exit status is 0 only if every attack was held.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.selftest.command import run

    if private and socket:
        raise click.UsageError("--private starts a daemon on a socket of its own: no --socket with it")
    return run(client_socket(socket), private, as_json)


@cli.command()
@click.option("--rounds", type=click.IntRange(1, 10_000), metavar="N",
              help="Rounds to measure; more are more exact.  [default: 40, or as many as fit into 75 s]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--socket", metavar="PATH", help="Measure this daemon; by default one is started.")
@click.option("--levels", is_flag=True, help="Also measure daemons with each optimisation switched off.")
@click.option("--plot", metavar="FILE", help="Also draw the results, as SVG.")
def bench(rounds: int | None, as_json: bool, socket: str | None, levels: bool, plot: str | None) -> None:
    """Measure a fresh job, beside lower bounds and alternatives, in turn."""
    from leeward_cli import bench as measuring

    try:
        measuring.run(socket, rounds, as_json, levels, plot)
    except OSError as error:
        raise LeewardError(f"bench: {error}") from None


@cli.command()
@click.option("--cflags", is_flag=True, help="Print the compiler's flags for leeward.h.")
@click.option("--libs", is_flag=True, help="Print the linker's flags for libleeward.")
@click.option("--static", is_flag=True, help="With --libs: link the archive, not the shared library.")
@click.option("--library", "shared", is_flag=True, help="Print the path of the shared library.")
@click.option("--install", "prefix", type=click.Path(path_type=Path), metavar="PREFIX",
              help="Copy header, libraries and leeward.pc below PREFIX.")
def config(cflags: bool, libs: bool, static: bool, shared: bool, prefix: Path | None) -> None:
    """
    Print the flags for programs that use leeward.h and libleeward.

    \b
        cc run.c $(leeward config --cflags --libs) -o run
    """
    from leeward_cli import library

    if (cflags or libs) + shared + (prefix is not None) != 1 or (static and not libs):
        raise click.UsageError("say one of: --cflags and --libs (also with --static), --library, --install PREFIX")
    if prefix is not None:
        try:
            made = library.install(prefix.absolute())
        except OSError as error:
            raise click.ClickException(f"nothing can be written there: {error}") from None
        click.echo("\n".join(map(str, made)))
    else:
        click.echo(library.library() if shared else library.flags(cflags, libs, static))


cli.add_command(profiles.profiles)
cli.add_command(sandboxes.sandbox)
cli.add_command(sandboxes.shell)
cli.add_command(sandboxes.python)
cli.add_command(copying.cp)
cli.add_command(shell_aids.top)
cli.add_command(shell_aids.completion)
cli.add_command(overlays.diff)
cli.add_command(overlays.apply)
cli.add_command(overlays.discard)
cli.add_command(overlays.checkpoint)
cli.add_command(overlays.restore)
cli.add_command(egress.egress)
cli.add_command(fetching.fetch)
cli.add_command(environments.env)
cli.add_command(approvals_config.approvals)
cli.add_command(audit.audit)
cli.add_command(agent.agent)
cli.add_command(agents_outside.shell_prefix)
cli.add_command(mcp.command)


def app(argv: Sequence[str]) -> int:
    """Run the command in *argv*; return the exit status."""
    return run_group(cli, argv)

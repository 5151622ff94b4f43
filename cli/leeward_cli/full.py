"""
Everything that isn't in a hurry: help, `daemon`, `doctor`, `bench`, `config`.

Runs in:   the CLI, by click.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from leeward import __version__
from leeward.errors import LeewardError
from leeward_cli.daemon import OPTIONS as DAEMON_OPTIONS
from leeward_cli.daemon import Option as DaemonOption
from leeward_cli.daemon import configuration, serve
from leeward_cli.job import complain
from leeward_cli.options import OPTIONS, USAGE
from leeward_cli.options import Option as OwnOption

PROFILES = ("apparmor", "seccomp")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="leeward")
def cli() -> None:
    """
    Run untrusted Python code in warm, fully confined processes.
    """


class Described(click.Command):
    """
    A command that `leeward_cli.main` runs by itself; click only shows its help.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, help=text, params=[_click_option(option) for option in OPTIONS[name]])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"Usage: {USAGE[self.name or '']}\n")


def _click_option(option: OwnOption) -> click.Option:
    names = [option.name, "module"] if option.name == "-m" else [option.name]
    if not option.value:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(names, metavar=option.value, multiple=option.many, help=option.help)


cli.add_command(Described("exec", """
    Run code by the daemon: CODE, a file, a module, or what comes on standard input (-).

    Arguments after -- are the job's sys.argv[1:]. Its output and exit status are passed
    through: 124 is its time limit, 137 its memory limit, 153 its output limit, 128 + n a
    signal. 1 may also be a daemon that is away, and 2 a mistake in this command line; the
    message says so.
    """))
cli.add_command(Described("run", """
    Run code without a daemon, with the same isolation, in a sandbox made for this one job.

    Options and exit status are those of exec.
    """))
cli.add_command(Described("ping", "Ask whether the daemon answers."))
cli.add_command(Described("status", "Show workers, jobs and layers of the daemon."))


@cli.group()
def daemon() -> None:
    """
    Run, start and stop the daemon.
    """


def _daemon_option(option: DaemonOption) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (option.name, option.parameter)
    if bool is option.kind:
        if option.off:
            names = (f"{option.name}/--no-{option.name[2:]}", option.parameter)
        return click.option(*names, is_flag=True, default=None, help=option.help)
    kind = click.Choice(option.kind) if isinstance(option.kind, tuple) else option.kind
    return click.option(*names, type=kind, multiple=option.many, metavar=option.value or None, help=option.help)


def _daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in DAEMON_OPTIONS:
        command = _daemon_option(option)(command)
    return command


@daemon.command("run")
@_daemon_options
@click.option("--print-config", is_flag=True, help="Print the configuration, with every key's default and unit.")
@click.option("--ready-fd", type=int, hidden=True, help="Of `daemon start`: become a background process when ready.")
def daemon_run(print_config: bool, ready_fd: int | None, **options: Any) -> int:
    """
    Be the daemon, in the foreground, until SIGTERM or Ctrl-C.
    """
    if print_config:
        from leeward.daemon.config import print_config as as_toml

        click.echo(as_toml(configuration(**options)), nl=False)
        return 0
    return serve(ready_fd, options)


@daemon.command("start")
@_daemon_options
def daemon_start(**options: Any) -> int:
    """
    Start the daemon in the background, and wait until it is ready.
    """
    from leeward_cli.background import start

    config = configuration(**options)
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
    return start(arguments, config.socket)


@daemon.command("stop")
@click.option("--socket", metavar="PATH", help="The daemon's socket; else LEEWARD_SOCKET, else the default.")
def daemon_stop(socket: str | None) -> int:
    """
    Stop the daemon; running jobs have some seconds. Waits until it has ended.
    """
    from leeward.spec.paths import client_socket
    from leeward_cli.background import stop

    return stop(client_socket(socket))


def _unit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--user/--system", "user", default=None, help="For you alone, or for the system."
                                                                   "  [default: --system as root, --user else]"),
        click.option("--root", metavar="FOLDER", default="/", help="Write below this folder, which stands for /; start"
                                                                   " nothing."),
    ):
        command = option(command)
    return command


@daemon.command("install")
@_unit_options
@click.option("--group", metavar="NAME", default="", help="With --system: a group whose members may use the daemon;"
                                                          " else it is root alone.")
def daemon_install(user: bool | None, root: str, group: str) -> None:
    """
    Make the daemon a service of systemd, which starts it now and at each boot.
    """
    from leeward_cli.install import Place, install

    place = Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))
    if group and place.user:
        raise click.UsageError("--group goes with --system: a user's own service is his alone")
    for path in install(place, group):
        click.echo(path)


@daemon.command("uninstall")
@_unit_options
def daemon_uninstall(user: bool | None, root: str) -> None:
    """
    Stop that service, and remove all of it.
    """
    from leeward_cli.install import Place, uninstall

    for path in uninstall(Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))):
        click.echo(path)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with what was read and tried.")
@click.option("--profile", type=click.Choice(PROFILES), help="Print this profile, for the host or for an engine.")
def doctor(as_json: bool, profile: str | None) -> int:
    """
    Show what this host offers, what leeward does without the rest, and what to type to get it.

    The exit status is 1 where leeward can't start as the host is.
    """
    from leeward_cli.doctor import as_object, as_text

    if profile is not None:
        from leeward.isolation.host.profiles import text
        from leeward_cli.install import executable

        click.echo(text(profile, executable()), nl=False)
        return 0
    from leeward.isolation.host import features
    from leeward.isolation.host.probe import look

    record = look()
    found = features(record)
    if as_json:
        import json

        click.echo(json.dumps(as_object(found, record)))
    else:
        click.echo(as_text(found), nl=False)
    return int(any(feature.stops for feature in found))


@cli.command()
@click.option("--rounds", type=click.IntRange(1, 10_000), metavar="N",
              help="More take longer and say more.  [default: 40, or as many as fit into 75 s]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--socket", metavar="PATH", help="Measure this daemon; else one is started for it.")
@click.option("--levels", is_flag=True, help="Measure daemons without this and that as well: what each of it is worth.")
@click.option("--plot", metavar="FILE", help="Draw the findings as well, as SVG.")
@click.option("--figures", metavar="GROUP,...", is_flag=False, flag_value="all",
              help="Measure the table of figures to reach instead, all of it or the groups named.")
def bench(rounds: int | None, as_json: bool, socket: str | None, levels: bool, plot: str | None,
          figures: str | None) -> None:
    """
    Measure a fresh job beside what nobody could do faster, and what people would use instead, interleaved.
    """
    from leeward_cli import bench as measuring
    from leeward_cli.bench import table

    if figures is not None:
        if socket is not None or levels or plot is not None:
            raise click.UsageError("--figures starts its own daemons and draws nothing")
        wanted = list(table.GROUPS) if "all" == figures else figures.split(",")
        unknown = [name for name in wanted if name not in table.GROUPS]
        if unknown:
            raise click.UsageError(f"--figures: no such group: {unknown[0]!r}; there are {', '.join(table.GROUPS)}")
        table.run(wanted, rounds, as_json)
        return
    try:
        measuring.run(socket, rounds, as_json, levels, plot)
    except OSError as error:
        raise LeewardError(f"bench: {error}") from None


@cli.command()
@click.option("--cflags", is_flag=True, help="What compiling against leeward.h takes.")
@click.option("--libs", is_flag=True, help="What linking with libleeward takes.")
@click.option("--static", is_flag=True, help="With --libs: link the archive, not the shared library.")
@click.option("--library", "shared", is_flag=True, help="The path of the shared library, for those who load it.")
@click.option("--install", "prefix", type=click.Path(path_type=Path), metavar="PREFIX",
              help="Copy header, libraries and leeward.pc below PREFIX.")
def config(cflags: bool, libs: bool, static: bool, shared: bool, prefix: Path | None) -> None:
    """
    Print what a compiler needs for leeward.h and libleeward, from C and whatever calls C.

    \b
        cc run.c $(leeward config --cflags --libs) -o run
    """
    from leeward_cli import library

    if 1 != (cflags or libs) + shared + (prefix is not None) or (static and not libs):
        raise click.UsageError("say one of: --cflags and --libs (also with --static), --library, --install PREFIX")
    if prefix is not None:
        try:
            made = library.install(prefix.absolute())
        except OSError as error:
            raise click.ClickException(f"nothing can be put there: {error}") from None
        click.echo("\n".join(map(str, made)))
    else:
        click.echo(library.library() if shared else library.flags(cflags, libs, static))


def app(argv: Sequence[str]) -> int:
    """
    Run the command in *argv*; return the exit status.
    """
    try:
        status = cli.main(args=list(argv), prog_name="leeward", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        from leeward_cli.main import die_by

        return die_by("SIGINT")
    except LeewardError as error:
        complain(str(error))
        return 1
    return status if isinstance(status, int) else 0

"""`leeward agent`: agents' command lines, each in a sandbox. `main` runs `start`, which is elsewhere, without this."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from contextlib import suppress
from typing import Any

import click

from leeward.apps.agents import answers
from leeward.apps.agents.base_urls import unlisted
from leeward.apps.agents.definition import AgentDefinition, definition_names, load_definition
from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError, printable
from leeward.apps.agents.instances import Instance, InstanceRegistry
from leeward.apps.agents.programs import AgentProgram
from leeward.apps.agents.reading import read_user_file
from leeward.apps.agents.request import AgentOptions, request_of
from leeward.apps.agents.running import sandboxes_of
from leeward.apps.agents.settings import AgentSettings, merged_settings
from leeward.apps.agents.settings_paths import USER_FILE, config_home, state_home
from leeward.apps.agents.written import home_path, writable_by_agents
from leeward.base.closing import OwnedFd
from leeward.client.sandbox import Sandbox
from leeward.daemon.config_sources import load
from leeward.errors import BadRequest, DaemonError, LeewardError
from leeward.spec.egress_policy import AGENT
from leeward.spec.outcome import Outcome
from leeward.spec.paths import client_socket
from leeward.spec.sizes import size_text
from leeward_cli import agent_project, agent_start, egress_log
from leeward_cli import logs as shown
from leeward_cli.agent_ends import registry, set_home
from leeward_cli.agent_start_command import known_agents, start
from leeward_cli.click_options import FOLLOW, JSON_LINES, RAW, SOCKET, TERMINAL, CommandGroup
from leeward_cli.egress import verdict
from leeward_cli.messages import complain
from leeward_cli.sandbox_command import attached, in_sandbox
from leeward_cli.terminal_rows import plain

#: Seconds that an agent has to end after a signal. Then its sandbox is ended.
_STOP_S = 20.0
#: Seconds that a program may take to print its version.
_VERSION_S = 30.0


@click.group(cls=CommandGroup)
def agent() -> None:
    """Run the agents that people use, each in a sandbox with one project, the hosts it needs, and nothing else."""
    set_home()


def _running(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    try:
        return [one.name for one in InstanceRegistry(state_home(os.environ)).running() if one.name.startswith(begun)]
    except LeewardError:
        return []


agent.add_command(start)


@agent.command("list")
@SOCKET
@JSON_LINES
def list_(socket: str | None, as_json: bool) -> None:
    """Show the agents that run: instance, agent, time, memory, project, hosts."""
    running = _with_rows(socket)
    if not running and not as_json:
        complain("no agent runs; `leeward agent start` starts one")
    for instance, row in running:
        if as_json:
            click.echo(json.dumps({
                "instance": instance.name, "agent": instance.agent, "project": instance.project,
                "sandbox": instance.sandbox, "pid": instance.pid, "uptime": time.time() - instance.started,
                "memory": row.get("memory"), "hosts": list(instance.hosts)}))
            continue
        memory = size_text(row["memory"]) if "memory" in row else "-"
        hosts = ", ".join(instance.hosts[:3]) + (f" and {len(instance.hosts) - 3} more" if len(instance.hosts) > 3
                                                 else "")
        click.echo(f"{instance.name}  {instance.agent}  {_lasted(time.time() - instance.started)}  {memory}"
                   f"  {plain(instance.project)}  {hosts or 'no hosts'}")


def _with_rows(socket: str | None) -> list[tuple[Instance, dict[str, Any]]]:
    """The running instances, each with the daemon's row of its sandbox. No daemon is started for this."""
    rows: list[dict[str, Any]] = []
    with suppress(DaemonError):
        rows = Sandbox.list(socket=str(client_socket(socket)))
    return list(sandboxes_of(registry(), rows))


@agent.command(context_settings={"ignore_unknown_options": False})
@SOCKET
@TERMINAL
@RAW
@click.argument("name", metavar="INSTANCE", shell_complete=_running)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def attach(socket: str | None, terminal: bool | None, raw: bool, name: str, command: tuple[str, ...]) -> int:
    """Run COMMAND, or a shell, beside the agent INSTANCE, in its sandbox."""
    found = registry().find(name)
    if not found.sandbox:
        raise BadRequest(f"{found.name} has no sandbox yet")
    with attached(found.sandbox, socket) as box:
        inside = next((str(mount["target"]) for mount in box.info().get("mounts", ())
                       if mount["path"] == found.project), None)
    return in_sandbox(found.sandbox, socket, {}, list(command), inside, terminal, raw)


@agent.command()
@SOCKET
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True, shell_complete=_running)
def stop(socket: str | None, names: tuple[str, ...]) -> int:
    """End agents, with all their processes."""
    status = 0
    for name in names:
        running = registry()
        try:
            found = running.find(name)
        except BadRequest as error:
            complain(str(error))
            status = 1
            continue
        until = time.monotonic() + _STOP_S
        _signal(running, found)
        while any(one.name == found.name for one in running.running()):
            if time.monotonic() > until:
                complain(f"{found.name}: process {found.pid} doesn't end; its sandbox is ended")
                with suppress(DaemonError):
                    Sandbox.attach(found.sandbox, socket=str(client_socket(socket))).close()
                status = 1
                break
            time.sleep(0.05)
    return status


def _signal(running: InstanceRegistry, found: Instance) -> None:
    """Send SIGTERM to the process of *found*. The pid can't be reused as long as that process holds the instance's lock."""
    with suppress(ProcessLookupError), OwnedFd(os.pidfd_open(found.pid)) as process:
        if any(one == found for one in running.running()):
            signal.pidfd_send_signal(process, signal.SIGTERM)


@agent.command()
@SOCKET
@FOLLOW
@click.option("--network", is_flag=True, help="Show the hosts that the agent tried to reach, and the decisions.")
@click.argument("name", metavar="INSTANCE", shell_complete=_running)
def logs(socket: str | None, follow: bool, network: bool, name: str) -> None:
    """
    Show the commands that ran in the sandbox of INSTANCE and how they ended: exit statuses, limits, refused calls.

    INSTANCE may have ended, as long as the daemon that it had still runs.
    """
    sandbox = registry().sandbox_of(name)
    path = client_socket(socket)
    if network:
        egress_log.show(path, sandbox, follow, False)
    else:
        shown.show(path, sandbox, follow, False)


@agent.command()
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--forget", is_flag=True, help="Forget them instead, so that AGENT asks again.")
@click.argument("name", metavar="AGENT", shell_complete=known_agents)
@click.argument("path", metavar="[PATH]", default=".", type=click.Path())
def keep(yes: bool, forget: bool, name: str, path: str) -> int:
    """
    Write into AGENT's files on this host what you have answered in its dialogues while it worked on the project PATH.

    Later starts on PATH have these answers anyway. They are shown first, since the agent can have given them itself.
    """
    definition = load_definition(name, config_home(os.environ))
    with agent_project.opened(path) as (project, _):
        store = answers.AnswerStore(state_home(os.environ), name, project)
    if forget:
        store.forget()
        return 0
    found = store.read(definition.answers)
    if not found:
        complain(f"nothing was answered to {name} on {project!a:.200} that isn't in its files")
        return 0
    for file, kept in found.items():
        for key, value in kept.items():
            click.echo(f"{file}: {printable(key.replace(answers.PROJECT, project))} = {json.dumps(value)}")
    if not yes and not click.confirm("Write this into the files of this host?", err=True):
        return 1
    written = writable_by_agents((), os.environ)
    home = os.path.realpath(os.environ.get("HOME") or "/")
    for file, kept in found.items():
        answers.write_to_host(home_path(file, home), kept, project, written)
    return 0


@agent.command()
@SOCKET
@click.argument("name", metavar="[AGENT]", default="", shell_complete=known_agents)
def doctor(socket: str | None, name: str) -> int:
    """
    Say what AGENT needs and what is missing: its program, an account, its hosts, a sandbox; without AGENT, for all.

    The exit status is 1 if something is missing; without AGENT, if it is at an agent that is installed, or none is.
    """
    if name:
        return 0 if _told(load_definition(name, config_home(os.environ)), socket) else 1
    status, found = 0, False
    for each in definition_names(config_home(os.environ)):
        try:
            definition = load_definition(each, config_home(os.environ))
        except SettingsError as error:
            complain(str(error))
            status = 1
            continue
        if not agent_start.is_installed(definition):
            how = definition.install.command or definition.install.page
            click.echo(f"{each}: isn't installed" + (f"; {how}" if how else ""))
            continue
        click.echo(f"{each}:")
        status |= not _told(definition, socket)
        found |= each != "shell"
    return int(status) if found else 1


def _told(definition: AgentDefinition, socket: str | None) -> bool:
    """Say what the agent of *definition* needs. Returns whether all of it is there."""
    found = [_program(definition), _account(definition), *_hosts(definition), *_base_urls(definition),
             _sandbox(definition, socket)]
    for good, what, said in found:
        click.echo(f"{'ok' if good else 'missing':8} {what:9} {said}")
    return all(good for good, _, _ in found)


def _lasted(seconds: float) -> str:
    whole = max(0, int(seconds))  # the clock may have been set back
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


Row = tuple[bool, str, str]


def _program(definition: AgentDefinition) -> Row:
    try:
        program = agent_start.program_of(definition)
    except LeewardError as error:
        return False, "program", str(error)
    return True, "program", "a shell of the host's" if program is None else ascii(" ".join(program.argv))[1:-1]


def _account(definition: AgentDefinition) -> Row:
    """Whether the agent has an account, as a file or a variable shows."""
    for sign in definition.signed_in:
        if sign.startswith("$"):
            if os.environ.get(sign[1:]):
                return True, "account", sign
        elif os.path.exists(os.path.expanduser(sign)):
            return True, "account", sign
    if not definition.signed_in:
        return True, "account", "not needed"
    return False, "account", f"none of {', '.join(definition.signed_in)} exists: sign in outside of the sandbox first"


def _hosts(definition: AgentDefinition) -> list[Row]:
    """For each host of *definition*, the decision of the policy that bounds agents."""
    policy = load(None).egress.get(AGENT.name, AGENT)
    rows = []
    for number, entry in enumerate(definition.hosts):
        for rule in parse_entry(entry, definition.file, f"hosts[{number}]"):
            name = rule.name if rule.name and not rule.text.startswith("*.") else f"any.{rule.name}" if rule.name \
                else rule.text.partition("/")[0].partition(":")[0]
            said = verdict(policy, f"tcp://{name}:{rule.port}" if rule.port else f"https://{name}/", "GET", None, False)
            rows.append((said["verdict"] == "allow", "host", rule.text if said["verdict"] == "allow" else
                         f"{rule.text}: {said['reason']}"))
    return rows


def _base_urls(definition: AgentDefinition) -> list[Row]:
    """The variables that lead the agent elsewhere; the user's own settings alone are looked at."""
    try:
        mine = merged_settings(read_user_file(os.path.join(config_home(os.environ), USER_FILE)) or {}, {}, USER_FILE, "",
                               "/", os.environ)
        found = dict(unlisted(definition, mine, os.environ))
    except LeewardError as error:
        return [(False, "base URL", str(error))]
    return [(name not in found, "base URL", f"{name}: {found[name].text} isn't among the agent's hosts, and is asked for at"
             " the start; `allow` below [network] in ~/.config/leeward/agents.toml has it" if name in found else name)
            for name in definition.base_urls if os.environ.get(name)]


def _sandbox(definition: AgentDefinition, socket: str | None) -> Row:
    try:
        program: AgentProgram | None = agent_start.program_of(definition)
        with tempfile.TemporaryDirectory(prefix="leeward-doctor-") as folder:
            request = request_of(definition, AgentSettings(), AgentOptions(), os.path.realpath(folder), program, (),
                                 os.environ)
            options = {**request.options, "mounts": [mount for mount in request.options["mounts"]
                                                     if not mount.writable or mount.source == folder]}
            with Sandbox(socket=socket, held=True, **options) as box:
                argv = [*program.argv, "--version"] if program is not None else ["/bin/sh", "-c", "echo a shell"]
                got = box.run(argv, cwd=request.cwd, timeout=_VERSION_S)
    except (LeewardError, OSError) as error:
        return False, "sandbox", str(error)
    said = (got.stdout_text or got.stderr_text).strip().splitlines()
    text = ascii(said[0] if said else "it runs")[1:-1]
    if got.ok:
        return True, "sandbox", text
    # If the program has exited by itself, it runs, and only lacks the option. It doesn't run if a limit or a signal
    # ended it, or it couldn't be executed.
    if got.outcome is Outcome.FINISHED and got.exit_code < 126:
        return True, "sandbox", f"it runs; --version ends with status {got.exit_code}: {text}"
    return False, "sandbox", f"{text}: {got!r:.200}"

"""
`leeward agent start`: from a command line to an agent's exit status.

The user waits meanwhile, so modules that only some starts need are imported where they are needed.

Theory of operation. From the first step on SIGTERM, SIGHUP and SIGQUIT raise exceptions, and so does Ctrl-C if no other
code handles it. So every end passes through `AgentRun.__exit__`, which ignores these signals. The agent's process is on
the user's terminal (`leeward_cli.terminal`) if standard input and output are that terminal, else on pipes
(`leeward_cli.passing`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.apps.agents.definition import AgentDefinition, load_definition
from leeward.apps.agents.hiding import rules_of
from leeward.apps.agents.programs import AgentProgram, find
from leeward.apps.agents.settings import AgentSettings, LibraryFolder, parse_library
from leeward.apps.agents.settings_paths import cache_home, config_home
from leeward.errors import BadRequest, DaemonError, LeewardError, RequestRejected, Stale, quoted
from leeward.spec.sizes import parse_size
from leeward_cli import agent_ends, agent_project
from leeward_cli.interrupts import EndRequested
from leeward_cli.messages import complain
from leeward_cli.options import UsageError
from leeward_cli.terminal_size import size

# Imported in functions: what not every start needs; 110 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.apps.agents.layers import Layer
    from leeward.apps.agents.request import AgentOptions
    from leeward.apps.agents.running import AgentRun
    from leeward.client.changes import Changes
    from leeward.client.process import Process

#: The greatest number of names in one warning.
_SHOWN = 50
#: What is said of a host where there is no terminal.
_SAID = {"denied": "is denied", "asks about": "waits for your decision by `leeward approvals` about"}
#: The longest --timeout, in seconds.
_MOST_S = 366 * 86400


def start(name: str, path: str, arguments: tuple[str, ...], *, socket: str | None, debug: bool, overlay: bool,
          applied: bool | None, approved: bool, profile: str, image: str, rebuild: bool, unrestricted_network: bool,
          dump_network_access: str | None, libraries: tuple[str, ...], ports: tuple[tuple[int, int], ...],
          persist: bool, egress: str, trust_project: bool,
          timeout: float | None, memory: str, terminal: bool | None, raw: bool) -> int:
    """Start an agent, and wait for its end; `agent_start_command.start` describes the options. Returns the exit status."""
    agent_ends.set_home()
    name = name or only_agent()
    here = os.isatty(0) and os.isatty(1)
    on_terminal = here if terminal is None else terminal
    if terminal and not here:
        raise UsageError("--terminal: standard input and output are not a terminal")
    if timeout is not None and not 0 < timeout <= _MOST_S:
        raise UsageError("--timeout is a number of seconds, at most a year")
    if applied is not None and not overlay:
        raise UsageError("--apply and --no-apply need --overlay")
    if approved and (overlay or profile):
        raise UsageError("--approved has a copy and a profile of its own: it takes no --overlay and --profile")
    image = image or _image_of(profile)
    try:
        parse_size(memory or "1")
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    options = (arguments, debug, overlay or approved, unrestricted_network, tuple(map(library_of, libraries)), memory,
               egress, "approved" if approved else profile, persist, approved or _may_ask(), image)
    dump = None if dump_network_access is None else _NamesFile(dump_network_access)
    with agent_ends.ending_by_signals() as ignore, dump or contextlib.nullcontext():
        try:
            with (agent_project.opened(path) as (project, folder), contextlib.ExitStack() as held):
                if not (overlay or approved) and os.fstatvfs(folder).f_flag & os.ST_RDONLY:
                    raise BadRequest(f"{project!a:.200} is on a read-only file system; with --overlay the agent works"
                                     " on a copy")
                run = held.enter_context(_prepared(name, project, folder, options, trust_project, rebuild, socket, held,
                                                   ignore))
                _publish(run, ports, held)
                try:
                    status = _attended(run, arguments if debug else None, on_terminal, raw, timeout, socket,
                                       keep=overlay and applied is not False)
                    return (_changes(run, applied) if overlay else 0) or status
                finally:
                    ignore()
                    run.end_sandbox()
                    _warn_of_files(run)
                    if dump is not None:
                        dump.write(run, socket)
        except EndRequested as ended:
            return 128 + int(ended.args[0])


def _image_of(profile: str) -> str:
    """The image that *profile* has by the configuration, as a daemon reads it; "" for none."""
    if not profile:
        return ""
    from leeward.daemon.config_sources import load

    own = load(None).profiles.get(profile)
    return "" if own is None else own.image


def _may_ask() -> bool:
    """Whether a service for approvals of this user listens, by which a person can be asked about hosts."""
    from leeward.spec.paths import approvals_socket

    path = approvals_socket(None, os.environ, os.geteuid())
    if not os.path.exists(path):
        return False
    import socket  # most users serve none

    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.connect(path)
        return True
    return False


def only_agent() -> str:
    """The name of the agent that is installed; BadRequest if none is, or several are."""
    from leeward.apps.agents.definition import definition_names

    known = [name for name in definition_names(config_home(os.environ)) if name != "shell"]
    found = [name for name in known if is_installed(load_definition(name, config_home(os.environ)))]
    if len(found) == 1:
        return found[0]
    raise BadRequest(f"several agents are installed: name one of {', '.join(found)}" if found else
                     f"none of {', '.join(known)} is installed: `leeward agent doctor` says how to get one")


def is_installed(definition: AgentDefinition) -> bool:
    try:
        return bool(definition.command) and find(os.path.expanduser(definition.command[0]), os.environ) is not None
    except LeewardError:
        return True  # it is there; its start says what is wrong


def _publish(run: AgentRun, ports: tuple[tuple[int, int], ...], held: contextlib.ExitStack) -> None:
    """Make servers of the agent's reachable on the host, as long as it runs."""
    assert run.box is not None
    for inside, host in ports:
        try:
            made = run.box.publish(inside, host or inside)
        except RequestRejected as error:
            if host:
                raise BadRequest(f"--publish {host}:{inside}: {error}") from None
            made = run.box.publish(inside)
        held.enter_context(made)
        complain(f"port {inside} of the agent is 127.0.0.1:{made.port} of this host, also for its other users")


def library_of(text: str) -> LibraryFolder:
    home = os.environ.get("HOME") or "/"
    try:
        return parse_library(text, os.getcwd(), home)
    except ValueError as error:
        raise UsageError(f"--library {text!a:.200}: {error}") from None


def program_of(definition: AgentDefinition, written: Sequence[str] = (), *, in_image: bool = False) -> AgentProgram | None:
    """The agent's program, if it has one, as `find`; BadRequest if it is missing, or where agents have *written*."""
    if not definition.command:
        return None
    from leeward.apps.agents.request import shown_programs

    found = find(os.path.expanduser(definition.command[0]), os.environ, written,
                 shown_programs(definition, written, os.environ), in_image=in_image)
    if found is None:
        how = definition.install.command or definition.install.page
        raise BadRequest(f"{definition.name}: {quoted(definition.command[0])} is not installed, or not in PATH"
                         + (f"; {how}" if how else ""))
    return found


def _prepared(name: str, project: str, folder: int, asked: tuple[Any, ...], trust_project: bool, rebuild: bool,
              socket: str | None, held: contextlib.ExitStack, ignore: Callable[[], None]) -> AgentRun:
    """Prepare the run, without a start; *asked* are values of AgentOptions, *ignore* is called before the run is undone."""
    definition = load_definition(name, config_home(os.environ))
    settings = agent_project.settings_of(folder, project, trust_project, definition)
    from leeward.apps.agents.request import AgentOptions, check_home, libraries_of, request_of, written_by
    from leeward.apps.agents.running import AgentRun

    options, registry = AgentOptions(*asked), agent_ends.registry()
    check_home(project, os.environ)  # before what a look at all of it finds
    hiding = agent_project.hidden_in(folder, project, settings)
    for line in (*settings.warnings, *hiding.warnings):
        complain(line)
    program = None if options.debug and not definition.command else program_of(
        definition, written_by(definition, settings, options, project, os.environ), in_image=bool(options.image))
    layer = _layer(settings, options, rebuild, socket)
    if layer is not None:
        held.callback(layer.close)
    libraries = libraries_of(settings, options)
    in_libraries: tuple[Sequence[str], Sequence[str]] = ((), ())
    if libraries:
        from leeward.apps.agents.libraries import hidden_in_libraries

        in_libraries = hidden_in_libraries(libraries, settings)
    request = request_of(definition, settings, options, project, program, [each.path for each in hiding.hidden],
                         os.environ, hiding.absent, f"/proc/self/fd/{folder}", layer, hiding.pinned, in_libraries)
    for line in request.warnings:
        complain(line)
    asking = None
    if options.profile == "approved":
        from leeward_cli.approved_sandboxes import ApprovedAgent

        asking = ApprovedAgent(project, socket)
        request.options["env"] |= asking.environment(request.options["env"])
    run = AgentRun(definition, settings, request, project, registry, os.environ, complain, socket, asking,
                   (folder, rules_of(settings.exclude, settings.include), hiding.obeyed))
    run.undoing = ignore
    return run


def _layer(settings: AgentSettings, options: AgentOptions, rebuild: bool, socket: str | None) -> Layer | None:
    """The layer with the packages of `dependencies`; None if there are no dependencies. Missing packages are fetched."""
    if not settings.dependencies:
        if rebuild:
            raise UsageError("--rebuild: the settings have no `dependencies`")
        return None
    if options.image:
        complain("the `dependencies` of the settings are packages for this host, and don't go into an image")
        return None
    from leeward.apps.agents.layers import Layers

    layers = Layers(os.path.join(cache_home(os.environ), "layers"), os.path.join(config_home(os.environ), "apt"),
                    socket, options.egress, [rule.text for rule in settings.allow if rule.network is not None])
    found = layers.get(settings.dependencies, rebuild=rebuild, said=lambda data: os.write(2, data) and None)
    if found.made:
        complain(f"dependencies: {len(found.packages)} packages were unpacked, and are kept for the next start:"
                 f" {ascii(', '.join(found.packages))[1:-1][:500]}")
    return found


def _attended(run: AgentRun, instead: tuple[str, ...] | None, on_terminal: bool, raw: bool, timeout: float | None,
              socket: str | None, *, keep: bool) -> int:
    """
    Wait for the agent, or *instead*. Returns its exit status. With *keep* its changes are saved if a signal ends this
    program.
    """
    env: Mapping[str, str] = {name: value for name in ("TERM", "COLORTERM") if (value := os.environ.get(name, ""))
                              and value.isprintable()} if on_terminal else {}
    process = run.start(instead, size() if on_terminal else None, env)
    assert run.box is not None
    from leeward.spec.paths import client_socket
    from leeward_cli.denied_hosts import DeniedHosts  # while the program starts, as the next ones

    denied = DeniedHosts(client_socket(socket), run.box.id, run.asks)
    if on_terminal:
        from leeward_cli.terminal import attend
    else:
        from leeward_cli.passing import pass_on
    # `main` has disabled the garbage collector; from here on this process may run for days. The imported objects are
    # frozen: a collection of them would take 4 ms of the processor on which the agent starts.
    gc.freeze()
    gc.enable()
    timeout = timeout or run.settings.limits.get("timeout")
    late = threading.Event()
    timer = threading.Timer(timeout or 0, _end, (process, late)) if timeout else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        if on_terminal:
            status = attend(process, lambda title: denied.follow(lambda what, host: title(f"leeward: {what} {host}")))
        else:
            denied.follow(lambda what, host: complain(f"the agent {_SAID[what]} {host}"))
            status = pass_on(process, raw)
    except (EndRequested, KeyboardInterrupt):
        if keep:
            with contextlib.suppress(LeewardError):  # the sandbox has ended
                run.undoing()  # a second signal doesn't interrupt this
                _save(run)
        raise
    finally:
        if timer is not None:
            timer.cancel()
    denied.sum_up()
    return agent_ends.TIMED_OUT if late.is_set() else agent_ends.FAILED if run.given_up else status


def _end(process: Process, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(DaemonError):
        process.kill()


def _changes(run: AgentRun, applied: bool | None) -> int:
    """Show the changes in an overlay, and apply them if wanted. Returns 1 if they can't be: then the copy stays."""
    try:
        status = _shown_and_applied(run, applied)
    except (LeewardError, OSError, EndRequested, KeyboardInterrupt):
        _keep_copy(run)
        raise
    if status:
        _keep_copy(run)
    return status


def _keep_copy(run: AgentRun) -> None:
    kept = run.keep_copy()
    if kept:
        from leeward.apps.agents.running import KEPT_S

        complain(f"the agent's copy stays for {KEPT_S / 60:.0f} minutes: `leeward diff {kept}`, `leeward apply {kept}"
                 f" PATH`, `leeward sandbox attach {kept}`, `leeward sandbox kill {kept}`")


def _save(run: AgentRun, found: Changes | None = None) -> None:
    """Save the agent's changes to a folder of the user's state, since nobody is there to decide about them."""
    from leeward.client.overlay import Overlay
    from leeward_cli.saved_work import save_changes

    assert run.box is not None
    run.end_processes()
    overlay = Overlay(run.box, "")
    found = overlay.diff() if found is None else found
    if found:
        save_changes(overlay, found, run.name, "the project",
                     "; --apply applies them without a question, --no-apply discards them")


def _shown_and_applied(run: AgentRun, applied: bool | None) -> int:
    import click

    from leeward_cli import overlays
    from leeward_cli.progress import Progress

    assert run.box is not None
    overlays.tell_finished()
    run.end_processes()
    with Progress("comparing"):
        found = run.box.diff()
    for change in found:
        click.echo(overlays.line(change), err=True)
    if not found or applied is False:
        return 0
    if applied is None and not (os.isatty(0) and os.isatty(2)):
        _save(run, found)
        return 0
    left_out = run.box.conflicts(found)
    for error in [*left_out.values()][:_SHOWN]:
        complain(f"not applied: {str(error).removesuffix(': leave it out')}")
    if len(left_out) > _SHOWN:
        complain(f"{len(left_out) - _SHOWN} more changes aren't applied for such reasons")
    found = [change for change in found if change.path not in left_out]
    status = int(any(isinstance(error, Stale) for error in left_out.values()))
    if not found:
        return status
    if applied is None:
        try:
            if not _wanted(run, found):
                return status
        except click.Abort:  # Ctrl-D
            raise KeyboardInterrupt from None
    try:
        with Progress("applying"):
            run.box.apply(changes=found)
    except Stale as error:
        complain(overlays.failure(error))
        return 1
    return status


def _wanted(run: AgentRun, found: Changes) -> bool:
    """Whether a person wants *found* to be applied, who may look at the difference first."""
    import click

    from leeward.client.overlay import Overlay

    question = f"Apply these {len(found)} changes to {run.project!a:.200}? y is yes, d shows the difference [y/N/d]"
    while True:
        answer = click.prompt(question, default="n", show_default=False, err=True).strip().lower()
        if answer in ("y", "yes", "n", "no"):
            return bool(answer in ("y", "yes"))
        if answer in ("d", "diff"):
            from leeward_cli.difference import show_difference

            assert run.box is not None
            show_difference(Overlay(run.box, ""), found)


def _warn_of_files(run: AgentRun) -> None:
    """Warn about changed files that programs of the host execute or read on their own, and files that didn't stay hidden."""
    seen = run.no_longer_hidden()
    if seen:
        complain("these names should be hidden, but were made or replaced while the agent ran, and it could read them"
                 f" until leeward noticed that, or until the agent ended: {_some(seen)}")
    changed = run.written_outside()
    if changed:
        complain("the agent has changed files that programs outside execute or read on their own; look at these before"
                 f" you use the project: {_some(changed)}")


def _some(names: list[str]) -> str:
    """The first of *names* as text. An agent can make any number of them."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(ascii, names[:_SHOWN])) + more


class _NamesFile:
    """
    The file of --dump-network-access, in a folder that is opened before the agent can put a link in its place; a
    context. UsageError if it can't be made, which a person hears before the agent runs rather than after hours.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        folder = os.path.dirname(file) or "."
        try:
            self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._folder = -1
        if (self._folder < 0 or not file or os.path.isdir(file)
                or not os.access(file if os.path.exists(file) else folder, os.W_OK)):
            self.close()
            raise UsageError(f"--dump-network-access {file!a:.200}: is no file that can be written")

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def write(self, run: AgentRun, socket: str | None) -> None:
        from leeward.spec.paths import client_socket
        from leeward_cli import egress_log

        if run.box is not None:
            egress_log.write_names(client_socket(socket), run.box.id, self._file, self._folder)


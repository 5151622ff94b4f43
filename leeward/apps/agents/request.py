"""
Makes the options of an agent's sandbox from a definition, settings and the caller's options: mounts, hosts, variables
and limits; and opens the mounts right before the sandbox.

Holds:     what is mounted is what was looked at, and what a person was asked about. Sources of mounts are real paths,
           and are opened through no link, since another user or an agent may have put one there in the meantime. State
           folders are opened through no link that an agent can have made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from leeward.apps.agents.definition import AgentDefinition, parse_hosts
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.outside import PROTECTED
from leeward.apps.agents.programs import AgentProgram
from leeward.apps.agents.project_tree import check_text
from leeward.apps.agents.settings import AgentSettings, LibraryFolder
from leeward.apps.agents.settings_paths import cache_home, config_home, state_home
from leeward.apps.agents.written import home_path, open_beside, open_real, real_beside, writable_by_agents
from leeward.base.closing import Closing, on_failure
from leeward.base.dataclass import dataclass, field, replace
from leeward.client.mounts import Mount
from leeward.errors import RequestRejected, reason_of
from leeward.spec.folders import outermost, within

if TYPE_CHECKING:
    from leeward.apps.agents.layers import Layer
    from leeward.apps.agents.worktrees import Worktree

#: The profile, and the policy of egress that a start narrows.
PROFILE = EGRESS = "agent"
#: The beginning of a mount's source that is a descriptor of this process.
OPENED = "/proc/self/fd/"
#: The end of PATH in the sandbox; and what starts a program in an image, whose own PATH only the sandbox knows.
_PATH = "/usr/local/bin:/usr/bin:/bin"
_BESIDE = ("/bin/sh", "-c", 'export PATH="$0:$PATH"; exec "$@"')
#: The caller's variables that every agent gets: locale, time zone and display of text.
_PASSED = ("LANG", "LC_*", "TZ", "COLORTERM", "NO_COLOR", "EDITOR", "VISUAL", "PAGER")
#: Limits of a sandbox's connections, within those of the operator's policy.
_LIMITS = {"connections": 256, "per_minute": 3000, "request": 1 << 30, "response": 8 << 30}
#: Bytes of a staged file, at most.
MOST_STAGED = 16 << 20


@dataclass(frozen=True, slots=True)
class AgentOptions:
    arguments: tuple[str, ...] = ()  # of the agent, after those of its definition
    debug: bool = False  # start a shell in place of the agent
    overlay: bool = False  # keep changes of the project in the sandbox
    unrestricted_network: bool = False  # allow all public hosts that the operator lets agents reach
    libraries: tuple[LibraryFolder, ...] = ()  # further folders
    memory: str = ""  # as for Sandbox; "" for that of the settings, or without one the profile's
    egress: str = ""  # the policy that is narrowed; "" for `agent`
    profile: str = ""  # of the sandbox; "" for `agent`. Another one is `approved`, or based on `agent`.
    persist: bool = False  # the home stays for the agent on the project, with its caches and tools
    asks: bool = False  # a person is asked about hosts that aren't allowed
    image: str = ""  # an image, whose root file system the sandbox has; "" for the host's /usr


@dataclass(frozen=True, slots=True)
class AgentRequest:
    argv: tuple[str, ...]  # of the agent
    cwd: str  # the folder to start in: the project's path in the sandbox
    options: dict[str, Any]  # of `Sandbox`
    staged: tuple[tuple[str, str], ...] = ()  # files to copy, each with its path on the host and in the sandbox
    folders: tuple[str, ...] = ()  # folders of the host to make before: those of the agent's state
    hosts: tuple[str, ...] = ()  # rules of egress, as text
    hidden: tuple[str, ...] = ()  # names in the project, relative to it, also those that don't exist yet
    #: variables of the caller, each with its value and the hosts that get it
    secrets: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # lines for a person, beside those of the settings
    written: tuple[str, ...] = ()  # the real paths of folders that the agent can write to
    worktree: Worktree | None = None  # the project is one, and the agent writes to its repository


def request_of(definition: AgentDefinition, settings: AgentSettings, options: AgentOptions, project: str,
               program: AgentProgram | None, hidden: Sequence[str], environ: Mapping[str, str],
               absent: Sequence[str] = (), source: str = "", layer: Layer | None = None,
               pinned: Sequence[str] = (),
               in_libraries: tuple[Sequence[str], Sequence[str]] = ((), ())) -> AgentRequest:
    """
    The request for one start, on the real path *project*, with *program*, or None for a shell alone.

    *hidden* and *absent* are names to hide, relative to the project, that exist and that don't yet; *pinned* folders of
    it aren't to be renamed; *in_libraries* are paths in the sandbox to hide and to pin. By *source* the daemon
    opens the project: that of a descriptor, whose folder can't be replaced.

    Raises RequestRejected if the project is or contains the home folder, a writable folder has leeward's own settings,
    or a name to hide isn't UTF-8; SettingsError if agents can't reach the port of a network entry.
    """
    home = check_home(project, environ)
    written = written_by(definition, settings, options, project, environ)
    inside = settings.project_at or project
    _check_own(written, environ)
    check_text(hidden)
    _check_overlaps(definition, settings, options, project, inside, home)
    mounts = [Mount(source or project, inside, writable=not options.overlay, overlay=options.overlay)]
    state = [home_path(path, home) for path in definition.state]
    mounts += [Mount(path, path, writable=True) for path in state if path != project]
    mounts += [Mount(one.source, one.target, writable=one.writable) for one in libraries_of(settings, options)]
    mounts += _programs(shown_programs(definition, written, environ), program, mounts,
                        writable_by_agents(written, environ))
    if layer is not None:
        from leeward.apps.agents.layers import INSIDE  # most starts have none

        mounts.append(Mount(os.path.realpath(layer.path), INSIDE))
    worktree, line = _worktree(project, source or project, settings, options, mounts)
    kept = [_kept_home(definition.name, project, environ, options.image)] if options.persist else []
    mounts[:0] = [Mount(path, home, writable=True) for path in kept]  # the home itself, before what is in it
    hosts, policy = _policy(definition, settings, options)
    folders = () if program is None else program.folders
    passed = {*_PASSED, *definition.pass_environment}
    patterns = [each for each in passed if set(each) & set("*?[")]  # a pattern is compiled, which takes 40 us
    logs, unlogged = ([], {}) if worktree is None else worktree.unlogged()
    local = [os.path.join(home, ".local/bin")] if kept else []
    env = {
        **({} if options.image else {"PATH": ":".join((*folders, _PATH, *local))}), "PWD": inside, **unlogged,
        **{name: value for name, value in environ.items() if value.isprintable()
           and (name in passed or any(fnmatchcase(name, each) for each in patterns))},
        **{name: home_path(value, home) for name, value in definition.environment.items()}, **settings.environment}
    if layer is not None:
        for name, places in layer.environment().items():
            env[name] = ":".join(dict.fromkeys((*places, *filter(None, env.get(name, "").split(":")))))
    limits = {name: value for name, value in settings.limits.items() if name != "timeout"}
    if options.memory:
        limits["memory"] = options.memory
    argv = () if program is None else (*program.argv, *definition.command[1:], *definition.arguments,
                                       *settings.arguments.get(definition.name, ()), *options.arguments)
    if options.image and argv and (folders or local):
        argv = (*_BESIDE, ":".join((*folders, *local)), *argv)
    return AgentRequest(
        argv, inside,
        {"profile": options.profile or PROFILE, "own_home": True, "egress": options.egress or EGRESS,
         "policy": policy, "mounts": mounts, "env": env,
         "hide": [*(os.path.join(inside, name) for name in hidden), *in_libraries[0], *logs],
         "protect": [os.path.join(inside, name) for name in PROTECTED],
         "pin": [*(os.path.join(inside, name) for name in pinned), *in_libraries[1]], **limits,
         **({"image": options.image} if options.image else {})},
        tuple((path, path) for path in (home_path(path, home) for path in definition.staged)), (*state, *kept),
        hosts, (*hidden, *absent),
        {secret.variable: (environ[secret.variable], secret.hosts) for secret in definition.secrets
         if environ.get(secret.variable, "")}, (line,) if line else (),
        (*written, *kept, *(os.fspath(each.source) for each in mounts if worktree and each.writable
                                     and within(each.target, worktree.folder))), worktree)


def _kept_home(agent: str, project: str, environ: Mapping[str, str], image: str) -> str:
    """The folder of the host with the home that stays for *agent* on *project*: it has copies of that agent's files."""
    from leeward.apps.agents.instance_names import blake2b, instance_name  # few starts keep folders
    from leeward.apps.agents.state_files import own_folder

    # Another user may make a folder with the path of one that is gone.
    parts = (b"%d" % os.stat(project).st_uid, *map(os.fsencode, (agent, project, *filter(None, [image]))))
    digest = blake2b(b"\0".join(parts)).hexdigest()[:24]
    return os.path.join(own_folder(os.path.join(cache_home(environ), "homes")),
                        f"{instance_name(os.fsencode(project), 'home')}-{digest}")


def libraries_of(settings: AgentSettings, options: AgentOptions) -> tuple[LibraryFolder, ...]:
    return tuple(dict.fromkeys((*settings.libraries, *options.libraries)))


def check_home(project: str, environ: Mapping[str, str]) -> str:
    """The real path of the caller's home folder; RequestRejected if the real path *project* is it, or holds it."""
    home = os.path.realpath(environ.get("HOME") or "/")
    if within(home, project):
        raise RequestRejected(f"{project!a:.200} is your home folder, or holds it, which an agent doesn't get: name a"
                              " folder in it")
    return home


def written_by(definition: AgentDefinition, settings: AgentSettings, options: AgentOptions, project: str,
               environ: Mapping[str, str]) -> tuple[str, ...]:
    """The real paths of the project, also with an overlay, and of what the agent can write to: none is trusted."""
    home = os.path.realpath(environ.get("HOME") or "/")
    return (os.path.realpath(project), *(os.path.realpath(home_path(path, home)) for path in definition.state),
            *(os.path.realpath(one.source) for one in libraries_of(settings, options) if one.writable))


def _check_own(written: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse that an agent writes what says what agents may, or what others run: it would allow the next one everything."""
    own = [os.path.realpath(path) for path in (config_home(environ), state_home(environ), cache_home(environ))]
    for path in written:
        for each in own:
            if within(each, path) or within(path, each):
                raise RequestRejected(f"{path!a:.200} has leeward's own settings and records, or lies in them"
                                      f" ({each!a:.200}), and an agent doesn't get those to write")


def _check_overlaps(definition: AgentDefinition, settings: AgentSettings, options: AgentOptions, project: str,
                    inside: str, home: str) -> None:
    """Refuse a second mount of the project's files: names aren't hidden or protected there."""
    for one in libraries_of(settings, options):
        if within(one.source, project) or within(project, one.source):
            raise RequestRejected(f"the library {one.source!a:.200} is in the project, or holds it: what is hidden in"
                                  " the project could be read there")
    for path in (home_path(path, home) for path in definition.state):
        real = os.path.realpath(path)
        if real != project and (within(real, project) or within(project, real)):
            raise RequestRejected(f"the project is in the agent's state folder {path!a:.200}, or holds it")
        if path == inside != project:
            raise RequestRejected(f"project.at: {inside!a:.200} is the agent's state folder")


def shown_programs(definition: AgentDefinition, written: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The real paths of a definition's `programs`; RequestRejected if an agent can have chosen where one leads."""
    home = os.path.realpath(environ.get("HOME") or "/")
    found = [real_beside(home_path(path, home), writable_by_agents(written, environ))
             for path in definition.programs]
    return [path for path in found if path]


def _programs(wanted: Sequence[str], program: AgentProgram | None, mounts: list[Mount],
              written: Callable[[str], Iterable[str]]) -> list[Mount]:
    """The mounts for the agent's program that *mounts* don't cover; RequestRejected as for `shown_programs`."""
    there = [mount.target for mount in mounts]
    return [Mount(real_beside(path, written) or path, path)
            for path in outermost([*wanted, *(() if program is None else program.shown)])
            if not any(within(path, target) for target in there)]


def _worktree(project: str, source: str, settings: AgentSettings, options: AgentOptions,
              mounts: list[Mount]) -> tuple[Worktree | None, str]:
    """
    The worktree that *project*, opened as *source*, is, if the agent writes to its repository; and a line about it for
    a person, or "". Adds what is shown of it to *mounts*.
    """
    if not os.path.isfile(os.path.join(source, ".git")):
        return None, ""
    from leeward.apps.agents.worktrees import worktree_of  # few projects are one

    found = worktree_of(project, source, [mount.target for mount in mounts])
    if found is None or isinstance(found, str):
        return None, found or ""
    if not settings.worktree_links:
        return None, (f"{project!a:.200} is a worktree of {found.real!a:.200}, without which git doesn't work in the"
                      " sandbox: `worktree_links = true` below [git] in ~/.config/leeward/agents.toml shows it")
    mounts += found.mounts(writable=not options.overlay)
    return (found, "") if not options.overlay else (
        None, f"the agent has a copy of the worktree, and doesn't write to {found.real!a:.200}: it can't commit")


def _policy(definition: AgentDefinition, settings: AgentSettings,
            options: AgentOptions) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The hosts, as rules, and the policy that allows them."""
    rules = parse_hosts(definition.hosts, definition.file)
    hosts = tuple(dict.fromkeys(rule.text for rule in (*rules, *settings.allow)))
    if options.unrestricted_network:
        hosts = ("*", *(rule.text for rule in settings.allow if rule.network is not None))
    ported = [rule for rule in (*rules, *settings.allow) if rule.port]
    ports = [80, 443]
    if options.unrestricted_network or ported:
        from leeward.spec.egress_policy import AGENT_PORTS  # a large module that most starts don't need

        wrong = [rule for rule in ported if rule.port not in AGENT_PORTS]
        if wrong and not options.egress:
            raise SettingsError("", "network.allow", f"{wrong[0].text}: agents reach the ports"
                                f" {', '.join(map(str, AGENT_PORTS))}",
                                "an operator's [egress.agent] may have others: name it by --egress agent")
        if options.unrestricted_network:
            ports = list(AGENT_PORTS)
    asked = {"ask": ["*"]} if options.asks and not options.unrestricted_network else {}
    return hosts, {"allow": list(hosts), **asked, "ports": ports, "limits": _LIMITS}


class OpenedMounts(Closing):
    """
    The mounts of *request* in order, each with a descriptor as its source. State folders are made unless they exist.

    Raises RequestRejected if a folder can't be opened, or only through a link that isn't followed.
    """

    def __init__(self, request: AgentRequest, environ: Mapping[str, str]) -> None:
        self._opened = list[int]()
        written = writable_by_agents(request.written, environ)
        with on_failure(self.close):
            self.mounts = [each if source.startswith(OPENED) else replace(each, source=self._open(
                source, written if source in request.folders else None))
                for each in request.options["mounts"] for source in (os.fspath(each.source),)]

    def _open(self, source: str, written: Callable[[str], Iterable[str]] | None) -> str:
        try:
            if written is not None:
                os.makedirs(source, 0o700, exist_ok=True)
            self._opened.append(open_real(source) if written is None else open_beside(source, written))
        except OSError as error:
            raise RequestRejected(f"{source!a:.200}: {reason_of(error)}") from None
        return f"{OPENED}{self._opened[-1]}"

    def close(self) -> None:
        """Close the descriptors: the sandbox was opened. May be called repeatedly."""
        while self._opened:
            os.close(self._opened.pop())

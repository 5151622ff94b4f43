"""
Settings of agents: the user's file and the project's, merged.

Trust:     full in the user's file, none in the project's. Both files are read once, so what was shown is what is used.
           A project's `vendor` may be a link to the user's keys, so links of libraries are resolved first, and the
           person is asked about the resolved path. What the user names is shown without a question, so a link of
           another user's isn't followed there.
Merging:   tables are merged key by key; of other values the project's wins, except that arrays are appended, each item
           once; two kinds of value under one key are an error that names both files.
Grants:    a grant is a setting of the project that isn't in the user's own file, and by which the agent can reach, read
           or use more, or by which a command runs on the host; a start needs the user's acceptance (`trust`). Hooks in
           the sandbox and hidden names are no grants. A variable is one: it can send the agent's credentials elsewhere
           (a base URL without TLS, a proxy), or make the agent run a file of the project at its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.apps.agents import checks
from leeward.apps.agents.definition import HOOKS, AgentHooks
from leeward.apps.agents.errors import SettingsError, printable
from leeward.apps.agents.hiding import FilePattern, parse_pattern
from leeward.apps.agents.instance_names import is_agent_name
from leeward.apps.agents.reading import HOLE_FILE, PROJECT_FILE, read_project_file, read_user_file
from leeward.apps.agents.settings_paths import USER_FILE
from leeward.apps.agents.written import closed_path
from leeward.base.dataclass import dataclass, field, replace
from leeward.client.host_paths import open_own, open_through
from leeward.errors import RequestRejected
from leeward.spec.folders import reserved

if TYPE_CHECKING:
    from leeward.spec.egress_rules import EgressRule


def merge_tables(first: Mapping[str, Any], second: Mapping[str, Any], first_file: str, second_file: str,
                 key: str = "") -> dict[str, Any]:
    """*first* with *second* merged into it, both at *key* of their files; SettingsError if values are of two kinds."""
    merged = dict(first)
    for name, value in second.items():
        place = f"{key}.{name}" if key else name
        if name not in merged:
            merged[name] = value
            continue
        mine = merged[name]
        if _kind(mine) != _kind(value):
            raise SettingsError(second_file, place, f"is {_kind(value)}, and in {printable(first_file)} {_kind(mine)}")
        if isinstance(mine, Mapping):
            merged[name] = merge_tables(mine, value, first_file, second_file, place)
        elif isinstance(mine, list):
            merged[name] = _appended(mine, value)
        else:
            merged[name] = value
    return merged


def _appended(first: list[Any], second: list[Any]) -> list[Any]:
    merged: list[Any] = []
    seen = set()
    for item in (*first, *second):
        # 1, 1.0 and True are equal in Python, but differ as settings.
        mark = (type(item), repr(item))
        if mark not in seen:
            seen.add(mark)
            merged.append(item)
    return merged


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    return "a text" if isinstance(value, str) else "a date"


#: A variable, or `$$` for a dollar.
_VARIABLE = r"\$(?:\$|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})"


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """*text* with its variables expanded, and the names of the variables that aren't set, which stay unexpanded."""
    if "$" not in text:
        return text, ()
    missing: dict[str, None] = {}

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in environ:
            missing[name] = None
            return found[0]
        return environ[name]

    return re.sub(_VARIABLE, value, text), tuple(missing)


def variables_of(text: str) -> tuple[str, ...]:
    """The names of the variables in *text*, in order and without duplicates."""
    return tuple(dict.fromkeys(found[1] or found[2] for found in re.finditer(_VARIABLE, text) if found[0] != "$$"))


def absolute(path: str, base: str, home: str) -> str:
    """*path* as an absolute path without "." and "..": "~" stands for *home*, and a relative path is relative to *base*."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(base, path))


#: Folders that are never shown: the root, and those with the kernel's and the daemons' interfaces.
_NEVER = ("/", "/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    source: str  # its absolute path on the host, without links
    target: str  # its absolute path in the sandbox
    writable: bool = False  # whether the agent can write to it, on the host

    @property
    def text(self) -> str:
        """The form that `parse_library` reads."""
        return f"{self.source}:{self.target}" + (":rw" if self.writable else "")


def parse_library(text: str, base: str, home: str, *, asked: bool = False) -> LibraryFolder:
    """
    A library from "PATH[:MOUNT][:rw]", or ":ro", with its variables expanded; a relative PATH is in *base*.

    Raises ValueError if it is none, or leads through a link of another user's and the person isn't *asked* about that.
    """
    parts = text.split(":")
    writable = parts[-1] == "rw"
    if len(parts) > 1 and parts[-1] in ("rw", "ro"):
        parts.pop()
    if len(parts) > 2:
        raise ValueError("has the form PATH[:MOUNT][:rw], and no path has a colon in it")
    path = checks.filled(parts[0])
    written = absolute(path, base, home)
    source = _real(written, asked)
    target = absolute(checks.inside(checks.filled(parts[1])), "/", home) if len(parts) == 2 else written
    for place in (source, target):
        if place in _NEVER or place.startswith(("/proc/", "/sys/", "/dev/")):
            raise ValueError(f"{place} is never shown as a library")
    own = reserved(target)
    if own:
        raise ValueError(f"{own} is the sandbox's own; choose another place for it there, as in"
                         f" {path}:/opt/{os.path.basename(source)}")
    return LibraryFolder(source, target, writable)


def _real(path: str, asked: bool) -> str:
    """The real path of *path*; *path* itself if it isn't there, which is an error when it is opened."""
    try:
        found = open_through(path, lambda *_: None) if asked else open_own(path)
    except RequestRejected as error:
        raise ValueError(str(error)) from None
    except OSError:
        return path
    return closed_path(found)


#: Ports of all rules of egress together, at most: as many as the workers of a policy can listen on.
MAX_ALL_PORTS = 8

def _agents(value: Any) -> dict[str, dict[str, Any]]:
    """The table `agents`: what is set for one agent, by its name."""
    if not isinstance(value, dict):
        raise ValueError("must be a table with a table for each agent")
    for name, table in value.items():
        if not is_agent_name(name):
            raise ValueError(f"{name!a:.60} isn't the name of an agent")
        if not isinstance(table, dict) or set(table) - {"arguments"}:
            raise ValueError(f"{name}: must be a table with `arguments` alone")
    return {name: {"arguments": checks.array(checks.text)(table.get("arguments", []))} for name, table in value.items()}


#: Every key of both files.
KEYS: checks.Keys = {
    "files": {"exclude": checks.array(checks.filled), "include": checks.array(checks.filled)},
    "libraries": checks.array(checks.filled),
    "network": {"allow": checks.array(checks.text)},
    "dependencies": checks.array(checks.filled),
    "environment": checks.variables,
    "limits": {"memory": checks.size, "processes": checks.whole(1, 1 << 20),
               "descriptors": checks.whole(16, 1 << 20), "files": checks.size, "timeout": checks.duration},
    "hooks": HOOKS,
    "git": {"worktree_links": checks.flag},
    "project": {"at": checks.inside},
    "agents": _agents,
}

#: Variables whose values aren't secret: a project's file may use them without a grant.
_PLAIN = ("HOME", "USER", "LOGNAME", "PWD", "LANG", "TERM")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    exclude: tuple[FilePattern, ...] = ()  # globs of the project's files that are hidden; see `hiding`
    include: tuple[FilePattern, ...] = ()  # globs of files that are shown in spite of `exclude`
    libraries: tuple[LibraryFolder, ...] = ()  # further folders of the host
    allow: tuple[EgressRule, ...] = ()  # the rules of the network entries, in order and without duplicates
    environment: Mapping[str, str] = field(default_factory=dict)  # set in the sandbox
    limits: Mapping[str, Any] = field(default_factory=dict)  # of KEYS: sizes in bytes, times in seconds
    hooks: AgentHooks = field(default_factory=AgentHooks)  # those of the settings, without the definition's
    dependencies: tuple[str, ...] = ()  # system packages, of a layer
    worktree_links: bool = False  # whether the repository of a worktree is shown, and may be committed to
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each agent's command line, by its name
    project_at: str = ""  # the project's path in the sandbox; "" for its path on the host
    warnings: tuple[str, ...] = ()  # lines for a person, about variables that aren't set
    widening: tuple[Grant, ...] = ()  # the grants that the project's file asks for


def load_settings(project: int, project_path: str, config_home: str, environ: Mapping[str, str]) -> AgentSettings:
    """
    The user's settings and those of the open folder *project*, merged and checked, with variables expanded.

    Raises SettingsError if a file can't be read or used; Unsupported if a network entry has a "*", and the list of
    public suffixes isn't installed.
    """
    user_file, project_file = os.path.join(config_home, USER_FILE), os.path.join(project_path, PROJECT_FILE)
    user = read_user_file(user_file) or {}
    theirs = read_project_file(project, project_file) or {}
    unused: tuple[str, ...] = ()
    if os.path.lexists(f"/proc/self/fd/{project}/{HOLE_FILE}"):
        from leeward.apps.agents.hole_settings import read_hole_settings  # few projects have them

        hole_file = os.path.join(project_path, HOLE_FILE)
        hole = read_hole_settings(project, hole_file)
        unused = hole.unused
        table = {"files": {"exclude": [_literal(each) for each in hole.exclude]},
                 "network": {"allow": [_literal(each) for each in hole.hosts]}}
        theirs = merge_tables(table, theirs, hole_file, project_file)
    found = merged_settings(user, theirs, user_file, project_file, project_path, environ)
    return replace(found, warnings=(*found.warnings, *unused)) if unused else found


def merged_settings(user: Mapping[str, Any], theirs: Mapping[str, Any], user_file: str, project_file: str,
                    project_path: str, environ: Mapping[str, str]) -> AgentSettings:
    """As `load_settings`, of the tables of both files; pure."""
    home = environ.get("HOME") or "/"
    # Before the values are checked, so that an error about two kinds of value names both files.
    merge_tables(user, theirs, user_file, project_file)
    mine = _Side(user, user_file, home, environ)
    other = _Side(theirs, project_file, project_path, environ, asked=True)
    table = merge_tables(_lists(mine.table), _lists(other.table), user_file, project_file)
    theirs_last = _arguments(other.table)  # appended as they are: an argument may be there twice
    settings = replace(_settings(table, (*mine.warnings, *other.warnings)), arguments={
        name: (*_arguments(mine.table).get(name, ()), *theirs_last.get(name, ())) for name in _arguments(table)})
    _check_ports(settings.allow, project_file if other.table.get("network") else user_file)
    secret = tuple(name for name in other.variables if name not in _PLAIN)
    widening = grants_of(_settings(_lists(mine.table), ()), settings, secret, theirs.get("environment", {}))
    return replace(settings, widening=widening)


def _literal(text: str) -> str:
    """*text* for a table in which a dollar sign begins a variable."""
    return text.replace("$", "$$")


class _Side:
    """The table of one file, checked, its variables expanded; the names of these; and warnings about unset ones."""

    def __init__(self, table: Mapping[str, Any], file: str, base: str, environ: Mapping[str, str],
                 asked: bool = False) -> None:
        self._file, self._base, self._environ, self._asked = file, base, environ, asked
        self._home = environ.get("HOME") or "/"
        self.warnings: list[str] = []
        self.variables: list[str] = []
        self.table = checks.check_table(table, KEYS, file)
        for key, parse in ((("files", "exclude"), parse_pattern), (("files", "include"), parse_pattern),
                           (("libraries",), self._library), (("dependencies",), checks.check_package)):
            self._each(key, lambda value, place, parse=parse: (self._parsed(parse, value, place),))
        self._each(("network", "allow"), self._entry)
        self._each(("environment",), self._expanded)

    def _each(self, key: tuple[str, ...], form: Any) -> None:
        *above, last = key
        table = self.table
        for name in above:
            table = table.get(name, {})
        if last not in table:
            return
        place = ".".join(key)
        found = table[last]
        if isinstance(found, dict):
            table[last] = {name: form(value, f"{place}.{name}") for name, value in found.items()}
        else:
            table[last] = tuple(item for number, value in enumerate(found)
                                for item in form(value, f"{place}[{number}]"))

    def _expanded(self, value: str, place: str) -> str:
        self.variables += [name for name in variables_of(value) if name in self._environ]
        found, missing = expand(value, self._environ)
        self.warnings += [str(SettingsError(self._file, place, f"${name} isn't set, and isn't expanded"))
                          for name in missing]
        try:
            return checks.text(found)
        except ValueError as error:
            raise SettingsError(self._file, place, f"with its variables: {error}") from None

    def _parsed(self, parse: Callable[[str], Any], value: str, place: str) -> Any:
        try:
            return parse(self._expanded(value, place))
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _library(self, text: str) -> LibraryFolder:
        return parse_library(text, self._base, self._home, asked=self._asked)

    def _entry(self, value: str, place: str) -> tuple[EgressRule, ...]:
        from leeward.apps.agents.entries import parse_entry  # imports `ipaddress`; many starts have no entry

        return parse_entry(self._expanded(value, place), self._file, place)


def _lists(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with lists in place of tuples, since `merge_tables` appends lists."""
    return {name: _lists(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in table.items()}


def _settings(table: Mapping[str, Any], warnings: Iterable[str]) -> AgentSettings:
    hooks = {name: tuple(lines) for name, lines in table.get("hooks", {}).items()}
    files = table.get("files", {})
    return AgentSettings(
        exclude=tuple(files.get("exclude", ())), include=tuple(files.get("include", ())),
        libraries=tuple(table.get("libraries", ())), allow=tuple(table.get("network", {}).get("allow", ())),
        environment=table.get("environment", {}), limits=table.get("limits", {}), hooks=AgentHooks(**hooks),
        dependencies=tuple(table.get("dependencies", ())),
        arguments=_arguments(table),
        worktree_links=table.get("git", {}).get("worktree_links", False),
        project_at=table.get("project", {}).get("at", ""), warnings=tuple(dict.fromkeys(warnings)))


def _arguments(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(each["arguments"]) for name, each in table.get("agents", {}).items()}


def _check_ports(rules: Iterable[EgressRule], file: str) -> None:
    ports = {port for rule in rules for port in ((rule.port,) if rule.port else (80, 443))}
    if len(ports) > MAX_ALL_PORTS:
        raise SettingsError(file, "network.allow", f"{len(ports)} ports, but a sandbox can have {MAX_ALL_PORTS}",
                            "name fewer")


@dataclass(frozen=True, slots=True)
class Grant:
    kind: str  # a key of KINDS
    what: str  # the command, path, host or name


#: The meaning of each kind, in the order in which a person is shown them.
KINDS: dict[str, str] = {
    "setup_host": "runs on this host, as you, before the start",
    "cleanup_host": "runs on this host, as you, at the end",
    "library_rw": "may be read and written",
    "library": "may be read",
    "include": "is shown, though it would be hidden",
    "dependency": "is fetched and unpacked for the agent, with what it needs",
    "host": "may be reached",
    "variable": "is read from your environment",
    "environment": "is set in the agent's environment",
    "limit": "is what it may take",
    "base_url": "is where this variable of yours leads the agent, with its key",
    "argument": "is given to the agent on its command line",
    "worktree": "of the repository that this is a worktree of may be read, and commits and branches written",
}


def grants_of(mine: AgentSettings, merged: AgentSettings, variables: Sequence[str],
              environment: Mapping[str, str]) -> tuple[Grant, ...]:
    """
    The grants of *merged* beyond *mine*, the user's own settings: *variables* that the project's file uses, and the
    *environment* that it sets, as written there, so that a person is shown no values of the caller's.
    """
    from shlex import quote  # most projects ask for nothing

    found = [Grant(kind, line) for kind, theirs, ours in (
        ("setup_host", merged.hooks.setup_host, mine.hooks.setup_host),
        ("cleanup_host", merged.hooks.cleanup_host, mine.hooks.cleanup_host)) for line in theirs if line not in ours]
    found += [Grant("library_rw" if each.writable else "library", f"{each.source} as {each.target}")
              for each in merged.libraries if each not in mine.libraries]
    found += [Grant("include", each.text) for each in merged.include if each not in mine.include]
    found += [Grant("dependency", name) for name in merged.dependencies if name not in mine.dependencies]
    found += [Grant("host", rule.text) for rule in merged.allow if rule not in mine.allow]
    found += [Grant("variable", name) for name in dict.fromkeys(variables)]
    found += [Grant("environment", f"{name}={written}") for name, written in environment.items()
              if name not in mine.environment or mine.environment[name] != merged.environment[name]]
    found += [Grant("limit", f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
              for name, value in merged.limits.items()
              if name not in mine.limits or value > mine.limits[name]]
    found += [Grant("argument", " ".join((name, *map(quote, theirs)))) for name, both in merged.arguments.items()
              for theirs in (both[len(mine.arguments.get(name, ())):],) if theirs]
    if merged.worktree_links and not mine.worktree_links:
        found.append(Grant("worktree", "git's folder, also for commits"))
    order = list(KINDS)
    return tuple(sorted(dict.fromkeys(found), key=lambda grant: order.index(grant.kind)))

"""
Settings of agents: the user's file and the project's, merged.

Runs in:   the user's program.
Trust:     full in the user's file, none in the project's. The grants that the project's file asks for are in
           `AgentSettings.widening`, and a start needs the user's acceptance of them (`trust`). Both files are read
           once, so what was shown is what is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.agents import checks
from leeward.agents.definition import AgentHooks
from leeward.agents.errors import SettingsError
from leeward.agents.grants import Grant, grants_of
from leeward.agents.hiding import FilePattern, parse_pattern
from leeward.agents.libraries import LibraryFolder as LibraryFolder
from leeward.agents.libraries import parse_library
from leeward.agents.merging import merge_tables
from leeward.agents.places import USER_FILE
from leeward.agents.reading import PROJECT_FILE, read_project_file, read_user_file
from leeward.agents.variables import expand, variables_of
from leeward.dataclass import dataclass, field, replace

if TYPE_CHECKING:
    from leeward.spec.egress_rules import EgressRule

#: Ports of all rules of egress together, at most: as many as the workers of a policy can listen on.
MAX_ALL_PORTS = 8

#: Every key of both files.
KEYS: checks.Keys = {
    "files": {"exclude": checks.array(checks.filled), "include": checks.array(checks.filled)},
    "libraries": checks.array(checks.filled),
    "network": {"allow": checks.array(checks.text)},
    "dependencies": checks.array(checks.filled),
    "environment": checks.variables,
    "limits": {"memory": checks.size, "processes": checks.whole(1, 1 << 20), "timeout": checks.duration},
    "hooks": {"setup_host": checks.one_or_more(checks.filled), "setup": checks.one_or_more(checks.filled),
              "prestart": checks.one_or_more(checks.filled), "cleanup_host": checks.one_or_more(checks.filled)},
    "git": {"worktree_links": checks.flag},
    "project": {"at": checks.inside},
}

#: Variables whose values aren't secret: a project's file may use them without a grant.
_PLAIN = ("HOME", "USER", "LOGNAME", "PWD", "LANG", "TERM")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """
    The merged settings of one start.

    Attributes:
        exclude: globs of the project's files that are hidden; see `hiding`.
        include: globs of files that are shown in spite of `exclude`.
        libraries: further folders of the host.
        allow: the rules of the network entries, in order and without duplicates.
        environment: variables that are set in the sandbox.
        limits: by name: "memory" (bytes), "processes", "timeout" (seconds of the whole run).
        hooks: those of the settings, without the definition's.
        dependencies: system packages for a layer.
        worktree_links: whether the .git of a worktree's main repository is shown as well, read-only.
        project_at: the path of the project in the sandbox; "" for its path on the host.
        warnings: lines for a person, about variables that aren't set.
        widening: the grants that the project's file asks for.
    """

    exclude: tuple[FilePattern, ...] = ()
    include: tuple[FilePattern, ...] = ()
    libraries: tuple[LibraryFolder, ...] = ()
    allow: tuple[EgressRule, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    hooks: AgentHooks = field(default_factory=AgentHooks)
    dependencies: tuple[str, ...] = ()
    worktree_links: bool = False
    project_at: str = ""
    warnings: tuple[str, ...] = ()
    widening: tuple[Grant, ...] = ()


def load_settings(project: int, project_path: str, config_home: str, environ: Mapping[str, str]) -> AgentSettings:
    """
    The user's settings and the project's, merged and checked, with variables expanded.

    Args:
        project: a descriptor of the project's folder; the caller owns it.
        project_path: the absolute path of that folder, for relative paths and for errors.
        config_home: the folder of the user's configuration, from `places.config_home`.
        environ: the caller's environment, for `$NAME` and for `~` (HOME).

    Raises:
        SettingsError: a file can't be read or used; the message names the file, the key and the reason.
        Unsupported: a network entry has a "*", and the list of public suffixes isn't installed.
    """
    user_file, project_file = os.path.join(config_home, USER_FILE), os.path.join(project_path, PROJECT_FILE)
    user = read_user_file(user_file) or {}
    theirs = read_project_file(project, project_file) or {}
    return merged_settings(user, theirs, user_file, project_file, project_path, environ)


def merged_settings(user: Mapping[str, Any], theirs: Mapping[str, Any], user_file: str, project_file: str,
                    project_path: str, environ: Mapping[str, str]) -> AgentSettings:
    """As `load_settings`, of the tables of both files; pure."""
    home = environ.get("HOME") or "/"
    # Before the values are checked, so that an error about two kinds of value names both files.
    merge_tables(user, theirs, user_file, project_file)
    mine = _Side(user, user_file, home, environ)
    other = _Side(theirs, project_file, project_path, environ, asked=True)
    table = merge_tables(_lists(mine.table), _lists(other.table), user_file, project_file)
    settings = _settings(table, (*mine.warnings, *other.warnings))
    _check_ports(settings.allow, project_file if other.table.get("network") else user_file)
    secret = tuple(name for name in other.variables if name not in _PLAIN)
    widening = grants_of(_settings(_lists(mine.table), ()), settings, secret, theirs.get("environment", {}))
    return _with_widening(settings, widening)


class _Side:
    """
    The table of one file, checked, with variables expanded and values in normal form.

    Attributes:
        table: that table.
        variables: the names of set variables that it uses.
        warnings: about variables that aren't set.
    """

    def __init__(self, table: Mapping[str, Any], file: str, base: str, environ: Mapping[str, str],
                 asked: bool = False) -> None:
        self._file, self._base, self._environ, self._asked = file, base, environ, asked
        self._home = environ.get("HOME") or "/"
        self.warnings: list[str] = []
        self.variables: list[str] = []
        self.table = checks.check_table(table, KEYS, file)
        for key, form in ((("files", "exclude"), self._pattern), (("files", "include"), self._pattern),
                          (("libraries",), self._library), (("dependencies",), self._dependency)):
            self._each(key, lambda value, place, form=form: (form(value, place),))
        self._each(("network", "allow"), self._entry)
        self._each(("environment",), self._value)

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

    def _pattern(self, value: str, place: str) -> FilePattern:
        try:
            return parse_pattern(self._expanded(value, place))
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _library(self, value: str, place: str) -> LibraryFolder:
        try:
            return parse_library(self._expanded(value, place), self._base, self._home, asked=self._asked)
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _dependency(self, value: str, place: str) -> str:
        from leeward.agents.package_names import check_package  # many settings have no dependency

        try:
            return check_package(self._expanded(value, place))
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _entry(self, value: str, place: str) -> tuple[EgressRule, ...]:
        from leeward.agents.entries import parse_entry  # imports `ipaddress`; many starts have no entry

        return parse_entry(self._expanded(value, place), self._file, place)

    def _value(self, value: str, place: str) -> str:
        return self._expanded(value, place)


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
        worktree_links=table.get("git", {}).get("worktree_links", False),
        project_at=table.get("project", {}).get("at", ""), warnings=tuple(dict.fromkeys(warnings)))


def _with_widening(settings: AgentSettings, widening: tuple[Grant, ...]) -> AgentSettings:
    return replace(settings, widening=widening)


def _check_ports(rules: Iterable[EgressRule], file: str) -> None:
    ports = {port for rule in rules for port in ((rule.port,) if rule.port else (80, 443))}
    if len(ports) > MAX_ALL_PORTS:
        raise SettingsError(file, "network.allow", f"{len(ports)} ports, but a sandbox can have {MAX_ALL_PORTS}",
                            "name fewer")

"""
Settings of agents: the user's file and the project's, merged.

Runs in:   the user's program.
Trust:     the user's file is the user's own. What the project's asks for beyond it is in `AgentSettings.widening`, and
           counts only when `trust` has said so. Both files are read once: what was shown is what is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from leeward.agents import checks
from leeward.agents.definition import AgentHooks
from leeward.agents.entries import parse_entry
from leeward.agents.errors import SettingsError
from leeward.agents.grants import Grant, grants_of
from leeward.agents.hiding import FilePattern, parse_pattern
from leeward.agents.libraries import LibraryFolder as LibraryFolder
from leeward.agents.libraries import parse_library
from leeward.agents.merging import merge_tables
from leeward.agents.package_names import check_package
from leeward.agents.reading import PROJECT_FILE, read_project_file, read_user_file
from leeward.agents.variables import expand, variables_of
from leeward.dataclass import dataclass, field, replace
from leeward.spec.egress_rules import EgressRule

#: The user's file, in the folder of the user's configuration.
USER_FILE = "agents.toml"

#: Ports of all rules of egress together, at most: those that a policy's workers can listen on.
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

#: Variables whose values anybody could guess: a project's file may use them without being asked about.
_PLAIN = ("HOME", "USER", "LOGNAME", "PWD", "LANG", "TERM")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """
    What the settings say for one start.

    Attributes:
        exclude: globs of the project's files that aren't shown; `hiding` has their meaning.
        include: globs of files that are shown still.
        libraries: further folders of the host's.
        allow: rules of egress that the network entries became, in order and without duplicates.
        environment: variables that are set inside.
        limits: by name: "memory" (bytes), "processes", "timeout" (seconds of the whole run).
        hooks: of the settings alone; those of the definition are beside them.
        dependencies: system packages that are unpacked beside the host's.
        worktree_links: git's folder of a worktree's main repository is shown as well, read-only.
        project_at: where the project is inside; "" for its own path.
        warnings: lines for a person: variables that aren't set, and the like.
        widening: what of it the project's file asks for beyond the user's.
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
    The user's settings and the project's, merged, checked and with variables put in.

    Args:
        project: a descriptor of the project's folder, which the caller opened once and mounts by itself.
        project_path: the absolute path of that folder, for relative paths and for errors.
        config_home: the folder of the user's configuration, as `places.config_home` gives it.
        environ: of the caller; for `$NAME`, and HOME for `~`.

    Raises:
        SettingsError: a file that can't be read or used; names the file, the key and what is wrong.
        Unsupported: a network entry has a "*", and the list of public suffixes isn't installed.
    """
    user_file, project_file = os.path.join(config_home, USER_FILE), os.path.join(project_path, PROJECT_FILE)
    user = read_user_file(user_file) or {}
    theirs = read_project_file(project, project_file) or {}
    return merged_settings(user, theirs, user_file, project_file, project_path, environ)


def merged_settings(user: Mapping[str, Any], theirs: Mapping[str, Any], user_file: str, project_file: str,
                    project_path: str, environ: Mapping[str, str]) -> AgentSettings:
    """
    `load_settings` of two tables that were read; pure.
    """
    home = environ.get("HOME") or "/"
    # Before the values are looked at, so that the error names both.
    merge_tables(user, theirs, user_file, project_file)
    mine = _Side(user, user_file, home, environ)
    other = _Side(theirs, project_file, project_path, environ)
    table = merge_tables(_lists(mine.table), _lists(other.table), user_file, project_file)
    settings = _settings(table, (*mine.warnings, *other.warnings))
    _check_ports(settings.allow, project_file if other.table.get("network") else user_file)
    secret = tuple(name for name in other.variables if name not in _PLAIN)
    widening = grants_of(_settings(_lists(mine.table), ()), settings, secret, theirs.get("environment", {}))
    return _with_widening(settings, widening)


class _Side:
    """
    One file's table, checked, with variables put in and every value in the form in which two are compared.
    """

    def __init__(self, table: Mapping[str, Any], file: str, base: str, environ: Mapping[str, str]) -> None:
        self._file, self._base, self._environ = file, base, environ
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
        self.warnings += [str(SettingsError(self._file, place, f"${name} isn't set, and stays as it is"))
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
            return parse_library(self._expanded(value, place), self._base, self._home)
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _dependency(self, value: str, place: str) -> str:
        try:
            return check_package(self._expanded(value, place))
        except ValueError as error:
            raise SettingsError(self._file, place, f"{value!a:.120}: {error}") from None

    def _entry(self, value: str, place: str) -> tuple[EgressRule, ...]:
        return parse_entry(self._expanded(value, place), self._file, place)

    def _value(self, value: str, place: str) -> str:
        return self._expanded(value, place)


def _lists(table: Mapping[str, Any]) -> dict[str, Any]:
    """
    With lists for tuples, as `merge_tables` appends them.
    """
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
        raise SettingsError(file, "network.allow", f"{len(ports)} ports, and a sandbox can have {MAX_ALL_PORTS}",
                            "name fewer")

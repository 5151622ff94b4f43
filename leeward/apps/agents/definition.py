"""
Definitions of agents: the command, and what it needs of the host.

Trust:     full: a definition is part of the package or the user's own. A project can't have one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.apps.agents import checks
from leeward.apps.agents.errors import SettingsError, printable
from leeward.apps.agents.instance_names import is_agent_name
from leeward.apps.agents.reading import read_user_file
from leeward.apps.agents.settings_paths import FILE, OURS, definition_files
from leeward.base.dataclass import dataclass, field, names

if TYPE_CHECKING:
    from leeward.spec.egress_rules import EgressRule


@dataclass(frozen=True, slots=True)
class AgentSecret:
    """An environment variable whose value the broker puts into requests, so that the agent never has it."""

    variable: str  # its name in the caller's environment; in the sandbox its value is a placeholder
    hosts: tuple[str, ...]  # names, or "*.NAME" for all sub-domains, to which the broker sends the value


@dataclass(frozen=True, slots=True)
class InstallRecipe:
    """How a person installs the agent's program. The command is shown, and never run by leeward."""

    command: str = ""  # a line for a shell; "" if there is nothing to install
    page: str = ""  # the URL of the program's own instructions


@dataclass(frozen=True, slots=True)
class AgentHooks:
    """Lines for `/bin/sh`, in the order in which they are run."""

    #: on the host, in the project's folder, before the sandbox is opened; a failure aborts the start
    setup_host: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()  # in the sandbox, after it was opened; a failure aborts the start
    prestart: tuple[str, ...] = ()  # in the sandbox, right before the agent; a failure aborts the start
    cleanup_host: tuple[str, ...] = ()  # on the host, at the end in any case; a failure is a warning


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """A file, in JSON, in which an agent notes what a person has answered in its own dialogues (`answers`)."""

    file: str  # on the host; the agent gets a copy
    keys: tuple[str, ...]  # of its tables, joined by dots; "$PROJECT" is the project's path
    at: str = ""  # the copy in the sandbox; "" for the same path


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """One agent. Paths begin with "~/", the caller's home on the host and the same path inside, or with "/"."""

    name: str  # of its folder
    about: str = ""  # a line for people
    command: tuple[str, ...] = ()  # the program, a path or a name in the caller's PATH, and its first arguments
    arguments: tuple[str, ...] = ()  # the caller's follow them
    hosts: tuple[str, ...] = ()  # network entries, as in `network.allow`
    state: tuple[str, ...] = ()  # folders of the host that the agent reads and writes; made unless they exist
    staged: tuple[str, ...] = ()  # files of the host of which the agent gets a copy at its start
    answers: tuple[AnswerFile, ...] = ()  # what was answered in them is kept for the project's next start
    programs: tuple[str, ...] = ()  # of the host, shown read-only if they exist: the program itself
    pass_environment: tuple[str, ...] = ()  # names of the caller's variables; "NAME*" is all that begin so
    base_urls: tuple[str, ...] = ()  # variables whose URL leads the agent to another host than `hosts`
    environment: Mapping[str, str] = field(default_factory=dict)  # set in the sandbox; "~/" begins a path
    secrets: tuple[AgentSecret, ...] = ()  # variables that the broker keeps, if the caller has them
    signed_in: tuple[str, ...] = ()  # files, or names of variables as "$NAME"; if one exists, the agent has an account
    install: InstallRecipe = field(default_factory=InstallRecipe)  # how a person installs the program
    hooks: AgentHooks = field(default_factory=AgentHooks)  # run before the settings', but `cleanup_host` after them
    file: str = ""  # the path of the definition's file


def _secrets(value: Any) -> tuple[AgentSecret, ...]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of arrays")
    hosts = checks.array(checks.filled)
    return tuple(AgentSecret(checks.variable(name), hosts(each)) for name, each in value.items())


def _answer_files(value: Any) -> tuple[AnswerFile, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) and {"file", "keys"} <= {*each} <= {
            "file", "keys", "at"} for each in value):
        raise ValueError("must be tables with `file` and `keys`, and perhaps `at`")
    return tuple(AnswerFile(checks.filled(each["file"]), checks.array(checks.filled)(each["keys"]),
                            checks.text(each.get("at", ""))) for each in value)


#: The keys of hooks, in definitions and settings.
HOOKS: checks.Keys = dict.fromkeys(names(AgentHooks), checks.one_or_more(checks.filled))

#: Every key of a definition. `parse_definition` checks paths and hosts further.
KEYS: checks.Keys = {
    "about": checks.text, "command": checks.array(checks.filled), "arguments": checks.array(checks.text),
    "hosts": checks.array(checks.text), "state": checks.array(checks.filled), "staged": checks.array(checks.filled),
    "answers": _answer_files, "programs": checks.array(checks.filled),
    "pass_environment": checks.array(checks.variable_pattern),
    "base_urls": checks.array(checks.variable), "environment": checks.variables, "secrets": _secrets,
    "signed_in": checks.array(checks.filled),
    "install": {"command": checks.text, "page": checks.text},
    "hooks": HOOKS,
}


def load_definition(name: str, config_home: str) -> AgentDefinition:
    """The definition *name*, the user's, else the package's; SettingsError, with the nearest name, if there is none."""
    if is_agent_name(name):
        for file in definition_files(name, config_home):
            table = read_user_file(file)
            if table is not None:
                return parse_definition(name, table, file)
    import difflib  # imported only for an error

    known = definition_names(config_home)
    near = difflib.get_close_matches(name[:60], known, 1)
    raise SettingsError("", "", f"there is no agent {name!a:.60}",
                        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}" + (
                            f"; a folder {name!a:.60} with a file agent.toml in"
                            f" {printable(os.path.join(config_home, 'agents'))} makes one" if is_agent_name(name) else
                            "; a name has lower-case letters, digits and inner hyphens"))


def definition_names(config_home: str) -> tuple[str, ...]:
    """The names of all definitions, the package's and the user's, sorted."""
    found = set()
    for folder in (OURS, os.path.join(config_home, "agents")):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found |= {name for name in names if is_agent_name(name) and os.path.isfile(os.path.join(folder, name, FILE))}
    return tuple(sorted(found))


def parse_hosts(hosts: Sequence[str], file: str) -> list[EgressRule]:
    """The rules of a definition's `hosts`; SettingsError, which names *file*, if an entry isn't valid."""
    if not hosts:
        return []
    from leeward.apps.agents.entries import parse_entry  # imports `ipaddress`, with all 3 ms

    return [rule for number, entry in enumerate(hosts) for rule in parse_entry(entry, file, f"hosts[{number}]")]


def parse_definition(name: str, table: Mapping[str, Any], file: str) -> AgentDefinition:
    """The definition in the table of a file; SettingsError if a key is unknown or a value invalid."""
    found = checks.check_table(table, KEYS, file)
    if not found.get("command"):
        raise SettingsError(file, "command", "is missing", 'write command = ["program"]')
    for key in ("state", "staged", "programs"):
        for number, path in enumerate(found.get(key, ())):
            _check_path(path, file, f"{key}[{number}]")
    for number, each in enumerate(found.get("answers", ())):
        for path in filter(None, (each.file, each.at)):
            _check_path(path, file, f"answers[{number}]")
    parse_hosts(found.get("hosts", ()), file)
    for secret in found.get("secrets", ()):
        from leeward.apps.agents.entries import parse_entry  # as in `parse_hosts`

        for host in secret.hosts:
            if any(rule.kind not in ("name", "below") or rule.port
                   for rule in parse_entry(host, file, f"secrets.{secret.variable}")):
                raise SettingsError(file, f"secrets.{secret.variable}", f"{host!a:.60} isn't the name of a host",
                                    'write "api.example.org"')
    found["install"] = InstallRecipe(**found.get("install", {}))
    found["hooks"] = AgentHooks(**found.get("hooks", {}))
    return AgentDefinition(name=name, file=file, **found)


def _check_path(path: str, file: str, key: str) -> None:
    plain = path.removeprefix("~")
    if not checks.is_plain(plain):
        raise SettingsError(file, key, f"{path!a:.120} isn't a valid path",
                            'write "~/NAME" or "/NAME", without ".", ".." and a slash at the end')
    if not path.startswith("~/") and plain.split("/")[1] in ("proc", "sys", "dev", "run"):
        raise SettingsError(file, key, f"{path!a:.120} is never shown")

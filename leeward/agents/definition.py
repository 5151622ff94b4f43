"""
Definitions of agents: the command, and what it needs of the host.

Runs in:   the user's program; pure but for reading the files.
Trust:     ours are part of the package, and those of a user are that user's own. A project has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from leeward.agents import checks
from leeward.agents.entries import parse_entry
from leeward.agents.errors import SettingsError, printable
from leeward.agents.names import is_agent_name
from leeward.agents.reading import read_user_file
from leeward.dataclass import dataclass, field

#: Ours, a folder each; and the name of the file in it.
OURS, FILE = os.path.join(os.path.dirname(__file__), "definitions"), "agent.toml"


@dataclass(frozen=True, slots=True)
class AgentSecret:
    """
    A variable whose value the broker puts into requests, so that the agent never has it.

    Attributes:
        variable: of the caller's environment; inside it has a placeholder.
        hosts: names, or "*.NAME" for the sub-domains of one, to which the value goes.
    """

    variable: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstallRecipe:
    """
    How a person gets the agent's program. It is shown, and never run by itself.

    Attributes:
        command: a line for a shell, "" where there is nothing to install.
        page: where the program's own documents tell of it.
    """

    command: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class AgentHooks:
    """
    Lines for `/bin/sh`, in the order in which they are run.

    Attributes:
        setup_host: on the host, in the project's folder, before there is a sandbox. One that fails aborts the start.
        setup: in the sandbox, once it is there. One that fails aborts the start.
        prestart: in the sandbox, right before the agent. One that fails aborts the start.
        cleanup_host: on the host, whatever became of the rest. One that fails is a warning.
    """

    setup_host: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    prestart: tuple[str, ...] = ()
    cleanup_host: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """
    One agent. Paths begin with "~/", the caller's home on the host and the same path inside, or with "/".

    Attributes:
        name: of its folder.
        about: a line for people.
        command: the program and its first arguments. The program is a name, looked up in the caller's PATH, or a path.
        arguments: further ones, which an argument list of the caller's follows.
        hosts: network entries, as in `network.allow`.
        state: folders of the host's that the agent reads and writes; they are made where they aren't there.
        staged: files of the host's of which the agent gets a copy at its start; the host's file stays as it is.
        programs: folders and files of the host's that are shown read-only, where they are there: the program itself.
        pass_environment: names of variables that go in from the caller's environment. Names that end in "*" stand for
            all that begin so.
        environment: variables that are set inside.
        secrets: variables that the broker keeps, where the caller has them.
        signed_in: files, or names of variables as "$NAME"; one of them says that the agent has an account.
        install: how a person gets it.
        hooks: before those of the settings, and for `cleanup_host` after them.
        file: where the definition was read.
    """

    name: str
    about: str = ""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    pass_environment: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[AgentSecret, ...] = ()
    signed_in: tuple[str, ...] = ()
    install: InstallRecipe = field(default_factory=InstallRecipe)
    hooks: AgentHooks = field(default_factory=AgentHooks)
    file: str = ""


def _secrets(value: Any) -> tuple[AgentSecret, ...]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of arrays")
    hosts = checks.array(checks.filled)
    return tuple(AgentSecret(checks.variable(name), hosts(each)) for name, each in value.items())


#: Every key of a definition. Paths and hosts are checked once more below.
KEYS: checks.Keys = {
    "about": checks.text, "command": checks.array(checks.filled), "arguments": checks.array(checks.text),
    "hosts": checks.array(checks.text), "state": checks.array(checks.filled), "staged": checks.array(checks.filled),
    "programs": checks.array(checks.filled), "pass_environment": checks.array(checks.variable_pattern),
    "environment": checks.variables, "secrets": _secrets, "signed_in": checks.array(checks.filled),
    "install": {"command": checks.text, "page": checks.text},
    "hooks": {name: checks.one_or_more(checks.filled) for name in ("setup_host", "setup", "prestart", "cleanup_host")},
}


def load_definition(name: str, config_home: str) -> AgentDefinition:
    """
    The definition *name*: the user's, else ours.

    Args:
        name: of an agent, as somebody typed it.
        config_home: the folder of the user's configuration, as `places.config_home` gives it.

    Raises:
        SettingsError: there is none, with the nearest that is there, or it can't be read.
    """
    if is_agent_name(name):
        for folder in (os.path.join(config_home, "agents"), OURS):
            file = os.path.join(folder, name, FILE)
            table = read_user_file(file)
            if table is not None:
                return parse_definition(name, table, file)
    import difflib  # imported only for an error

    known = definition_names(config_home)
    near = difflib.get_close_matches(name[:60], known, 1)
    raise SettingsError("", "", f"there is no agent {name!a:.60}",
                        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}; a folder {name!a:.60}"
                        " with a file agent.toml in " + printable(os.path.join(config_home, "agents")) + " makes one")


def definition_names(config_home: str) -> tuple[str, ...]:
    """
    The names of all definitions, ours and the user's, in order.
    """
    found = set()
    for folder in (OURS, os.path.join(config_home, "agents")):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found |= {name for name in names if is_agent_name(name) and os.path.isfile(os.path.join(folder, name, FILE))}
    return tuple(sorted(found))


def parse_definition(name: str, table: Mapping[str, Any], file: str) -> AgentDefinition:
    """
    A definition of the table of its file.

    Raises:
        SettingsError: a key is unknown, or a value invalid.
    """
    found = checks.check_table(table, KEYS, file)
    if not found.get("command"):
        raise SettingsError(file, "command", "is missing", 'write command = ["program"]')
    for key in ("state", "staged", "programs"):
        for number, path in enumerate(found.get(key, ())):
            _check_path(path, file, f"{key}[{number}]")
    for number, entry in enumerate(found.get("hosts", ())):
        parse_entry(entry, file, f"hosts[{number}]")
    for secret in found.get("secrets", ()):
        for host in secret.hosts:
            if any(rule.kind not in ("name", "below") or rule.port
                   for rule in parse_entry(host, file, f"secrets.{secret.variable}")):
                raise SettingsError(file, f"secrets.{secret.variable}", f"{host!a:.60} is no name of a host",
                                    'write "api.example.org"')
    found["install"] = InstallRecipe(**found.get("install", {}))
    found["hooks"] = AgentHooks(**found.get("hooks", {}))
    return AgentDefinition(name=name, file=file, **found)


def _check_path(path: str, file: str, key: str) -> None:
    plain = path.removeprefix("~")
    if (not plain.startswith("/") or plain == "/" or plain.endswith("/")
            or any(part in ("", ".", "..") for part in plain[1:].split("/"))):
        raise SettingsError(file, key, f"{path!a:.120} is no path",
                            'write "~/NAME" or "/NAME", without ".", ".." and a slash at the end')
    if not path.startswith("~/") and plain.split("/")[1] in ("proc", "sys", "dev", "run"):
        raise SettingsError(file, key, f"{path!a:.120} is never shown")

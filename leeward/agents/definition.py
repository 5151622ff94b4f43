"""
Definitions of agents: the command, and what it needs of the host.

Runs in:   the user's program; pure but for reading the files.
Trust:     ours are part of the package, and those of a user are that user's own. A project has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


def load_definition(name: str, config_home: str) -> AgentDefinition:
    """
    The definition *name*: the user's, else ours.

    Args:
        name: of an agent, as somebody typed it.
        config_home: the folder of the user's configuration, as `places.config_home` gives it.

    Raises:
        SettingsError: there is none, with the nearest that is there, or it can't be read.
    """
    raise NotImplementedError


def definition_names(config_home: str) -> tuple[str, ...]:
    """
    The names of all definitions, ours and the user's, in order.
    """
    raise NotImplementedError

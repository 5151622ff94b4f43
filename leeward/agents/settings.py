"""
Settings of agents: the user's file and the project's, merged.

Runs in:   the user's program.
Trust:     the user's file is the user's own. Nothing in the project's counts before `trust.Trust` has said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.agents.definition import AgentHooks
from leeward.spec.egress_rules import EgressRule


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """
    A folder or file of the host's that an agent is shown.

    Attributes:
        source: an absolute path of the host's.
        target: an absolute path inside.
        writable: what the agent writes there is written on the host.
    """

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """
    What the settings say for one start.

    Attributes:
        exclude: globs of the project's files that aren't shown; `hiding` has their meaning. Ours are the first.
        include: globs of files that are shown still.
        libraries: further folders of the host's.
        allow: rules of egress that the network entries became, in order and without duplicates.
        dependencies: system packages.
        environment: variables that are set inside.
        limits: by name: "memory" (bytes), "processes", "timeout" (seconds) and the like.
        hooks: of the settings alone; those of the definition are beside them.
        worktree_links: git's folder of a worktree's main repository is shown as well, read-only.
        project_at: where the project is inside; "" for its own path.
        warnings: lines for a person: variables that aren't set, and the like.
        widening: what of it the project's file asks for beyond the user's: `trust.grants_of`.
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    libraries: tuple[LibraryFolder, ...] = ()
    allow: tuple[EgressRule, ...] = ()
    dependencies: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    hooks: AgentHooks = field(default_factory=AgentHooks)
    worktree_links: bool = False
    project_at: str = ""
    warnings: tuple[str, ...] = ()
    widening: tuple[tuple[str, str], ...] = ()


def load_settings(project: int, project_path: str, config_home: str, environ: Mapping[str, str]) -> AgentSettings:
    """
    The user's settings and the project's, merged, checked and with variables put in.

    Args:
        project: a descriptor of the project's folder, which the caller opened once and mounts by itself.
        project_path: the absolute path of that folder, for relative paths and for errors.
        config_home: the folder of the user's configuration.
        environ: of the caller; for `$NAME`, and HOME for `~`.

    Raises:
        SettingsError: a file that can't be read or used; names the file, the key and what is wrong.
    """
    raise NotImplementedError

"""The paths of a user's settings, definitions and records of agents."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from leeward.base.user_folders import user_folder

#: The folder of the package's definitions, each in a folder of its own; and the name of the file there.
OURS, FILE = os.path.join(os.path.dirname(__file__), "definitions"), "agent.toml"

#: The user's settings, in the folder of the user's configuration.
USER_FILE = "agents.toml"


def config_home(environ: Mapping[str, str]) -> str:
    """`~/.config/leeward`: settings in agents.toml, definitions in agents/NAME/agent.toml."""
    return user_folder(environ, "CONFIG", "leeward")


def definition_files(name: str, config_home: str) -> tuple[str, str]:
    """The paths of the definition *name*, the user's before the package's. The first that exists is used."""
    return os.path.join(config_home, "agents", name, FILE), os.path.join(OURS, name, FILE)


def state_home(environ: Mapping[str, str]) -> str:
    """`~/.local/state/leeward/agents`: running instances, and the accepted grants."""
    return user_folder(environ, "STATE", "leeward", "agents")


def kept_changes(environ: Mapping[str, str], instance: str) -> str:
    """A new name for a folder with changes that an agent has made in a copy, and that nobody has decided about."""
    when = time.strftime("%Y%m%d-%H%M%S")
    return os.path.join(state_home(environ), "kept", f"{instance}-{when}-{os.getpid()}")


def cache_home(environ: Mapping[str, str]) -> str:
    """`~/.cache/leeward/agents`: layers with system packages."""
    return user_folder(environ, "CACHE", "leeward", "agents")

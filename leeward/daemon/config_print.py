"""
Writes the configuration as a file, with the unit and default of every key: `leeward daemon run --print-config`.

Runs in:   the CLI; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.daemon import config_egress
from leeward.daemon.config import Config, Environment
from leeward.daemon.config_keys import (
    ENVIRONMENT_KEYS,
    ENVIRONMENTS,
    ENVIRONMENTS_COMMENT,
    KEYS,
    PROFILE_KEYS,
    PROFILES,
    PROFILES_COMMENT,
    QUOTA_KEYS,
    TABLE_COMMENTS,
    TABLES,
    USERS,
    USERS_COMMENT,
    Key,
)
from leeward.spec.profiles import Profile


def print_config(config: Config) -> str:
    """Return *config* as the text of a file that can be loaded again, with every key, its unit and its default."""
    # A default of "" stands for one that depends on the user.
    defaults = Config()
    lines = [
        "# leeward's configuration. Read from /etc/leeward/leeward.toml, ~/.config/leeward/config.toml and",
        "# --config FILE; later files win, key by key. Sizes are bytes, or text such as \"512M\".",
        "# A running daemon reads all of it again on SIGHUP; keys marked [restart] take effect with its next start.",
        "",
    ]
    for name, key in KEYS.items():
        lines += _entry(name, key, getattr(config, name), getattr(defaults, name))
    for table, keys in TABLES.items():
        lines += [f"# {TABLE_COMMENTS[table]}", f"[{table}]", ""]
        for name, key in keys.items():
            lines += _entry(name, key, getattr(getattr(config, table), name), getattr(getattr(defaults, table), name))
    lines += [USERS_COMMENT, f"[{USERS}]", ""]
    for user, quota in config.users.items():
        lines += [f"[{USERS}.{user}]", ""]
        for name, value in quota.items():
            lines += _entry(name, QUOTA_KEYS[name], value, getattr(config.quota, name))
    lines += [ENVIRONMENTS_COMMENT, f"[{ENVIRONMENTS}]", ""]
    for name, environment in config.environments.items():
        lines += [f"[{ENVIRONMENTS}.{name}]", ""]
        for at, key in ENVIRONMENT_KEYS.items():
            lines += _entry(at, key, getattr(environment, at), getattr(Environment(), at))
    lines += [PROFILES_COMMENT, f"[{PROFILES}]", ""]
    for name, profile in config.profiles.items():
        lines += [f"[{PROFILES}.{name}]", ""]
        for at, key in PROFILE_KEYS.items():
            value = getattr(profile, at)
            if value is not None and value != {}:
                lines += _entry(at, key, value, getattr(Profile(), at))
    lines += config_egress.lines(config.egress)
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry(name: str, key: Key, value: Any, default: Any) -> list[str]:
    changed = "" if value == default else f" (default: {_toml(default)})"
    restart = "" if key.live else " [restart]"
    return [f"# {key.comment}{restart}{changed}", f"{name} = {_toml(value)}", ""]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A basic string of TOML. Every character that needs an escape gets one by its number.
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value) + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)

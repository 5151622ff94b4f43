"""
`.hole/settings.json`: the settings of a project for another program that runs agents (github.com/lukashornych/hole),
read as far as they hide files or name hosts.

Trust:     none, as in `.leeward/agent.toml`: a person is asked about its hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leeward.apps.agents import checks
from leeward.apps.agents.errors import SettingsError, printable
from leeward.apps.agents.hiding import parse_pattern
from leeward.apps.agents.reading import HOLE_FILE, check_depth, read_in_project

#: The keys that are read, and one that says nothing; versions before 2.0 had `domainWhitelist`.
_EXCLUDE, _HOSTS, _NOTHING = ("files", "exclude"), (("network", "allow"), ("network", "domainWhitelist")), ("$schema",)


@dataclass(frozen=True, slots=True)
class HoleSettings:
    exclude: tuple[str, ...] = ()  # patterns of files that are hidden
    hosts: tuple[str, ...] = ()  # network entries
    unused: tuple[str, ...] = ()  # lines for a person, about what isn't used


def read_hole_settings(project: int, shown: str) -> HoleSettings:
    """The settings in the open folder *project*; SettingsError if the file can't be read, or it isn't known what it hides."""
    content = read_in_project(project, HOLE_FILE, shown)
    if content is None:
        return HoleSettings()
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise SettingsError(shown, "", "isn't JSON") from None
    if not isinstance(table, dict):
        raise SettingsError(shown, "", "must be a table")
    check_depth(table, shown)
    hosts, unused = list[str](), list[str]()
    for key in _HOSTS:
        for entry in _texts(table, key, shown):
            try:
                _check_entry(entry)
                hosts.append(entry)
            except SettingsError as error:
                unused.append(f"{printable(shown)}: {'.'.join(key)}: {error}, and isn't allowed")
    others = [key for key in _keys(table) if key not in (_EXCLUDE, *_HOSTS, _NOTHING)]
    if others:
        unused.append(f"{printable(shown)}: not supported: {printable(', '.join(map('.'.join, others)))[:500]}")
    return HoleSettings(tuple(_excluded(table, shown)), tuple(hosts), tuple(unused))


def _excluded(table: Mapping[str, Any], shown: str) -> Iterator[str]:
    for written in _texts(table, _EXCLUDE, shown):
        pattern = written.removeprefix("./").rstrip("/")
        try:
            parse_pattern(pattern)
        except ValueError as error:
            raise SettingsError(shown, "files.exclude", f"{written!a:.120}: {error}") from None
        yield pattern


def _check_entry(entry: str) -> None:
    from leeward.apps.agents.entries import parse_entry  # imports `ipaddress`; many files have no entry

    parse_entry(entry)


def _texts(table: Mapping[str, Any], key: tuple[str, str], shown: str) -> tuple[str, ...]:
    above = table.get(key[0], {})
    try:
        if not isinstance(above, dict):
            raise ValueError(f"{key[0]} must be a table")
        found: tuple[str, ...] = checks.array(checks.filled)(above.get(key[1], []))
    except ValueError as error:
        raise SettingsError(shown, ".".join(key), str(error)) from None
    return found


def _keys(table: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        if name in ("files", "network") and isinstance(value, dict):
            yield from ((name, each) for each in value)
        else:
            yield (name,)

"""
Merges two tables of settings.

Runs in:   anywhere; pure.
Rules:     tables are merged key by key; of other values the second one wins, except that arrays are appended, each item
           once; two kinds of value under one key are an error that names both files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.agents.errors import SettingsError, printable


def merge_tables(first: Mapping[str, Any], second: Mapping[str, Any], first_file: str, second_file: str,
                 key: str = "") -> dict[str, Any]:
    """
    A new table of *first* with *second* merged into it.

    Args:
        first: the user's table.
        second: the project's table.
        first_file: the path of the user's file.
        second_file: the path of the project's file.
        key: the key of both tables; "" for whole files.

    Raises:
        SettingsError: a key has values of two kinds.
    """
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

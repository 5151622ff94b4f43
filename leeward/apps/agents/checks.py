"""
Checks of the values in settings and definitions: each returns the value in the form in which it is used, or raises
ValueError with what it must be; then SettingsError names the file and the key as well. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from leeward.apps.agents.errors import SettingsError, printable
from leeward.spec.sizes import parse_size

#: Items of an array or a table, and characters of a text, at most.
MAX_ITEMS, MAX_TEXT = 500, 4096

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"  # compiled where a file has such a value, which most have not
_DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|h|d)"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: Returns the value in its form; raises ValueError with what it must be.
Check = Callable[[Any], Any]
Keys = Mapping[str, "Check | Keys"]


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if len(value) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    if "\0" in value:
        raise ValueError("must have no character 0")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None
    return value


def filled(value: Any) -> str:
    if not text(value).strip():
        raise ValueError("must not be empty")
    return str(value)


def array(check: Check) -> Check:
    def check_array(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("must be an array")
        if len(value) > MAX_ITEMS:
            raise ValueError(f"must have at most {MAX_ITEMS} items")
        found = []
        for number, item in enumerate(value):
            try:
                found.append(check(item))
            except ValueError as error:
                raise ValueError(f"item {number}: {error}") from None
        return tuple(found)
    return check_array


def one_or_more(check: Check) -> Check:
    """A check of an array, for which a single text stands as well."""
    return lambda value: array(check)([value] if isinstance(value, str) else value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def whole(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value
    return check


def size(value: Any) -> int:
    try:
        found = parse_size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"must be a size ({printable(str(error))})") from None
    if type(found) is not int or not 1 << 20 <= found <= 1 << 50:
        raise ValueError('must be bytes, or a size such as "4G", of at least 1 MiB')
    return found


def duration(value: Any) -> float:
    found = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    seconds = float(found[1]) * _SECONDS[found[2]] if found else value
    if type(seconds) not in (int, float) or not 0 < seconds <= 366 * 86400:
        raise ValueError('must be seconds, or a time such as "90m", of a year at most')
    return float(seconds)


def variable(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_VARIABLE, value):
        raise ValueError("must be the name of a variable: letters, digits and underscores")
    return value


def variable_pattern(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_VARIABLE, value.removesuffix("*") or "-"):
        raise ValueError('must be the name of a variable, or the beginning of one and "*"')
    return value


def variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise ValueError(f"must be a table of at most {MAX_ITEMS} texts")
    for name, each in value.items():
        if not re.fullmatch(_VARIABLE, name):
            raise ValueError(f"{name!a:.60} isn't the name of a variable")
        text(each)
    return dict(value)


def inside(value: Any) -> str:
    """An absolute path in the sandbox, in normal form; "" for none."""
    path = text(value)
    if path and not is_plain(path):
        raise ValueError('must be an absolute path, without ".", ".." and a slash at the end')
    return path


def is_plain(path: str) -> bool:
    """Whether *path* is absolute, in normal form, and not the root."""
    return path.startswith("/") and not any(part in (".", "..", "") for part in path[1:].split("/"))


def check_table(table: Mapping[str, Any], keys: Keys, file: str, place: str = "") -> dict[str, Any]:
    """*table*, at the key *place* of *file*, with its values checked by *keys*; else SettingsError."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{place}.{name}" if place else name
        check = keys.get(name)
        if check is None:
            raise SettingsError(file, key[:120], "unknown", _meant(name, keys, place))
        if isinstance(check, Mapping):
            if not isinstance(value, dict):
                raise SettingsError(file, key, "must be a table")
            found[name] = check_table(value, check, file, key)
            continue
        try:
            found[name] = check(value)
        except ValueError as error:
            raise SettingsError(file, key, str(error)) from None
    return found


def _meant(name: str, keys: Keys, place: str) -> str:
    import difflib  # only for an error

    prefix = f"{place}." if place else ""
    near = difflib.get_close_matches(name[:60], keys, 1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    return f"there are {', '.join(prefix + key for key in keys)}"


#: The name of a Debian package, with an optional architecture and version, as apt-get takes them.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]{1,99}(:[a-z0-9-]{1,20})?(=[A-Za-z0-9.+:~-]{1,100})?"


def check_package(text: str) -> str:
    """*text*, if it names a Debian package; else ValueError."""
    if not re.fullmatch(_PACKAGE, text):
        raise ValueError("must be the name of a Debian package, such as jq, ripgrep=13.0.0-4 or libc6:i386")
    return text

"""
The checks of the configuration's values: one for each kind of value.

Runs in:   the daemon, and `leeward run`. Pure, but for users and groups, which are looked up on this host.

A check returns the value as the daemon uses it, and raises ValueError with what the value must be.
"""

from __future__ import annotations

import grp
import math
import pwd
import re
from collections.abc import Callable, Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.spec import folders
from leeward.spec.folders import Folder
from leeward.spec.pool_key import is_name
from leeward.spec.sizes import parse_size
from leeward.wire import fields

Check = Callable[[Any], Any]

#: Layers that an operator may allow to be missing; the others are always required.
DEGRADABLE = ("landlock",)


def whole(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value
    return check


def seconds(least: float, most: float) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"must be seconds from {least:g} to {most:g}")
        return float(value)
    return check


def size(least: int) -> Check:
    def check(value: Any) -> int:
        size = parse_size(value) if isinstance(value, str) else value
        if type(size) is not int or not least <= size <= 1 << 50:
            raise ValueError(f'must be bytes, or a size such as "512M", of at least {least}')
        return size
    return check


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def path(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not (value == "" or value.startswith("/")):
        raise ValueError('must be an absolute path, or "" for none')
    return value


def url(value: Any) -> str:
    if not isinstance(value, str) or not (value == "" or re.fullmatch(r"https?://[^\s\0]{1,2000}", value)):
        raise ValueError('must be a URL of http or https, or "" for none')
    return value


def policy(value: Any) -> str:
    if not isinstance(value, str) or not (value == "" or is_name(value)):
        raise ValueError('must be the name of a policy, or "" for none')
    return value


def one_of(words: tuple[str, ...]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value
    return check


def words(check: Check) -> Check:
    def check_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be an array")
        words = tuple(check(word) for word in value)
        if len(set(words)) != len(words):
            raise ValueError("names something twice")
        return words
    return check_all


def degradable(value: Any) -> str:
    if value == "cgroup":
        raise ValueError("must be one of landlock (cgroup would mean a start without cgroup controllers, for which"
                         " leeward needs no permission: rlimits and a watch hold the limits then, and every result"
                         " says so)")
    layer: str = one_of(DEGRADABLE)(value)
    return layer


def group(value: Any) -> str:
    if not isinstance(value, str) or (value and group_number(value) is None):
        raise ValueError("must be a group of this host, by name or number")
    return value


def group_number(name: str) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < (1 << 32) - 1 else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def user_number(name: str) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < (1 << 32) - 1 else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def shown_path(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must hold paths")
    try:
        folders.check([Folder(value, value)])
    except BadRequest as error:
        raise ValueError(f"must hold absolute paths that a sandbox can have ({error})") from None
    return value


def variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a table")
    try:
        return fields.env(dict(value), "env")
    except BadRequest as error:
        raise ValueError(f"must be a table of text ({error})") from None


def limits_of(checks: Mapping[str, Check]) -> Check:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("must be a table")
        for name in value:
            if name not in checks:
                raise ValueError(f"must have no {name!s:.40}: there are {', '.join(checks)}")
        return {name: checks[name](item) for name, item in value.items()}
    return check


def metrics_place(value: Any) -> str:
    from leeward.daemon.telling.exporter import check_place  # imported only here, so that `leeward run` doesn't need it

    return value if value == "" else check_place(value if isinstance(value, str) else "-")


def module(value: Any) -> str:
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        raise ValueError("must hold names of modules")
    return value

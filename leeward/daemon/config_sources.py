"""
Where the configuration comes from, and how it is written: files, the environment and the command line.

Runs in: the daemon, `leeward run`, and the CLI.
Trust: whoever can write a file decides what jobs may do. So a file that another user owns or can write is refused, and
so is any unknown key or invalid value.

Later sources win, key by key: defaults, /etc/leeward/leeward.toml, ~/.config/leeward/config.toml, --config,
LEEWARD_SOCKET, the command line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any

from leeward.base.dataclass import replace
from leeward.daemon import config_keys as known
from leeward.daemon.config import (
    EGRESS,
    EGRESS_COMMENT,
    EGRESS_KEYS,
    Config,
    Environment,
    policies,
    quotas,
    with_network,
)
from leeward.errors import BadRequest, reason_of
from leeward.spec.folders import within
from leeward.spec.limits import OF_SANDBOXES, limit_text
from leeward.spec.paths import MAX_FILE, SOCKET_VARIABLE, SYSTEM_FILE, USER_FILE, default_socket
from leeward.spec.pool_key import DEFAULT_PROFILE, is_name
from leeward.spec.profiles import OURS, SHELL, Profile
from leeward.spec.writers import trusted_content


def load(
    explicit: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
    system_file: str = SYSTEM_FILE,
) -> Config:
    """
    Load the configuration from all its sources: *explicit* is the file of --config, which must exist, *overrides* are
    the command line's values. BadRequest names file and key, and says what is wrong.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    config = Config()
    home = environ.get("HOME", "")
    files = [(system_file, False)]
    if _is_own(home, uid):  # sudo and setpriv may leave HOME as another user's
        files.append((os.path.join(home, USER_FILE), False))
    if explicit is not None:
        files.append((explicit, True))
    for path, needed in files:
        values = _read(path, uid, needed)
        if values is not None:
            config = _apply(config, values, path)
    if environ.get(SOCKET_VARIABLE):
        config = _apply(config, {"socket": os.path.abspath(environ[SOCKET_VARIABLE])}, SOCKET_VARIABLE)
    config = _apply(config, overrides or {}, "command line")
    if not config.socket:
        config = replace(config, socket=default_socket(environ, uid))
    if config.allow_network:
        config = replace(config, egress=with_network(config.egress))
    for name in OF_SANDBOXES:
        default, ceiling = getattr(config.limits, name), getattr(config.ceilings, name)
        if default > ceiling:
            raise BadRequest(f"limits.{name}={limit_text(name, default)} is above"
                             f" ceilings.{name}={limit_text(name, ceiling)}")
    limits = {"limits": config.limits.cpu,
              **{f"profiles.{name}.limits": profile.limits.get("cpu", 0) for name, profile in config.profiles.items()}}
    for place, cpu in limits.items():
        if config.pinned and cpu > 100:
            raise BadRequest(f"{place}.cpu={cpu} is more than one processor, and `pinned` gives a job one")
    for name, profile in config.profiles.items():
        _check_profile(name, profile, config)
    for name, quota in (("quota", config.quota), *((f"users.{user}", each) for user, each in
                                                     quotas(config, uid).users.items())):
        if 0 < quota.memory < config.limits.memory:
            raise BadRequest(f"{name}.memory={limit_text('memory', quota.memory)} is below"
                             f" limits.memory={limit_text('memory', config.limits.memory)}: no job that"
                             " asks for nothing else could run")
    return config


def _check_profile(name: str, profile: Profile, config: Config) -> None:
    for limit in OF_SANDBOXES:
        asked, ceiling = profile.limits.get(limit, 0), getattr(config.ceilings, limit)
        if asked > ceiling:
            raise BadRequest(f"profiles.{name}.limits.{limit}={limit_text(limit, asked)} is above"
                             f" ceilings.{limit}={limit_text(limit, ceiling)}")
    for path in profile.show:
        if within(os.path.realpath(config.socket), os.path.realpath(path)):
            raise BadRequest(f"profiles.{name}.show: {path!r} has the daemon's socket in it")


def _profile(name: str) -> Profile:
    """Return the profile *name* before the configuration changes it: the built-in one, or a new one of the default base."""
    return OURS.get(name) or Profile(base=DEFAULT_PROFILE)


def _is_own(folder: str, uid: int) -> bool:
    try:
        return folder.startswith("/") and os.stat(folder).st_uid == uid
    except OSError:
        return False


def _read(path: str, uid: int, needed: bool) -> dict[str, Any] | None:
    """Return the values in one file; None if it doesn't exist and isn't *needed*."""
    try:
        content = trusted_content(path, MAX_FILE, uid, os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError) as error:
        if needed:
            raise _refuse(path, reason_of(error)) from None
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refuse(path, "is a symbolic link; name the file itself") from None
        raise _refuse(path, reason_of(error)) from None
    except BadRequest as error:
        raise _refuse(path, str(error)) from None
    import tomllib  # takes 18 ms, which `leeward run` without a file saves

    try:
        text = content.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise _refuse(path, "is no UTF-8 text") from None
    except RecursionError:
        raise _refuse(path, "has too many tables or arrays within each other") from None
    except tomllib.TOMLDecodeError as error:
        raise _refuse(path, f"{error}{_line_of(error, text)}") from None
    except ValueError:  # a number with thousands of digits
        raise _refuse(path, "has a number with too many digits") from None


def _line_of(error: ValueError, text: str) -> str:
    """
    Return the text of the line that *error* is about, as far as it is a key, since a value may be secret: the error for a
    repeated key doesn't name the key.
    """
    lines = text.rstrip().splitlines()
    words = str(error).rpartition("(at line ")[2].partition(",")[0]
    if words.endswith("(at end of document)"):
        words = str(len(lines))
    if words.isdecimal() and 0 < int(words) <= len(lines):
        return f": {lines[int(words) - 1].partition('=')[0].strip()[:80]!r}"
    return ""


def _apply(config: Config, values: Mapping[str, Any], place: str) -> Config:
    """Return *config* with *values* applied; *place* names their file in errors."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name in known.TABLES:
            inner = _inner(known.TABLES[name], value, f"{place}: {name}", f"[{name}]")
            changes[name] = replace(getattr(config, name), **inner)
        elif name == known.USERS:
            changes[name] = _users(config.users, value, f"{place}: {name}")
        elif name == known.ENVIRONMENTS:
            changes[name] = _named(name, config.environments, value, known.ENVIRONMENT_KEYS, lambda _: Environment(),
                                   f"{place}: {name}")
        elif name == known.PROFILES:
            changes[name] = _named(name, config.profiles, value, known.PROFILE_KEYS, _profile, f"{place}: {name}")
        elif name == EGRESS:
            changes[name] = policies(config.egress, value, f"{place}: {name}")
        elif name in known.KEYS:
            changes[name] = _checked(known.KEYS[name], value, f"{place}: {name}")
        elif name in known.RENAMED:
            raise _refuse(f"{place}: {name}", f"is called {known.RENAMED[name]} now")
        else:
            names = [*known.KEYS, *known.TABLES, known.USERS, known.ENVIRONMENTS, known.PROFILES, EGRESS]
            raise _refuse(f"{place}: {name!s:.60}", f"unknown; these are known: {', '.join(names)}")
    return replace(config, **changes)


def _users(before: Mapping[int, Mapping[str, Any]], value: Any, place: str) -> dict[int, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        raise _refuse(place, "must hold tables, [users.NAME]")
    users = dict(before)
    for name, quota in value.items():
        here = f"{place}.{name!s:.60}"
        user = known.user_number(name)
        if user is None:
            raise _refuse(here, "is no user of this host, by name or number")
        users[user] = {**users.get(user, {}), **_inner(known.QUOTA_KEYS, quota, here, f"[users.{name!s:.60}]")}
    return users


def _named(kind: str, before: Mapping[str, Any], value: Any, keys: Mapping[str, known.Key],
           new: Callable[[str], Any], place: str) -> dict[str, Any]:
    """Return the objects *before* with those of the tables below [*kind*] added; *new* makes the object of a name."""
    if not isinstance(value, Mapping):
        raise _refuse(place, f"must hold tables, [{kind}.NAME]")
    found = dict(before)
    for name, given in value.items():
        here = f"{place}.{name!s:.60}"
        if not is_name(name):
            raise _refuse(here, "is no name: it has letters, digits and ._- alone, a letter first")
        if kind == known.PROFILES and name == DEFAULT_PROFILE:
            raise _refuse(here, "is what the daemon's own keys configure: name yours otherwise, with it as its base")
        if kind == known.PROFILES and name == SHELL:
            raise _refuse(here, "is as it is: nothing of it can be configured but show_secrets")
        made = replace(found.get(name) or new(name), **_inner(keys, given, here, f"[{kind}.{name}]"))
        if made.min > made.max:
            raise _refuse(here, f"min={made.min} is above max={made.max}")
        found[name] = made
    return found


def _inner(keys: Mapping[str, known.Key], given: Any, place: str, header: str) -> dict[str, Any]:
    """Return the checked values of a table, whose [*header*] an error names."""
    if not isinstance(given, Mapping):
        raise _refuse(place, f"must be a table, {header}")
    for key in given:
        if key not in keys:
            raise _refuse(f"{place}.{key!s:.60}", f"unknown; these are known: {', '.join(keys)}")
    return {key: _checked(keys[key], item, f"{place}.{key}") for key, item in given.items()}


def _checked(key: known.Key, value: Any, place: str) -> Any:
    try:
        return key.check(value)
    except ValueError as error:
        # A table is one of variables, or of secrets.
        raise _refuse(place, f"{error}" if isinstance(value, Mapping) else f"{error}, not {value!r:.60}") from None


def _refuse(place: str, why: str) -> BadRequest:
    return BadRequest(f"{place}: {why}")


def print_config(config: Config) -> str:
    """Return *config* as the text of a file that can be loaded again, with every key, its unit and its default."""
    defaults = Config()  # a default of "" stands for one that depends on the user
    lines = [
        "# leeward's configuration. Read from /etc/leeward/leeward.toml, ~/.config/leeward/config.toml and",
        "# --config FILE; later files win, key by key. Sizes are bytes, or text such as \"512M\".",
        "# A running daemon reads all of it again on SIGHUP; keys marked [restart] take effect with its next start.",
        "", *_entries(known.KEYS, config, defaults)]
    for table, keys in known.TABLES.items():
        lines += [f"# {known.TABLE_COMMENTS[table]}", f"[{table}]", "",
                  *_entries(keys, getattr(config, table), getattr(defaults, table))]
    lines += [known.USERS_COMMENT, f"[{known.USERS}]", ""]
    for user, quota in config.users.items():
        lines += [f"[{known.USERS}.{user}]", ""]
        for name, value in quota.items():
            lines += _entry(name, known.QUOTA_KEYS[name], value, getattr(config.quota, name))
    lines += [known.ENVIRONMENTS_COMMENT, f"[{known.ENVIRONMENTS}]", ""]
    for name, environment in config.environments.items():
        lines += [f"[{known.ENVIRONMENTS}.{name}]", "", *_entries(known.ENVIRONMENT_KEYS, environment, Environment())]
    lines += [known.PROFILES_COMMENT, f"[{known.PROFILES}]", ""]
    for name, profile in config.profiles.items():
        lines += [f"[{known.PROFILES}.{name}]", "", *_entries(known.PROFILE_KEYS, profile, Profile())]
    lines += [EGRESS_COMMENT, f"[{EGRESS}]", ""]
    for name, policy in config.egress.items():
        from leeward.spec.egress_policy import policy_map  # only where there are policies

        values = policy_map(policy)
        lines += [f'[{EGRESS}."{name}"]', ""]  # a point in a bare key would make a table in a table
        for key, comment in EGRESS_KEYS.items():
            lines += [f"# {comment}", f"{key} = {_toml(values[key])}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _entries(keys: Mapping[str, known.Key], values: Any, defaults: Any) -> list[str]:
    """Return the lines of the values that are set, by the names in *keys*."""
    return [line for name, key in keys.items() if (value := getattr(values, name)) is not None and value != {}
            for line in _entry(name, key, value, getattr(defaults, name))]


def _entry(name: str, key: known.Key, value: Any, default: Any) -> list[str]:
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
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)

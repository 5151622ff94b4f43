"""
The daemon's configuration: every key, its default, unit and check, in one table.

Runs in:   the daemon, and `leeward run`.
Trust:     whoever can write the file decides what jobs may do, so a file that a
           stranger owns or could write is refused, as is any key or value that isn't
           understood: a typing mistake must not loosen anything.

Later sources win, key by key: the defaults, /etc/leeward/leeward.toml,
~/.config/leeward/config.toml, --config, LEEWARD_SOCKET, the command line.
"""

from __future__ import annotations

import errno
import grp
import math
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from typing import Any

from leeward.dataclass import dataclass, field, replace
from leeward.errors import BadRequest
from leeward.pool.quotas import Quota, Quotas
from leeward.spec.limits import ADJUSTABLE, CEILINGS, FLOORS, Limits
from leeward.spec.paths import SOCKET_VARIABLE, default_socket
from leeward.spec.sizes import parse_size
from leeward.worker.output import RESULTS

SYSTEM_FILE = "/etc/leeward/leeward.toml"
USER_FILE = ".config/leeward/config.toml"

#: Bytes; a configuration has some hundred lines at most.
MAX_FILE = 1 << 20

#: Layers that an operator may go without; the others never.
DEGRADABLE = ("landlock", "cgroup")
LOG_LEVELS = ("debug", "info", "warning", "error")
TRANSPORTS = ("auto", "uring", "socket")


#: Who is let in by a group can't have all the connections.
GUEST = Quota(connections=256)


@dataclass(frozen=True, slots=True)
class Config:
    """
    What the daemon was told. KEYS says what each field means.
    """

    socket: str = ""
    pool_size: int = 4
    spares: int = 1
    recycle_after: int = 100
    queue_size: int = 64
    queue_timeout: float = 30.0
    max_connections: int = 1024
    idle_timeout: float = 600.0
    max_sessions: int = -1
    session_idle: float = 60.0
    session_lifetime: float = 3600.0
    allow_degraded: tuple[str, ...] = ()
    python_env: str = ""
    preload: tuple[str, ...] = ()
    log_level: str = "info"
    log_json: bool = False
    security_log: str = ""
    metrics: str = ""
    group: str = ""
    io: str = "auto"
    express: bool = True
    rehearse: bool = True
    results: str = "auto"
    limits: Limits = field(default_factory=Limits)
    ceilings: Limits = CEILINGS
    quota: Quota = GUEST
    users: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


Check = Callable[[Any], Any]


def _whole(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value
    return check


def _seconds(least: float, most: float) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"must be seconds from {least:g} to {most:g}")
        return float(value)
    return check


def _size(least: int) -> Check:
    def check(value: Any) -> int:
        size = parse_size(value) if isinstance(value, str) else value
        if type(size) is not int or not least <= size <= 1 << 50:
            raise ValueError(f'must be bytes, or a size such as "512M", of at least {least}')
        return size
    return check


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not (value == "" or value.startswith("/")):
        raise ValueError('must be an absolute path, or "" for none')
    return value


def _one_of(words: tuple[str, ...]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value
    return check


def _words(check: Check) -> Check:
    def check_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be an array")
        words = tuple(check(word) for word in value)
        if len(set(words)) != len(words):
            raise ValueError("names something twice")
        return words
    return check_all


def _group(value: Any) -> str:
    if not isinstance(value, str) or (value and _gid(value) is None):
        raise ValueError("must be a group of this host, by name or number")
    return value


def _gid(name: str) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < (1 << 32) - 1 else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def group_id(config: Config) -> int | None:
    """
    The gid of the group whose members may use the daemon, or None.
    """
    return _gid(config.group) if config.group else None


def _place(value: Any) -> str:
    from leeward.daemon.exporter import check_place  # which `leeward run` needn't pay for

    return value if value == "" else check_place(value if isinstance(value, str) else "-")


def _module(value: Any) -> str:
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        raise ValueError("must hold names of modules")
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """
    A key of the file: its check, and what --print-config says about it.

    Attributes:
        live: a daemon that runs takes a new value on SIGHUP; else with its next start.
    """

    check: Check
    comment: str
    live: bool = False


KEYS: dict[str, Key] = {
    "socket": Key(_path, 'path of the daemon\'s socket; "" is $XDG_RUNTIME_DIR/leeward/leeward.sock, as root'
                         " /run/leeward/leeward.sock. Clients don't read this file: give them LEEWARD_SOCKET"),
    "pool_size": Key(_whole(1, 1024), "workers, each of which runs one job at a time"),
    "spares": Key(_whole(0, 16), "processes that each worker holds armed beside the one that runs or is next"),
    "recycle_after": Key(_whole(1, 1_000_000), "jobs after which a worker is replaced"),
    "queue_size": Key(_whole(0, 65536), "requests that may wait for a worker; one more is refused at once", True),
    "queue_timeout": Key(_seconds(0.001, 86400), "seconds that a request may wait for a worker", True),
    "max_connections": Key(_whole(1, 65536), "connections at once", True),
    "idle_timeout": Key(_seconds(0, 86400 * 365), "seconds after which a connection without a request is closed;"
                                                  " 0 is never", True),
    "max_sessions": Key(_whole(-1, 1024), "sessions at once, each of which holds a worker; -1 is half of the workers, 0"
                                          " is none", True),
    "session_idle": Key(_seconds(0.001, 86400), "seconds after which a session without a job gives its worker back",
                        True),
    "session_lifetime": Key(_seconds(0.001, 86400 * 7), "seconds after which a session ends in any case", True),
    "allow_degraded": Key(_words(_one_of(DEGRADABLE)), 'layers that may be missing: "landlock", "cgroup".'
                                                       " Status and every result show what is"),
    "python_env": Key(_path, 'a virtual environment whose packages jobs can import; "" is the standard library alone.'
                             " It and all folders above must be yours or root's, and writable by nobody else"),
    "preload": Key(_words(_module), "modules to import before any job, beside those that always are"),
    "log_level": Key(_one_of(LOG_LEVELS), "debug, info, warning or error", True),
    "log_json": Key(_flag, "one JSON object a line, in place of text. Where standard error is the journal, it has"
                           " fields in any case", True),
    "security_log": Key(_path, "a file for records of denied system calls, ends by a limit and refused peers, one JSON"
                               ' object a line; "" is the daemon\'s own log. It is opened anew on SIGHUP', True),
    "metrics": Key(_place, 'where Prometheus may ask, "" is nowhere: the path of a socket, or a loopback address such'
                           ' as "127.0.0.1:9464", which every user of this host can reach'),
    "group": Key(_group, "a group whose members may use the daemon, beside its own user and root, within their quotas;"
                         ' "" is none'),
    "io": Key(_one_of(TRANSPORTS), 'how the daemon talks to the kernel: "uring" (Linux 5.19), "socket", or "auto",'
                                   " which is uring where the kernel allows it"),
    "express": Key(_flag, "code alone that ends within milliseconds goes to its worker and back without Python"),
    "rehearse": Key(_flag, "a process goes the way of a job once, before it has one"),
    "results": Key(_one_of(RESULTS), 'how output and collected files reach a client: "memfd" is in a sealed memory'
                                     ' file, "inline" in the answer as far as there is room in it, 12 MiB, and "auto"'
                                     " the quicker one, by size"),
}

LIMIT_KEYS: dict[str, Key] = {
    "memory": Key(_size(int(FLOORS["memory"])), "bytes, of all processes and files of a job together; no swap",
                  True),
    "cpu": Key(_whole(1, 100 * 1024), "percent of one processor"),
    "processes": Key(_whole(1, 1 << 22), "processes and threads at once", True),
    "time": Key(_seconds(FLOORS["time"], 86400 * 7), "seconds from the moment the job's code is sent", True),
    "files": Key(_size(1 << 16), "bytes in /workspace, /tmp and /dev/shm together"),
    "output": Key(_size(0), "bytes of stdout and stderr together", True),
    "descriptors": Key(_whole(16, 1 << 20), "open descriptors in each process"),
}

QUOTA_KEYS: dict[str, Key] = {
    "jobs": Key(_whole(0, 65536), "jobs that run at once, further ones wait; 0 is as many as there are workers", True),
    "memory": Key(_size(0), "bytes, the limits of all jobs that run together, further ones wait; 0 is no bound", True),
    "rate": Key(_seconds(0, 1e6), "jobs a second, more are refused; 0 is no bound", True),
    "connections": Key(_whole(0, 65536), "connections at once; 0 is up to max_connections", True),
}

#: The tables of the file, and the keys that each may have.
TABLES: dict[str, dict[str, Key]] = {
    "limits": LIMIT_KEYS,
    "ceilings": {name: LIMIT_KEYS[name] for name in ADJUSTABLE},
    "quota": QUOTA_KEYS,
}
#: Tables in here are called by users, and have the keys of [quota].
USERS = "users"
USERS_COMMENT = """\
# Quotas of single users, in tables called by name or number, such as [users.alice]; what such a table doesn't
# say is as in [quota]. The only quotas that root and the daemon's own user can have."""
TABLE_COMMENTS = {
    "limits": "What a job gets that asks for nothing else.",
    "ceilings": "How far a request may raise its limits.",
    "quota": "What each user may have who is let in by `group`.",
}


def _refuse(place: str, why: str) -> BadRequest:
    return BadRequest(f"{place}: {why}")


def _apply(config: Config, values: Mapping[str, Any], place: str) -> Config:
    """
    *config* with *values* over it; *place* names their file in errors.
    """
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name in TABLES:
            if not isinstance(value, Mapping):
                raise _refuse(f"{place}: {name}", f"must be a table, [{name}]")
            keys = TABLES[name]
            inner: dict[str, Any] = {}
            for key, item in value.items():
                if key not in keys:
                    raise _refuse(f"{place}: {name}.{key!s:.60}", f"unknown; these are known: {', '.join(keys)}")
                inner[key] = _checked(keys[key], item, f"{place}: {name}.{key}")
            changes[name] = replace(getattr(config, name), **inner)
        elif name == USERS:
            changes[name] = _users(config.users, value, f"{place}: {name}")
        elif name in KEYS:
            changes[name] = _checked(KEYS[name], value, f"{place}: {name}")
        else:
            raise _refuse(f"{place}: {name!s:.60}", f"unknown; these are known: {', '.join([*KEYS, *TABLES, USERS])}")
    return replace(config, **changes)


def _users(before: Mapping[int, Mapping[str, Any]], value: Any, place: str) -> dict[int, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        raise _refuse(place, "must hold tables, [users.NAME]")
    users = dict(before)
    for name, quota in value.items():
        if not isinstance(quota, Mapping):
            raise _refuse(f"{place}.{name!s:.60}", f"must be a table, [users.{name!s:.60}]")
        user = _uid(name)
        if user is None:
            raise _refuse(f"{place}.{name!s:.60}", "is no user of this host, by name or number")
        inner = dict(users.get(user, {}))
        for key, item in quota.items():
            if key not in QUOTA_KEYS:
                raise _refuse(f"{place}.{name}.{key!s:.60}", f"unknown; these are known: {', '.join(QUOTA_KEYS)}")
            inner[key] = _checked(QUOTA_KEYS[key], item, f"{place}.{name}.{key}")
        users[user] = inner
    return users


def _uid(name: str) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < (1 << 32) - 1 else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def quotas(config: Config, uid: int) -> Quotas:
    """
    The quotas that a daemon of user *uid* holds its users to.
    """
    return Quotas(config.quota, {user: replace(config.quota, **own) for user, own in config.users.items()},
                  exempt=(0, uid))


def live(old: Config, new: Config) -> tuple[Config, list[str]]:
    """
    *old* with all of *new* that a daemon can take while it runs, and the names of what it can't.
    """
    taken, left = old, []
    for name, key in KEYS.items():
        if getattr(old, name) != getattr(new, name):
            if key.live:
                taken = replace(taken, **{name: getattr(new, name)})
            else:
                left.append(name)
    for table, keys in TABLES.items():
        before, after = getattr(old, table), getattr(new, table)
        changed = [name for name in keys if getattr(before, name) != getattr(after, name)]
        left += [f"{table}.{name}" for name in changed if not keys[name].live]
        taken = replace(taken, **{table: replace(before, **{
            name: getattr(after, name) for name in changed if keys[name].live})})
    return replace(taken, users=new.users), left


def _checked(key: Key, value: Any, place: str) -> Any:
    try:
        return key.check(value)
    except ValueError as error:
        raise _refuse(place, f"{error}, not {value!r:.60}") from None


def _read(path: str, uid: int, needed: bool) -> dict[str, Any] | None:
    """
    The values in one file; None where it isn't and needn't be.
    """
    try:
        # Not blocking: somebody may have put a FIFO there.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        if needed:
            raise _refuse(path, (error.strerror or "").lower()) from None
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refuse(path, "is a symbolic link; name the file itself") from None
        raise _refuse(path, (error.strerror or "").lower()) from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise _refuse(path, "is no regular file")
        if about.st_uid not in (0, uid):
            raise _refuse(path, f"belongs to user {about.st_uid}; it must be yours or root's")
        if about.st_mode & 0o022:
            raise _refuse(path, f"its mode {about.st_mode & 0o777:04o} lets others write it; chmod go-w")
        content = b""
        while len(content) <= MAX_FILE and (chunk := os.read(fd, MAX_FILE)):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > MAX_FILE:
        raise _refuse(path, f"is larger than {MAX_FILE} bytes")
    import tomllib  # 18 ms, which `leeward run` without a file needn't pay

    try:
        text = content.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise _refuse(path, "is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise _refuse(path, f"{error}{_line_of(error, text)}") from None


def _line_of(error: ValueError, text: str) -> str:
    """
    The line that *error* is about: that of a repeated key doesn't say which key.
    """
    lines = text.rstrip().splitlines()
    words = str(error).rpartition("(at line ")[2].partition(",")[0]
    if words.endswith("(at end of document)"):
        words = str(len(lines))
    if words.isdecimal() and 0 < int(words) <= len(lines):
        return f": {lines[int(words) - 1].strip()[:80]!r}"
    return ""


def load(
    explicit: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
    system_file: str = SYSTEM_FILE,
) -> Config:
    """
    The configuration from all its sources.

    Args:
        explicit: the file that --config named; it must be there.
        overrides: what the command line says, by key.

    Raises:
        BadRequest: file, key and what is wrong with it.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    config = Config()
    home = environ.get("HOME", "")
    files = [(system_file, False)]
    if _is_own(home, uid):  # sudo and setpriv may leave somebody else's HOME
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
    for name in ADJUSTABLE:
        default, ceiling = getattr(config.limits, name), getattr(config.ceilings, name)
        if default > ceiling:
            raise BadRequest(f"limits.{name}={default} is above ceilings.{name}={ceiling}")
    for owner, quota in (("quota", config.quota), *((f"users.{user}", each) for user, each in
                                                     quotas(config, uid).users.items())):
        if 0 < quota.memory < config.limits.memory:
            raise BadRequest(f"{owner}.memory={quota.memory} is below limits.memory={config.limits.memory}: no job that"
                             " asks for nothing else could run")
    return config


def _is_own(folder: str, uid: int) -> bool:
    try:
        return folder.startswith("/") and os.stat(folder).st_uid == uid
    except OSError:
        return False


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A basic string; its escapes are those of JSON, and these are the ones that can occur.
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value) + '"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def print_config(config: Config) -> str:
    """
    *config* as a file that loads back, with every key, its unit and its default.
    """
    # "" stands for a default that depends on the user; the rest are the same everywhere.
    defaults = Config()
    lines = [
        "# leeward's configuration. Read from /etc/leeward/leeward.toml, ~/.config/leeward/config.toml and",
        "# --config FILE; later files win, key by key. Sizes are bytes, or text such as \"512M\".",
        "# A daemon that runs reads all of it again on SIGHUP; what is marked [restart] it takes with its next start.",
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
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry(name: str, key: Key, value: Any, default: Any) -> list[str]:
    changed = "" if value == default else f" (default: {_toml(default)})"
    restart = "" if key.live else " [restart]"
    return [f"# {key.comment}{restart}{changed}", f"{name} = {_toml(value)}", ""]


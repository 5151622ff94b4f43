"""
Every key of the configuration, with its default, its check, its unit and its comment for --print-config.

Runs in: the daemon, and `leeward run`; pure, but for users and groups of this host. A check returns the value as the
daemon uses it; ValueError says what it must be.
"""

from __future__ import annotations

import grp
import math
import pwd
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from leeward.base.dataclass import dataclass, field
from leeward.daemon.pool.quotas import Quota
from leeward.daemon.run.report import RESULTS
from leeward.errors import BadRequest
from leeward.spec import folders
from leeward.spec.folders import Folder
from leeward.spec.limits import CEILINGS, FLOORS, OF_SANDBOXES, Limits
from leeward.spec.pool_key import is_name
from leeward.spec.profiles import BASES, END, IDLE, Profile
from leeward.spec.sizes import parse_size
from leeward.wire import fields

#: What the key `reuse` may be.
REUSE = ("off", "user")

#: The most that `max_sessions` may be. Each takes three or four processes, of which many kernels number 32,768.
MOST_SEATS = 16384

Check = Callable[[Any], Any]
T = TypeVar("T")

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


def name_of(what: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not (value == "" or is_name(value)):
            raise ValueError(f'must be the name of {what}, or "" for none')
        return value
    return check


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
    """The gid of a group of this host, by name or number; None if there is none of this name."""
    return _number(name, lambda: grp.getgrnam(name).gr_gid)


def user_number(name: str) -> int | None:
    """As `group_number`, the uid of a user."""
    return _number(name, lambda: pwd.getpwnam(name).pw_uid)


def _number(name: str, found: Callable[[], int]) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < (1 << 32) - 1 else None
    try:
        return found()
    except (KeyError, ValueError):  # a NUL in the name
        return None


def shown_path(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must hold paths")
    try:
        folders.check([Folder(value, value)])
    except BadRequest as error:
        raise ValueError(f"must hold absolute paths that a sandbox can have ({error})") from None
    return value


def home(value: Any) -> str:
    if value != "" and (not isinstance(value, str) or not re.fullmatch(r"/home/[a-z_][a-z0-9_-]{0,31}", value, re.ASCII)):
        raise ValueError('must be a folder of /home such as "/home/user"')
    return str(value)


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


LOG_LEVELS = ("debug", "info", "warning", "error")
TRANSPORTS = ("auto", "uring", "socket")


@dataclass(frozen=True, slots=True)
class Key:
    """
    A key: its check, its text in --print-config with the unit, and whether a running daemon takes a new value. One of no
    table has its default as well.
    """

    check: Check
    comment: str
    live: bool = False
    default: Any = None


def key(default: Any, check: Check, comment: str, live: bool = False) -> Any:
    """The key of a field of `Config`."""
    return Key(check, comment, live, default)


#: The default quota of guests: members of the group can't take all the connections.
GUEST = Quota(connections=256)


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and packages that requests can name. ENVIRONMENT_KEYS describes each field."""

    path: str = ""
    preload: tuple[str, ...] = ()
    min: int = 1
    max: int = 4
    warm: str = ""


#: The keys of no table, by their names.
KEYS: dict[str, Key] = {}


def _with_keys(kind: type[T]) -> type[T]:
    """Give each field that has a Key the Key's default, and KEYS the Key."""
    for name, found in [*vars(kind).items()]:
        if isinstance(found, Key):
            KEYS[name] = found
            setattr(kind, name, found.default)
    return kind


@dataclass(frozen=True, slots=True)
@_with_keys
class Config:
    """The daemon's configuration."""

    socket: str = key("", path, "path of the daemon's socket; \"\" is $XDG_RUNTIME_DIR/leeward/leeward.sock, as root"
        " /run/leeward/leeward.sock. Clients read this key as well, in the system's file and in the user's file; --socket"
        " and LEEWARD_SOCKET take precedence")
    pool_size: int = key(4, whole(1, 1024), "workers that are kept, each of which runs one job at a time")
    max_jobs: int = key(-1, whole(-1, 1024), "jobs at once. While more wait than there are workers, further workers are"
        " made as far as memory, processors and descriptors suffice, and end when they are idle. -1 is as many as that"
        " allows, pool_size or less is none")
    spares: int = key(1, whole(0, 16), "spare processes of each worker: confined and ready for a job, in addition to the"
        " one that takes the next job. With more of them bursts are served without delay, and more memory is used")
    reuse: str = key("off", one_of(REUSE), 'whether jobs get namespaces that had one before: with "off" never, with'
        ' "user" after jobs of the same connection alone, while more wait, and only if nothing of them is left. It takes'
        " less processor time. See docs/threat-model.md")
    recycle_after: int = key(100, whole(1, 1_000_000), "jobs after which a worker is replaced")
    layout_jobs: int = key(10_000, whole(0, 1_000_000_000), "jobs after which a new zygote takes over, and with it"
        " another address layout and hash seed; a worker is replaced when it is idle. 0 is never")
    layout_time: float = key(600.0, seconds(0, 86400 * 365), "seconds after which a new zygote takes over if there were"
        " jobs; 0 is never")
    fresh_layout: bool = key(False, flag, "start an interpreter for each job, session and sandbox, so that no two share"
        " an address layout or hash seed. A worker then serves one job, and costs the processor time of an interpreter's"
        " start and imports; spares, recycle_after, layout_jobs and layout_time have no effect")
    queue_size: int = key(64, whole(0, 65536), "jobs that may wait for a worker, beside those for which workers may be"
        " made; others are refused at once", live=True)
    queue_delay: float = key(0.1, seconds(0, 86400), "seconds that a request may have to wait for a worker, or 10 times"
        " the time of a job if that is more. Once all requests have waited longer for that time, the daemon refuses"
        " others that would. 0 is no bound by time", live=True)
    queue_timeout: float = key(30.0, seconds(0.001, 86400), "seconds that a request may wait for a worker", live=True)
    max_connections: int = key(1024, whole(1, 65536), "connections at once, fewer where the limit on descriptors leaves"
        " room for fewer; the last of them are kept for root and the daemon's own user", live=True)
    idle_timeout: float = key(600.0, seconds(0, 86400 * 365), "seconds after which a connection without a request is"
        " closed; 0 is never", live=True)
    idle_exit: int = key(0, whole(0, 86400 * 365), "seconds without a request, a running job, a session or a sandbox"
        " after which the daemon ends by itself; 0 is never", live=True)
    connection_requests: int = key(256, whole(16, 65536), "requests of one connection that may be unanswered at once."
        " Clients ask for this bound, and send no more", live=True)
    max_collected: int = key(1000, whole(0, 4000), "files that `collect` of one job brings back; the result names the"
        " files that were left out", live=True)
    max_sessions: int = key(-1, whole(-1, MOST_SEATS), "sessions and sandboxes at once. Each of them occupies a worker:"
        " half of the pool's workers at most, then further workers, as far as memory and descriptors suffice. -1 is as"
        " many as that allows, 0 is none", live=True)
    connection_sessions: int = key(16, whole(1, 1024), "sessions of one connection at once, of those that max_sessions"
        " allows", live=True)
    session_idle: float = key(600.0, seconds(0.001, 86400), "seconds after which a session without a job gives its worker"
        " back", live=True)
    session_grace: float = key(2.0, seconds(0, 600), "seconds that a session's job has after its time limit: at the limit"
        " it gets a KeyboardInterrupt, and if that ends the job the session keeps its state. 0: the limit ends the job"
        " and its session")
    session_lifetime: float = key(3600.0, seconds(0.001, 86400 * 7), "seconds after which a session ends in any"
        " case", live=True)
    sandbox_idle: float = key(600.0, seconds(0.001, 86400), "seconds after which a live sandbox that nobody uses ends; a"
        " request can ask for less", live=True)
    sandbox_lifetime: float = key(3600.0, seconds(0.001, 86400 * 7), "seconds after which a live sandbox ends in any"
        " case; a request can ask for less", live=True)
    idle: str = key(END, one_of(IDLE), '"end", or "sleep": a live sandbox that nobody uses sleeps in place of its end,'
        " and wakes by the next call; if it can't it ends, and says why. A request can ask for sleep", live=True)
    folder_reserve: int = key(0, size(0), "bytes that stay free in each file system of the host that has a sandbox's"
        " writable folder: with less, the sandboxes that can write there end. 0 is no bound. It is for sandboxes that are"
        " opened from then on", live=True)
    snapshot_memory: int = key(2 << 30, size(0), "bytes that the snapshots of one user's kernels may take together. They"
        " are memory of the daemon's, in use until they are removed. 0 is none", live=True)
    snapshot_idle: float = key(3600.0, seconds(0.001, 86400 * 7), "seconds after which a snapshot that nobody used is"
        " removed", live=True)
    allow_degraded: tuple[str, ...] = key((), words(degradable), "layers that may be missing where the host lacks them:"
        ' "landlock" is the only one. Without cgroup controllers leeward starts in any case: rlimits and a watch hold the'
        " limits then. Status and every result name what is missing")
    python_env: str = key("", path, 'a virtual environment whose packages jobs can import; "" is the standard library'
        " alone. The environment and all folders above it must belong to you or root, and no other user may have the"
        " right to write them")
    preload: tuple[str, ...] = key((), words(module), "modules to import before any job, in addition to a standard list")
    loopback: bool = key(False, flag, "jobs may use TCP and UDP over 127.0.0.1 and ::1, each in a network that holds"
        " nothing but the job: for servers and their clients, notebooks, databases. Nothing gets out of it. The kernel's"
        " code for TCP and IP comes into their reach")
    terminal: bool = key(False, flag, "jobs may make pseudo-terminals, 16 at once: for pexpect, pty.spawn, tmux. The"
        " kernel's code for terminals comes into their reach")
    pinned: bool = key(False, flag, "each worker keeps its jobs on one processor, which they can't leave, so every"
        " program sees one: Java, Go and node ask the kernel. A job can take longer, even where another processor is"
        " idle. limits.cpu is then 100 at most. Without a controller of processor time a worker is bound to as many"
        " processors as its limits.cpu is worth in any case")
    show_secrets: bool = key(True, flag, "clients may ask the profile `shell` to show what it hides. false: no client"
        " may", live=True)
    allow_network: bool = key(False, flag, "requests may ask for all public names and addresses, on the ports 80 and 443,"
        " and no private ones: the policy `network`. A table [egress.network] replaces it")
    pool_idle: float = key(300.0, seconds(1, 86400 * 365), "seconds after which the workers of an unused environment or"
        " profile end")
    pool_workers: int = key(64, whole(0, 1024), "workers at once of all environments and profiles together, in addition"
        " to pool_size; as far as descriptors and user ids suffice")
    environments_folder: str = key("", path, 'where `leeward env` keeps its environments; "" is'
        " /var/lib/leeward/environments for root, else ~/.local/share/leeward/environments")
    environments_size: int = key(20 << 30, size(0), "bytes that these environments may take together; beyond that"
        " `leeward env create` is refused")
    environments_egress: str = key("", name_of("a policy"), "the policy by which pip reaches an index, for `packages` of"
        ' a sandbox and for `leeward env create`; "" is none', live=True)
    environments_index: str = key("", url, "the URL of that index; \"\" is pip's own default", live=True)
    sleep_folder: str = key("", path, 'where sandboxes sleep, also while no daemon runs; "" is a folder `sleeping` in'
        " $STATE_DIRECTORY, which a service has, else none: then they sleep in memory, and end with the daemon")
    sleep_size: int = key(20 << 30, size(0), "bytes that sleeping sandboxes may take there together; others sleep in"
        " memory", live=True)
    images_folder: str = key("", path, 'where `leeward image` keeps its images; "" is /var/lib/leeward/images for root,'
        " else ~/.local/share/leeward/images")
    images_size: int = key(20 << 30, size(0), "bytes that these images may take together; beyond that `leeward image"
        " import` is refused")
    images_shared: bool = key(False, flag, "other users than the daemon's may name these images, whose files they can"
        " read then. The image of a profile is for all who use that", live=True)
    log_level: str = key("info", one_of(LOG_LEVELS), "debug, info, warning or error", live=True)
    log_json: bool = key(False, flag, "log one JSON object a line, in place of text. If standard error is the journal, it"
        " gets fields in any case", live=True)
    log_jobs: bool = key(False, flag, "log a line of level info for each job that ends, with its number, user, label,"
        " outcome and time. false: only for jobs that a limit or a fault of leeward has ended", live=True)
    security_log: str = key("", path, "a file for records of denied system calls, limits that were hit and refused peers,"
        " one JSON object a line; \"\" is the daemon's own log. On SIGHUP it is opened again", live=True)
    metrics: str = key("", metrics_place, 'where the daemon serves metrics for Prometheus, "" is nowhere: the path of a'
        ' socket, or a loopback address such as "127.0.0.1:9464", which every user of this host can reach')
    group: str = key("", group, "a group whose members may use the daemon within their quotas, in addition to the"
        " daemon's own user and root; \"\" is none")
    io: str = key("auto", one_of(TRANSPORTS), 'how the daemon talks to the kernel: "uring" (Linux 5.19), "socket", or'
        ' "auto", which is uring if the kernel allows it')
    fast_path: bool = key(True, flag, "handle a short job's request and its answer in C, the fast path: about half the"
        " latency. false: Python handles every request")
    rehearse: bool = key(True, flag, "run a small job once in each new process before it takes a real one. Jobs start"
        " faster, since they have few page faults left. false: a new process costs less processor time, and jobs start"
        " slower")
    results: str = key("auto", one_of(RESULTS), 'how output and collected files reach a client: "memfd" is by a sealed'
        ' memory file, "inline" in the answer as far as it has room, 12 MiB, and "auto" is the faster of both, by size')
    limits: Limits = field(default_factory=Limits)
    ceilings: Limits = CEILINGS
    quota: Quota = GUEST
    users: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    egress: Mapping[str, Any] = field(default_factory=dict)


#: New names of renamed keys. The daemon and its command line refuse an old name with a message that has the new one.
RENAMED = {"express": "fast_path"}

LIMIT_KEYS: dict[str, Key] = {
    "memory": Key(size(int(FLOORS["memory"])), "bytes, of all processes and files of a job together; no swap",
                 True),
    "cpu": Key(whole(1, 100 * 1024), "percent of one processor"),
    "processes": Key(whole(1, 1 << 22), "processes and threads at once", True),
    "time": Key(seconds(FLOORS["time"], 86400 * 7), "seconds from the moment the job's code is sent", True),
    "files": Key(size(int(FLOORS["files"])), "bytes in /workspace, /tmp and /dev/shm together"),
    "output": Key(size(0), "bytes of stdout and stderr together", True),
    "descriptors": Key(whole(int(FLOORS["descriptors"]), 1 << 20), "open descriptors in each process"),
}

QUOTA_KEYS: dict[str, Key] = {
    "jobs": Key(whole(0, 65536), "jobs that run at once, further ones wait; 0 is as many as there are workers", True),
    "memory": Key(size(0), "bytes, the sum of the limits of running jobs, further ones wait; 0 is no bound", True),
    "rate": Key(seconds(0, 1e6), "jobs a second, further ones are refused; 0 is no bound", True),
    "connections": Key(whole(0, 65536), "connections at once; 0 is up to max_connections", True),
    "sandboxes": Key(whole(0, 65536), "live sandboxes at once, more are refused; 0 is up to max_sessions", True),
    "snapshot_memory": Key(size(0), "bytes of their snapshots together; 0 is the key of that name", True),
    "sleep_size": Key(size(0), "bytes of their sandboxes that sleep on disk; 0 is as many as are left free for others", True),
    "folder_reserve": Key(size(0), "bytes that stay free of their sandboxes' writable folders; 0 is the key of that name"
                                   " above, which counts where it is more", True),
}

ENVIRONMENT_KEYS: dict[str, Key] = {
    "path": Key(path, 'a virtual environment of the daemon\'s own Python version; "" is the standard library alone. It'
                      " and all folders above must be yours or root's, and writable by nobody else"),
    "preload": Key(words(module), "modules to import before any job, in addition to a standard list"),
    "min": Key(whole(1, 256), "workers that stand while the environment is in use"),
    "max": Key(whole(1, 256), "workers at most: further ones are made while requests wait, and for sessions and"
                              " sandboxes"),
    "warm": Key(path, "a file of Python code that runs once, in a sandbox: each job, session and kernel begins as a copy"
                      " of the process that it leaves; \"\" for none. The file and all folders above it as for `path`"),
}

PROFILE_KEYS: dict[str, Key] = {
    "base": Key(one_of(BASES), "the profile of leeward's own that it is made of"),
    "show": Key(words(shown_path), "files and folders of the host that it shows beside, read-only, at the same paths. A"
                                   " Unix socket in one can be connected to"),
    "variables": Key(variables, "environment variables beside those of its base"),
    "limits": Key(limits_of({name: key.check for name, key in LIMIT_KEYS.items()}),
                  "those that differ from [limits], by the names there"),
    "loopback": Key(flag, "as the key of that name above, where given"),
    "terminal": Key(flag, "as the key of that name above, where given"),
    "home": Key(home, 'a path such as "/home/user" that leads to /workspace, and is HOME; "" for the base\'s'),
    "idle": Key(one_of(("", *IDLE)), "as the key of that name above, where given"),
    "image": Key(name_of("an image"), 'an image of `leeward image`, whose root file system its sandboxes have; "" for the'
                                      " host's files"),
    "owners": Key(flag, "in an image whose user is root `stat` tells the owner that a file was given by chown: each"
                        " look at a file takes some ten times as long"),
    "min": Key(whole(1, 256), "workers that stand while the profile is in use"),
    "max": Key(whole(1, 256), "workers at most: further ones are made while requests wait, and for sessions and"
                              " sandboxes"),
}

#: The tables of the file, and the keys that each table may have.
TABLES: dict[str, dict[str, Key]] = {
    "limits": LIMIT_KEYS,
    "ceilings": {name: LIMIT_KEYS[name] for name in OF_SANDBOXES},
    "quota": QUOTA_KEYS,
}

#: The table of tables that are named after users and have the keys of [quota].
USERS = "users"
USERS_COMMENT = """\
# Quotas of single users, in tables named after a user or its number, such as [users.alice]; a key that such a
# table lacks is as in [quota]. Root and the daemon's own user have no quota but one in such a table."""
#: The table of tables that are named after environments.
ENVIRONMENTS = "environments"
ENVIRONMENTS_COMMENT = """\
# Interpreters and packages that a request can name, in tables such as [environments.data], beside those that
# `leeward env` has made. Each has workers of its own,
# which start with the first request and end after pool_idle seconds without one. [restart]"""
#: The table of tables that are named after profiles.
PROFILES = "profiles"
PROFILES_COMMENT = """\
# Kinds of sandbox that a request can name, in tables such as [profiles.build]; `leeward profiles` shows them, with
# those of leeward's own. Each has workers of its own, as an environment has. [restart]"""
TABLE_COMMENTS = {
    "limits": "The limits of a job whose request sets none.",
    "ceilings": "How far a request may raise its limits.",
    "quota": "What each member of `group` may have at once.",
}

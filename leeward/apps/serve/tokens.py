"""
Tenants and their tokens, in one file: who may call, and how much of everything at once.

Holds:     a token is 256 random bits; the file has its SHA-256, and is this user's alone (mode 0600), as is its folder.
           A token that many have to guess needs no slow hash. Comparisons take the same time for any token.
Derived:   tokens of single sandboxes are HMACs of their ids by a key in the file, so that a server which starts anew knows
           them, and two tenants never have the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from leeward.base.closing import OwnedFd
from leeward.base.file_locks import locked
from leeward.base.user_folders import home_folder
from leeward.base.whole_files import write_whole
from leeward.errors import BadRequest, quoted, reason_of
from leeward.spec.sizes import parse_size

#: The default path, below the user's home.
DEFAULT = ".config/leeward/serve.json"
#: Tenants, bytes of the file, characters of a token that is looked at: at most.
MOST_TENANTS, MOST_FILE, MOST_TOKEN = 1000, 4 << 20, 128
#: Seconds between two looks at the file.
LOOK_S = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_VOLUME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What one tenant may have at once, and in a second."""

    sandboxes: int = 16
    jobs: int = 32  # requests for jobs that run or wait
    streams: int = 256  # calls that aren't answered yet
    connections: int = 512
    rate: int = 200  # calls in a second
    body: int = 64 << 20  # bytes of a request's body
    memory: int = 0  # bytes of a sandbox or a job; 0: the daemon's own limit
    lifetime: int = 24 * 3600  # seconds of a sandbox


@dataclass(frozen=True, slots=True)
class ServeVolume:
    """A folder of the host that sandboxes may show; its path is absolute, in its normal form."""

    name: str
    folder: str
    writable: bool = True


@dataclass(frozen=True, slots=True)
class ServeTenant:
    """A token's owner. The *id* is in the metadata of its sandboxes: another token of the same name has another one."""

    name: str
    id: str
    quota: TenantQuota = TenantQuota()
    profiles: tuple[str, ...] = ()  # besides those that the server offers
    egress: tuple[str, ...] = ()  # policies; the first one is for those who ask for the Internet
    created: float = 0.0
    fleet: bool = False  # it places work on several nodes, so it may ask how busy this one is
    volumes: tuple[ServeVolume, ...] = ()


#: The quota of who has tenants of its own, and bounds them.
FLEET = TenantQuota(sandboxes=10_000, jobs=10_000, streams=100_000, connections=8192, rate=1_000_000)


def quota_of(words: Mapping[str, str], base: TenantQuota = TenantQuota()) -> TenantQuota:
    """*base* with the `name=value` words; BadRequest for other names and for what isn't a number or a size."""
    names = {each.name for each in fields(TenantQuota)}
    found = dict[str, int]()
    for name, value in words.items():
        if name not in names:
            raise BadRequest(f"a quota has {', '.join(sorted(names))}; not {name!r:.40}")
        try:
            found[name] = parse_size(value)
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    return replace(base, **found)


def volume_of(text: str) -> ServeVolume:
    """The volume of `NAME=FOLDER` or `NAME=FOLDER:ro`; BadRequest for anything else."""
    name, equals, folder = text.partition("=")
    path = os.path.normpath(folder.removesuffix(":ro"))
    if not equals or not _VOLUME.fullmatch(name) or not path.startswith("/") or path.strip("/") == "":
        raise BadRequest(f"a volume is NAME=FOLDER, or NAME=FOLDER:ro, by a name of small letters, digits and -, and an"
                         f" absolute path; not {quoted(text[:80])}")
    return ServeVolume(name, path, not folder.endswith(":ro"))


def shared(quota: TenantQuota, servers: int) -> TenantQuota:
    """The part of *quota* of one of so many servers. Sandboxes are counted where they are, for all together."""
    counted = ("jobs", "streams", "connections", "rate")
    return replace(quota, **{name: -(-getattr(quota, name) // servers) for name in counted})


def default_path() -> str:
    return os.environ.get("LEEWARD_SERVE_TOKENS") or os.path.join(home_folder(os.environ), DEFAULT)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class _Stored:
    key: bytes = b""
    tenants: dict[str, ServeTenant] = field(default_factory=dict)  # by the token's hash


class TokenFile:
    """
    The file. Its methods may be called by several programs at the same time.

    Args:
        path: of the file; by default that of the user's.
        servers: how many servers there are with these tenants, which share quotas evenly.
    """

    def __init__(self, path: str | None = None, servers: int = 1) -> None:
        self.servers = servers
        self.path = os.path.abspath(path or default_path())
        self._seen: tuple[int, ...] | None = None
        self._looked = float("-inf")
        self._stored = _Stored()

    # --- the command's --------------------------------------------------------------

    def create(self, name: str, quota: TenantQuota = TenantQuota(), profiles: tuple[str, ...] = (),
               egress: tuple[str, ...] = (), fleet: bool = False, volumes: tuple[ServeVolume, ...] = ()) -> str:
        """A new tenant's token, which nobody can read later. BadRequest if there is one of this name, or no room."""
        if not _NAME.fullmatch(name):
            raise BadRequest(f"{quoted(name[:80])} is no name: at most 64 letters, digits and ._-")
        token = "e2b_" + secrets.token_hex(32)  # E2B's clients want it to begin so
        with self._changing() as stored:
            if any(each.name == name for each in stored.tenants.values()):
                raise BadRequest(f"there is a token for {name}; `leeward serve token revoke {name}` first")
            if len(stored.tenants) >= MOST_TENANTS:
                raise BadRequest(f"there are {MOST_TENANTS} tokens already")
            stored.tenants[_digest(token)] = ServeTenant(name, secrets.token_hex(8), quota, profiles, egress,
                                                          time.time(), fleet, volumes)
        return token

    def revoke(self, name: str) -> bool:
        """Forget a tenant; False if there is none of this name. A server that runs forgets it within LOOK_S seconds."""
        with self._changing() as stored:
            gone = [key for key, each in stored.tenants.items() if each.name == name]
            for key in gone:
                del stored.tenants[key]
        return bool(gone)

    def tenants(self) -> list[ServeTenant]:
        """All of them, by name. BadRequest if the file isn't this user's alone, or isn't what this class writes."""
        self.look()
        return sorted(self._stored.tenants.values(), key=lambda each: each.name)

    # --- the server's ---------------------------------------------------------------

    def look(self) -> bool:
        """Read the file if it has changed; returns whether it has. BadRequest as `tenants`."""
        self._looked = time.monotonic()
        try:
            about = os.stat(self.path, follow_symlinks=False)
            seen: tuple[int, ...] = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)
        except FileNotFoundError:
            seen = ()
        if seen == self._seen:
            return False
        self._stored, self._seen = self._read() if seen else _Stored(), seen
        return True

    def fresh(self) -> None:
        """`look`, if the last time was LOOK_S seconds ago. A file that has become unreadable lets nobody in."""
        if time.monotonic() - self._looked >= LOOK_S:
            try:
                self.look()
            except Exception:
                self._stored, self._seen = _Stored(self._stored.key), None
                raise

    def find(self, token: str) -> ServeTenant | None:
        """The tenant with this token."""
        if len(token) > MOST_TOKEN:
            return None
        asked, found = _digest(token), None
        for key, tenant in self._stored.tenants.items():
            if hmac.compare_digest(key, asked):
                found = tenant
        return self._shared(found)

    def by_id(self, identity: str) -> ServeTenant | None:
        return self._shared(next((each for each in self._stored.tenants.values() if each.id == identity), None))

    def _shared(self, tenant: ServeTenant | None) -> ServeTenant | None:
        if tenant is None or self.servers == 1:
            return tenant
        return replace(tenant, quota=shared(tenant.quota, self.servers))

    def derived(self, purpose: str, sandbox: str) -> str:
        """The token of one sandbox for a *purpose*."""
        return hmac.new(self._stored.key, f"{purpose}:{sandbox}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def is_derived(self, purpose: str, sandbox: str, token: str) -> bool:
        return hmac.compare_digest(self.derived(purpose, sandbox).encode(), token.encode("utf-8", "replace"))

    def make_key(self) -> None:
        """Make the file with its key if there is none, for a server without tokens."""
        self.look()
        if not self._stored.key:
            with self._changing():
                pass
            self.look()

    # --- the file -------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[_Stored]:
        folder = os.path.dirname(self.path)
        os.makedirs(folder, 0o700, exist_ok=True)
        with OwnedFd(locked(f"{self.path}.lock", wait=True)):
            stored = self._read() if os.path.lexists(self.path) else _Stored()
            stored.key = stored.key or secrets.token_bytes(32)
            yield stored
            rows = [{"hash": key, **asdict(each)} for key, each in stored.tenants.items()]
            text = json.dumps({"key": stored.key.hex(), "tenants": rows}, indent=1).encode()
            write_whole(self.path, text)

    def _read(self) -> _Stored:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise BadRequest(f"{self.path}: can't be read: {reason_of(error)}") from None
        with open(fd, "rb") as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
                raise BadRequest(f"{self.path}: has to be a file of yours that nobody else can read: chmod 600")
            content = file.read(MOST_FILE + 1)
        try:
            value = json.loads(content)
            key = bytes.fromhex(value["key"])
            tenants = {str(row["hash"]): _tenant(row) for row in value["tenants"]}
            if len(key) != 32 or len(content) > MOST_FILE:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise BadRequest(f"{self.path}: isn't what `leeward serve token` writes") from None
        return _Stored(key, tenants)


def _tenant(row: Mapping[str, Any]) -> ServeTenant:
    quota = TenantQuota(**{name: int(value) for name, value in row["quota"].items()})
    return ServeTenant(str(row["name"]), str(row["id"]), quota, tuple(map(str, row["profiles"])),
                       tuple(map(str, row["egress"])), float(row["created"]), row.get("fleet", False) is True,
                       tuple(ServeVolume(str(each["name"]), str(each["folder"]), each["writable"] is True)
                             for each in row.get("volumes", ())))

"""
Environments that `leeward env` has made: recipes, manifests and names.

The folder has `built/HASH`, a virtual environment each, named by the hash of what was asked for; `built/HASH.json`, its
manifest, which is written last: without it the environment is half-made; and `names/NAME.json`, what a name stands
for. Two names that asked for the same share one environment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from leeward.base.dataclass import dataclass, field, names
from leeward.base.user_folders import user_folder
from leeward.errors import BadRequest
from leeward.spec.pool_key import is_name

#: Bytes of a manifest or a name, at most.
MOST_WRITTEN = 1 << 20
_FORMAT = 1
_HASH = r"[0-9a-f]{32}"
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_Stored = TypeVar("_Stored")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is made from. Its hash names the environment."""

    requirements: tuple[str, ...]  # requirements as pip reads them, each a line
    python: str  # the real path of the base interpreter
    version: tuple[int, int]  # the version of Python, major and minor
    from_source: bool = False  # packages may be built from source
    index: tuple[str, ...] = ()  # its URL, or folders with packages; part of the hash: two indexes may differ
    prefix: str = ""  # the folder with the library of that interpreter; "" for the daemon's own

    @property
    def hash(self) -> str:
        """32 hexadecimal digits. The order of the requirements and blanks in them don't matter."""
        import hashlib  # a daemon without environments doesn't pay for it, nor for json

        lines = sorted("".join(line.split()) for line in self.requirements)
        text = json.dumps([_FORMAT, lines, self.python, self.version, self.from_source, list(self.index)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of an environment that was made."""

    python: str
    version: tuple[int, int]
    requirements: tuple[str, ...]
    packages: Mapping[str, str]  # name and version of all that pip has installed
    size: int  # bytes of its files
    content: str  # SHA-256 of its tree
    created: int  # seconds since 1970
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """The environment that a name stands for, and how it is used."""

    built: str  # the environment's hash
    preload: tuple[str, ...] = field(default_factory=tuple)  # modules to import before any job
    min: int = 1  # the number of workers that are kept while the environment is in use
    max: int = 4  # the most workers


def default_folder(environ: Mapping[str, str], uid: int, what: str = "environments") -> str:
    """Return the folder with the environments, or *what*, of *uid*, unless the configuration names another one."""
    if uid == 0:
        return f"/var/lib/leeward/{what}"
    return user_folder(environ, "DATA", "leeward", what)


def built_path(folder: str, hash: str) -> str:
    return os.path.join(folder, "built", hash)


def manifest_path(folder: str, hash: str) -> str:
    return os.path.join(folder, "built", f"{hash}.json")


def name_path(folder: str, name: str) -> str:
    """The file of a name; BadRequest if no environment can have it."""
    if not is_name(name):
        raise BadRequest(f"{name!r:.80} can't be an environment's name: letters, digits, '.', '_' and '-', 64 at most,"
                         " a letter first")
    return os.path.join(folder, "names", f"{name}.json")


def packages_name(hash: str) -> str:
    return f"packages-{hash}"


def is_packages_name(name: str) -> bool:
    """Whether this name was made for `packages=`. `prune` removes such names."""
    return name.startswith("packages-") and is_hash(name.removeprefix("packages-"))


def unencrypted_host(index: str) -> tuple[str, ...]:
    """The host of an index without TLS that the operator has named: pip uses it only if it is named as trusted."""
    from urllib.parse import urlsplit  # not for a daemon, which never asks this

    host = urlsplit(index)
    return (host.hostname,) if host.scheme == "http" and host.hostname else ()


def is_hash(text: str) -> bool:
    return bool(re.fullmatch(_HASH, text))


def write_named(named: Named) -> bytes:
    return json.dumps({name: getattr(named, name) for name in names(Named)}, indent=1).encode()


def read_named(data: bytes) -> Named:
    """What `write_named` has written; else BadRequest."""
    def make(found: dict[str, Any]) -> Named:
        least, most = whole_of(found["min"], 1, 256), whole_of(found["max"], 1, 256)
        return Named(_text(found["built"], _HASH), tuple(_text(name, _MODULE) for name in list_of(found["preload"])),
                     least, max(least, most))
    return _read(data, make)


def write_manifest(manifest: Manifest) -> bytes:
    fields = {name: getattr(manifest, name) for name in names(Manifest) if name != "prefix" or manifest.prefix}
    return json.dumps({"format": _FORMAT, **fields}, indent=1).encode()


def read_manifest(data: bytes) -> Manifest:
    """What `write_manifest` has written; else BadRequest."""
    def make(found: dict[str, Any]) -> Manifest:
        if found["format"] != _FORMAT:
            raise ValueError("another version of leeward has written it")
        major, minor = list_of(found["version"])
        return Manifest(_text(found["python"]), (whole_of(major, 0, 99), whole_of(minor, 0, 99)),
                        tuple(_text(line) for line in list_of(found["requirements"])),
                        {_text(name): _text(version) for name, version in object_of(found["packages"]).items()},
                        whole_of(found["size"], 0, 1 << 60), _text(found["content"]),
                        whole_of(found["created"], 0, 1 << 60), _text(found.get("prefix", "")))
    return _read(data, make)


def _read(data: bytes, make: Callable[[dict[str, Any]], _Stored]) -> _Stored:
    try:
        if len(data) > MOST_WRITTEN:
            raise ValueError("it is too long")
        return make(object_of(json.loads(data)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"not a record of an environment: {error}; `leeward env remove` removes it") from None


def _text(value: object, form: str = "") -> str:
    if not isinstance(value, str) or (form and not re.fullmatch(form, value)):
        raise TypeError(f"{value!r:.60}")
    return value


# --- values of a record, also of an image's; TypeError for others ------------------


def object_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60}")
    return value


def list_of(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.60}")
    return value


def whole_of(value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TypeError(f"{value!r:.60}")
    return value

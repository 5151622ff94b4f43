"""
Images that `leeward image` has made: their records.

The folder has `layers/DIGEST`, an unpacked layer each, named by the SHA-256 of its archive; `layers/DIGEST.json`, its
record, written last: without it the layer is half-made; `images/HASH.json`, of what layers an image is and how its
programs are started; and `names/NAME.json`, what image a name stands for. Images share layers; users share nothing.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from leeward.errors import BadRequest
from leeward.spec.pool_key import is_name
from leeward.spec.stored import list_of, object_of, whole_of

#: Bytes of a record, at most; layers of an image, lower layers of an overlay; users of an image that have names.
MOST_WRITTEN, MOST_LAYERS, MOST_USERS = 4 << 20, 128, 4096
#: An id inside, at most: the steps by which a sandbox is made compare ids with what the kernel returns, as an int.
_MOST_ID = (1 << 31) - 1
#: A number in a record, at most.
_MOST = 1 << 60
_FORMAT = 1
_Record = TypeVar("_Record")
_DIGEST, _HASH = r"[0-9a-f]{64}", r"[0-9a-f]{32}"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How an image's programs are started: what its builder wrote."""

    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/"
    user: str = ""  # a name or number, perhaps ":" and a group's; "" is root
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """The record of an unpacked layer."""

    size: int  # bytes of its files
    names: int  # files, folders and links
    implied: tuple[str, ...] = ()  # folders that are in none of its members, but above one
    left_out: Mapping[str, int] = field(default_factory=dict)  # what was dropped, with its number


@dataclass(frozen=True, slots=True)
class Image:
    """The record of an image."""

    layers: tuple[str, ...]  # digests, the lowest first
    config: ImageConfig
    users: Mapping[str, tuple[int, int, str]]  # by name: uid, gid and home
    groups: Mapping[str, int]
    source: str  # where it came from
    created: int  # seconds since 1970, when it was imported

    @property
    def hash(self) -> str:
        """32 hexadecimal digits: of the layers, and of how programs are started."""
        import hashlib  # a daemon without images doesn't pay for it

        text = json.dumps([_FORMAT, self.layers, asdict(self.config)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def identity(self, user: str) -> tuple[int, int, str]:
        """
        The uid, the gid and the home of *user*, "" for the image's own: a name or number, perhaps ":" and a group's;
        BadRequest for a name that the image hasn't.
        """
        asked, _, group = (user or self.config.user or "0").partition(":")
        if _is_id(asked):  # before names: an image may have one that is a number, and root's
            found = [row for row in self.users.values() if row[0] == int(asked)]
            uid, gid, home = found[0] if found else (int(asked), 0, "/")
        elif asked in self.users:
            uid, gid, home = self.users[asked]
        else:
            raise BadRequest(f"the image has no user {asked!r:.80}")
        if _is_id(group):
            gid = int(group)
        elif group in self.groups:
            gid = self.groups[group]
        elif group:
            raise BadRequest(f"the image has no group {group!r:.80}")
        return uid, gid, home


def layer_path(folder: str, digest: str) -> str:
    return os.path.join(folder, "layers", digest)


def layer_record_path(folder: str, digest: str) -> str:
    return os.path.join(folder, "layers", f"{digest}.json")


def image_path(folder: str, hash: str) -> str:
    return os.path.join(folder, "images", f"{hash}.json")


def name_path(folder: str, name: str) -> str:
    """The file of a name; BadRequest if no image can have it."""
    if not is_name(name):
        raise BadRequest(f"{name!r:.80} can't be an image's name: letters, digits, '.', '_' and '-', 64 at most, a letter"
                         " first")
    return os.path.join(folder, "names", f"{name}.json")


def is_digest(text: str) -> bool:
    return bool(re.fullmatch(_DIGEST, text))


def users_of(passwd: bytes) -> dict[str, tuple[int, int, str]]:
    """The users in an image's /etc/passwd, the first of each name; lines that aren't such are passed over."""
    found: dict[str, tuple[int, int, str]] = {}
    for line in passwd.split(b"\n"):
        fields = line.decode("utf-8", "replace").split(":")
        if (len(fields) >= 6 and len(found) < MOST_USERS and _is_id(fields[2]) and _is_id(fields[3])
                and fields[0].isprintable() and fields[0]):
            home = fields[5] if fields[5].startswith("/") and fields[5].isprintable() else "/"
            found.setdefault(fields[0][:64], (int(fields[2]), int(fields[3]), home[:1024]))
    return found


def groups_of(group: bytes) -> dict[str, int]:
    """The groups in an image's /etc/group."""
    found: dict[str, int] = {}
    for line in group.split(b"\n"):
        fields = line.decode("utf-8", "replace").split(":")
        if (len(fields) >= 3 and len(found) < MOST_USERS and _is_id(fields[2])
                and fields[0].isprintable() and fields[0]):
            found.setdefault(fields[0][:64], int(fields[2]))
    return found


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _MOST_ID


def config_of(about: object) -> ImageConfig:
    """The ImageConfig in an image's configuration, an object of JSON; ValueError or TypeError for what it can't be."""
    found = object_of(about)
    own = object_of(found.get("config") or {})
    env = []
    for row in _texts(own.get("Env"), 1024):
        name, equals, value = row.partition("=")
        if name and equals and "\0" not in row:
            env.append((name, value))
    cwd = _text(own.get("WorkingDir") or "/", 4095)
    return ImageConfig(tuple(dict(env).items()), posixpath.normpath("/" + cwd.lstrip("/")), _text(own.get("User") or "", 256),
                  _texts(own.get("Entrypoint"), 1024), _texts(own.get("Cmd"), 1024))


# --- records ----------------------------------------------------------------------


def write_name(hash: str) -> bytes:
    return json.dumps({"image": hash}).encode()


def read_name(data: bytes) -> str:
    """What `write_name` has written; else BadRequest, as for the others."""
    return _read(data, lambda found: _text(found["image"], 32, _HASH))


def write_layer(layer: LayerRecord) -> bytes:
    return json.dumps({"format": _FORMAT, **asdict(layer)}).encode()


def read_layer(data: bytes) -> LayerRecord:
    return _read(data, lambda found: LayerRecord(
        whole_of(found["size"], 0, _MOST), whole_of(found["names"], 0, _MOST), _texts(found["implied"], 1 << 20, path=True),
        {_text(what, 100): whole_of(number, 0, _MOST) for what, number in object_of(found["left_out"]).items()}))


def write_image(image: Image) -> bytes:
    return json.dumps({"format": _FORMAT, **asdict(image)}, indent=1).encode()


def read_image(data: bytes) -> Image:
    def make(found: dict[str, Any]) -> Image:
        config = object_of(found["config"])
        layers = tuple(_text(each, 64, _DIGEST) for each in list_of(found["layers"]))
        if not 0 < len(layers) <= MOST_LAYERS:
            raise ValueError(f"{len(layers)} layers")
        return Image(
            layers,
            ImageConfig(tuple((_text(name, 1 << 17), _text(value, 1 << 17))
                              for name, value in map(list_of, list_of(config["env"]))),
                        _text(config["cwd"], 4096, "/.*"), _text(config["user"], 256),
                        _texts(config["entrypoint"], 1024), _texts(config["cmd"], 1024)),
            {_text(name, 64): (whole_of(uid, 0, _MOST_ID), whole_of(gid, 0, _MOST_ID), _text(home, 1024, "/.*"))
             for name, (uid, gid, home) in object_of(found["users"]).items()},
            {_text(name, 64): whole_of(gid, 0, _MOST_ID) for name, gid in object_of(found["groups"]).items()},
            _text(found["source"], 4096, path=True), whole_of(found["created"], 0, _MOST))
    return _read(data, make)


def _read(data: bytes, make: Callable[[dict[str, Any]], _Record]) -> _Record:
    try:
        if len(data) > MOST_WRITTEN:
            raise ValueError("it is too long")
        found = object_of(json.loads(data))
        if "image" not in found and found["format"] != _FORMAT:
            raise ValueError("another version of leeward has written it")
        return make(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"not a record of an image ({type(error).__name__}); `leeward image remove` removes it") from None


def _text(value: object, most: int, form: str = "", *, path: bool = False) -> str:
    """*value*, if it is a text of at most *most* characters, in UTF-8 unless it is a *path*; else TypeError, ValueError."""
    if (not isinstance(value, str) or len(value) > most or "\0" in value
            or (form and not re.fullmatch(form, value, re.DOTALL))):
        raise TypeError("no text of this kind")
    if not path:
        value.encode()  # JSON may have half of a pair of surrogates
    return value


def _texts(value: object, most: int, *, path: bool = False) -> tuple[str, ...]:
    found = tuple(_text(each, 1 << 17, path=path) for each in list_of(value or []))
    if len(found) > most:
        raise ValueError("too many texts")
    return found

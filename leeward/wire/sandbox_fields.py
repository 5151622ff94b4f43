"""
The fields of requests about live sandboxes: a check for each, and the bounds that it applies.

Trust:     none, as in `fields`. A path is text for a process inside the sandbox: the daemon opens none of them.
"""

from __future__ import annotations

import re

from leeward.errors import BadRequest, brief
from leeward.spec.folders import MOST as MOST_FOLDERS
from leeward.spec.folders import Folder
from leeward.spec.profiles.agent import MOST_NAMES
from leeward.wire.fields import MAX_IDLE, MAX_NAME, binary_of, entries, number, seconds, text, total
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH

#: Characters of a path, at most: PATH_MAX of the kernel, with its NUL.
MAX_PATH = 4095

#: Metadata of a sandbox: entries, and characters of all together, at most.
MAX_METADATA, MAX_METADATA_TOTAL = 64, 1 << 14

#: Arguments of a program, at most, and characters of one: the kernel takes 128 KiB (MAX_ARG_STRLEN).
MAX_ARGV, MAX_ARGUMENT, MAX_ARGV_TOTAL = 1024, (128 << 10) - 1, 2 << 20

#: Bytes of one write to a process.
MAX_WRITE = 1 << 20

#: Seconds that one request may wait for output or an end.
MAX_WAIT = 3600.0

#: Bytes of a snapshot, and of what is told of it; bytes of a page.
MAX_SNAPSHOT, MAX_FACTS, PAGE = 1 << 40, 256 << 10, 4096
#: Seconds since the epoch.
MAX_MOMENT = float(1 << 40)

#: Rows, and columns, of a terminal: struct winsize has 16 bits for each.
MAX_SIDE = (1 << 16) - 1

#: Characters of a checkpoint's name; paths of one request to discard, and bytes of all together.
MAX_CHECKPOINT = 64
MAX_DISCARDED, MAX_DISCARDED_TOTAL = 1024, 48 << 10

#: Fields of a mount.
_OF_MOUNT = {"path": str, "target": str, "writable": bool, "overlay": bool, "file": bool}

#: The most seconds that a sandbox may ask to live.
MAX_LIFETIME = 7 * 86400.0


def sandbox(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) != ID_LENGTH or value.strip(ID_ALPHABET):
        raise BadRequest(f"{what} must be an id of {ID_LENGTH} characters, not {brief(value)}")
    return value


def snapshot(value: object, what: str) -> str:
    """The id of a snapshot, or "" for none."""
    return "" if value == "" else sandbox(value, what)


def sizes(value: object, what: str) -> tuple[int, int]:
    """The bytes of a snapshot's state, and of its zygote's memory: whole pages."""
    found = [_bytes(each, what) for each in entries(value, list, what, 2)]
    if len(found) != 2 or not found[0] or any(each % PAGE for each in found):
        raise BadRequest(f"{what} must be two numbers of bytes of whole pages, the first not 0")
    return found[0], found[1]


def metadata(value: object, what: str) -> dict[str, str]:
    data: dict[str, str] = entries(value, dict, what, MAX_METADATA)
    for key, item in data.items():
        text(key, f"a key of {what}", MAX_NAME)
        text(item, f"{what} {brief(key, 80)}", MAX_METADATA_TOTAL)
    if sum(map(len, [*data, *data.values()])) > MAX_METADATA_TOTAL:
        raise BadRequest(f"{what} has more than {MAX_METADATA_TOTAL} characters together")
    return data


def mounts(value: object, what: str) -> tuple[Folder, ...]:
    """Check only the types; `spec.folders.check` checks the values."""
    found = []
    for row in entries(value, list, what, MOST_FOLDERS):
        fields: dict[str, object] = entries(row, dict, "a mount", len(_OF_MOUNT))
        for name, item in fields.items():
            kind = _OF_MOUNT.get(name)
            if kind is None:
                raise BadRequest(f"a mount has no field {brief(name)}")
            if type(item) is not kind:
                raise BadRequest(f"{name} of a mount must be {'text' if kind is str else 'true or false'}")
        if not fields.keys() >= {"path", "target"}:
            raise BadRequest("a mount needs a path and a target")
        found.append(Folder(**fields))  # type: ignore[arg-type]  # of these types, by the lines above
    return tuple(found)


def argv(value: object, what: str) -> tuple[str, ...]:
    words = [text(item, "an argument", MAX_ARGUMENT) for item in entries(value, list, what, MAX_ARGV)]
    if not words or not words[0]:
        raise BadRequest(f"{what} must begin with a program")
    total(words, what, MAX_ARGV_TOTAL)
    return tuple(words)


def shell(value: object, what: str) -> str:
    return text(value, what, MAX_ARGUMENT)


def path(value: object, what: str) -> str:
    found = text(value, what, MAX_PATH)
    if not found:
        raise BadRequest(f"{what} must not be empty")
    return found


def user(value: object, what: str) -> str:
    return text(value, what, MAX_NAME)


def paths(value: object, what: str) -> tuple[str, ...]:
    """Absolute paths."""
    found = tuple(path(item, f"a path of {what}") for item in entries(value, list, what, MOST_NAMES))
    for one in found:
        if not one.startswith("/"):
            raise BadRequest(f"{what} must have absolute paths, not {brief(one, 80)}")
    return found


def path_in_overlay(value: object, what: str) -> bytes:
    """A path in an overlay, as the wire has it: bytes, relative, without `.`, `..` and empty names; else BadRequest."""
    if isinstance(value, (bytes, memoryview)) and 0 < len(value) <= 4095:
        path = bytes(value)
        if b"\0" not in path and not any(part in (b"", b".", b"..") for part in path.split(b"/")):
            return path
    raise BadRequest(f"{what} must be a relative path, as binary, without empty names, '.' and '..'")


def paths_in_overlay(value: object, what: str) -> tuple[bytes, ...]:
    paths = tuple(path_in_overlay(item, f"each of {what}") for item in entries(value, list, what, MAX_DISCARDED))
    if sum(map(len, paths)) > MAX_DISCARDED_TOTAL:
        raise BadRequest(f"{what} have more than {MAX_DISCARDED_TOTAL} bytes together")
    return paths


def checkpoint(value: object, what: str) -> str:
    """A name of a checkpoint, or BadRequest."""
    name = text(value, "a checkpoint's name", MAX_CHECKPOINT)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise BadRequest(f"a checkpoint's name must be letters, digits, '_', '-' and '.', not {brief(name, 80)}")
    return name


def terminal(value: object, what: str) -> tuple[int, int]:
    sides = entries(value, list, what, 2)
    if len(sides) != 2:
        raise BadRequest(f"{what} must be its rows and columns, not {brief(value)}")
    return side(sides[0], "rows"), side(sides[1], "columns")


wait = seconds(0.0, MAX_WAIT)
cpu_time = seconds(0.001, MAX_WAIT)
idle = seconds(0.001, MAX_IDLE)
lifetime = seconds(0.001, MAX_LIFETIME)
data = binary_of(MAX_WRITE)
facts = binary_of(MAX_FACTS)
moment = seconds(0.0, MAX_MOMENT)
#: Rows, or columns, of a terminal.
side = number(1, MAX_SIDE)
port = number(1, 65535)
#: 64 is SIGRTMAX; 0 only asks whether the process is there, which process_list tells.
signal = number(1, 64)
_bytes = number(0, MAX_SNAPSHOT)

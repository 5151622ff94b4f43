"""
The fields of requests: a check for each, and the bounds that it applies.

Trust:     none. A check takes any value that MessagePack can hold, with the name of its field, and returns it with the
           type that the daemon uses, or raises BadRequest.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

from leeward.errors import BadRequest, brief
from leeward.spec.job import MAX_WAIT_S, WAIT_S
from leeward.spec.pool_key import MOST_NAME, is_name
from leeward.wire.function_frames import MAX_BODY, MAX_CALLS, MAX_NAMES
from leeward.wire.function_frames import MAX_NAME as MAX_FUNCTION_NAME
from leeward.wire.job_frames import is_plain_name
from leeward.wire.patterns import MOST_ALTERNATIVES, alternatives, below_workspace
from leeward.wire.schema import MAX_ID, Check, is_id

#: Bytes of source text. CPython takes minutes and gigabytes to compile more.
MAX_CODE = 16 << 20

#: Bytes of standard input, and bytes of all input files together. The frame bounds their sum.
MAX_STDIN = MAX_FILES = 64 << 20

#: Input files in one request.
MAX_FILE_COUNT = 1024

#: Of arguments, and of environment variables: their number, and the characters of all together.
MAX_STRINGS, MAX_STRING_TOTAL = 1024, 1 << 20

#: Patterns of files to bring back, at most, and characters of one.
MAX_PATTERNS, MAX_PATTERN = 64, 1100

#: Characters of a name that tracebacks show, or of a module's name, at most.
MAX_NAME = 255

#: Characters of the label by which a client knows a job, at most.
MAX_LABEL = 64

#: Bytes of a memory file in one answer to `kept_read`, at most.
MAX_PIECE = 1 << 20

#: The most seconds without a job that a session may ask for. The daemon's own bound is lower.
MAX_IDLE = 86400.0


def code(value: object, what: str) -> bytes:
    # Text or bytes: bytes may declare their encoding in a comment, as a file may (PEP 263).
    return binary(value.encode() if isinstance(value, str) else value, what, MAX_CODE)


def module(value: object, what: str) -> str:
    name = text(value, what, MAX_NAME)
    if not name.isprintable() or "/" in name or not all(name.split(".")):
        raise BadRequest(f"{what} {brief(name, 80)} is no module's name")
    return name


def name(value: object, what: str) -> str:
    name = text(value, what, MAX_NAME)
    if not name or not name.isprintable():
        raise BadRequest(f"{what} {brief(name, 80)} can't be shown in a traceback")
    return name


def label(value: object, what: str) -> str:
    label = text(value, what, MAX_LABEL)
    # It goes into logs: nothing that a reader of them could take for something else.
    if not label.isascii() or not all(char.isalnum() or char in "._:/@-" for char in label):
        raise BadRequest(f"{what} {brief(label, 80)} may hold letters, digits and ._:/@- alone")
    return label


def named(value: object, what: str) -> str:
    """The check of the name of an environment, a profile or a policy of egress."""
    name = text(value, what, MOST_NAME)
    if not is_name(name):
        raise BadRequest(f"{what} {name!r:.80} is no name: it has letters, digits and ._- alone, a letter first")
    return name


def args(value: object, what: str) -> tuple[str, ...]:
    args = [text(item, "an argument") for item in entries(value, list, what, MAX_STRINGS)]
    total(args, what)
    return tuple(args)


def env(value: object, what: str) -> dict[str, str]:
    env: dict[str, str] = entries(value, dict, what, MAX_STRINGS)
    for key, item in env.items():
        if not text(key, "a variable's name") or "=" in key:
            raise BadRequest(f"{what}: {brief(key, 80)} can't be a variable's name")
        text(item, f"{what} {brief(key, 80)}")
    total([*env, *env.values()], what)
    return env


def files(value: object, what: str) -> dict[str, bytes | memoryview]:
    given: dict[str, bytes | memoryview] = entries(value, dict, what, MAX_FILE_COUNT)
    files = {below_workspace(name): content for name, content in given.items()}
    if len(files) < len(given):
        raise BadRequest(f"{what}: two names are those of the same file")
    total = 0
    for name, content in files.items():
        if not is_plain_name(name):
            raise BadRequest(f"{what}: {brief(name, 80)} is no plain path below /workspace{_why_not(name)}")
        total += len(large(content, f"file {brief(name, 80)}", MAX_FILES))
    if total > MAX_FILES:
        raise BadRequest(f"{what} have {total} bytes together; at most {MAX_FILES} are taken")
    for name in files:
        parent = name
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in files:
                raise BadRequest(f"{what}: {brief(parent, 80)} is a file, and a folder of {brief(name, 80)}")
    return files


def collect(value: object, what: str) -> tuple[str, ...]:
    patterns: list[str] = []
    left = MOST_ALTERNATIVES
    for given in entries(value, list, what, MAX_PATTERNS):
        pattern = below_workspace(text(given, f"a pattern of {what}", MAX_PATTERN))
        try:
            parts = alternatives(pattern, left)
        except ValueError:
            raise BadRequest(f"{what}: the braces of its patterns stand for more than {MOST_ALTERNATIVES}") from None
        left -= len(parts) if len(parts) > 1 else 0
        for part in parts:
            if part != "." and not is_plain_name(part.removesuffix("/")):
                raise BadRequest(f"{what}: {brief(given, 80)} is no pattern of plain paths below /workspace"
                                 f"{_why_not(part)}")
        patterns.append(pattern)
    return tuple(patterns)


def stdin(value: object, what: str) -> bytes | memoryview:
    return large(value, what, MAX_STDIN)


def limits(value: object, what: str) -> dict[str, Any]:
    limits: dict[str, Any] = entries(value, dict, what, 16)
    return limits  # spec.limits checks names and values, against the daemon's ceilings


def session(value: object, what: str) -> int:
    if not is_id(value):
        raise BadRequest(f"{what} must be the number of a session")
    assert isinstance(value, int)
    return value


def idle(value: object, what: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= MAX_IDLE:  # type: ignore[operator]  # NaN compares false
        raise BadRequest(f"{what} must be seconds above 0, at most {MAX_IDLE:.0f}, not {brief(value)}")
    return float(value)  # type: ignore[arg-type]  # a number, by the line above


def form(value: object, what: str) -> str:
    if value != "json":
        raise BadRequest(f"{what} must be json, or left out, not {brief(value)}")
    return "json"


def target(value: object, what: str) -> int:
    if not is_id(value):
        raise BadRequest(f"{what} must be the id of a request")
    assert isinstance(value, int)
    return value


def functions(value: object, what: str) -> dict[str, Any]:
    asked: dict[str, Any] = entries(value, dict, what, 3)
    for key in asked:
        if key not in ("names", "wait", "stop_clock"):
            raise BadRequest(f"{what} has no field {brief(key)}; it has names, wait and stop_clock")
    names = [function_name(item) for item in entries(asked.get("names"), list, "the functions' names", MAX_NAMES)]
    if not names or len(set(names)) < len(names):
        raise BadRequest(f"{what} needs names, each of them once")
    wait, stop = asked.get("wait", WAIT_S), asked.get("stop_clock", False)
    if type(wait) not in (int, float) or not 0 < wait <= MAX_WAIT_S:  # NaN compares false
        raise BadRequest(f"a call's wait must be seconds above 0, at most {MAX_WAIT_S:.0f}, not {brief(wait)}")
    if not isinstance(stop, bool):
        raise BadRequest(f"stop_clock must be true or false, not {brief(stop)}")
    return {"names": tuple(names), "wait": float(wait), "stop_clock": stop}


def function_name(value: object) -> str:
    name = text(value, "a function's name", MAX_FUNCTION_NAME)
    if not name.isidentifier() or iskeyword(name) or name.startswith("__"):
        raise BadRequest(f"{brief(name, 80)} can't be a function's name")
    return name


def outcome(value: object, what: str) -> str:
    if value not in ("returned", "raised", "broken"):
        raise BadRequest(f"{what} must be returned, raised or broken, not {brief(value)}")
    assert isinstance(value, str)
    return value


def flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{what} must be true or false, not {brief(value)}")
    return value


def number(least: int, most: int) -> Check[int]:
    """A check of a whole number."""
    bounds = f"from {least} to {most}" if least >= 0 else f"from 0 to {most}, or {least}"

    def check(value: object, what: str) -> int:
        if type(value) is not int or not least <= value <= most:
            raise BadRequest(f"{what} must be a whole number {bounds}, not {brief(value)}")
        return value
    return check


def seconds(least: float, most: float) -> Check[float]:
    """A check of a time."""
    bounds = f"from {least:g} to {most:.0f}" if least else f"at most {most:.0f}"

    def check(value: object, what: str) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]  # NaN compares false
            raise BadRequest(f"{what} must be seconds, {bounds}, not {brief(value)}")
        return float(value)  # type: ignore[arg-type]  # a number, by the line above
    return check


def binary_of(most: int) -> Check[bytes]:
    """A check of binary with at most *most* bytes."""
    return lambda value, what: binary(value, what, most)


#: A number of something: a process, a kernel, an event, a byte.
whole = number(0, MAX_ID)
call = number(1, MAX_CALLS)
piece = number(1, MAX_PIECE)
answer = binary_of(MAX_BODY)


def _why_not(name: object) -> str:
    if not isinstance(name, str):
        return ""
    if name.startswith("/"):
        return ": it begins with / and not with /workspace/"
    if ".." in name.split("/"):
        return ": it has .. in it"
    return ""


def text(value: object, what: str, limit: int = MAX_STRING_TOTAL) -> str:
    if not isinstance(value, str):
        kind = "bytes" if isinstance(value, memoryview) else type(value).__name__
        raise BadRequest(f"{what} must be text, not {kind}")
    if "\0" in value:
        raise BadRequest(f"{what} has a NUL in it")
    if len(value) > limit:
        raise BadRequest(f"{what} has {len(value)} characters; at most {limit} are taken")
    return value


def binary(value: object, what: str, limit: int) -> bytes:
    return bytes(large(value, what, limit))  # the same object, if it is no view


def large(value: object, what: str, limit: int) -> bytes | memoryview:
    """As `binary`, for values that may stay views of the frame that they came in."""
    if not isinstance(value, (bytes, memoryview)):
        raise BadRequest(f"{what} must be binary, not {type(value).__name__}")
    if len(value) > limit:
        raise BadRequest(f"{what} has {len(value)} bytes; at most {limit} are taken")
    return value


def entries(value: object, kind: type, what: str, limit: int) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(f"{what} must be {'a map' if kind is dict else 'an array'}, not {type(value).__name__}")
    if len(value) > limit:  # type: ignore[arg-type]  # a dict or a list, by the check above
        raise BadRequest(f"{what} has {len(value)} entries; at most {limit} are taken")  # type: ignore[arg-type]
    return value


def total(strings: list[str], what: str, most: int = MAX_STRING_TOTAL) -> None:
    total = sum(map(len, strings))
    if total > most:
        raise BadRequest(f"{what} has {total} characters together; at most {most} are taken")

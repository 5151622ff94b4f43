"""
The options of `execute`, and what becomes of them: fields of a request.

Runs in:   the clients. What is wrong with a value is the daemon's to say, once for all
           languages; here only what Python's own types would hide is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack

from leeward.errors import RequestRejected
from leeward.spec.sizes import parse_size


class Options(TypedDict, total=False):
    """
    What both clients' `execute` takes beside the code; Client.execute says what each means.
    """

    module: str | None
    args: Iterable[str]
    env: Mapping[str, str] | None
    files: Mapping[str, bytes] | None
    stdin: bytes | str
    collect: Iterable[str]
    timeout: float | None
    memory: int | str | None
    processes: int | None
    output: int | str | None
    name: str | None


class Limiting(TypedDict, total=False):
    """
    Limits, as a caller says them.
    """

    memory: int | str | None
    processes: int | None
    timeout: float | None
    output: int | str | None


class SessionOptions(Limiting, total=False):
    """
    What both clients' `session` takes; Client.session says what each means.
    """

    idle: float | None


class TurnOptions(TypedDict, total=False):
    """
    What a session's `execute` takes beside the code; as for Client.execute.
    """

    args: Iterable[str]
    env: Mapping[str, str] | None
    files: Mapping[str, bytes] | None
    collect: Iterable[str]
    timeout: float | None
    output: int | str | None
    name: str | None


def session_fields(*, idle: float | None = None, **limits: Unpack[Limiting]) -> dict[str, Any]:
    """
    The fields of a session_open request.

    Raises:
        RequestRejected: a size that is none.
    """
    asked = execute_fields(None, **limits).get("limits")
    return {**({"limits": asked} if asked else {}), **({"idle": idle} if idle is not None else {})}


def turn_fields(session: int, code: str | bytes, **options: Unpack[TurnOptions]) -> dict[str, Any]:
    """
    The fields of an execute request for *session*.

    Raises:
        RequestRejected: as `execute_fields`.
    """
    if not options:  # most often, and each line counts for a client that was idle
        return {"session": session, "code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code}
    return {"session": session, **execute_fields(code, **options)}


def fields_of(code: str | bytes | None, options: Options) -> dict[str, Any]:
    """
    As `execute_fields`; of code alone, which is most calls, in one step.
    """
    if not options and isinstance(code, (str, bytes)):
        return {"code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code}
    return execute_fields(code, **options)


def execute_fields(
    code: str | bytes | None,
    *,
    module: str | None = None,
    name: str | None = None,
    args: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
    stdin: bytes | str = b"",
    collect: Iterable[str] = (),
    timeout: float | None = None,
    memory: int | str | None = None,
    processes: int | None = None,
    output: int | str | None = None,
) -> dict[str, Any]:
    """
    The fields of an execute request; those that weren't given are left out.

    Raises:
        RequestRejected: a size that is none, one string where several are meant, or a value of a wrong type.
    """
    for what, strings in (("args", args), ("collect", collect)):
        if isinstance(strings, (str, bytes)):
            raise RequestRejected(f"{what} takes several strings, not one: [{strings!r:.40}]")
    try:
        limits = {
            "memory": parse_size(memory) if isinstance(memory, str) else memory,
            "output": parse_size(output) if isinstance(output, str) else output,
            "processes": processes,
            "time": timeout,
        }
        fields: dict[str, Any] = {
            "code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code,
            "module": module,
            "name": name,
            "args": list(args),
            "env": dict(env or {}),
            "files": {key: _binary(content) for key, content in (files or {}).items()},
            "stdin": stdin.encode() if isinstance(stdin, str) else _binary(stdin),
            "collect": list(collect),
            "limits": {key: value for key, value in limits.items() if value is not None},
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise RequestRejected(str(error)) from None
    return {key: value for key, value in fields.items() if value or (key == "code" and value is not None)}


def _binary(value: Any) -> bytes:
    # By way of a view: bytes(5) would be five NULs.
    return value if isinstance(value, bytes) else bytes(memoryview(value))

"""
The options of `execute` and `session`, and the fields of requests that are made from them. The daemon checks the
values; only mistakes that Python's types would hide are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.errors import RequestRejected
from leeward.spec.sizes import parse_size

if TYPE_CHECKING:
    from typing import TypedDict as TypedDict

    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.connection import BesideJob
    from leeward.client.live_output import Arrivals
    from leeward.spec.outcome import Result
else:
    # That of `typing` compiles every annotation that is text: a tenth of the time to import leeward.client.sandbox.
    class _OptionsType(type):
        """The metaclass of TypedDict: it adds the bases' names to `__annotations__`, and calling a class makes a dict."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], total: bool = True) -> type:
            made = super().__new__(cls, name, bases, namespace)
            own = vars(made).get("__annotations__", {})
            made.__annotations__ = {name: text for each in (*bases, None)
                                    for name, text in (own if each is None else each.__annotations__).items()}
            return made

        def __call__(cls, **options: Any) -> dict[str, Any]:
            return options

    class TypedDict(metaclass=_OptionsType):
        pass

#: Functions that a job may call, by their names in the job.
Given = Mapping[str, Callable[..., Any]]


class CallOptions(TypedDict, total=False):
    """The options about functions that a job may call; Client.execute describes them."""

    functions: Given | None
    call_timeout: float | None
    stop_clock: bool


class ArrivalOptions(TypedDict, total=False):
    """The options about what arrives while a job runs; Client.execute describes them."""

    on_stdout: Callable[[bytes], object] | None
    on_stderr: Callable[[bytes], object] | None
    on_result: Callable[[Mapping[str, str | bytes]], object] | None


#: Why an ordinary session has no snapshots.
NO_SNAPSHOTS = "a session that wasn't opened with snapshots=True has none"

#: The policy that `allow_network` stands for.
NETWORK = "network"


class TurnOptions(CallOptions, ArrivalOptions, total=False):
    """The options of a session's `execute`; Session.execute describes them."""

    args: Iterable[str]
    env: Mapping[str, str] | None
    files: Mapping[str, bytes | str] | None
    collect: Iterable[str]
    display: bool
    timeout: float | None
    output: int | str | None
    overflow: str | None
    name: str | None
    label: str | None


class PlaceOptions(TypedDict, total=False):
    """The options about what a job's processes see and reach."""

    profile: str | None
    environment: str | None
    packages: Iterable[str]
    egress: str | None
    policy: Mapping[str, Any] | None
    allow_network: bool


class Options(TurnOptions, PlaceOptions, total=False):
    """The options of both clients' `execute`; Client.execute describes them."""

    module: str | None
    stdin: bytes | str
    memory: int | str | None
    processes: int | None
    descriptors: int | None
    cpu_time: float | None
    wall: float | None


class Limiting(TypedDict, total=False):
    """The options that are limits."""

    memory: int | str | None
    processes: int | None
    descriptors: int | None
    timeout: float | None
    output: int | str | None
    overflow: str | None


class SessionOptions(Limiting, PlaceOptions, total=False):
    """The options of both clients' `session`; Client.session describes them."""

    idle: float | None


#: Names that other programs use for an option, with the option's name in leeward.
_ALSO = {
    "time": "timeout", "time_limit": "timeout", "memory_limit": "memory", "mem": "memory", "argv": "args",
    "arguments": "args", "input": "stdin", "python_env": "environment", "venv": "environment", "environ": "env",
    "file": "files", "outputs": "collect", "filename": "name", "pids": "processes", "nofile": "descriptors",
    "max_output": "output",
}


def check_names(call: str, options: Iterable[str], kind: type, more: Iterable[str] = ()) -> None:
    """Refuse an option that isn't in *kind* with a TypeError, as Python does, and suggest the one that was probably meant."""
    for name in options:
        if name not in kind.__annotations__:
            names = [*kind.__annotations__, *more]
            import difflib  # here, since it is needed only for the error

            meant = _ALSO.get(name) or next(iter(difflib.get_close_matches(name, names, 1)), None)
            hint = f"did you mean {meant!r}?" if meant in names else f"there are {', '.join(sorted(names))}"
            raise TypeError(f"{call}() has no option {name!r}; {hint}")


def egress_of(egress: str | None, allow_network: bool) -> str | None:
    """The name of the egress policy for a request, None for no network; RequestRejected if both are given."""
    if allow_network and egress:
        raise RequestRejected(f"egress={egress!r:.60} or allow_network, which is a policy of its own")
    return NETWORK if allow_network else egress


def packages_of(packages: Iterable[str]) -> tuple[str, ...]:
    """The requirements for pip in *packages*; RequestRejected for one string in place of several, and for what isn't text."""
    if isinstance(packages, (str, bytes)):
        raise RequestRejected(f"packages takes several strings, not one: [{packages!r:.40}]")
    found = tuple(packages)
    if not all(isinstance(each, str) for each in found):
        raise RequestRejected("packages takes requirements as text, such as 'pandas==2.2'")
    return found


def requirements_of(options: PlaceOptions) -> tuple[str, ...]:
    """The packages that options name; RequestRejected as `packages_of`, and if they name an environment as well."""
    found = packages_of(options.get("packages", ()))
    if found and options.get("environment"):
        raise RequestRejected("environment or packages, not both")
    return found


def allowing(policy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The field `policy` of a request, for which an empty map means no policy, while an empty policy allows nothing."""
    return None if policy is None else dict(policy) or {"allow": []}


def session_fields(options: SessionOptions) -> dict[str, Any]:
    """The fields of a session_open request. Raises as `fields_of`."""
    check_names("session", options, SessionOptions, ("deadline",))
    idle = options.get("idle")
    given = {name: value for name, value in options.items() if name not in ("idle", "packages")}
    fields = execute_fields(None, **given)  # type: ignore[arg-type]  # the names were checked
    return fields if idle is None else {**fields, "idle": idle}


def turn_fields(session: int, code: str | bytes, options: TurnOptions) -> dict[str, Any]:
    """The fields of an execute request for *session*. Raises as `fields_of`."""
    if not options and isinstance(code, (str, bytes)):  # the common case, for which each line counts
        return {"session": session, "code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code}
    check_names("execute", options, TurnOptions, ("deadline",))
    return {"session": session, **execute_fields(code, **sent(options))}


def fields_of(code: str | bytes | None, options: Options) -> dict[str, Any]:
    """The fields of an execute request; RequestRejected as `execute_fields`, TypeError as `check_names`."""
    if not options and isinstance(code, (str, bytes)):
        return {"code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code}
    check_names("execute", options, Options, ("deadline", "idempotent"))
    return execute_fields(code, **sent(options))


def sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of *options*, whose names were checked, that become fields of a request; RequestRejected without a function."""
    for name in ArrivalOptions.__annotations__:
        if options.get(name) is not None and not callable(options[name]):
            raise RequestRejected(f"{name} is {type(options[name]).__name__}, which can't be called")
    ours = {"packages", *ArrivalOptions.__annotations__}
    return {**{name: value for name, value in options.items() if name not in ours},
            **({"functions": _with_shown(options, options["on_result"])} if _shows(options) else {})}


def _shows(options: Mapping[str, Any]) -> bool:
    """Whether what the code shows is told while it runs."""
    return bool(options.get("on_result") and options.get("display"))


def _with_shown(options: Mapping[str, Any], function: Callable[..., Any]) -> Given:
    """The functions of a job, with *function* for what the code shows, if it is told."""
    from leeward.wire.function_frames import SHOWN  # here, since few programs need it

    given: Given = options.get("functions") or {}
    return {**given, SHOWN: function} if _shows(options) else given


def _functions_field(functions: Given | None, call_timeout: float | None, stop_clock: bool) -> dict[str, Any] | None:
    """The field `functions` of a request; None if there are none. RequestRejected if they aren't functions by their names."""
    if not functions:
        if call_timeout is not None or stop_clock:
            raise RequestRejected("call_timeout and stop_clock are about the calls of functions: give functions, too")
        return None
    if not isinstance(functions, Mapping):
        raise RequestRejected(f"functions takes a dict of names and functions, not {type(functions).__name__}")
    for name, function in functions.items():
        if not callable(function):
            raise RequestRejected(f"functions: {name!r:.80} is {type(function).__name__}, which can't be called")
    field: dict[str, Any] = {"names": list(functions)}
    if call_timeout is not None:
        field["wait"] = call_timeout
    return {**field, "stop_clock": True} if stop_clock else field


def arrivals_of(options: Mapping[str, Any]) -> Arrivals | None:
    """What passes on what arrives to the functions among *options*; None if there are none."""
    given = {name: options.get(name) for name in ArrivalOptions.__annotations__}
    if not any(given.values()):
        return None
    from leeward.client.live_output import Arrivals  # here, since few programs need it

    return Arrivals(**given)


def arrived(result: Result, arrivals: Arrivals | None) -> Result:
    """*result*, when *arrivals* has passed on all of it."""
    return result if arrivals is None else arrivals.finish(result)


def served_by(options: Mapping[str, Any], arrivals: Arrivals | None) -> BesideJob | None:
    """
    What a blocking client does while it waits for the job: call the functions among *options*, and pass on what
    arrives. RequestRejected for a coroutine function.
    """
    ways: list[BesideJob] = []
    given = options.get("functions") if arrivals is None else _with_shown(options, arrivals.shown)
    if given:
        from leeward.client.functions import ServedFunctions  # here, since few programs need it

        ways.append(ServedFunctions(given))
    if arrivals is not None and arrivals.has_streams:
        from leeward.client.live_output import LiveJob, Together  # as above

        return Together([*ways, LiveJob(arrivals)])
    return ways[0] if ways else None


def awaited_by(options: Mapping[str, Any], arrivals: Arrivals | None) -> AwaitedBesideJob | None:
    """As `served_by`, for the asyncio client."""
    functions = None
    given = options.get("functions") if arrivals is None else _with_shown(options, arrivals.shown_in_loop)
    if given:
        from leeward.client.aio_functions import AwaitedFunctions  # here, since few programs need it

        functions = AwaitedFunctions(given)
    if arrivals is None or not arrivals.has_streams:
        return functions
    from leeward.client.aio_live_output import AwaitedOutput  # as above

    return AwaitedOutput(arrivals, functions)


def _check_kinds(lists: Mapping[str, object], maps: Mapping[str, object]) -> None:
    for what, strings in lists.items():
        if isinstance(strings, (str, bytes)):
            raise RequestRejected(f"{what} takes several strings, not one: [{strings!r:.40}]")
    for what, pairs in maps.items():
        if pairs is not None and not isinstance(pairs, Mapping):
            raise RequestRejected(f"{what} takes a dict, not {type(pairs).__name__}")


def execute_fields(code: str | bytes | None, *, module: str | None = None, name: str | None = None, args: Iterable[str] = (),
                   env: Mapping[str, str] | None = None, files: Mapping[str, bytes | str] | None = None,
                   stdin: bytes | str = b"", collect: Iterable[str] = (), display: bool = False,
                   timeout: float | None = None, memory: int | str | None = None, processes: int | None = None,
                   descriptors: int | None = None, output: int | str | None = None, overflow: str | None = None,
                   label: str | None = None, functions: Given | None = None, call_timeout: float | None = None,
                   stop_clock: bool = False, profile: str | None = None, environment: str | None = None,
                   egress: str | None = None, allow_network: bool = False,
                   policy: Mapping[str, Any] | None = None, cpu_time: float | None = None,
                   wall: float | None = None) -> dict[str, Any]:
    """
    The fields of an execute request, of the options that were given. RequestRejected if a text isn't a size, one string
    was given in place of several, or a value has a wrong type.
    """
    if code is not None and not isinstance(code, (str, bytes, bytearray, memoryview)):
        raise RequestRejected(_no_code(code))
    _check_kinds({"args": args, "collect": collect}, {"env": env, "files": files})
    try:
        limits = {
            "memory": parse_size(memory) if isinstance(memory, str) else memory,
            "output": parse_size(output) if isinstance(output, str) else output,
            "processes": processes, "descriptors": descriptors, "time": timeout, "wall": wall,
            "cpu_time": cpu_time, "overflow": overflow,
        }
        fields: dict[str, Any] = {
            "code": code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code and _binary(code),
            "module": module, "name": name, "args": list(args), "env": dict(env or {}),
            "files": {key: _bytes_of(content, f"files: the content of {key!r:.80}") for key, content in
                      (files or {}).items()},
            "stdin": _bytes_of(stdin, "stdin"), "collect": list(collect), "display": display,
            "limits": {key: value for key, value in limits.items() if value is not None}, "label": label,
            "functions": _functions_field(functions, call_timeout, stop_clock), "profile": profile,
            "environment": environment, "egress": egress_of(egress, allow_network), "policy": allowing(policy),
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise RequestRejected(str(error)) from None
    return {key: value for key, value in fields.items() if value or (key == "code" and value is not None)}


def _no_code(value: object) -> str:
    if callable(value):
        name = getattr(value, "__name__", "f")
        return (f"code is Python source as text, not the function {name}: a function can't leave this process. Send its"
                f" source and a call of it, such as inspect.getsource({name}) + '\\n{name}()'")
    if isinstance(value, os.PathLike):
        return f"code is Python source as text, not a path: {os.fspath(value)!r:.80}; send what is in the file"
    return f"code is Python source as text or bytes, not {type(value).__name__}"


def _bytes_of(value: Any, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return _binary(value)
    except TypeError:
        hint = ("; send what is in the file" if isinstance(value, os.PathLike) else
                "; send what its read() gives" if hasattr(value, "read") else "")
        raise RequestRejected(f"{what} is bytes or text, not {type(value).__name__}{hint}") from None


def _binary(value: Any) -> bytes:
    # memoryview refuses an int; bytes(5) would be five NULs.
    return value if isinstance(value, bytes) else bytes(memoryview(value))

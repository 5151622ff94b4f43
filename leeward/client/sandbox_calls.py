"""Shared by both clients of live sandboxes: makes the fields of requests, and reads answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from leeward.base.dataclass import dataclass, replace
from leeward.client.characters import begun, text_of_piece
from leeward.client.conversation import checked
from leeward.client.options import (
    Limiting,
    Options,
    PlaceOptions,
    TurnOptions,
    TypedDict,
    check_names,
    execute_fields,
    sent,
)
from leeward.errors import RequestRejected
from leeward.spec.sizes import parse_size
from leeward.wire.replies import Reply
from leeward.wire.sandbox_ids import ID_LENGTH
from leeward.wire.sandbox_replies import answer, chunks, flag, page

if TYPE_CHECKING:
    from leeward.spec.outcome import Result

#: The rows of a list from the daemon: a dict for each sandbox or process.
Rows = list[dict[str, Any]]

#: Seconds that the daemon may take to end a sandbox, or a kernel.
CLOSE_S = 5.0
#: The first pause between two requests for a process's pid, in seconds: most processes are started within this time.
SOON_S = 0.001
#: Seconds that one request for output waits; after that the next request is sent.
READ_S = 30.0
#: The default of TERM for a process on a terminal; most terminal emulators are compatible with it.
TERM = "xterm-256color"
#: Bytes of one write.
WRITE = 1 << 20

#: The parameters of `Sandbox` that aren't in OpenOptions.
FOLDERS = ("socket", "retry_busy", "mounts", "workdir", "overlay", "compare")

OnData = Callable[[bytes], object]


class OpenOptions(Limiting, PlaceOptions, total=False):
    """The options of `Sandbox` and `AsyncSandbox`; Sandbox describes them."""

    files: int | str | None
    fetch_policy: Mapping[str, Any] | None
    env: Mapping[str, str] | None
    idle: float | None
    lifetime: float | None
    held: bool
    sleeps: bool
    metadata: Mapping[str, str] | None
    show_secrets: bool
    own_home: bool
    image: str
    user: str
    hide: Sequence[str]
    protect: Sequence[str]
    pin: Sequence[str]


#: Those that `execute` hasn't, and the packages, for which the daemon gets an environment's name.
_OF_SANDBOX = {*OpenOptions.__annotations__} - {*Options.__annotations__} | {"packages", "files"}


class TerminalOptions(TypedDict, total=False):
    """The options of `terminal`; Sandbox.terminal describes them."""

    cwd: str | None
    env: Mapping[str, str] | None
    timeout: float | None
    title: str | None


class StartOptions(TerminalOptions, total=False):
    """The options of `run`, `shell` and `start`; Sandbox.run describes them."""

    stdin: bytes | str | None
    output: int | str | None
    overflow: str | None
    cpu_time: float | None
    clean: bool
    warm: bool
    ends_children: bool


class CodeOptions(TurnOptions, total=False):
    """The options of `execute`; Sandbox.execute describes them."""

    stdin: bytes | str


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    A piece of a process's output.

    Attributes:
        number: counts from 1. If a number is missing, another reader has got that chunk.
        stream: "stdout" or "stderr".
        time: when the daemon read the data, in seconds of the host's CLOCK_MONOTONIC.
        data: at most 64 KiB, not cut at lines or characters.
        begun: the first bytes of a character that the stream's chunk before has begun.
        last: no chunk of the stream follows.
    """

    number: int
    stream: str
    time: float
    data: bytes
    begun: bytes = b""
    last: bool = False

    @property
    def text(self) -> str:
        """The bytes as UTF-8, with U+FFFD for what is invalid. A cut character is in the text of the chunk that ends it."""
        return text_of_piece(self.begun, self.data, last=self.last)[0]


def open_fields(**options: Unpack[OpenOptions]) -> dict[str, Any]:
    """The fields of a sandbox_open request. Raises RequestRejected and TypeError as `execute_fields` and `check_names`."""
    check_names("Sandbox", options, OpenOptions, FOLDERS)
    given: Mapping[str, Any] = options
    common = execute_fields(None, **{name: value for name, value in given.items() if name not in _OF_SANDBOX})
    fetching = given.get("fetch_policy")
    try:
        # An empty policy allows nothing, but an empty map in a request means no policy.
        own = {"fetch_policy": None if fetching is None else dict(fetching) or {"allowed_domains": []},
               "metadata": dict(given.get("metadata") or {}),
               **{name: list(given.get(name, ())) for name in ("hide", "protect", "pin")},
               **{name: given.get(name) for name in ("show_secrets", "held", "sleeps", "own_home", "image", "user")}}
        files = given.get("files")
        if files is not None:
            limits = {**common.get("limits", {}), "files": parse_size(files) if isinstance(files, str) else files}
            common = {**common, "limits": limits}
    except (TypeError, ValueError) as error:
        raise RequestRejected(str(error)) from None
    fields = {"profile": "python", **common, **{name: value for name, value in own.items() if value}}
    return fields | {name: given[name] for name in ("idle", "lifetime") if given.get(name) is not None}


def program_fields(what: Sequence[str] | str, **options: Unpack[StartOptions]) -> dict[str, Any]:
    """The fields that process_run and process_start have in common."""
    check_names("shell" if isinstance(what, str) else "run", options, StartOptions)
    given: Mapping[str, Any] = options
    common = execute_fields(None, stdin=given.get("stdin") or b"", **{
        name: given[name] for name in ("env", "timeout", "output", "overflow") if name in given})
    more = {**{name: given.get(name) for name in ("cwd", "title", "cpu_time")},
            **{name: given.get(name) or None for name in ("clean", "warm", "ends_children")}}
    return {"shell" if isinstance(what, str) else "argv": what if isinstance(what, str) else list(what), **common,
            **{name: value for name, value in more.items() if value is not None}}


def bounded_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a process_start request for the program of a process_run request. For that none is started in advance."""
    return {**{name: value for name, value in fields.items() if name != "warm"}, "bounded": True}


def terminal_fields(what: Sequence[str] | str, size: tuple[int, int], options: TerminalOptions) -> dict[str, Any]:
    """The fields of a process_start request for a program on a terminal. Raises as `open_fields`."""
    check_names("terminal", options, TerminalOptions)
    fields = program_fields(what, **options)
    env = {"TERM": TERM, **fields.get("env", {})}
    try:
        rows, columns = size
    except (TypeError, ValueError):
        raise RequestRejected(f"size must be rows and columns, not {size!r:.40}") from None
    return {**fields, "env": env, "terminal": [rows, columns]}


def listed(ask: Callable[[dict[str, int]], Reply]) -> Rows:
    """The rows of all sandboxes of the user, page by page; *ask* sends a sandbox_list request with the given fields."""
    found, last = checked(page, ask({}))
    while last:
        more, last = checked(page, ask({"after": last}), last)
        found += more
    return found


def code_fields(code: str | bytes, options: CodeOptions | TurnOptions) -> dict[str, Any]:
    check_names("execute", options, CodeOptions)
    return execute_fields(code, **sent(options))


def id_of(sandbox: object) -> str:
    """*sandbox*, or RequestRejected if it isn't an id: a Sandbox object with an empty one would open a new sandbox."""
    if not isinstance(sandbox, str) or len(sandbox) != ID_LENGTH:
        raise RequestRejected(f"sandbox must be an id of {ID_LENGTH} characters, not {sandbox!r:.40}; "
                              "`leeward sandbox list` shows yours")
    return sandbox


def argv_of(argv: Iterable[str]) -> list[str]:
    """*argv* as a list; RequestRejected if it is one string."""
    if isinstance(argv, (str, bytes)):
        raise RequestRejected(f"run takes a program and its arguments: [{argv!r:.40}]; shell takes a line")
    return list(argv)


def chunks_of(reply: Reply) -> tuple[list[Chunk], bool]:
    """The chunks in an answer to process_read, and whether they are the last ones."""
    rows, over = checked(chunks, reply)
    return [Chunk(number, ("stdout", "stderr")[stream - 1], when, data) for number, stream, when, data in rows], over


class ChunkReader:
    """
    Reads the answers about one process: *after* is the number of the last chunk, *at_end* says that no more come, and
    *end* is the answer that says so, which has what process_wait answers. The reader's own *number* tells the daemon which
    chunks it needs.
    """

    def __init__(self) -> None:
        self.after, self.at_end = 0, False
        self.end: Reply | None = None
        self.number = 1 + int.from_bytes(os.urandom(6))
        self._begun = {"stdout": b"", "stderr": b""}

    def take(self, reply: Reply) -> list[Chunk]:
        """The chunks in *reply*; BadReply if it isn't an answer to process_read."""
        found, self.at_end = chunks_of(reply)
        if self.at_end and "outcome" in answer(reply):  # a daemon that was begun before this version tells no end here
            self.end = reply
        last = {chunk.stream: chunk.number for chunk in found} if self.at_end else {}
        chunks = []
        for chunk in found:
            # After a chunk that another reader has got nothing is known of what it has begun.
            begins = self._begun[chunk.stream] if chunk.number == self.after + 1 else b""
            self._begun[chunk.stream] = begun((begins + chunk.data)[-3:] if len(chunk.data) < 3 else chunk.data[-3:])
            self.after = chunk.number
            ends = last.get(chunk.stream) == chunk.number
            chunks.append(replace(chunk, begun=begins, last=ends) if begins or ends else chunk)
        return chunks


def ended_of(reply: Reply, out: bytes = b"", err: bytes = b"") -> Result | None:
    """The result in an answer to process_wait, with the output that was read before; None if the process hasn't ended."""
    if not checked(flag, reply, "over"):
        return None
    assert reply.ok is not None
    return result((Reply(reply.id, {**reply.ok, "stdout": out, "stderr": err}, "", "", []), ()))


def result(answer: tuple[Reply, Sequence[int]]) -> Result:
    from leeward.client.results import result_of  # builds enumerations, which an agent's start doesn't need

    return result_of(*answer)


class Collected:
    """Collects the chunks of a process's output, and passes each to a callback, if there is one."""

    def __init__(self, on_stdout: OnData | None, on_stderr: OnData | None) -> None:
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}

    def take(self, chunk: Chunk) -> None:
        self._kept[chunk.stream] += chunk.data
        callback = self._callbacks[chunk.stream]
        if callback is not None:
            callback(chunk.data)

    @property
    def streams(self) -> tuple[bytes, bytes]:
        return bytes(self._kept["stdout"]), bytes(self._kept["stderr"])


def pieces(data: bytes | str) -> list[bytes]:
    """*data* in pieces of WRITE bytes at most, one for each request; text as UTF-8."""
    raw = data.encode() if isinstance(data, str) else bytes(memoryview(data))
    return [raw[at:at + WRITE] for at in range(0, len(raw), WRITE)]

"""
The frames on a runner's two pipes: jobs on the job pipe, replies on the reply pipe.

Trust:     a job's frame comes from the daemon. A reply comes from the job and is hostile: `read_reply` checks every
           field and bounds every length.

A frame is 4 bytes of big-endian length and a body: a map in MessagePack, or for a job that is code and nothing else the
byte CODE, which no map starts with, and the code.

Outside of a session each pipe carries one frame, in a session one for each job, and the body of a frame on the job pipe
has the byte SESSION in front. The first frame of a session holds that byte only, and gets no reply; nor does one with
variables for all of its jobs, which may follow. There code that shows things, and has nothing beside it, has the byte
SHOWN in place of CODE.

Files that a job brings back are in its reply while they are few bytes. Else the reply has their names and sizes, and
their bytes follow its frame, one file after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgpack

from leeward.base.dataclass import dataclass, field, names, replace
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.spec.outcome import JobError, LeftOut, LeftOutReason, Limit
from leeward.wire import bundles
from leeward.wire.frames import unpack
from leeward.wire.pieces import Piece, framed, pieces_of

T = TypeVar("T")
E = TypeVar("E", Limit, LeftOutReason)

HEADER = struct.Struct(">I")
#: In place of a process's first frame: it gets none, and lets go of its memory; _native/src/park.c.
PARK = HEADER.pack(0xFFFF_FFFF)

#: The signal for a job whose time is up and that has files to bring back; inside/answer.py.
LATE = 16  # SIGSTKFLT

#: Characters after which a job's error is cut: its type, and each of message and traceback.
MAX_TYPE, MAX_TEXT = 200, 64 << 10
#: Bytes of a reply without files, at most: the texts above in UTF-8, and the other fields.
MAX_BARE_REPLY = 1 << 20
#: Bytes that a file beside its content, or something left out, may take of a reply.
PER_NAME = 1100
#: Bytes of all files together that are in a reply; more of them follow it.
MAX_WITHIN = 1 << 20
#: Files that `collect` brings back, at most, unless the daemon's operator says otherwise.
MAX_FILES = 1000
#: What `collect` left out: entries that are listed at most, with one more that says so, and characters of a name.
MAX_LEFT_OUT, MAX_SHOWN = 256, 255
#: Components of a file's name, at most.
MAX_DEPTH = 16

#: The first byte of a frame that holds code alone.
CODE = b"\0"
#: The same of a frame that holds variables of the lease, with their length in front, and code alone.
LENT = b"\6"
#: The same of code that shows things, in a session.
SHOWN = b"\4"
#: The first byte of a frame after which others may come.
SESSION = b"\1"
#: The first frame of a session; it holds no job.
SESSION_BEGINS = HEADER.pack(len(SESSION)) + SESSION
#: The same of one that becomes the copy of a snapshot: in an image, by the host's interpreter.
SESSION_LOADS = SESSION + b"\x0c"
SESSION_LOADS_BEGINS = HEADER.pack(len(SESSION_LOADS)) + SESSION_LOADS
#: The body of a session's frame that asks for a branch, and the frame.
BRANCH = SESSION + b"\3"
BRANCH_FRAME = HEADER.pack(len(BRANCH)) + BRANCH
#: The same for one before a client asks for it, unless the session's state may change by itself until then.
BRANCH_AHEAD = SESSION + b"\x0d"
BRANCH_AHEAD_FRAME = HEADER.pack(len(BRANCH_AHEAD)) + BRANCH_AHEAD
#: The same for a snapshot of the process, and for the process to become the copy of one, perhaps with the same random
#: numbers.
TAKE, LOAD, LOAD_SAME = SESSION + b"\7", SESSION + b"\x08", SESSION + b"\x09"
TAKE_FRAME, LOAD_FRAME, LOAD_SAME_FRAME = (HEADER.pack(len(each)) + each for each in (TAKE, LOAD, LOAD_SAME))
#: The same for a state whose copies wait for their first frame, as every fresh process does.
TAKE_WARM = SESSION + b"\x0a"
TAKE_WARM_FRAME = HEADER.pack(len(TAKE_WARM)) + TAKE_WARM
#: What the body of a session's frame begins with that has numbers of processes, see `adopted_frame`.
ADOPTED = SESSION + b"\x0b"
#: The number of what a state begins with, and of what its process hears and says: raised when an older state wouldn't do any
#: more. A later leeward loads what has its number.
STATES = 3
#: What a copy's loader is told: bits.
SAME_RANDOM, BESIDE = 1, 2
#: What is told of a snapshot: packages, lost descriptors.
MAX_PACKAGES, MAX_LOST = 512, 64
#: What the body of a session's frame with variables begins with.
VARIABLES = SESSION + b"\5"
#: What a branch and the daemon say to each other before there is a pipe.
BRANCH_WORD = b"h"
#: The frame that makes a process of a live sandbox the one that does file calls (wire/file_answers.py), and none else.
FILE_CALLS = b"\2"
FILE_CALLS_BEGIN = HEADER.pack(len(FILE_CALLS)) + FILE_CALLS
#: The frame by which a process in an image becomes the image's interpreter, before its first frame is there.
AHEAD = b"\7"
AHEAD_FRAME = HEADER.pack(len(AHEAD)) + AHEAD
#: A job with the default of every field, which is what a frame with code alone stands for.
_NOTHING = Job()
_SHOWS = Job(display=True)
#: The fields of a job that a process gets besides the code.
_beside_code = attrgetter(*(name for name in names(Job) if name not in ("code", "limits", "label")))
_NOTHING_BESIDE, _SHOWS_BESIDE = _beside_code(_NOTHING), _beside_code(_SHOWS)

_REPLY_FIELDS = {"exit", "error", "limit", "files"}
_ALL_FIELDS = _REPLY_FIELDS | {"left_out", "behind"}
#: Of a job that was asked to show things.
_SHOWN_FIELDS = _ALL_FIELDS | {"results", "value"}
#: Values of a reply beside its files, about: what was left out, what is shown, and the rest.
_MOST_BESIDE = 8192


def job_frame(job: Job, variables: Mapping[str, str] | None = None) -> bytes:
    """The frame that starts *job*, which has *variables* beside its own."""
    return b"".join(job_pieces(job, variables))


def session_frame(job: Job) -> bytes:
    """The frame that starts *job* in the process of a session."""
    return b"".join(session_pieces(job))


def job_pieces(job: Job, variables: Mapping[str, str] | None = None) -> list[Piece]:
    """As `job_frame`, in pieces: large values are pieces of their own, because the daemon's loop has no time to copy them."""
    return framed(_body(job, variables))


def session_pieces(job: Job) -> list[Piece]:
    """As `session_frame`, in pieces."""
    if job.code is not None and _beside_code(job) == _SHOWS_BESIDE:
        return framed([SESSION + SHOWN, job.code])
    return framed([SESSION, *_body(job, None)])


def _body(job: Job, variables: Mapping[str, str] | None) -> list[Piece]:
    alone = job.code is not None and _beside_code(job) == _NOTHING_BESIDE
    if not alone:
        return _packed(replace(job, env={**variables, **job.env}) if variables else job)
    assert job.code is not None
    if not variables:
        return [CODE, job.code]
    packed = msgpack.packb(dict(variables))
    assert isinstance(packed, bytes)
    return [LENT + HEADER.pack(len(packed)) + packed, job.code]


def variables_frame(variables: Mapping[str, str]) -> bytes:
    """The frame that gives the process of a session *variables*, before its first job."""
    packed = msgpack.packb(dict(variables))
    assert isinstance(packed, bytes)
    return HEADER.pack(len(VARIABLES) + len(packed)) + VARIABLES + packed


def read_variables(body: bytes) -> dict[str, str]:
    """What `variables_frame` wrote."""
    variables = msgpack.unpackb(body[len(VARIABLES):])
    assert isinstance(variables, dict)
    return variables


def adopted_frame(numbers: Collection[int]) -> bytes:
    """
    The frame that tells a session's process the *numbers* of branches, which are sessions of their own: children of its from
    these are none of its jobs', and it reaps them. It has no answer.
    """
    return HEADER.pack(len(ADOPTED) + 4 * len(numbers)) + ADOPTED + struct.pack(f">{len(numbers)}I", *numbers)


def read_adopted(body: bytes) -> tuple[int, ...]:
    """What `adopted_frame` wrote."""
    return struct.unpack(f">{len(body) // 4}I", body[len(ADOPTED):])


def _packed(job: Job) -> list[Piece]:
    return pieces_of({
        "code": job.code, "module": job.module, "name": job.name, "args": list(job.args), "env": dict(job.env),
        "files": dict(job.files), "stdin": job.stdin, "collect": list(job.collect), "most_files": job.most_files,
        "display": job.display, "functions": [] if job.functions is None else list(job.functions.names),
    })


def read_lent(body: bytes) -> tuple[dict[str, str], bytes]:
    """The variables and the code of a frame that begins with LENT."""
    at = len(LENT) + HEADER.size
    end = at + HEADER.unpack(body[len(LENT):at])[0]
    variables = msgpack.unpackb(body[at:end])
    assert isinstance(variables, dict)
    return variables, body[end:]


def code_of(body: bytes) -> bytes | None:
    """The code, if the frame holds nothing else; else None."""
    return body[1:] if body.startswith((CODE, SHOWN)) else None


def shows(body: bytes) -> bool:
    """Is code for which `code_of` has an answer to show things?"""
    return body.startswith(SHOWN)


def read_job(body: bytes) -> dict[str, Any]:
    """The fields that `job_frame` wrote for a job that is more than code."""
    fields = msgpack.unpackb(body, raw=False, max_bin_len=len(body), max_str_len=len(body))
    assert isinstance(fields, dict)
    return fields


@dataclass(frozen=True, slots=True)
class JobReply:
    """How a job ended, by its own account."""

    exit_code: int  # 0 to 255
    raised: bool = False  # an exception left the main module
    error: JobError | None = None
    limit: Limit | None = None  # the limit that the job reports to have hit
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: what `collect` left out: a name or pattern, and one of outcome.LeftOutReason; and of what it showed
    left_out: tuple[LeftOut, ...] = ()
    results: tuple[bundles.Bundle, ...] = ()  # what it showed, in the order in which it did
    value: str | None = None  # the text of its last expression's value
    #: sizes in bytes of the files that follow the reply, by name and in order. If there are any, there are no `files`.
    behind: Mapping[str, int] = field(default_factory=dict)


def reply_pieces(exit_code: int, error: tuple[str, str, str] | None, limit: str | None,
                 files: Mapping[str, bytes], left_out: Sequence[tuple[str, str]] = (),
                 results: Sequence[bundles.Bundle] = (), value: str | None = None) -> list[bytes]:
    """
    What ends a job, in this order: a frame, and the files that aren't in it. Its error is cut to what the daemon
    accepts.
    """
    contents = list(files.values()) if sum(map(len, files.values())) > MAX_WITHIN else []
    if error is not None:
        kind, message, shown = error
        error = kind[:MAX_TYPE], message[:MAX_TEXT], shown[:MAX_TEXT]
    fields: dict[str, Any] = {"exit": exit_code, "error": error, "limit": limit,
                              "files": {} if contents else dict(files)}
    if contents:
        fields["behind"] = {name: len(content) for name, content in files.items()}
    if left_out:
        fields["left_out"] = left_out
    if results:
        fields["results"] = results
    if value is not None:
        fields["value"] = value[:bundles.MAX_PLAIN]
    body = msgpack.packb(fields, use_bin_type=True, unicode_errors="replace")
    assert isinstance(body, bytes)
    return [HEADER.pack(len(body)) + body, *contents]


#: The reply of most jobs as a frame, which needs no packer, and as a body, which needs no decoder.
NOTHING_FRAME = reply_pieces(0, None, None, {})[0]
NOTHING_TO_TELL = NOTHING_FRAME[HEADER.size:]


def read_reply(body: bytes, max_files: int, *, display: bool = False) -> JobReply:
    """
    The reply in *body*, whose bytes are hostile, with *max_files* at most; with *display* it may show things. PeerError
    if it isn't one, and nothing else.
    """
    if body == NOTHING_TO_TELL:
        return JobReply(0)
    most = max(max_files, MAX_LEFT_OUT + 1)
    fields = unpack(body, 2 * max_files + _MOST_BESIDE, most, "replace")
    known = _SHOWN_FIELDS if display else _ALL_FIELDS
    if not isinstance(fields, dict) or not _REPLY_FIELDS <= fields.keys() <= known:
        raise PeerError("reply of a job: fields are missing, or too many")
    exit_code, error, limit = fields["exit"], fields["error"], fields["limit"]
    if type(exit_code) is not int or not 0 <= exit_code <= 255:
        raise PeerError("reply of a job: exit code out of range")
    if error is not None:
        _check(list, error, 3, least=3)
        error = JobError(*(_of(str, text)[:most] for text, most in zip(error, (MAX_TYPE, MAX_TEXT, MAX_TEXT), strict=True)))
    files, behind = _check(dict, fields["files"], max_files), _check(dict, fields.get("behind", {}), max_files)
    if not all(map(is_plain_name, (*files, *behind))) or (files and behind):
        raise PeerError("reply of a job: a file's name, or files in it and behind it")
    for content in files.values():
        _of(bytes, content)
    for size in behind.values():
        if type(size) is not int or size < 0:
            raise PeerError("reply of a job: a file's size")
    return JobReply(exit_code, error is not None, error, None if limit is None else _one_of(Limit, limit), files,
                    tuple(map(_left_out, _check(list, fields.get("left_out", []), MAX_LEFT_OUT + 1))),
                    bundles.checked(fields.get("results", [])), bundles.value_text(fields.get("value")), behind)


def _left_out(entry: object) -> LeftOut:
    name, reason = _check(list, entry, 2, least=2)
    return LeftOut(shown_name(_of(str, name)), _one_of(LeftOutReason, reason))


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise PeerError(f"reply of a job: {type(value).__name__} in place of {kind.__name__}")
    return value


def _one_of(kind: type[E], value: object) -> E:
    try:
        return kind(_of(str, value))
    except ValueError:
        raise PeerError(f"reply of a job: no {kind.__name__}") from None


def _check(kind: type[T], value: object, most: int, least: int = 0) -> T:
    found = _of(kind, value)
    assert isinstance(found, (list, dict))
    if not least <= len(found) <= most:
        raise PeerError(f"reply of a job: {len(found)} entries")
    return found


def shown_name(name: str) -> str:
    """*name* as it can be shown: what can't be printed is written as repr does, and the end is cut."""
    return name[:MAX_SHOWN] if name.isprintable() else repr(name[:MAX_SHOWN])[1:-1][:MAX_SHOWN]


def is_plain_name(name: object) -> bool:
    """
    Whether *name* is a relative path that may name a file below /workspace: no empty, "." or ".." component, nothing
    that can't be printed, at most 1024 characters in at most MAX_DEPTH components.
    """
    if not isinstance(name, str) or not 0 < len(name) <= 1024 or not name.isprintable():
        return False
    parts = name.split("/")
    return len(parts) <= MAX_DEPTH and not any(part in ("", ".", "..") for part in parts)

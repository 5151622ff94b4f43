"""
What goes down the job pipe, and what comes back on the reply pipe.

Runs in:   the daemon and `inside`. Pure.
Trust:     a job's bytes come from the daemon; a reply comes from the job, and is hostile:
           `read_reply` checks every field and bounds every length.

Each pipe carries one frame: 4 bytes of big-endian length, then MessagePack; or, down the job pipe and for code
and nothing else, the byte CODE, with which no map starts, and the code as it is. In a session they carry one for each
job, and those down the job pipe have the byte SESSION in front of the rest; the first one holds nothing else, and has
no reply.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from leeward.dataclass import dataclass, field, replace
from leeward.errors import PeerError
from leeward.outcome import JobError, Limit
from leeward.spec.job import Job

HEADER = struct.Struct(">I")

#: The error text of a job is cut here: type, message, traceback, in characters.
MAX_TYPE, MAX_TEXT = 200, 64 << 10
#: A reply without files, packed: the texts above in UTF-8, and change.
MAX_BARE_REPLY = 1 << 20
#: Files that `collect` brings back, at most.
MAX_FILES = 1000
#: Components of a file's name, at most.
MAX_DEPTH = 16

#: The first byte of a frame that holds code alone.
CODE = b"\0"
#: The first byte of a frame after which others may come.
SESSION = b"\1"
#: Comes first in a session, without a job.
SESSION_BEGINS = HEADER.pack(len(SESSION)) + SESSION
#: What a job is told that its frame doesn't say.
_NOTHING = Job()

_REPLY_FIELDS = {"exit", "error", "limit", "files"}
_NIL = 0xC0


def job_frame(job: Job) -> bytes:
    """
    The frame that starts *job*.
    """
    if job.code is not None and replace(job, code=None, limits=_NOTHING.limits) == _NOTHING:
        return HEADER.pack(1 + len(job.code)) + CODE + job.code
    body = _packed(job)
    return HEADER.pack(len(body)) + body


def session_frame(job: Job) -> bytes:
    """
    The frame that starts *job* in the process of a session.
    """
    body = job_frame(job)[HEADER.size:]
    return HEADER.pack(len(SESSION) + len(body)) + SESSION + body


def _packed(job: Job) -> bytes:
    body = msgpack.packb({
        "code": job.code, "module": job.module, "name": job.name, "args": list(job.args), "env": dict(job.env),
        "files": dict(job.files), "stdin": job.stdin, "collect": list(job.collect),
    }, use_bin_type=True)
    assert isinstance(body, bytes)
    return body


def code_of(body: bytes) -> bytes | None:
    """
    The code, where the frame holds nothing else.
    """
    return body[1:] if body.startswith(CODE) else None


def read_job(body: bytes) -> dict[str, Any]:
    """
    The fields that `job_frame` wrote, of a job that is more than code.
    """
    fields = msgpack.unpackb(body, raw=False, max_bin_len=len(body), max_str_len=len(body))
    assert isinstance(fields, dict)
    return fields


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What a job says of its own end.

    Attributes:
        exit_code: 0 to 255.
        raised: an exception left the main module.
        limit: the limit it believes it ran into.
    """

    exit_code: int
    raised: bool = False
    error: JobError | None = None
    limit: Limit | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def reply_frame(exit_code: int, error: tuple[str, str, str] | None, limit: str | None,
                files: Mapping[str, bytes]) -> bytes:
    """
    The frame that ends a job. Its error is cut to what the daemon takes.
    """
    if error is not None:
        kind, message, shown = error
        error = kind[:MAX_TYPE], message[:MAX_TEXT], shown[:MAX_TEXT]
    body = msgpack.packb({"exit": exit_code, "error": error, "limit": limit, "files": dict(files)},
                         use_bin_type=True, unicode_errors="replace")
    assert isinstance(body, bytes)
    return HEADER.pack(len(body)) + body


#: The reply of most jobs, which needs no decoder; and its frame, which needs no packer.
NOTHING_FRAME = reply_frame(0, None, None, {})
NOTHING_TO_TELL = NOTHING_FRAME[HEADER.size:]


def read_reply(body: bytes, max_files: int) -> Reply:
    """
    The reply in *body*, whose bytes are hostile.

    Args:
        max_files: how many files it may bring back.

    Raises:
        PeerError: it is no reply; nothing else comes out, whatever goes in.
    """
    if body == NOTHING_TO_TELL:
        return Reply(0)
    try:
        fields = _reply_fields(body, max_files)
    except Exception as wrong:  # whatever a decoder finds wrong with hostile bytes is the peer's fault
        raise PeerError(f"reply of a job: {type(wrong).__name__}") from wrong
    if set(fields) != _REPLY_FIELDS:
        raise PeerError("reply of a job: wrong fields")
    exit_code, error, limit, files = fields["exit"], fields["error"], fields["limit"], fields["files"]
    if type(exit_code) is not int or not 0 <= exit_code <= 255:
        raise PeerError("reply of a job: exit code out of range")
    if error is not None and not all(isinstance(x, str) for x in error):
        raise PeerError("reply of a job: error is no triple of texts")
    if limit is not None and limit not in set(Limit):
        raise PeerError("reply of a job: unknown limit")
    for name, content in files.items():
        if not is_plain_name(name) or not isinstance(content, bytes):
            raise PeerError("reply of a job: a file's name or content")
    return Reply(
        exit_code=exit_code,
        raised=error is not None,
        error=None if error is None else JobError(error[0][:MAX_TYPE], error[1][:MAX_TEXT], error[2][:MAX_TEXT]),
        limit=None if limit is None else Limit(limit),
        files=files,
    )


def _reply_fields(body: bytes, max_files: int) -> dict[Any, Any]:
    """
    The four fields, each of its shape but not yet checked.

    Container by container, never "whatever comes": three bytes of nested arrays make some 200
    of objects, and 60 MiB of them, with `collect`, would be the end of the daemon.
    """
    decoder = msgpack.Unpacker(None, raw=False, max_buffer_size=max(1, len(body)), max_array_len=0, max_map_len=0,
                               max_ext_len=0, unicode_errors="replace")
    decoder.feed(body)
    fields: dict[Any, Any] = {}
    for _ in range(_counted(decoder.read_map_header(), len(_REPLY_FIELDS))):
        name = decoder.unpack()
        if "error" == name and _NIL != body[decoder.tell()]:
            fields[name] = [decoder.unpack() for _ in range(_counted(decoder.read_array_header(), 3, least=3))]
        elif "files" == name:
            fields[name] = {decoder.unpack(): decoder.unpack()
                            for _ in range(_counted(decoder.read_map_header(), max_files))}
        else:
            fields[name] = decoder.unpack()
    if decoder.tell() != len(body):
        raise ValueError("bytes are left over")
    return fields


def _counted(count: int, most: int, least: int = 0) -> int:
    if not least <= count <= most:
        raise ValueError(f"{count} entries")
    return count


def is_plain_name(name: object) -> bool:
    """
    Is *name* a relative path of ordinary components, such as may stand below /workspace?

    No empty, "." or ".." component, no NUL or other control character, at most 1024 characters
    in at most MAX_DEPTH components.
    """
    if not isinstance(name, str) or not 0 < len(name) <= 1024 or not name.isprintable():
        return False
    parts = name.split("/")
    return len(parts) <= MAX_DEPTH and not any(part in ("", ".", "..") for part in parts)

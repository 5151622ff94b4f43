"""
Calls of a client's functions by a job: the frames on a runner's pipes, and the values in them.

Trust:     none in a call: its bytes are the job's. The daemon carries its body unread; the client decodes that with
           `unpack`, which gives a value or PeerError. Nobody but the job depends on the client's answer.

A call goes up the reply pipe, before the reply: 4 bytes of length, the byte CALL, which no reply starts with, the
call's number, the function's place among those that the job was given, and its arguments. Numbers start at 1 with each
job and have no gap. The answer goes down the job pipe in pieces of PIECE bytes at most, each a frame: the byte ANSWER,
the number, what follows (`MORE`, `RAISED`), and a part of the body. The kernel takes a piece whole or not at all, so no
frame is ever cut, whenever a job ends. Values are those of JSON, and bytes, as MessagePack.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from leeward.errors import PeerError
from leeward.wire import frames
from leeward.wire.frames import MAX_DEPTH as MAX_DEPTH

#: The first byte of a call, and of a piece of an answer. Neither a map nor a job's frame starts with it.
CALL = ANSWER = 3

#: Bytes of a call's arguments, or of an answer, at most.
MAX_BODY = 512 << 10
#: Calls of one job that wait at once, and in all.
MAX_OPEN, MAX_CALLS = 16, 10_000
#: Functions that a job may be given, and characters of a name.
MAX_NAMES, MAX_NAME = 64, 64
#: The name of a function that no code sees: it is called with each thing that the code shows, and its place in `results`.
SHOWN = "_leeward_shown"
#: Values in one body; they are nested MAX_DEPTH deep.
MAX_VALUES = 100_000
#: Characters of an exception's type and text.
MAX_TYPE, MAX_TEXT = 200, 8 << 10
#: Bytes that the kernel writes to a pipe in one piece; PIPE_BUF, pipe(7).
PIECE = 4096

MORE, RAISED = 1, 2

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BIB")
_ROOM = PIECE - _LENGTH.size - _HEAD.size
#: Bytes of a call's frame, at most.
MAX_CALL = _HEAD.size + MAX_BODY


class FunctionCall(NamedTuple):
    number: int
    place: int
    body: bytes


class AnswerPiece(NamedTuple):
    number: int
    flags: int
    body: bytes


def call_frame(number: int, place: int, body: bytes) -> bytes:
    """The frame of a call."""
    return _LENGTH.pack(_HEAD.size + len(body)) + _HEAD.pack(CALL, number, place) + body


def is_call(body: bytes) -> bool:
    """Is this frame's content a call, and not a reply?"""
    return body[:1] == b"\3"


def read_call(body: bytes) -> FunctionCall:
    """The call in a frame's content, whose bytes are hostile; PeerError if it isn't one."""
    if not _HEAD.size <= len(body) <= MAX_CALL or body[0] != CALL:
        raise PeerError(f"{len(body)} bytes that are not a call of a function")
    _, number, place = _HEAD.unpack_from(body)
    return FunctionCall(number, place, body[_HEAD.size:])


def answer_frames(number: int, raised: bool, body: bytes) -> list[bytes]:
    """The answer to a call, in pieces."""
    frames = []
    for at in range(0, max(1, len(body)), _ROOM):
        part = body[at:at + _ROOM]
        flags = (RAISED if raised else 0) | (MORE if at + _ROOM < len(body) else 0)
        frames.append(_LENGTH.pack(_HEAD.size + len(part)) + _HEAD.pack(ANSWER, number, flags) + part)
    return frames


def read_piece(body: bytes) -> AnswerPiece:
    """A piece of an answer, of a frame that starts with ANSWER."""
    _, number, flags = _HEAD.unpack_from(body)
    return AnswerPiece(number, flags, body[_HEAD.size:])


# --- values ---------------------------------------------------------------------

def pack(value: object) -> bytes:
    """
    *value* as bytes. TypeError if it isn't made of JSON's values and bytes, ValueError if it is too large or nested too
    deep.
    """
    try:
        data = msgpack.packb(value, use_bin_type=True)
    except (TypeError, OverflowError, UnicodeError) as error:
        raise TypeError(f"only None, bool, int of 64 bits, float, str, bytes, list and dict can be sent: {error}"
                        ) from None
    assert isinstance(data, bytes)
    if len(data) > MAX_BODY:
        raise ValueError(f"{len(data)} bytes are too many to send; at most {MAX_BODY} are taken")
    try:
        unpack(data)
    except PeerError as error:  # keys that aren't text, say
        raise TypeError(f"this can't be sent: {error}") from None
    return data


def unpack(data: bytes) -> Any:
    """The value in *data*, whose bytes are hostile. PeerError if there is none, or it is too large, and nothing else."""
    if len(data) > MAX_BODY:
        raise PeerError(f"a value of {len(data)} bytes")
    return frames.unpack(data, MAX_VALUES, MAX_VALUES, pairs=_map)


def _map(pairs: list[tuple[object, object]]) -> dict[str, object]:
    made = {key: value for key, value in pairs if isinstance(key, str)}
    if not all(isinstance(key, str) for key, _ in pairs):
        raise PeerError("a key that isn't text")
    return made


def pack_arguments(args: tuple[object, ...], named: dict[str, object]) -> bytes:
    """The body of a call. Raises as `pack`."""
    return pack([list(args), named])


def unpack_arguments(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in the body of a call, whose bytes are hostile; PeerError if it has none."""
    value = unpack(body)
    if not isinstance(value, list) or len(value) != 2:
        raise PeerError("a call without arguments")
    args, named = value
    if not isinstance(args, list) or not isinstance(named, dict):
        raise PeerError("a call whose arguments are no list and map")
    return args, named


def pack_error(kind: str, text: str) -> bytes:
    """The body of an answer that is an exception: its type's name, and its text."""
    data = msgpack.packb([kind[:MAX_TYPE], text[:MAX_TEXT]], use_bin_type=True, unicode_errors="replace")
    assert isinstance(data, bytes)
    return data

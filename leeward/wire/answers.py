"""
How the daemon answers: results, other answers and refusals as frames. Clients import `wire.replies` alone, which is
lighter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import LeewardError, Refused, SandboxOver
from leeward.spec.outcome import Result
from leeward.wire.fields import MAX_NAME
from leeward.wire.frames import MAX_REPLY, encode
from leeward.wire.pieces import APART, Piece, framed, pieces_of

#: Where a part of a result is in the memory files that come with it: the file's index, offset and length in bytes.
Place = tuple[int, int, int]

#: The fields of a result, each with its type on the wire; ? is for those that it may lack. First those that
#: `result_fields` gives.
FIGURES = {
    "outcome": "text", "exit_code": "int", "limit": "text or nil", "duration": "float", "cpu_time": "float",
    "memory_peak": "int", "denied": "map of text to int", "truncated": "bool", "omitted?": "array of int",
    "degraded": "array of text", "error": "map or nil", "hint?": "text", "starved?": "float",
}
RESULT = {
    **FIGURES, "stdout": "binary or place", "stderr": "binary or place", "files?": "map of text to binary or place",
    "results?": "array of map", "value?": "text", "label?": "text", "job?": "int", "left_out?": "array",
    "arenas?": "array of int",
}

#: Characters of a refusal's message, and of a job's traceback, at most.
MAX_ERROR, MAX_TRACEBACK = 4096, 64 << 10

#: Names of denied system calls in one result, at most.
MAX_DENIED = 512


def encode_ok(number: int, answer: Mapping[str, Any]) -> bytes:
    """The answer to request *number*, which was served, as a frame."""
    return encode({"id": number, "ok": answer}, MAX_REPLY)


def ok_pieces(number: int, answer: Mapping[str, Any]) -> list[Piece]:
    """As `encode_ok`, in pieces: content that is large, and then has MAX_REPLY bytes at most, isn't copied."""
    if len(answer.get("data", b"")) < APART:
        return [encode_ok(number, answer)]
    return framed(pieces_of({"id": number, "ok": answer}))


def encode_refusal(number: int, kind: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    """The refusal of request *number* as a frame, with *details* as of `details_of`; 0 refuses the whole connection."""
    return encode({"id": number, "error": {"kind": kind, "message": _clean(message, MAX_ERROR), **(details or {})}})


def encode_refused(number: int, error: LeewardError) -> bytes:
    """As `encode_refusal`, for an exception that says why."""
    return encode_refusal(number, *refusal_of(error), details_of(error))


def details_of(error: LeewardError) -> dict[str, Any]:
    """
    What a refusal has beside kind and message: a sandbox's end; or after how many seconds the same request may be
    taken.
    """
    if isinstance(error, SandboxOver):
        return {"reason": error.reason, "when": error.when, "limit": error.limit, "begun": error.may_have_run}
    if isinstance(error, Refused) and error.retry_after is not None:
        return {"retry_after": float(error.retry_after)}
    return {}


def refusal_of(error: LeewardError) -> tuple[str, str]:
    """The kind and the message that *error* has on the wire."""
    if isinstance(error, Refused):
        return error.kind, error.message
    return "bad_request", str(error)


def encode_result(number: int, result: Result, *, stdout: Place | None = None, stderr: Place | None = None,
                  files: Mapping[str, Place | bytes] | None = None,
                  arenas: tuple[int, ...] = ()) -> bytes:
    """
    *result* as the answer to request *number*, as a frame. *stdout*, *stderr* and *files* are the places of those that
    are in memory files, or contents of files that *result* hasn't; *arenas* are the sizes of the memory files whose
    descriptors go with the frame, in order.
    """
    answer = {**result_fields(result), "stdout": result.stdout if stdout is None else stdout,
              "stderr": result.stderr if stderr is None else stderr}
    if result.files or files:
        answer["files"] = {**result.files, **(files or {})}
    if result.left_out:
        answer["left_out"] = [[_clean(one.name, MAX_NAME), str(one.reason)] for one in result.left_out]
    if result.results:
        answer["results"] = [dict(bundle) for bundle in result.results]
    if result.value is not None:
        answer["value"] = result.value
    if result.label:
        answer["label"], answer["job"] = result.label, result.job
    if arenas:
        answer["arenas"] = arenas
    return encode_ok(number, answer)


def result_fields(result: Result) -> dict[str, Any]:
    """*result* as a map, without its output and its files."""
    error = result.error
    omitted = result.stdout_omitted, result.stderr_omitted
    advice = result.hint
    return {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "limit": None if result.limit is None else str(result.limit),
        "duration": result.duration,
        "cpu_time": result.cpu_time,
        "memory_peak": result.memory_peak,
        "denied": dict(list(result.denied.items())[:MAX_DENIED]),
        "truncated": result.truncated,
        **({"omitted": omitted} if any(omitted) else {}),
        "degraded": list(result.degraded),
        "error": None if error is None else {
            "type": _clean(error.type, MAX_NAME),
            "message": _clean(error.message, MAX_TRACEBACK),
            "traceback": _clean(error.traceback, MAX_TRACEBACK),
        },
        **({"hint": advice} if advice else {}),
        **({} if result.starved is None else {"starved": result.starved}),
    }


def _clean(text: str, limit: int) -> str:
    # The job chose the text. Lone surrogates in it can't be encoded as UTF-8.
    return text[:limit].encode("utf-8", "replace").decode()

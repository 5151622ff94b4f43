"""The answer to a call that fails: a status of HTTP, a word for programs, a sentence for people."""

from __future__ import annotations

import math
from typing import Any

from leeward.errors import BadRequest, Busy, DaemonError, EditError, LeewardError, ShuttingDown, Stale, Unsupported

#: The default of Retry-After, in seconds.
TRY_AGAIN = 5


class WebProblem(LeewardError):
    """
    A call that is refused: with the status of HTTP, a word for programs, a message for people, the seconds of
    Retry-After (None: trying again changes nothing), and further fields of the JSON object.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None,
                 more: dict[str, Any] | None = None) -> None:
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        self.more = more or {}
        super().__init__(message)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    @property
    def body(self) -> dict[str, Any]:
        """For JSON."""
        return {"error": self.code, "detail": self.message, **self.more}


def forbidden(message: str) -> WebProblem:
    return WebProblem(403, "forbidden", message)


def bad(message: str) -> WebProblem:
    return WebProblem(400, "bad_request", message)


def missing(message: str) -> WebProblem:
    return WebProblem(404, "not_found", message)


def too_large(most: int) -> WebProblem:
    return WebProblem(413, "too_large", f"a body has {most} bytes at most here")


#: The answers to errors that aren't WebProblem or Busy: the first kind that fits counts.
_KINDS: tuple[tuple[type[LeewardError], int, str, int | None], ...] = (
    (Stale, 409, "stale", None), (BadRequest, 400, "bad_request", None), (EditError, 400, "bad_request", None),
    (ShuttingDown, 503, "shutting_down", None), (Unsupported, 503, "unsupported", None),
    (DaemonError, 503, "daemon", TRY_AGAIN))


def problem_of(error: LeewardError) -> WebProblem:
    """The answer to a caller for *error*; without details for an unexpected one."""
    if isinstance(error, WebProblem):
        return error
    if isinstance(error, Busy):
        after = TRY_AGAIN if error.retry_after is None else max(1, math.ceil(error.retry_after))
        return WebProblem(429, "busy", str(error), retry_after=after)
    for kind, status, code, again in _KINDS:
        if isinstance(error, kind):
            return WebProblem(status, code, str(error), retry_after=again)
    return WebProblem(500, "internal", "this failed; the service's log has more")

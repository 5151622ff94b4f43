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


def unauthorized(message: str = "this needs a session or a token") -> WebProblem:
    return WebProblem(401, "unauthorized", message)


def forbidden(message: str) -> WebProblem:
    return WebProblem(403, "forbidden", message)


def bad(message: str) -> WebProblem:
    return WebProblem(400, "bad_request", message)


def missing(message: str) -> WebProblem:
    return WebProblem(404, "not_found", message)


def too_large(most: int) -> WebProblem:
    return WebProblem(413, "too_large", f"a body has {most} bytes at most here")


def problem_of(error: LeewardError) -> WebProblem:
    """The answer to a caller for *error*; without details for an unexpected one."""
    match error:
        case WebProblem():
            return error
        case Stale():
            return WebProblem(409, "stale", str(error))
        case BadRequest() | EditError():
            return WebProblem(400, "bad_request", str(error))
        case Busy():
            after = TRY_AGAIN if error.retry_after is None else max(1, math.ceil(error.retry_after))
            return WebProblem(429, "busy", str(error), retry_after=after)
        case ShuttingDown():
            return WebProblem(503, "shutting_down", str(error))
        case Unsupported():
            return WebProblem(503, "unsupported", str(error))
        case DaemonError():
            return WebProblem(503, "daemon", str(error), retry_after=TRY_AGAIN)
    return WebProblem(500, "internal", "this failed; the service's log has more")

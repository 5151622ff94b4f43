"""Makes a job from a checked request; in the daemon, and `leeward run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.daemon.config import Config
from leeward.errors import BadRequest
from leeward.spec.job import Functions, Job
from leeward.spec.limits import ADJUSTABLE, OF_JOBS, Limits, adjusted
from leeward.wire.job_frames import MAX_FILES
from leeward.wire.requests import Execute

#: The file name in tracebacks for code that came without a name.
NAME = "<string>"


def job_of(request: Execute, config: Config, limits: Limits, functions: Functions | None = None,
           egress: Mapping[str, Any] | None = None) -> Job:
    """Make the job that *request* asks for, with *limits* where it sets none; BadRequest if it may not set one so."""
    asked = adjusted(limits, config.ceilings, request.limits, ADJUSTABLE if request.session else OF_JOBS)
    if asked.wall is not None and functions is not None and functions.standing:
        raise BadRequest("limit wall and stop_clock, of which each says when the clock of the limit time stands")
    return Job(
        code=request.code, module=request.module, name=request.name or NAME, args=request.args,
        env=request.env, files=request.files, stdin=request.stdin, collect=request.collect,
        most_files=config.max_collected if request.collect else MAX_FILES,
        limits=asked, display=request.display, label=request.label,
        functions=functions, egress=egress,
    )

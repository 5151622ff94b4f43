"""
From a checked request to a job.

Runs in:   the daemon, and `leeward run`; pure.
"""

from __future__ import annotations

from leeward.daemon.config import Config
from leeward.spec.job import Job
from leeward.spec.limits import adjusted
from leeward.wire.messages import Execute

#: What tracebacks call code that came without a name.
NAME = "<string>"


def job_of(request: Execute, config: Config) -> Job:
    """
    The job that *request* asks for, within the limits of *config*.

    Raises:
        BadRequest: a limit that can't be asked for, or is out of its range.
    """
    return Job(
        code=request.code, module=request.module, name=request.name or NAME, args=request.args,
        env=request.env, files=request.files, stdin=request.stdin, collect=request.collect,
        limits=adjusted(config.limits, config.ceilings, request.limits),
    )

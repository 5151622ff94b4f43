"""
One job: the code that a client wants run, with its inputs and limits.

Runs in:   client and daemon; pure data, validated by `wire.requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.dataclass import dataclass, field
from leeward.spec.functions import Functions
from leeward.spec.limits import Limits


@dataclass(frozen=True, slots=True)
class Job:
    """
    A program and its inputs.

    Attributes:
        code: source text, or None if `module` is given.
        module: the name of a module to run as `python -m` does.
        name: the file name that tracebacks show.
        args: sys.argv[1:].
        env: environment variables, added to the sandbox's own.
        files: files that are written to /workspace before the start, by relative name.
        stdin: the job's standard input.
        collect: glob patterns below /workspace; the regular files that match are returned.
        most_files: the most files that are returned.
        limits: the job's limits, already checked against the daemon's ceilings.
        display: report what the code shows, and the value of its last expression.
        label: the client's own name for the job, for logs; at most 64 letters, digits and ._:/@-.
        functions: the client's functions that the job may call.
        egress: the policy of the job, as `policy_map` makes it, if the client narrows the policy of the pool.
    """

    code: bytes | None = None
    module: str | None = None
    name: str = "<string>"
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    stdin: bytes | memoryview = b""
    collect: tuple[str, ...] = ()
    most_files: int = 1000
    limits: Limits = field(default_factory=Limits)
    display: bool = False
    label: str = ""
    functions: Functions | None = None
    egress: Mapping[str, Any] | None = None

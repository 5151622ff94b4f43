"""One job: the code that a client wants run, with its inputs and limits. `wire.requests` checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, field
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.daemon.serving.waiting import JobExchange


#: Seconds that a call waits for its answer: the default, and the most that a client can ask for.
WAIT_S, MAX_WAIT_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Functions:
    names: tuple[str, ...]  # the names under which the job finds the functions
    exchange: JobExchange  # takes the calls
    wait: float = WAIT_S  # seconds that one call may wait for its answer
    standing: float = 0.0  # seconds in all for which a waiting call stops the job's time limit; 0: it never does


@dataclass(frozen=True, slots=True)
class Job:
    code: bytes | None = None  # source text, or None if `module` is given
    module: str | None = None  # the name of a module to run as `python -m` does
    name: str = "<string>"  # the file name that tracebacks show
    args: tuple[str, ...] = ()  # sys.argv[1:]
    env: Mapping[str, str] = field(default_factory=dict)  # environment variables, added to the sandbox's own
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)  # written to /workspace before the start
    stdin: bytes | memoryview = b""
    collect: tuple[str, ...] = ()  # glob patterns below /workspace; the regular files that match are returned
    most_files: int = 1000  # the most files that are returned
    limits: Limits = field(default_factory=Limits)  # checked against the daemon's ceilings
    display: bool = False  # report what the code shows, and the value of its last expression
    label: str = ""  # the client's own name for the job, for logs; at most 64 letters, digits and ._:/@-
    functions: Functions | None = None  # the client's functions that the job may call
    egress: Mapping[str, Any] | None = None  # the client's narrower policy, as `policy_map` makes it

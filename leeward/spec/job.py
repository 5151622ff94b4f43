"""
One job: what a client asks to have run.

Runs in:   client and daemon; pure data, validated by `wire.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.dataclass import dataclass, field
from leeward.spec.limits import Limits


@dataclass(frozen=True, slots=True)
class Job:
    """
    A program and its inputs.

    Attributes:
        code: source text, or None where `module` is given.
        module: the name of a module to run as `python -m` would.
        name: the file name that tracebacks show.
        args: sys.argv[1:].
        env: added to the documented environment.
        files: put into /workspace before the start, by relative name.
        stdin: what the job reads on descriptor 0.
        collect: globs under /workspace; matching regular files come back.
        limits: already adjusted to the daemon's ceilings.
    """

    code: bytes | None = None
    module: str | None = None
    name: str = "<string>"
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    collect: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

"""The settings of a live sandbox: those of its daemon, those of its client, and those of a program that it has to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.run.launch import Command, Stdio
from leeward.spec import stand_ins
from leeward.spec.limits import Limits
from leeward.spec.pool_key import MAIN_POOL, PoolKey
from leeward.spec.sandbox import BUNDLE_VARIABLES, SandboxSpec, Scratch, View

if TYPE_CHECKING:
    from leeward.daemon.run.launch import Exit
    from leeward.daemon.run.live_runner import LiveRunner

#: The PATH of programs, if the daemon's sandboxes have none of their own.
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class ProgramTerms:
    """
    A program to start. It has the time limit if it is *timed*, the output limit if *bounded*; *cpu_time* is of all that
    descends from it, too. *open*: clients may write more to its stdin. *size*: rows and columns of its terminal, if it
    is on one. *clean*: of the variables that all processes get, it gets only PATH and what its egress policy needs.
    *warm*: it reads all of its stdin before it does anything, so a process that waits for stdin can be held ready.
    *ends_children*: when it has ended its descendants are killed, and its end is reported when none is left.
    """

    argv: tuple[str, ...]
    title: str
    cwd: str
    env: Mapping[str, str]
    limits: Limits
    timed: bool
    bounded: bool
    kept: bool
    stdin: bytes | memoryview
    open: bool = False
    size: tuple[int, int] | None = None
    cpu_time: float | None = None
    clean: bool = False
    warm: bool = False
    ends_children: bool = False


class Launch:
    """Starts programs by the runner's own interface."""

    def start(self, place: LiveRunner, asked: ProgramTerms, env: Mapping[bytes, bytes], *,
              on_output: Callable[[int, bytes], None], on_exit: Callable[[Exit], None]) -> Any:
        """
        Start the program in *place*. Returns its process, which may not run yet; BadRequest if execve(2) can't take it,
        LeewardError if it can't be started now.
        """
        command = Command(tuple(word.encode() for word in asked.argv), env, asked.cwd.encode(), size=asked.size)
        piped = asked.open or asked.warm or bool(asked.stdin)
        return place.start(command, stdin=Stdio.PIPE if piped else Stdio.NULL, on_output=on_output, on_exit=on_exit)


@dataclass(frozen=True, slots=True)
class SandboxTerms:
    """
    What is the same for all sandboxes of a daemon: how programs start, the *environment* of every process before what
    clients add, of it the *tls* variables by which programs trust the broker, *degraded* as in results, and the view of
    files.
    """

    launch: Launch
    environment: tuple[tuple[str, str], ...] = ()
    tls: tuple[tuple[str, str], ...] = ()
    degraded: tuple[str, ...] = ()
    view: View = field(default_factory=lambda: View((), (), (), Scratch(("/workspace", "/tmp", "/dev/shm"))))


def terms_of(spec: SandboxSpec, degraded: tuple[str, ...]) -> SandboxTerms:
    return SandboxTerms(Launch(), spec.environment, _tls(spec), degraded, spec.view)


def _tls(spec: SandboxSpec) -> tuple[tuple[str, str], ...]:
    if spec.seal is None:
        return ()

    return tuple((name, value) for name, value in spec.environment if name in BUNDLE_VARIABLES)


@dataclass(slots=True)
class SandboxFacts:
    """What a client has set for its sandbox when it opened it. *egress* is None if it takes the policy as it is."""

    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    key: PoolKey = MAIN_POOL
    cwd: str = "/workspace"
    egress: tuple[dict[str, Any], dict[str, Any]] | None = None


def environment_of(terms: SandboxTerms, facts: SandboxFacts, variables: Mapping[str, str],
                   asked: ProgramTerms) -> dict[str, str]:
    """All environment variables of a program; *variables* are of this sandbox alone."""
    own = {**dict(terms.environment), **variables}
    if asked.clean:
        path = own.get("PATH", _PATH)
        own = {"PATH": path if facts.key.egress else f"{stand_ins.FOLDER}:{path}", **dict(terms.tls),
               **variables}
    return {**own, **facts.env, **asked.env}

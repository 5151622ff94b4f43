"""
Requests about live sandboxes: every operation of docs/wire.md that names one.

Runs in:   the daemon; pure. `requests` knows these by FIELDS, and parses and encodes them.
Trust:     a request is hostile; see `requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from leeward.dataclass import dataclass, field
from leeward.spec.folders import Folder
from leeward.spec.pool_key import DEFAULT_PROFILE
from leeward.wire import fetches, fields
from leeward.wire import sandbox_fields as ours
from leeward.wire.kernel_requests import KernelBind, KernelClose, KernelFork, KernelInterrupt, KernelOpen, KernelReset
from leeward.wire.overlay_requests import (
    OverlayCheckpoint,
    OverlayDiff,
    OverlayDiscard,
    OverlayRead,
    OverlayRequest,
    OverlayRestore,
    SandboxHide,
)


@dataclass(frozen=True, slots=True)
class SandboxOpen:
    """
    Open a sandbox that stays until it is killed, idle for too long, or at the end of its lifetime.

    Attributes:
        profile: what it sees, and may do.
        environment, egress: as for `execute`.
        limits: memory and processes of the whole sandbox; time and output of each call that asks for none.
        idle: seconds without a request or a running call after which it ends, 0 for the daemon's choice.
        lifetime: seconds after which it ends in any case, 0 for the daemon's choice.
        held: it ends with this connection.
        env: environment variables of every process in it.
        mounts: folders of the host that it shows, each a map of `spec.folders.Folder`'s fields.
        dock: the number of the `sandbox_dock` that has the descriptors of *mounts*.
        cwd: of the profile `shell`: the folder in which programs start.
        home: of the profile `shell`: a folder with secrets, beside the one that the client's user has by the host. Of
            the profiles `agent` and `approved`, and those based on them: the home folder.
        user: of the same ones: the user's name.
        hide: likewise: paths in its mounts that can't be seen.
        protect, pin: paths in its mounts that can't be written, and folders that can't be renamed.
        show_secrets: of the profile `shell`: hide no names.
        policy: a policy of egress, as a map of `spec.egress.KEYS` or in the short form, that narrows *egress*.
        fetch_policy: a policy for `fetch` in the short form, which also narrows *egress*.
    """

    op: ClassVar[str] = "sandbox_open"

    id: int
    profile: str = DEFAULT_PROFILE
    environment: str = ""
    egress: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    idle: float = 0.0
    lifetime: float = 0.0
    held: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Folder, ...] = ()
    dock: int = 0
    cwd: str = ""
    home: str = ""
    user: str = ""
    hide: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    show_secrets: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    fetch_policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxDock:
    """Ask for a socket on which to send descriptors for the next `sandbox_open`."""

    op: ClassVar[str] = "sandbox_dock"

    id: int


@dataclass(frozen=True, slots=True)
class SandboxList:
    """
    Ask for all sandboxes of this user.

    Attributes:
        after: `last` of the previous answer, which had no room for more rows.
    """

    op: ClassVar[str] = "sandbox_list"

    id: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    op: ClassVar[str] = "sandbox_info"

    id: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class SandboxExtend:
    """
    Change when *sandbox* ends. *idle* as in `sandbox_open`; *lifetime* counts from now. 0: no change.

    Attributes:
        detach: it doesn't end with the connection that has opened it.
    """

    op: ClassVar[str] = "sandbox_extend"

    id: int
    sandbox: str
    idle: float = 0.0
    lifetime: float = 0.0
    detach: bool = False


@dataclass(frozen=True, slots=True)
class SandboxKill:
    op: ClassVar[str] = "sandbox_kill"

    id: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class SandboxExecute:
    """
    Run Python code in *sandbox*, and answer as `execute` does; the other fields as there.

    Attributes:
        kernel: the number of a kernel, from `kernel_open`; 0 for a new interpreter.
    """

    op: ClassVar[str] = "sandbox_execute"

    id: int
    sandbox: str
    kernel: int = 0
    code: bytes = b""
    name: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    stdin: bytes | memoryview = b""
    collect: tuple[str, ...] = ()
    display: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """
    Run a program to its end, and answer as `execute` does.

    Attributes:
        argv: the program and its arguments; or
        shell: a line for /bin/sh.
        cwd: the folder to start in, "" for /workspace.
        title: what lists show it as.
        cpu_time: processor seconds of the program and its descendants after which they are killed; 0: no bound.
        clean: its environment is only PATH and the variables of the sandbox and of this request.
        warm: the program reads all of its stdin before it does anything: one that waits for that may be held ready
            for the next request with the same program, folder and environment.
    """

    op: ClassVar[str] = "process_run"

    id: int
    sandbox: str
    argv: tuple[str, ...] = ()
    shell: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | memoryview = b""
    title: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    cpu_time: float = 0.0
    clean: bool = False
    warm: bool = False


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """
    Start a program that is read from and written to while it runs; the fields as for `process_run`.

    Attributes:
        stdin: what its standard input begins with.
        open: its stdin stays open behind that, for `process_write`.
        bounded: it has the sandbox's limits on time and output where it asks for none, as with `process_run`.
        terminal: rows and columns; the program gets a terminal of that size, its stdin stays open, and stdout is its
            only stream.
        held: it is killed when this connection ends.
    """

    op: ClassVar[str] = "process_start"

    id: int
    sandbox: str
    argv: tuple[str, ...] = ()
    shell: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | memoryview = b""
    open: bool = False
    bounded: bool = False
    terminal: tuple[int, int] | None = None
    held: bool = False
    title: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    cpu_time: float = 0.0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class ProcessList:
    op: ClassVar[str] = "process_list"

    id: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class ProcessRead:
    """
    Take chunks of a process's output.

    Attributes:
        after: the number of the last chunk that the client has; the daemon drops the chunks up to it.
        wait: seconds to wait for one.
    """

    op: ClassVar[str] = "process_read"

    id: int
    sandbox: str
    process: int
    after: int = 0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessWrite:
    """Write *data* to a process's stdin, and then close that if *end*."""

    op: ClassVar[str] = "process_write"

    id: int
    sandbox: str
    process: int
    data: bytes = b""
    end: bool = False


@dataclass(frozen=True, slots=True)
class ProcessResize:
    """Change the size of a process's terminal."""

    op: ClassVar[str] = "process_resize"

    id: int
    sandbox: str
    process: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class ProcessSignal:
    op: ClassVar[str] = "process_signal"

    id: int
    sandbox: str
    process: int
    signal: int


@dataclass(frozen=True, slots=True)
class ProcessKill:
    """Kill a process and all its descendants."""

    op: ClassVar[str] = "process_kill"

    id: int
    sandbox: str
    process: int


@dataclass(frozen=True, slots=True)
class ProcessWait:
    """Answer when a process has ended, or after *wait* seconds."""

    op: ClassVar[str] = "process_wait"

    id: int
    sandbox: str
    process: int
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class SandboxFetch:
    """
    Send a request of HTTP by the policy of *sandbox*, and answer with the response.

    Attributes:
        headers: name and value each.
    """

    op: ClassVar[str] = "sandbox_fetch"

    id: int
    sandbox: str
    url: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


SandboxRequest = (SandboxOpen | SandboxDock | SandboxList | SandboxInfo | SandboxExtend | SandboxKill | SandboxExecute
                  | KernelOpen | KernelInterrupt | KernelReset | KernelFork | KernelBind | KernelClose | ProcessRun
                  | ProcessStart
                  | ProcessList | ProcessRead | ProcessWrite | ProcessResize | ProcessSignal | ProcessKill | ProcessWait
                  | SandboxFetch | OverlayRequest)

Checks = dict[str, Callable[[object], object]]

_HERE: Checks = {"sandbox": ours.sandbox}
_ONE: Checks = {"sandbox": ours.sandbox, "process": ours.whole("process")}
_KERNEL: Checks = {"sandbox": ours.sandbox, "kernel": ours.whole("kernel")}
_PROGRAM: Checks = {"sandbox": ours.sandbox, "argv": ours.argv, "shell": ours.shell, "cwd": ours.path,
                    "env": fields.env, "stdin": fields.stdin, "title": fields.name, "limits": fields.limits,
                    "cpu_time": ours.cpu_time, "clean": ours.flag("clean")}

#: As in `requests`.
FIELDS: dict[str, tuple[type[SandboxRequest], Checks]] = {
    "sandbox_open": (SandboxOpen, {
        "profile": fields.named("profile"), "environment": fields.named("environment"),
        "egress": fields.named("egress"), "limits": fields.limits, "idle": ours.idle, "lifetime": ours.lifetime,
        "held": ours.flag("held"),
        "env": fields.env, "metadata": ours.metadata, "mounts": ours.mounts, "dock": ours.whole("dock"),
        "cwd": ours.path, "home": ours.path, "user": ours.user,
        "hide": ours.paths("hide"), "protect": ours.paths("protect"), "pin": ours.paths("pin"),
        "show_secrets": ours.flag("show_secrets"),
        "policy": fetches.policy("policy"), "fetch_policy": fetches.policy("fetch_policy"),
    }),
    "sandbox_dock": (SandboxDock, {}),
    "sandbox_list": (SandboxList, {"after": ours.whole("after")}),
    "sandbox_info": (SandboxInfo, _HERE),
    "sandbox_extend": (SandboxExtend, {**_HERE, "idle": ours.idle, "lifetime": ours.lifetime,
                                       "detach": ours.flag("detach")}),
    "sandbox_kill": (SandboxKill, _HERE),
    "sandbox_execute": (SandboxExecute, {
        **_HERE, "kernel": ours.whole("kernel"), "code": fields.code, "name": fields.name, "args": fields.args,
        "env": fields.env, "files": fields.files, "stdin": fields.stdin, "collect": fields.collect,
        "display": ours.flag("display"), "limits": fields.limits, "functions": fields.functions,
    }),
    "kernel_open": (KernelOpen, {**_HERE, "held": ours.flag("held")}),
    "kernel_interrupt": (KernelInterrupt, _KERNEL),
    "kernel_reset": (KernelReset, _KERNEL),
    "kernel_fork": (KernelFork, {**_KERNEL, "held": ours.flag("held")}),
    "kernel_bind": (KernelBind, _KERNEL),
    "kernel_close": (KernelClose, _KERNEL),
    "process_run": (ProcessRun, {**_PROGRAM, "warm": ours.flag("warm")}),
    "process_start": (ProcessStart, {**_PROGRAM, "open": ours.flag("open"), "bounded": ours.flag("bounded"),
                                     "terminal": ours.terminal, "held": ours.flag("held")}),
    "process_list": (ProcessList, _HERE),
    "process_read": (ProcessRead, {**_ONE, "after": ours.whole("after"), "wait": ours.wait}),
    "process_write": (ProcessWrite, {**_ONE, "data": ours.data, "end": ours.flag("end")}),
    "process_resize": (ProcessResize, {**_ONE, "rows": ours.side("rows"), "columns": ours.side("columns")}),
    "process_signal": (ProcessSignal, {**_ONE, "signal": ours.signal}),
    "process_kill": (ProcessKill, _ONE),
    "process_wait": (ProcessWait, {**_ONE, "wait": ours.wait}),
    "sandbox_fetch": (SandboxFetch, {**_HERE, "url": fetches.url, "method": fetches.method,
                                     "headers": fetches.headers, "body": fetches.body}),
    "sandbox_hide": (SandboxHide, {**_HERE, "hide": ours.paths("hide")}),
    "overlay_diff": (OverlayDiff, {**_HERE, "target": ours.path}),
    "overlay_read": (OverlayRead, {**_HERE, "target": ours.path, "path": ours.path_in_overlay,
                                   "offset": ours.whole("offset")}),
    "overlay_checkpoint": (OverlayCheckpoint, {**_HERE, "target": ours.path, "name": ours.checkpoint}),
    "overlay_restore": (OverlayRestore, {**_HERE, "target": ours.path, "name": ours.checkpoint}),
    "overlay_discard": (OverlayDiscard, {**_HERE, "target": ours.path, "paths": ours.paths_in_overlay}),
}

#: Fields that an operation must have.
NEEDED: dict[str, tuple[str, ...]] = {
    **{op: tuple(name for name in ("sandbox", "process", "kernel") if name in checks)
       for op, (_, checks) in FIELDS.items()},
    "sandbox_execute": ("sandbox", "code"),
    "process_signal": ("sandbox", "process", "signal"),
    "process_resize": ("sandbox", "process", "rows", "columns"),
    "sandbox_fetch": ("sandbox", "url"),
    "sandbox_hide": ("sandbox", "hide"),
    "overlay_diff": ("sandbox", "target"),
    "overlay_read": ("sandbox", "target", "path"),
    "overlay_checkpoint": ("sandbox", "target"),
    "overlay_restore": ("sandbox", "target", "name"),
    "overlay_discard": ("sandbox", "target"),
}

#: Operations that take one of `argv` and `shell`.
PROGRAMS = frozenset({"process_run", "process_start"})

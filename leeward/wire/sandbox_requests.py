"""Requests about live sandboxes: every operation of docs/wire.md that names one, but for those about its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.spec.folders import Folder
from leeward.spec.pool_key import DEFAULT_PROFILE
from leeward.wire import fetches, fields
from leeward.wire import sandbox_fields as ours
from leeward.wire.answers import FIGURES, RESULT
from leeward.wire.schema import ClientRequest, field, operation

#: What `sandbox_info` tells.
_INFO = {
    "sandbox": "text", "profile": "text", "environment": "text", "egress": "text", "image": "text",
    "metadata": "map of text to text", "age": "float", "idle": "float", "unused": "float", "left": "float", "held": "bool",
    "processes": "int", "calls": "int", "memory_limit": "int", "memory_peak": "int",
    "memory": "int", "cpu_time": "float", "oom_kills": "int", "forks_refused": "int", "denied": "map of text to int",
    "mounts?": "array of map", "asleep": "bool", "layers?": "array of text",
    "checkpoints?": "array of text",
}
#: The end of a fetch: a response, or why there is none.
_FETCHED = {
    "status?": "int", "headers?": "array", "url": "text", "history?": "array of text", "address?": "text",
    "body?": "binary or place", "failed?": "text", "message?": "text", "sent?": "bool", "arenas?": "array of int",
}
#: What is told of the end of a process, once it has ended in full.
_END = {"over": "bool", **{f"{name.removesuffix('?')}?": kind for name, kind in FIGURES.items()}}
#: What is told of a snapshot.
_SNAPSHOT = {"snapshot": "text", "size": "int", "made": "float", "python": "text", "packages": "map of text to text",
             "lost": "array of text"}
#: The answer whose content is a memory file of `size` bytes; there is none if that is 0.
_FILE = {"size": "int", "arenas?": "array of int"}


class SandboxRequest(ClientRequest):
    """A request about an open sandbox."""

    sandbox: str = field(ours.sandbox, "its id")


@operation("sandbox_open", answers={"sandbox": "text", "idle": "float", "lifetime": "float"})
class SandboxOpen(ClientRequest):
    """Open a sandbox that stays until it is killed, idle for too long, or at the end of its lifetime."""

    profile: str = field(fields.named, "which files the sandbox shows and what it permits: one of the daemon's "
                         "profiles", default=DEFAULT_PROFILE, shown="`python`")
    environment: str = field(fields.named, "as for `execute`, for all that runs in it", default="")
    egress: str = field(fields.named, "as for `execute`, for all that runs in it", default="")
    image: str = field(fields.named, "an [image](images.md) of the daemon's user, whose root file system takes the place "
                       "of the host's files; not with `environment`", default="")
    limits: Mapping[str, Any] = field(
        fields.limits, "as for `execute`, and `files`, bytes in /workspace, /tmp and /dev/shm together. It, `memory` and "
        "`processes` hold for the whole sandbox; `time` and `output` "
        "for each `process_run` that doesn't set its own", default_factory=dict, shown="the daemon's")
    idle: float = field(ours.idle, "seconds without a request about it and without a request that waits for it, "
                        "after which it ends; at most `sandbox_idle`", default=0.0, shown="the daemon's")
    lifetime: float = field(ours.lifetime, "seconds after which it ends in any case; at most `sandbox_lifetime`",
                            default=0.0, shown="the daemon's")
    held: bool = field(
        fields.flag, "it ends when this connection does, as `parted`, until a `sandbox_extend` with `detach`", default=False)
    sleeps: bool = field(
        fields.flag, "when it was idle for too long it sleeps, as by `sandbox_pause`; it ends if it can't", default=False)
    env: Mapping[str, str] = field(
        fields.env, "variables of every process in it, beside the sandbox's own; bounds as for `execute`",
        default_factory=dict)
    metadata: Mapping[str, str] = field(
        ours.metadata, "shown by `sandbox_info`; at most 64 entries, 16,384 characters together", default_factory=dict)
    mounts: tuple[Folder, ...] = field(
        ours.mounts, "folders of the host, at most 16, whose descriptors lie in `dock`, in this order", default=())
    dock: int = field(fields.whole, "the number of a `sandbox_dock` of this connection; `mounts` need one",
                      default=0, shown="")
    cwd: str = field(ours.path, "of the profile `shell`: the folder in which programs start, and whose `.env` files "
                     "are hidden", default="", shown="`/workspace`")
    home: str = field(ours.path, "of the profile `shell`: a folder whose secrets are hidden, beside the one that the "
                      "host has for the user. Of the profile `agent`, which needs it, of `approved` and of those "
                      "based on one of the two: the home folder, a private one at that path", default="", shown="")
    user: str = field(ours.user, "with a home folder: the user's name inside. With `image` alone: who runs there, a name of "
                      "the image's or a number, perhaps `:` and a group's", default="", shown="`sandbox`, the image's")
    hide: tuple[str, ...] = field(ours.paths, "with a home folder: absolute paths in its mounts that can't be seen: "
                                  "a file is empty there and can't be read, a folder is empty. With `protect` and "
                                  "`pin` at most 512, 40,960 bytes together", default=())
    protect: tuple[str, ...] = field(
        ours.paths, "absolute paths in the sandbox's mounts that can't be written. Names that aren't "
        "there, and links, are left as they are", default=())
    pin: tuple[str, ...] = field(ours.paths, "absolute paths of folders in the sandbox's mounts that can't "
                                 "be renamed, moved or removed, nor the folders above them. A file can be renamed "
                                 "within such a folder, and not into or out of it", default=())
    show_secrets: bool = field(fields.flag, "of the profile `shell`: hide nothing; `forbidden` where the operator "
                               "has set `show_secrets = false`", default=False)
    policy: Mapping[str, Any] = field(
        fetches.policy, "a policy of the client, which narrows `egress`: the keys of [a policy](egress.md), without "
        "`authorities`, or those of [the short form](egress.md#fetch); about 65,536 characters", default_factory=dict)
    fetch_policy: Mapping[str, Any] = field(
        fetches.policy, "a policy that narrows the sandbox's for `sandbox_fetch`, in [the short "
        "form](egress.md#fetch); about 65,536 characters", default_factory=dict)


@operation("sandbox_dock", answers={"dock": "int", "socket": "bool"}, admits="job")
class SandboxDock(ClientRequest):
    """Ask for a socket on which to send descriptors for the next `sandbox_open`."""


@operation("sandbox_list", answers={"sandboxes": "array of map", "more": "bool", "last?": "int"})
class SandboxList(ClientRequest):
    """Ask for all sandboxes of this user."""

    after: int = field(fields.whole, "`last` of the answer before", default=0)


@operation("sandbox_info", answers=_INFO)
class SandboxInfo(SandboxRequest):
    """Ask for the state of a sandbox."""


@operation("sandbox_extend", answers=_INFO)
class SandboxExtend(SandboxRequest):
    """
    Change when *sandbox* ends, its metadata, or its policies. *idle* as in `sandbox_open`; *lifetime* counts from now. What
    is left out or empty stays as it is. One that sleeps keeps its metadata and policies.
    """

    idle: float = field(ours.idle, "as for `sandbox_open`", default=0.0, shown="as it is")
    lifetime: float = field(ours.lifetime, "seconds from now on, at most `sandbox_lifetime`",
                            default=0.0, shown="as it is")
    detach: bool = field(fields.flag, "the sandbox isn't held by a connection any more", default=False)
    metadata: Mapping[str, str] = field(ours.metadata, "all of it, as for `sandbox_open`", default_factory=dict,
                                        shown="as it is")
    policy: Mapping[str, Any] = field(
        fetches.policy, "as for `sandbox_open`, in place of the one before, and of `fetch_policy`: connections that are "
        "open, and fetches, end", default_factory=dict, shown="as it is")


@operation("sandbox_pause", answers={}, admits="job")
class SandboxPause(SandboxRequest):
    """Let *sandbox* sleep: it has no process and no worker until the next request about it."""


@operation("sandbox_kill", answers={})
class SandboxKill(SandboxRequest):
    """End every process in a sandbox, and the sandbox."""


@operation("sandbox_copy", answers={"made": "int"}, admits="job")
class SandboxCopyFiles(SandboxRequest):
    """Make in *sandbox* what another one of this user has in its writable folders and in overlays of the same folders."""

    source: str = field(ours.sandbox, "the id of the other one")


@operation("sandbox_execute", answers=RESULT, admits="job")
class SandboxExecute(SandboxRequest):
    """Run Python code in *sandbox*, and answer as `execute` does; the other fields as there."""

    kernel: int = field(fields.whole, "a kernel of `kernel_open`; 0 for a fresh interpreter", default=0)
    code: bytes = field(fields.code, "as for `execute`", type="binary or text")
    name: str = field(fields.name, "as for `execute`", default="")
    args: tuple[str, ...] = field(fields.args, "as for `execute`", default=())
    env: Mapping[str, str] = field(fields.env, "as for `execute`", default_factory=dict)
    files: Mapping[str, bytes | memoryview] = field(
        fields.files, "as for `execute`", default_factory=dict)
    stdin: bytes | memoryview = field(fields.stdin, "as for `execute`; a kernel takes none", default=b"")
    collect: tuple[str, ...] = field(fields.collect, "as for `execute`", default=())
    display: bool = field(fields.flag, "as for `execute`", default=False)
    limits: Mapping[str, Any] = field(fields.limits, "`time`, `output` and `overflow`", default_factory=dict,
                                      shown="the sandbox's")
    functions: Mapping[str, Any] = field(fields.functions, "as for `execute`", default_factory=dict)


@operation("sandbox_fetch", answers=_FETCHED, admits="job")
class SandboxFetch(SandboxRequest):
    """Send a request of HTTP by the policy of *sandbox*, and answer with the response."""

    url: str = field(fetches.url, "http or https, at most 8,192 characters")
    method: str = field(fetches.method, "at most 64 characters", default="GET")
    headers: tuple[tuple[str, str], ...] = field(
        fetches.headers, "of arrays of two texts, name and value: at most 64, 65,536 characters together", default=())
    body: bytes = field(fetches.body, "at most 16 MiB", default=b"")


@operation("sandbox_connect", answers={"socket": "bool"}, admits="job")
class SandboxConnect(SandboxRequest):
    """Ask for a socket that is connected to a server in *sandbox*."""

    port: int = field(ours.port, "the server's, of TCP, from 1 to 65,535")


# --- kernels ----------------------------------------------------------------------


class _KernelRequest(SandboxRequest):
    kernel: int = field(fields.whole, "of `kernel_open`")


@operation("kernel_open", answers={"kernel": "int"})
class KernelOpen(SandboxRequest):
    """Start a Python in *sandbox* that keeps its state between requests."""

    snapshot: str = field(ours.snapshot, "begin with the state of this one; answered when it is there", default="",
                          shown="a fresh one")
    same_random: bool = field(fields.flag, "with `snapshot`: its random numbers go on, and nothing is seeded anew",
                              default=False)
    held: bool = field(fields.flag, "the kernel is closed when this connection ends", default=False)


@operation("kernel_interrupt", answers={"interrupted": "bool"})
class KernelInterrupt(_KernelRequest):
    """Raise KeyboardInterrupt in the code that a kernel runs."""


@operation("kernel_reset", answers={})
class KernelReset(_KernelRequest):
    """Give a kernel a new process, without the state of the old one."""


@operation("kernel_fork", answers={"kernel": "int"})
class KernelFork(_KernelRequest):
    """Start a kernel with the state that *kernel* has."""

    held: bool = field(fields.flag, "as for `kernel_open`", default=False)


@operation("kernel_snapshot", answers=_SNAPSHOT)
class KernelSnapshot(_KernelRequest):
    """Take the state that *kernel* has after the requests before, which goes on."""


@operation("kernel_rollback", answers={})
class KernelRollback(_KernelRequest):
    """Give *kernel* the state of *snapshot* after the requests before; refused, it goes on as it was."""

    snapshot: str = field(ours.sandbox, "of `kernel_snapshot`")
    same_random: bool = field(fields.flag, "as for `kernel_open`", default=False)


@operation("kernel_bind", answers={"session": "int"})
class KernelBind(_KernelRequest):
    """Give a kernel a number on this connection, by which it takes code alone as a session does."""

    kernel: int = field(fields.whole, "of `kernel_open`; 0 for a fresh interpreter for each request")
    display: bool = field(fields.flag, "as for `execute`, of each of these requests", default=True)


@operation("kernel_close", answers={})
class KernelClose(_KernelRequest):
    """End a kernel, as a reset does, and give it no other process."""


# --- snapshots --------------------------------------------------------------------


class _SnapshotRequest(ClientRequest):
    snapshot: str = field(ours.sandbox, "of `kernel_snapshot`")


@operation("snapshot_list", answers={"snapshots": "array of map"})
class SnapshotList(ClientRequest):
    """Ask for all snapshots of this user, the oldest first, without `packages` and `lost`."""


@operation("snapshot_info", answers=_SNAPSHOT)
class SnapshotInfo(_SnapshotRequest):
    """Ask what a snapshot is."""


@operation("snapshot_export", answers={"key": "map of text to text", "sizes": "array of int"})
class SnapshotExport(_SnapshotRequest):
    """Ask what a snapshot needs to be imported again, and how many bytes it has."""


@operation("snapshot_read", answers={"data": "binary"})
class SnapshotRead(_SnapshotRequest):
    """Read at most 1 MiB of a snapshot's bytes."""

    offset: int = field(fields.whole, "where to begin", default=0)


@operation("snapshot_import", answers={"snapshot": "text"})
class SnapshotImport(ClientRequest):
    """Begin a snapshot of bytes that `snapshot_read` answered, perhaps an earlier daemon's; `snapshot_write` adds them."""

    key: Mapping[str, str] = field(ours.metadata, "of `snapshot_export`")
    sizes: tuple[int, int] = field(ours.sizes, "of `snapshot_export`")
    facts: bytes = field(ours.facts, "MessagePack of a map: `python`, `packages` and `lost` of `kernel_snapshot`")
    made: float = field(ours.moment, "as `kernel_snapshot` answered")


@operation("snapshot_write", answers={"left": "int"})
class SnapshotWrite(_SnapshotRequest):
    """Add the next bytes to a snapshot that is imported; with the last ones it is one."""

    snapshot: str = field(ours.sandbox, "of `snapshot_import`")
    data: bytes = field(ours.data, "at most 1 MiB")


@operation("snapshot_remove", answers={})
class SnapshotRemove(_SnapshotRequest):
    """Remove a snapshot. Copies that were made of it live on."""


# --- processes --------------------------------------------------------------------


def _one_program(values: Mapping[str, Any]) -> None:
    if ("argv" in values) == ("shell" in values):
        raise BadRequest("a program takes one of argv and shell")


class _Program(SandboxRequest):
    argv: tuple[str, ...] = field(ours.argv, "the program, which is looked for in `PATH`, and its arguments; at most "
                                  "1,024, of at most 131,071 characters each and 2^21 together", default=(), shown="")
    shell: str = field(ours.shell, "a line for `/bin/sh -c`, at most 131,071 characters", default="", shown="")
    cwd: str = field(ours.path, "the folder to start in, at most 4,095 characters", default="", shown="`/workspace`")
    env: Mapping[str, str] = field(
        fields.env, "variables, beside the sandbox's; bounds as for `execute`", default_factory=dict)
    stdin: bytes | memoryview = field(fields.stdin, "at most 64 MiB", default=b"")
    title: str = field(fields.name, "what `process_list` shows, at most 255 characters",
                       default="", shown="the program")
    limits: Mapping[str, Any] = field(fields.limits, "`time`, `output` and `overflow`", default_factory=dict,
                                      shown="the sandbox's")
    cpu_time: float = field(ours.cpu_time, "processor seconds of it and all that descends from it, 0.001 to 3,600, "
                            "after which they are killed: `timed_out`, with the limit `cpu`", default=0.0, shown="none")
    clean: bool = field(fields.flag, "its environment is `PATH`, and what `env` here and the sandbox's `env` say",
                        default=False)
    ends_children: bool = field(fields.flag, "it counts as ended when no process that it has started is left: such are "
                                "killed when it has ended", default=False)


class _ProcessRequest(SandboxRequest):
    process: int = field(fields.whole, "one that was started")


@operation("process_run", answers=RESULT, admits="job", rule=_one_program)
class ProcessRun(_Program):
    """Run a program to its end, and answer as `execute` does."""

    warm: bool = field(fields.flag, "the program reads all of its stdin before it does anything", default=False)


@operation("process_start", answers={"process": "int"}, rule=_one_program)
class ProcessStart(_Program):
    """Start a program that is read from and written to while it runs."""

    open: bool = field(fields.flag, "its standard input stays open for `process_write` after the content of `stdin`",
                       default=False)
    bounded: bool = field(fields.flag, "the sandbox's `time` and `output` hold where it doesn't set its own; else it "
                          "has no such limit", default=False)
    terminal: tuple[int, int] | None = field(
        ours.terminal, "two ints, rows and columns, each from 1 to 65,535: it is on a terminal of that size, with "
        "standard input open and stdout as its one stream", default=None, shown="")
    held: bool = field(fields.flag, "it is killed when this connection ends", default=False)


@operation("process_list", answers={"processes": "array of map"})
class ProcessList(SandboxRequest):
    """Ask for the processes of a sandbox."""


@operation("process_read", answers={"chunks": "array", **_END})
class ProcessRead(_ProcessRequest):
    """Take chunks of a process's output."""

    after: int = field(fields.whole, "the number of the last chunk that the client has", default=0)
    reader: int = field(fields.whole, "a number of the reader's own, such as a random one: each gets all chunks from its "
                        "first request on", default=0)
    wait: float = field(ours.wait, "seconds to wait for the next one, at most 3,600", default=0.0)


@operation("process_write", answers={"written": "int"})
class ProcessWrite(_ProcessRequest):
    """Write *data* to a process's stdin, and then close that if *end*."""

    process: int = field(fields.whole, "one that was started with `open`")
    data: bytes = field(ours.data, "at most 1 MiB", default=b"")
    end: bool = field(fields.flag, "close its standard input behind that", default=False)


@operation("process_resize", answers={"resized": "bool"})
class ProcessResize(_ProcessRequest):
    """Change the size of a process's terminal."""

    process: int = field(fields.whole, "one that was started with `terminal`")
    rows: int = field(ours.side, "from 1 to 65,535")
    columns: int = field(ours.side, "from 1 to 65,535")


@operation("process_signal", answers={"sent": "bool"})
class ProcessSignal(_ProcessRequest):
    """Send a signal to a process alone."""

    signal: int = field(ours.signal, "from 1 to 64")


@operation("process_kill", answers={})
class ProcessKill(_ProcessRequest):
    """Kill a process and all its descendants."""


@operation("process_wait", answers=_END)
class ProcessWait(_ProcessRequest):
    """Answer when a process has ended, or after *wait* seconds."""

    wait: float = field(ours.wait, "seconds, at most 3,600", default=0.0)


# --- folders ----------------------------------------------------------------------


class OverlayRequest(SandboxRequest):
    """A request about a folder whose changes stay in the sandbox."""

    target: str = field(ours.path, "of one of its overlays")


@operation("overlay_diff", answers=_FILE, admits="job")
class OverlayDiff(OverlayRequest):
    """Ask what *sandbox* has changed in its overlay at *target*."""


@operation("overlay_read", answers=_FILE, admits="job")
class OverlayRead(OverlayRequest):
    """Read a piece of a changed file in the overlay at *target*, or several small files."""

    path: bytes = field(ours.path_in_overlay, "of a file that `overlay_diff` lists")
    offset: int = field(fields.whole, "in bytes", default=0)
    paths: tuple[bytes, ...] = field(
        ours.paths_in_overlay, "of further files, which are read as well, from their beginnings; bounds as for"
        " `overlay_discard`", default=(), shown="none")


@operation("overlay_checkpoint", answers={"name": "text"})
class OverlayCheckpoint(OverlayRequest):
    """Keep a copy of what *sandbox* has changed in its overlay at *target*, as *name*; "" stands for the next number."""

    name: str = field(ours.checkpoint, "letters, digits, `_`, `-` and `.`, not `.` or `-` first; at most 64",
                      default="", shown="the first free number")


@operation("overlay_restore", answers={})
class OverlayRestore(OverlayRequest):
    """Make the overlay at *target* what it was at the checkpoint *name*."""

    name: str = field(ours.checkpoint, "of a checkpoint there")


@operation("overlay_discard", answers={})
class OverlayDiscard(OverlayRequest):
    """Undo what *sandbox* has changed in its overlay at *target*."""

    paths: tuple[bytes, ...] = field(
        ours.paths_in_overlay, "of what `overlay_diff` lists, relative; at most 1,024, and 48 KiB together",
        default=(), shown="all")


@operation("sandbox_hide", answers={})
class SandboxHide(SandboxRequest):
    """Hide names in the mounts of *sandbox*, which has a home of its own, as `hide` of sandbox_open does."""

    hide: tuple[str, ...] = field(ours.paths, "as for `sandbox_open`; at most 512, 40,960 bytes together, and 2,048 "
                                  "in all requests of a sandbox")

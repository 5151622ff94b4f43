"""
`leeward sandbox new --json`: opens a sandbox for a program in another language that can't send descriptors.

The program opens the folders itself, with its own rights, and this child of its inherits the descriptors: mounts name
them as /proc/self/fd/N. The options are trusted as a command line is, since the parent has the same rights. They aren't
arguments, which every user of the host can read.

Theory of operation of `--stay`. The options are the first line of standard input, each further line is a request, and
each request is answered by a line, in order. This process keeps what has to be kept between requests: the connection
that holds the sandbox, the state of a folder that is compared, and the guard of one that is protected. Standard input
ends when the program does, however it ends. Then the sandbox ends, if it is held, and what its guard has made is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.closing import OwnedFd, on_failure
from leeward.client.host_paths import PLACE
from leeward.client.mounts import WORKDIR, Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, LeewardError, RequestRejected

if TYPE_CHECKING:
    from leeward.client.folder_state import BeforeFirstCall
    from leeward.client.protecting import FolderGuard

#: The greatest number of bytes of the options. The environment of a process has less than a tenth of that.
MOST = 16 << 20
#: The options of `Sandbox` that are accepted. The socket is an option of the command.
KNOWN = frozenset(("profile", "environment", "packages", "egress", "allow_network", "policy", "fetch_policy",
                   "env", "idle", "lifetime", "metadata", "memory", "processes", "descriptors", "files",
                   "timeout", "output", "overflow", "retry_busy", "show_secrets", "image", "user", "workdir",
                   "overlay", "copy", "mounts"))
#: With `--stay` these as well. `state` is about the first mount, a work folder: "lazy" or "read", as FolderState has it.
#: With `guard` it is protected as by `WorkdirSandbox`.
STAYS = KNOWN | {"held", "state", "guard"}


def open_by_json(socket: str | None) -> int:
    """Open a sandbox by the options on standard input, one JSON object; print one with its id, or why there is none."""
    told = _tried(lambda: {"sandbox": Sandbox(socket=socket, **_options_in(sys.stdin.buffer.read(MOST + 1))).detach()})
    print(json.dumps(told))
    return int("error" in told)


def stay(socket: str | None) -> int:
    """Answer requests on standard input until its end."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # they are the parent's, which may live on; a daemon inherits no handler
    stays = _Stay(socket)
    try:
        for line in iter(lambda: sys.stdin.buffer.readline(MOST + 1), b""):
            print(json.dumps(_tried(partial(stays.take, line))), flush=True)
    finally:
        stays.end()
    return 0


def _tried(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What *call* returns, or the error that it raises."""
    try:
        return call()
    except LeewardError as error:
        more = ("reason", "when", "limit", "retry_after", "errno", "kind")
        about = {name: value for name in more if (value := getattr(error, name, None))}
        return {"error": {"type": type(error).__name__, "message": str(error),
                          "may_have_run": isinstance(error, DaemonError) and error.may_have_run, **about}}


def _options_in(data: bytes, names: frozenset[str] = KNOWN) -> dict[str, Any]:
    """The options in *data*, JSON; RequestRejected if it isn't an object with options of *names*."""
    try:
        if len(data) > MOST:
            raise ValueError(f"more than {MOST} bytes")
        options = json.loads(data)
        if not isinstance(options, dict):
            raise ValueError("not a JSON object")
        for name in options.keys() - names:
            raise ValueError(f"there is no option {name!r:.40}; there are {', '.join(sorted(names))}")
        options["mounts"] = [Mount(**mount) for mount in options.get("mounts", [])]
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestRejected(f"the options on standard input are wrong: {error}") from None
    return options


class _Stay:
    def __init__(self, socket: str | None) -> None:
        self._socket = socket
        self._options: dict[str, Any] | None = None
        self._box: Sandbox | None = None
        self._before: BeforeFirstCall | None = None
        self._guards = False
        self._guard: FolderGuard | None = None
        self._moved: list[str] = []

    def take(self, line: bytes) -> dict[str, Any]:
        """The answer to a line; the first one has the options."""
        if self._options is not None:
            request = json.loads(line)
            return getattr(self, request.pop("do"))(**request)  # type: ignore[no-any-return]  # the parent is trusted
        options = _options_in(line, STAYS)
        state, self._guards = options.pop("state", ""), options.pop("guard", False)
        if (state or self._guards) and not options["mounts"]:
            raise RequestRejected("state and guard are about the first mount, and there is none")
        if state:
            from leeward.client.folder_state import BeforeFirstCall  # few sandboxes are compared

            self._before = BeforeFirstCall(lazy=state == "lazy")
        self._options = options
        return {}

    def open(self) -> dict[str, Any]:
        """Open the sandbox, or another one in its place. `made` are the names in the work folder that its guard has made."""
        assert self._options is not None
        self.end()
        if self._before is not None:
            self._before.of(self._folder)
        if self._guards:
            from leeward.client.protecting import FolderGuard, check_beside  # few folders are protected

            check_beside(self._options["mounts"][0].source, self._options["mounts"][1:])
            self._guard = FolderGuard(self._options["mounts"][0].source)
        names = () if self._guard is None else self._guard.names
        box = Sandbox(socket=self._socket, protect=[posixpath.join(WORKDIR, name) for name in names], **self._options)
        with on_failure(box.close):
            opened = box.id
        self._box = box
        return {"sandbox": opened,
                "made": [name for name in names if self._guard is not None and not self._guard.shown([name])]}

    def _folder(self) -> int:
        assert self._options is not None
        return os.open(self._options["mounts"][0].source, PLACE | os.O_DIRECTORY)

    def diff(self, target: str = "") -> dict[str, Any]:
        from leeward_cli.overlays import row_of  # for Linux alone

        assert self._box is not None
        found = self._box.diff(target) if self._before is None else self._before.of(self._folder).diff()
        return {"changes": [row_of(change) for change in found]}

    def check(self, path: str) -> dict[str, Any]:
        """WorkdirIoError if the file *path* can't be written, because programs on the host would run it at once."""
        from leeward.client.workdir_files import WorkdirFiles  # as FolderGuard

        with OwnedFd(self._folder()) as folder:
            WorkdirFiles(folder, True, () if self._guard is None else self._guard.names).check_obeyed(path)
        return {}

    def put_away(self) -> dict[str, Any]:
        try:
            moved, self._moved = self._moved, []
            return {"put_away": moved if self._guard is None else moved + self._guard.put_away(self._over)}
        except LeewardError:
            self.end()
            raise

    def _over(self) -> None:
        if self._box is not None:
            self._box.close()

    def detach(self) -> dict[str, Any]:
        """Let the sandbox run on when this process ends."""
        box, self._box = self._box, None
        return {} if box is None else {"sandbox": box.detach()}

    def end(self) -> None:
        box, self._box = self._box, None
        guard, self._guard = self._guard, None
        if box is not None and self._options is not None:
            (box.close if self._options.get("held") else box.detach)()
        if guard is not None:
            with contextlib.closing(guard):
                self._moved += guard.put_away(self._over)

"""
WorkdirSandbox: a folder of the host with commands, JavaScript and file calls.

Theory of operation. A WorkdirSandbox uses a live sandbox of the profile `workdir`, whose /workspace is the folder. The
first command opens it; if it has ended (after its idle time, or out of memory), the next one opens another. Each
command is a fresh process there, with an environment of its own. Without `overlay` this program reads and writes the
folder's files itself, beneath the folder's descriptor (workdir_files.py). With `overlay` the sandbox has a copy of the
folder, a process there reads and writes the files, and the copy is lost when that sandbox ends.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from leeward.base.closing import OwnedFd
from leeward.base.dataclass import replace
from leeward.client.fetching import Fetched, Headers
from leeward.client.host_paths import PLACE
from leeward.client.mounts import WORKDIR, Mount
from leeward.client.sandbox import Sandbox
from leeward.client.workdir_errors import (
    CommandNotFound,
    Destroyed,
    FetchError,
    NetworkingDisabled,
    PathTraversal,
    Timeout,
    ToolboxNotAvailable,
    WorkdirRuntimeError,
)
from leeward.client.workdir_files import WorkdirEntry, WorkdirFiles, inside, io_error
from leeward.errors import DaemonError, FetchFailed, RequestRejected, SandboxOver, Stale
from leeward.spec.outcome import EXIT_OUT_OF_MEMORY, Limit, Outcome, Result
from leeward.spec.sizes import parse_size
from leeward.spec.stand_ins import FETCH, FETCH_SYNC, WARM
from leeward.spec.tools import TOOLS
from leeward.spec.warm_node import DECLINED, DECLINES, NEEDS_NODE, PROBE

# Imported in functions: what not every start needs; 7 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.changes import Changes
    from leeward.client.folder_state import BeforeFirstCall, FolderState
    from leeward.client.protecting import FolderGuard

T = TypeVar("T")

#: A shell script that prints those of TOOLS that are programs in PATH, one on each line.
_LOOK = (f"set -- {' '.join(TOOLS)}; IFS=:; "
         'for tool; do for folder in $PATH; do [ -x "$folder/$tool" ] && echo "$tool" && break; done; done; :')

#: The shell line that runs for `node` without arguments. Node would read a program from stdin, which is empty here.
USAGE = "echo 'usage: node [options] [-e CODE | -p CODE | FILE] [arguments]' >&2; exit 2"

#: The text that V8 writes before it aborts because its heap is full, and the exit code of that abort.
_HEAP_FULL, _ABORTED = b"JavaScript heap out of memory", 134

#: Bytes of code that `node -e` accepts: MAX_ARG_STRLEN of the kernel, minus the NUL at the end.
MOST_CODE = (128 << 10) - 1
#: Characters of code that is sent by standard input: a quarter of 128 KiB, as each may have 4 bytes of UTF-8.
MOST_WARM = (128 << 10) // 4


class WorkdirSandbox:
    r"""
    A folder of the host, and commands that work in this folder and reach nothing else of the host.

        with leeward.WorkdirSandbox("project") as work:
            work.write_file("numbers", "40\n2\n")
            print(work.exec("awk", ["{ sum += $1 } END { print sum }", "numbers"]).text)
            print(work.exec_js("console.log(6 * 7)").text)

    The first command opens the sandbox. Threads may share this object. Every call raises Destroyed after `destroy`, and
    WorkdirRuntimeError if the daemon can't be reached, or refuses the call.

    Args:
        work_dir: the folder. Commands start in it, and may write there.
        mounts: further folders of the host, as for Sandbox.
        env_vars: environment variables of commands; besides these, commands have PATH alone.
        timeout: seconds for each command.
        memory: bytes, or a size such as "512M", for all commands that run at the same time and their files in /tmp.
        cpu: processor seconds for each command, with all that it starts.
        fetch_policy: a policy in the short form of docs/egress.md, which says what `fetch`, curl and all other programs
            may reach, and narrows the operator's policy `egress`. Without both there is no network.
        egress: the name of an egress policy in the daemon's configuration. With fetch_policy the default is "network",
            a policy that exists if the operator has set `allow_network`.
        overlay: commands work on a copy of the folder, and `diff` lists what they have changed.
        compare: read all of the folder before the first call, so that `diff` knows the content of each file; by default
            only names, sizes and times, by which it may list a file that was written anew with the same content.
        protect: nothing writes what programs on the host run at once, such as `.git/config`, `.mcp.json` or `.envrc`:
            docs/workdir.md.
        socket: path of the daemon's socket; as for Client.
        retry_busy: as for Client.

    Attributes:
        put_away: with `protect`, the paths of what commands have made anyway and programs on the host would run at
            once. Each was renamed at the end of its command.

    Raises:
        WorkdirIoError: the folder or a mount doesn't exist, or can't be opened.
        RequestRejected: a value has a wrong type, or a text isn't a size; or the folder can't be protected.
    """

    def __init__(self, work_dir: str | os.PathLike[str], mounts: Iterable[Mount] = (),
                 env_vars: Mapping[str, str] | None = None, timeout: float = 30.0, memory: int | str = "512M",
                 cpu: float | None = None, fetch_policy: Mapping[str, Any] | None = None, *, egress: str | None = None,
                 overlay: bool = False, compare: bool = False, protect: bool = False,
                 socket: str | os.PathLike[str] | None = None, retry_busy: bool = True) -> None:
        if overlay and compare:
            raise RequestRejected("overlay=True needs no compare=True: `diff` shows what commands wrote to their copy")
        if overlay and protect:
            raise RequestRejected("overlay=True needs no protect=True: commands write to their copy alone")
        if fetch_policy is not None:
            fetch_policy, egress = {"allowed_domains": [], **_short_form(fetch_policy)}, egress or "network"
        self._path = os.path.abspath(work_dir)
        self._env = dict(env_vars or {})
        self._timeout, self._cpu, self._overlay = timeout, cpu, overlay
        mounts = tuple(mounts)
        self._make = partial(Sandbox, socket=socket, retry_busy=retry_busy, profile="workdir", workdir=self._path,
                             mounts=mounts, overlay=overlay, memory=memory, egress=egress, policy=fetch_policy, held=True)
        self._network = egress is not None
        self.put_away: list[str] = []
        self._guard: FolderGuard | None = None
        self._protect, self._leaves, self._calls = protect, False, 0
        self._words = ["node", f"--max-old-space-size={heap_of(memory)}", "--require",
                       FETCH_SYNC if self._network else FETCH]
        self._tools: tuple[str, ...] | None = None
        self._lock = threading.Lock()
        self._before: BeforeFirstCall | None = None
        if not overlay:
            from leeward.client.folder_state import BeforeFirstCall

            self._before = BeforeFirstCall(lazy=not compare)
        for mount in mounts:
            _open(mount.source, PLACE, close=True)
        if protect:
            from leeward.client.protecting import check_beside

            check_beside(self._path, mounts)
        self._folder = _open(self._path, PLACE | os.O_DIRECTORY)
        self._box = self._made()

    # --- commands -------------------------------------------------------------------

    def exec(self, command: str, args: Iterable[str] = (), *, background: bool = False) -> Result:
        """
        Run a command and wait for its end, in a process of its own, without a shell and with empty standard input.

        Args:
            command: one of `available_tools`. For a line of shell use `exec("sh", ["-c", line])`.
            args: the command's arguments.
            background: let what the command leaves running run on. By default it is killed before this call returns.

        Raises:
            CommandNotFound: *command* isn't one of the tools, or this host doesn't have it.
            Timeout: the command ran longer than `timeout`, or used more processor time than `cpu`.
            NetworkingDisabled: *command* is curl, and the sandbox has no network.
        """
        if isinstance(args, (str, bytes)):
            raise RequestRejected(f"args takes several strings, not one: [{args!r:.40}]")
        self._check()
        if command not in TOOLS:
            raise CommandNotFound(command)
        if command == "curl" and not self._network:
            raise NetworkingDisabled
        words = list(args)
        return self._node(words, background) if command == "node" else self._run([command, *words], background=background)

    def exec_js(self, code: str) -> Result:
        """
        Run JavaScript, less than 128 KiB, as `node -e` does, in a Node that runs no other code; it may have been
        started in advance. The code has `fetch`, and also `fetchSync`, which waits for the response and returns it as
        an object with `status`, `ok`, `headers`, `body`, `text()` and `json()`. Raises as `exec`; ToolboxNotAvailable
        if the host has no Node.
        """
        self._check()
        check_code(code)
        try:
            return self._warm(code) or self._node(["-e", code])
        except CommandNotFound:
            raise ToolboxNotAvailable("the host has no Node: install Debian's nodejs, or leeward[js]") from None

    def _node(self, words: list[str], background: bool = False) -> Result:
        if not words:
            return self._run(["sh", "-c", USAGE])
        return with_heap_limit(self._run([*self._words, *words], background=background))

    def _warm(self, code: str) -> Result | None:
        """Run *code* in a Node that was started in advance; None if it has to run as `node -e CODE`."""
        if len(code) > MOST_WARM or NEEDS_NODE.search(code):
            return None
        got = self._run([*self._words, "--require", WARM, "-e", PROBE], stdin=code, warm=True)
        if got.exit_code == DECLINED and got.stderr.startswith(DECLINES) and not got.stdout:
            return None
        return with_heap_limit(got)

    def _run(self, argv: list[str], stdin: str = "", *, warm: bool = False, background: bool = False) -> Result:
        self._look()
        with self._lock:
            self._calls, self._leaves = self._calls + 1, self._leaves or background
        try:
            got = self._ask(lambda: self._box.run(argv, env=self._env, timeout=self._timeout, cpu_time=self._cpu,
                                                  clean=True, stdin=stdin, warm=warm,
                                                  ends_children=not background))
        finally:
            with self._lock:
                self._calls -= 1
            self._put_away()
        if got.outcome is Outcome.TIMED_OUT:
            raise Timeout(got)
        if got.exit_code == 127 and argv[0] not in self.available_tools():
            raise CommandNotFound(argv[0])
        if got.outcome is Outcome.INTERNAL:
            raise WorkdirRuntimeError(f"the command was lost: {got.error.message if got.error else 'without a reason'}")
        return got

    def available_tools(self) -> tuple[str, ...]:
        """The commands that `exec` accepts and this host has, in the order of the documentation."""
        self._check()
        if self._tools is None:
            got = self._ask(lambda: self._box.shell(_LOOK, env=self._env, clean=True))
            if not got.ok:
                raise WorkdirRuntimeError(f"the tools can't be looked for: {got!r}")
            found = frozenset(got.stdout_text.split())
            self._tools = tuple(tool for tool in TOOLS if tool in found)
        return self._tools

    def fetch(self, url: str, method: str = "GET", headers: Headers | None = None, body: bytes | str = b"") -> Fetched:
        """
        Send an HTTP or HTTPS request, if the policy allows it, and return the response. Nothing runs in the sandbox.
        The arguments are those of `Sandbox.fetch`.

        Raises:
            NetworkingDisabled: the sandbox has no network.
            FetchError: there is no response; docs/egress.md lists how its text begins, and the words of `cause`.
        """
        self._check()
        if not self._network:
            if not _is_url(url):
                raise FetchError(f"invalid URL: {url!r:.200} is no URL of http or https", "url", str(url))
            raise NetworkingDisabled
        try:
            return self._ask(lambda: self._box.fetch(url, method, headers, body))
        except FetchFailed as error:
            raise FetchError(str(error), error.cause, error.url, error.may_have_been_sent) from None

    # --- files ----------------------------------------------------------------------

    def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """
        Read a file of the work folder, and return its content.

        Args:
            path: relative to the work folder, as in all file calls.

        Raises:
            PathTraversal: *path* leads out of the work folder.
            WorkdirIoError: the file doesn't exist, isn't a regular file, or has more than 1 GiB.
        """
        if self._overlay:
            return self._inside(path, lambda name: self._box.files.read(name))
        return self._outside(lambda files: files.read(path))

    def write_file(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """
        Write a file: *data* replaces its content. Text is written as UTF-8. The folders that lead there are made.
        Raises as `read_file`; with `protect` WorkdirIoError as well for what programs on the host run at once, and for
        a path with a link in it.
        """
        if self._overlay:
            self._inside(path, lambda name: self._box.files.write(name, data))
        else:
            self._look()
            self._outside(lambda files: files.write(path, data))
            self._put_away()

    def list_dir(self, path: str | os.PathLike[str] = ".") -> list[WorkdirEntry]:
        """The entries of a folder, sorted by name. Raises as `read_file`."""
        if not self._overlay:
            found = self._outside(lambda files: files.list(path))
            if self._guard is None or inside(path) != ".":
                return found
            shown = set(self._guard.shown(entry.name for entry in found))
            return [entry for entry in found if entry.name in shown]
        infos = self._inside(path, lambda name: self._box.files.list(name))
        return sorted((WorkdirEntry(info.name, info.is_folder, info.is_file, info.size if info.is_file else 0)
                       for info in infos), key=lambda entry: entry.name)

    def diff(self) -> Changes:
        """
        The changes, sorted by path. With `overlay`, these are the changes that commands have made in their copy of the
        folder; else the changes that any program has made in the folder since the first call, as docs/workdir.md tells.
        WorkdirRuntimeError if there is too much to list, or another folder has replaced this one.
        """
        self._check()
        state = self._compared()
        try:
            return self._ask(state.diff if state else self._box.diff)
        except Stale as error:
            raise WorkdirRuntimeError(str(error)) from error

    def _compared(self) -> FolderState | None:
        """The folder's state before the first call, None with `overlay`. The first call reads the folder."""
        try:
            return self._before.of(self._dup) if self._before else None
        except DaemonError as error:
            raise WorkdirRuntimeError(str(error)) from error

    def _dup(self) -> int:
        with self._lock:
            self._check()
            return os.dup(self._folder)  # `destroy` may close self._folder during the call

    def _outside(self, call: Callable[[WorkdirFiles], T]) -> T:
        self._compared()
        with OwnedFd(self._dup()) as folder:
            return call(WorkdirFiles(folder, self._protect, () if self._guard is None else self._guard.names))

    def _inside(self, path: str | os.PathLike[str], call: Callable[[str], T]) -> T:
        """
        Make a file call in the sandbox. A link there could lead to the sandbox's own files, so a *path* with a link is
        refused; one that is made between this check and the call isn't noticed.
        """
        self._check()
        name = inside(path)
        try:
            there = ""
            for part in name.split("/"):
                there = posixpath.join(there, part)
                if self._ask(lambda there=there: self._box.files.stat(there, follow=False)).kind == "link":  # type: ignore[misc]
                    raise PathTraversal(name)
        except FileNotFoundError:
            pass  # the call itself raises this error, or makes the path
        except OSError as error:
            raise io_error(error, name) from None
        try:
            return self._ask(lambda: call(name))
        except OSError as error:
            raise io_error(error, name) from None

    # --- the end --------------------------------------------------------------------

    def destroy(self) -> None:
        """End the sandbox and its processes. The folder and its files stay. Further calls do nothing."""
        with self._lock:
            folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)
            self._box.close()
            self._end_guard()

    def _check(self) -> None:
        if self._folder < 0:
            raise Destroyed("the sandbox was destroyed")

    def _ask(self, call: Callable[[], T]) -> T:
        """The result of *call*, which uses the sandbox. If that had ended before, open another one and repeat *call*."""
        self._compared()
        box = self._box
        try:
            try:
                return call()
            except SandboxOver as over:
                if over.may_have_run:
                    raise
                self._renew(box, over)
                return call()
        except DaemonError as error:
            self._check()
            raise WorkdirRuntimeError(str(error)) from error

    def _renew(self, box: Sandbox, over: SandboxOver) -> None:
        """Replace *box*, which has ended, and with it an `overlay`'s copy: this raises Destroyed then."""
        with self._lock:
            self._check()
            if self._overlay:
                raise Destroyed(f"the sandbox has ended, and its copy with it: {over.reason}") from over
            if self._box is not box:  # another thread has replaced it
                return
            box.close()
            self._box = self._made()

    def _made(self) -> Sandbox:
        if not self._protect:
            return self._make()
        from leeward.client.protecting import FolderGuard

        self._end_guard()
        self._guard = FolderGuard(self._path)
        return self._make(protect=[posixpath.join(WORKDIR, name) for name in self._guard.names])

    def _look(self) -> None:
        """Open another sandbox if the host has replaced a setting while nothing ran in this one: its file is protected."""
        with self._lock:
            if self._guard is None or self._calls or self._leaves or self._guard.holds():
                return
            self._box.close()
            self._guard.close()
            self._guard = None
            try:
                self._box = self._made()
            except DaemonError as error:
                raise WorkdirRuntimeError(str(error)) from error

    def _end_guard(self) -> None:
        """The sandbox has ended: what it has made since its last call is put away as well."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        from leeward.client.protecting import Unprotected

        with contextlib.closing(guard):
            try:
                self.put_away += guard.put_away(self._box.close)
            except Unprotected as error:
                raise WorkdirRuntimeError(f"the sandbox has ended: {error}") from None

    def _put_away(self) -> None:
        """Rename what a command has made and programs on the host run at once; with `protect`."""
        if self._guard is None:
            return
        from leeward.client.protecting import Unprotected

        with self._lock:
            if self._folder < 0:
                return
            try:
                self.put_away += self._guard.put_away(self._box.close)
            except Unprotected as error:
                self._box.close()
                raise WorkdirRuntimeError(f"the sandbox was ended: {error}") from None

    def __enter__(self) -> WorkdirSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_folder", -1) >= 0:
            os.close(self._folder)

    def __repr__(self) -> str:
        return f"<WorkdirSandbox {self._path}{'' if self._folder >= 0 else ', destroyed'}>"


def _short_form(given: object) -> dict[str, Any]:
    """A copy of a policy's short form, whose content the daemon checks. Raises RequestRejected if it isn't a map."""
    if not isinstance(given, Mapping):
        raise RequestRejected("fetch_policy takes a map such as {'allowed_domains': ['example.org']},"
                              f" not {given!r:.40}")
    return dict(given)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _open(path: str | os.PathLike[str], flags: int, *, close: bool = False) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise io_error(error, os.fspath(path)) from None
    if close:
        os.close(fd)
    return fd


def heap_of(memory: int | str) -> int:
    """
    The limit on V8's heap, in MiB, in a sandbox of *memory*: lower than the sandbox's, so that V8 aborts before the
    kernel runs out of pages for the sandbox, which takes longer, at worst until the time limit.
    """
    size = parse_size(memory) if isinstance(memory, str) else memory
    if type(size) is not int:
        raise RequestRejected(f"memory is a whole number of bytes or a size such as '512M', not {memory!r:.40}")
    total = size >> 20
    return max(16, total - 64 - total // 8)


def check_code(code: object) -> None:
    """Raise RequestRejected unless *code* is text of at most MOST_CODE bytes, which `node -e` accepts."""
    if not isinstance(code, str):
        raise RequestRejected(f"code is JavaScript as text, not {type(code).__name__}")
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        raise RequestRejected(f"code can't be sent: {error}") from None
    if size > MOST_CODE:
        raise RequestRejected(f"code has {size} bytes, and `node -e` takes {MOST_CODE} at most: write_file('job.js',"
                              " code), and then exec('node', ['job.js'])")


def with_heap_limit(got: Result) -> Result:
    """*got*, or, if V8 aborted because its heap was full, a copy of *got* with the outcome OUT_OF_MEMORY."""
    if got.exit_code == _ABORTED and _HEAP_FULL in got.stderr:
        return replace(got, outcome=Outcome.OUT_OF_MEMORY, exit_code=EXIT_OUT_OF_MEMORY, limit=Limit.MEMORY)
    return got

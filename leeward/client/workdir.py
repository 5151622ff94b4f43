"""
A folder with tools: commands, JavaScript and files, by one object.

Runs in:   anybody's program.

Theory of operation. It is a live sandbox of the profile `workdir`, whose /workspace is the folder. The first command
opens it, and the first one after its end (it was idle for too long, or out of memory) opens another one. Commands run
in it, each a fresh process with an environment of its own. Files of a folder that the sandbox writes directly are read
and written by this program itself, beneath the folder's descriptor (workdir_files.py), which needs no sandbox. With a
copy of the folder (`overlay`) the files are in the sandbox, and a process there reads and writes them; the copy ends
with that sandbox.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from leeward.client.fetching import Fetched, Headers
from leeward.client.mounts import Mount
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
from leeward.client.workdir_node import MOST_WARM, USAGE, check_code, heap_of, told
from leeward.errors import DaemonError, FetchFailed, RequestRejected, SandboxOver, Stale
from leeward.outcome import Outcome, Result
from leeward.spec.stand_ins import FETCH, FETCH_SYNC, WARM
from leeward.spec.tools import TOOLS
from leeward.spec.warm_node import DECLINED, DECLINES, NEEDS_NODE, PROBE

if TYPE_CHECKING:
    from leeward.client.changes import Changes
    from leeward.client.folder_state import BeforeFirstCall, FolderState

T = TypeVar("T")

#: Prints those tools that are programs in PATH, a line each.
_LOOK = (f"set -- {' '.join(TOOLS)}; IFS=:; "
         'for tool; do for folder in $PATH; do [ -x "$folder/$tool" ] && echo "$tool" && break; done; done; :')


class WorkdirSandbox:
    """
    A folder of the host with tools that work in it, and reach nothing else.

        with leeward.WorkdirSandbox("project") as work:
            work.write_file("numbers", "40\\n2\\n")
            print(work.exec("awk", ["{ sum += $1 } END { print sum }", "numbers"]).text)
            print(work.exec_js("console.log(6 * 7)").text)

    Nothing is opened before the first command. Threads may share it.

    Args:
        work_dir: the folder. Commands start in it, and may write there.
        mounts: further folders of the host, as for Sandbox.
        env_vars: the environment of commands, beside PATH. They have no other.
        timeout: seconds for each command.
        memory: bytes, or a size such as "512M", of all that runs at the same time, with their files in /tmp.
        cpu: processor seconds for each command, with all that it starts.
        fetch_policy: what `fetch`, curl and all other programs may reach: a policy in the short form of docs/egress.md.
            It takes less of the operator's policy `egress`. None is no network.
        egress: the operator's policy. Without fetch_policy it holds as it is; with one it is "network" where none is
            named, which is there if the operator has allowed it.
        overlay: the folder stays as it is; commands work on a copy, and `diff` says what they have changed.
        compare: the folder is read in full before the first call, so that `diff` can say what has changed since.
        socket: path of the daemon's socket; as for Client.

    Raises:
        WorkdirIoError: the folder or a mount isn't there, or may not be opened.
        RequestRejected: a value of a wrong type, or text that isn't a size.
    """

    def __init__(self, work_dir: str | os.PathLike[str], mounts: Iterable[Mount] = (),
                 env_vars: Mapping[str, str] | None = None, timeout: float = 30.0, memory: int | str = "512M",
                 cpu: float | None = None, fetch_policy: Mapping[str, Any] | None = None, *, egress: str | None = None,
                 overlay: bool = False, compare: bool = False,
                 socket: str | os.PathLike[str] | None = None) -> None:
        if overlay and compare:
            raise RequestRejected("overlay=True needs no compare=True: `diff` shows what commands wrote to their copy")
        if fetch_policy is not None:
            fetch_policy, egress = {"allowed_domains": [], **_short_form(fetch_policy)}, egress or "network"
        self._path = os.path.abspath(work_dir)
        self._env = dict(env_vars or {})
        self._timeout, self._cpu, self._overlay = timeout, cpu, overlay
        mounts = tuple(mounts)
        self._make = partial(Sandbox, socket=socket, profile="workdir", workdir=self._path, mounts=mounts,
                             overlay=overlay, memory=memory, egress=egress, policy=fetch_policy)
        self._network = egress is not None
        self._box = self._make()
        self._words = ["node", f"--max-old-space-size={heap_of(memory)}", "--require",
                       FETCH_SYNC if self._network else FETCH]
        self._tools: tuple[str, ...] | None = None
        self._lock = threading.Lock()
        self._before = _before() if compare else None
        for mount in mounts:
            _open(mount.source, os.O_PATH, close=True)
        self._folder = _open(self._path, os.O_PATH | os.O_DIRECTORY)

    # --- commands -------------------------------------------------------------------

    def exec(self, command: str, args: Iterable[str] = ()) -> Result:
        """
        Run a tool to its end, in a process of its own, without a shell and with empty standard input.

        Args:
            command: one of `available_tools`. For a line, `exec("sh", ["-c", line])`.
            args: its arguments.

        Raises:
            CommandNotFound: it is no tool, or the host lacks it.
            Timeout: it took longer, or more processor time, than it may.
            NetworkingDisabled: *command* is curl, and there is no policy.
            Destroyed: `destroy` was called.
            WorkdirRuntimeError: the daemon can't be reached, or can't take it.
        """
        if isinstance(args, (str, bytes)):
            raise RequestRejected(f"args takes several strings, not one: [{args!r:.40}]")
        self._check()
        if command not in TOOLS:
            raise CommandNotFound(command)
        if "curl" == command and not self._network:
            raise NetworkingDisabled
        words = list(args)
        return self._node(words) if "node" == command else self._run([command, *words])

    def exec_js(self, code: str) -> Result:
        """
        Run JavaScript as `node -e` does, in a fresh Node, which may have been started before.

        Beside `fetch` there is `fetchSync`, which waits: its answer has `status`, `ok`, `headers`, `body`, `text()` and
        `json()`.

        Raises:
            ToolboxNotAvailable: the host has no Node.
            Timeout, Destroyed, WorkdirRuntimeError: as for `exec`.
            RequestRejected: *code* is no text, or has more than 128 KiB.
        """
        self._check()
        check_code(code)
        try:
            return self._warm(code) or self._node(["-e", code])
        except CommandNotFound:
            raise ToolboxNotAvailable("the host has no Node: install Debian's nodejs, or leeward[js]") from None

    def _node(self, words: list[str]) -> Result:
        if not words:
            return self._run(["sh", "-c", USAGE])
        return told(self._run([*self._words, *words]))

    def _warm(self, code: str) -> Result | None:
        """
        What *code* gives in a Node that was started before, if there is one; None where it needs one of its own.
        """
        if len(code) > MOST_WARM or NEEDS_NODE.search(code):
            return None
        got = self._run([*self._words, "--require", WARM, "-e", PROBE], stdin=code, warm=True)
        if DECLINED == got.exit_code and got.stderr.startswith(DECLINES) and not got.stdout:
            return None
        return told(got)

    def _run(self, argv: list[str], stdin: str = "", *, warm: bool = False) -> Result:
        got = self._ask(lambda: self._box.run(argv, env=self._env, timeout=self._timeout, cpu_time=self._cpu,
                                              clean=True, stdin=stdin, warm=warm))
        if Outcome.TIMED_OUT is got.outcome:
            raise Timeout(got)
        if 127 == got.exit_code and argv[0] not in self.available_tools():
            raise CommandNotFound(argv[0])
        if Outcome.INTERNAL is got.outcome:
            raise WorkdirRuntimeError(f"the command was lost: {got.error.message if got.error else 'nobody knows why'}")
        return got

    def available_tools(self) -> tuple[str, ...]:
        """
        The commands that `exec` takes and this host has, in the order of the documentation.
        """
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
        Send a request by http or https as the policy allows it, and return the response. Nothing runs in the sandbox.

        Args:
            url: as for `Sandbox.fetch`.
            method: as there.
            headers: as there.
            body: as there.

        Raises:
            NetworkingDisabled: there is no policy.
            FetchError: there is no response; its text begins as docs/egress.md has it, and `cause` is a word for it.
            Destroyed: `destroy` was called.
            WorkdirRuntimeError: the daemon can't be reached, or can't take it.
        """
        self._check()
        if not self._network:
            if not _is_url(url):
                raise FetchError(f"invalid URL: {url!r:.200} is no URL of http or https", "url", str(url))
            raise NetworkingDisabled
        try:
            return self._ask(lambda: self._box.fetch(url, method, headers, body))
        except FetchFailed as error:
            raise FetchError(str(error), error.cause, error.url) from None

    # --- files ----------------------------------------------------------------------

    def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """
        Args:
            path: relative to the work folder; so it is for the calls below.

        Raises:
            PathTraversal: it leads out of the work folder.
            WorkdirIoError: it isn't there, is no regular file, or has more than 1 GiB.
            Destroyed: `destroy` was called.
        """
        if self._overlay:
            return self._inside(path, lambda name: self._box.files.read(name))
        return self._outside(lambda files: files.read(path))

    def write_file(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """
        Put *data* in the place of what the file has. Folders that lead there are made.

        Raises:
            PathTraversal, WorkdirIoError, Destroyed: as for `read_file`.
        """
        if self._overlay:
            self._inside(path, lambda name: self._box.files.write(name, data))
        else:
            self._outside(lambda files: files.write(path, data))

    def list_dir(self, path: str | os.PathLike[str] = ".") -> list[WorkdirEntry]:
        """
        What a folder has, sorted by name.

        Raises:
            PathTraversal, WorkdirIoError, Destroyed: as for `read_file`.
        """
        if not self._overlay:
            return self._outside(lambda files: files.list(path))
        infos = self._inside(path, lambda name: self._box.files.list(name))
        return sorted((WorkdirEntry(info.name, info.is_folder, info.is_file, info.size if info.is_file else 0)
                       for info in infos), key=lambda entry: entry.name)

    def diff(self) -> Changes:
        """
        What has changed, sorted by path: what commands have changed in their copy of the folder (`overlay`), or what
        anybody has changed in the folder since the first call (`compare`).

        Raises:
            WorkdirRuntimeError: neither was asked for, there is too much to be listed, or another folder is at that
                path by now.
            Destroyed: `destroy` was called.
        """
        self._check()
        state = self._compared()
        if state is None and not self._overlay:
            raise WorkdirRuntimeError("nothing says what the folder was like: with overlay=True commands work on a copy"
                                      " of it, with compare=True it is read before the first call")
        try:
            return self._ask(state.diff if state else self._box.diff)
        except Stale as error:
            raise WorkdirRuntimeError(str(error)) from error

    def _compared(self) -> FolderState | None:
        """
        What the folder had before our first call; this is one.
        """
        try:
            return self._before.of(self._dup) if self._before else None
        except DaemonError as error:
            raise WorkdirRuntimeError(str(error)) from error

    def _dup(self) -> int:
        with self._lock:
            self._check()
            return os.dup(self._folder)  # `destroy` may close ours meanwhile

    def _outside(self, call: Callable[[WorkdirFiles], T]) -> T:
        self._compared()
        folder = self._dup()
        try:
            return call(WorkdirFiles(folder))
        finally:
            os.close(folder)

    def _inside(self, path: str | os.PathLike[str], call: Callable[[str], T]) -> T:
        """
        A file call in the sandbox, where a link to somewhere else would lead to the sandbox's own files: there is no
        link in *path*, unless it is put there between this look and the call.
        """
        self._check()
        name = inside(path)
        try:
            there = ""
            for part in name.split("/"):
                there = posixpath.join(there, part)
                if "link" == self._ask(lambda there=there: self._box.files.stat(there, follow=False)).kind:  # type: ignore[misc]
                    raise PathTraversal(name)
        except FileNotFoundError:
            pass  # the call itself reports that, or makes it
        except OSError as error:
            raise io_error(error, name) from None
        try:
            return self._ask(lambda: call(name))
        except OSError as error:
            raise io_error(error, name) from None

    # --- its end --------------------------------------------------------------------

    def destroy(self) -> None:
        """
        End all its processes. The folder and its files stay. May be called repeatedly.
        """
        with self._lock:
            folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)
            self._box.close()

    def _check(self) -> None:
        if self._folder < 0:
            raise Destroyed("the sandbox was destroyed")

    def _ask(self, call: Callable[[], T]) -> T:
        """
        What *call* gives, which uses our sandbox.
        """
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
        """
        Another sandbox in the place of one that had ended before it was asked: the folder has all that counts.
        """
        with self._lock:
            self._check()
            if self._overlay:
                raise Destroyed(f"the sandbox has ended, and its copy with it: {over.reason}") from over
            if self._box is not box:  # another thread's call has done it
                return
            self._box = self._make()
        box.close()

    def __enter__(self) -> WorkdirSandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_folder", -1) >= 0:
            os.close(self._folder)

    def __repr__(self) -> str:
        return f"<WorkdirSandbox {self._path}{'' if self._folder >= 0 else ', destroyed'}>"


def _before() -> BeforeFirstCall:
    from leeward.client.folder_state import BeforeFirstCall  # few ask for it

    return BeforeFirstCall()


def _short_form(given: object) -> dict[str, Any]:
    """
    A copy of a policy's short form; the daemon reads it, and says what is wrong.
    """
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

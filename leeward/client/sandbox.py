"""
A live sandbox, blocking: commands, processes and their output, by one object.

Runs in:   anybody's program.

Theory of operation. A sandbox is the user's, not a connection's: every request names it by its id. So each call takes a
connection that no other call uses, and makes one if there is none; threads don't wait for each other. The first call
opens the sandbox, once, however many threads come at the same time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from leeward.client import kernel_seats
from leeward.client.free_links import FreeLinks
from leeward.client.host_view import add_host_view
from leeward.client.mounts import Mount, mounts_of, open_with
from leeward.client.options import TurnOptions, packages_of, served_by
from leeward.client.overlay_calls import OverlayCalls
from leeward.client.process import Kernel, Process
from leeward.client.results import result_of
from leeward.client.sandbox_calls import (
    CLOSE_S,
    CodeOptions,
    OnData,
    OpenOptions,
    Rows,
    StartOptions,
    TerminalOptions,
    argv_of,
    bounded_fields,
    checked,
    code_fields,
    id_of,
    listed,
    open_fields,
    program_fields,
    terminal_fields,
)
from leeward.errors import DaemonError, SandboxOver
from leeward.outcome import Result
from leeward.spec.paths import client_socket
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import answer, rows, sandbox_id, whole

if TYPE_CHECKING:
    from leeward.client.fetching import Fetched, Headers
    from leeward.client.files import Files
    from leeward.client.overlay import Overlay

Answer = tuple[Reply, list[int]]  # and the descriptors of its arenas


class Sandbox(OverlayCalls):
    """
    A sandbox that stays: files, processes and their output, until it is closed.

        with leeward.Sandbox() as box:
            box.shell("echo 40 2 > numbers")
            print(box.run(["awk", "{ print $1 + $2 }", "numbers"]).stdout_text)

    Nothing is opened before the first call. Threads may share a sandbox, and their calls run side by side. Without
    `with` or `close` it stays until it was idle for too long, and any program of the same user can `attach` to it.

    Args:
        socket: path of the daemon's socket; as for Client.
        mounts: folders of the host that it shows; at most 16.
        workdir: the folder of the host that is its /workspace, where it may write.
        overlay: the folder *workdir* stays as it is, and `diff` says what the sandbox would have changed there.
        compare: *workdir* is read in full at the opening, so that `diff` can say what was written there since.

    Keyword Args:
        profile (str): what it sees and may do; "python" by default.
        environment (str): the interpreter and its packages, as for Client.execute.
        packages (Sequence[str]): requirements of pip's, such as "pandas==2.2", in place of an environment: one of these
            packages is made where the daemon has none, with the first call.
        egress (str): what it may reach, as for Client.execute.
        allow_network (bool): it may reach all public names and addresses, where the operator lets it.
        policy (Mapping[str, Any]): a policy as docs/egress.md has it, in full or in its short form, which takes
            less of what `egress` allows.
        fetch_policy (Mapping[str, Any]): the same for `fetch` alone, in its short form.
        env (Mapping[str, str]): environment variables of every process in it.
        memory (int | str): bytes, or a size such as "512M", for all its processes and files together.
        processes (int): processes and threads at once.
        timeout (float): seconds for each `run` and `shell` that sets none.
        output (int | str): bytes of stdout and stderr together, of each `run` and `shell` that sets none.
        idle (float): seconds without a call after which the daemon ends it.
        lifetime (float): seconds after which the daemon ends it in any case.
        show_secrets (bool): of the profile "shell": hide nothing.
        own_home (bool): of "approved", and of profiles based on it or on "agent": a home as "agent" always has.
        hide (Sequence[str]): with such a home: paths in its mounts that are an unreadable file, or an empty folder.
        protect (Sequence[str]): with such a home: paths in its mounts that can't be written.
        metadata (Mapping[str, str]): anything that `info` and `list` are to show; at most 64 entries, 16 KiB.
    """

    def __init__(self, *, socket: str | os.PathLike[str] | None = None, mounts: Iterable[Mount] = (),
                 workdir: str | os.PathLike[str] | None = None, overlay: bool = False, compare: bool = False,
                 **options: Unpack[OpenOptions]) -> None:
        self._links = FreeLinks(client_socket(socket))
        self._packages = packages_of(options.get("packages", ()))
        folders = mounts_of(mounts, workdir, overlay, compare)
        self._fields, self._mounts = add_host_view(open_fields(**options), folders)
        self._opening = threading.Lock()
        self._id = ""
        self._closed = False
        self._states = {}
        self._applied: dict[str, dict[bytes, tuple[int, int]]] = {}

    @classmethod
    def attach(cls, sandbox: str, *, socket: str | os.PathLike[str] | None = None) -> Sandbox:
        """
        The sandbox with this id, which another program of the same user has opened.

        Raises:
            SandboxOver: this user has no such sandbox.
            RequestRejected: that is no id.
        """
        box = cls(socket=socket)
        box._id = id_of(sandbox)
        try:
            box.info()
        except BaseException:
            box._links.close()
            raise
        return box

    @staticmethod
    def list(*, socket: str | os.PathLike[str] | None = None) -> Rows:
        """
        What `info` says of each sandbox of this user, the oldest first.
        """
        with contextlib.closing(FreeLinks(client_socket(socket))) as links:
            return listed(lambda after: links.call("sandbox_list", after)[0])

    @property
    def id(self) -> str:
        """
        26 characters. The first use opens the sandbox.
        """
        if not self._id:
            with self._opening:
                if not self._id:
                    if self._closed:
                        raise SandboxOver("the sandbox was closed before it was used", "killed")
                    self._id = checked(sandbox_id, self._open())
        return self._id

    @property
    def files(self) -> Files:
        """
        The files in it.
        """
        from leeward.client.files import Files  # archives of folders, of which most sandboxes have none
        return Files(self)

    def _open(self) -> Reply:
        if not self._packages:
            return self._opened(self._fields)
        from leeward.client import packages

        self._links.call("sandbox_list", {})  # starts a daemon where there is none, as `status` doesn't
        wanted = packages.asked(self._packages, self._links.path, checked(answer, self._links.call("status", {})[0]))
        return packages.opened(self._fields, wanted, self._opened)

    def _opened(self, fields: Mapping[str, Any]) -> Reply:
        if not self._mounts:
            return self._links.call("sandbox_open", fields)[0]
        with self._links.one() as link:
            return open_with(link, fields, self._mounts, self._states)

    def ask(self, op: str, fields: Mapping[str, Any], deadline: float | None = None) -> Reply:
        """
        One request about this sandbox.
        """
        reply, descriptors = self._links.call(op, {"sandbox": self.id, **fields}, deadline)
        for fd in descriptors:
            os.close(fd)
        return reply

    # --- programs -------------------------------------------------------------------

    def run(self, argv: Iterable[str], *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
            **options: Unpack[StartOptions]) -> Result:
        """
        Run a program to its end.

        Args:
            argv: the program and its arguments. It is looked for in PATH.
            on_stdout: called with each piece of standard output as it comes. The result has all of it still.
            on_stderr: the same, of standard error.

        Keyword Args:
            cwd (str): the folder to start in; /workspace by default.
            env (Mapping[str, str]): environment variables, beside the sandbox's.
            stdin (bytes | str): its standard input, at most 64 MiB. Empty by default.
            timeout (float): seconds after which it is killed, and all that descends from it.
            output (int | str): bytes of stdout and stderr together, after which it is killed.
            title (str): what `processes` shows; argv's first by default.
            cpu_time (float): processor seconds of it and all that descends from it; a `timed_out` whose limit is `cpu`.
            clean (bool): it has PATH alone of the sandbox's own environment, beside what *env* says.
            warm (bool): it reads all of its stdin first, so one may wait for the next call. Not for `start`.

        Returns:
            How it ended: exit code 127 for a missing program and 126 for one that can't be run, with a line on stderr
            as a shell has it. What was written before a time limit or a kill is there. It ends with the program itself:
            output of children that live on is waited for 50 ms more.

        Raises:
            SandboxOver: the sandbox has ended.
            Busy: as many processes run in it as may.
            DaemonError: as for Client.execute.
        """
        return self._run(argv_of(argv), options, on_stdout, on_stderr)

    def shell(self, line: str, *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
              **options: Unpack[StartOptions]) -> Result:
        """
        Run a line by `/bin/sh -c`. Takes the options of `run`, and gives what it gives.
        """
        return self._run(line, options, on_stdout, on_stderr)

    def _run(self, what: Sequence[str] | str, options: StartOptions, on_stdout: OnData | None,
             on_stderr: OnData | None) -> Result:
        fields = program_fields(what, **options)
        if on_stdout is None and on_stderr is None:
            return result_of(*self.run_fields(fields))
        process = self.start_fields(bounded_fields(fields))
        try:
            return process.result(on_stdout, on_stderr)
        except BaseException:
            with contextlib.suppress(DaemonError):  # the error that comes is the one that counts
                process.kill()
            raise

    def run_fields(self, fields: Mapping[str, Any]) -> Answer:
        """
        `run` by the fields of its request, for a program that shows the answer itself; with the descriptors of its
        arenas.
        """
        return self._links.call("process_run", {"sandbox": self.id, **fields})

    def start(self, argv: Iterable[str] | str, **options: Unpack[StartOptions]) -> Process:
        """
        Start a program and come back at once; it runs until it ends, is killed, or the sandbox is over.

        Args:
            argv: the program and its arguments, or one line for the shell.

        Keyword Args:
            stdin (bytes | str | None): None leaves it open for `Process.write`.
            cwd (str): as for `run`, and so are the others.
            env (Mapping[str, str]): environment variables.
            timeout (float): seconds; without it there is no limit on time.
            output (int | str): bytes; without it there is no limit on output.
            title (str): what `processes` shows.
        """
        what = argv if isinstance(argv, str) else argv_of(argv)
        opened = "stdin" in options and options["stdin"] is None
        if opened:
            del options["stdin"]
        return self.start_fields({**program_fields(what, **options), **({"open": True} if opened else {})})

    def terminal(self, argv: Iterable[str] | str = ("sh",), size: tuple[int, int] = (24, 80),
                 **options: Unpack[TerminalOptions]) -> Process:
        """
        Start a program on a terminal: with job control, line editing and Ctrl-C, as `write` types them. `read` gives
        what it shows, all of it as stdout; `Process.resize` changes its size.

        Args:
            argv: the program and its arguments, or one line for the shell.
            size: rows and columns, each from 1 to 65,535.

        Keyword Args:
            cwd (str): the folder to start in; /workspace by default.
            env (Mapping[str, str]): environment variables, beside the sandbox's. TERM is xterm-256color by default.
            timeout (float): seconds; without it there is no limit on time.
            title (str): what `processes` shows.

        Raises:
            Busy: 16 terminals are open in the sandbox, or 256 in all sandboxes of the user.
            SandboxOver, DaemonError: as for `run`.
        """
        return self.start_fields(terminal_fields(argv if isinstance(argv, str) else argv_of(argv), size, options))

    def start_fields(self, fields: Mapping[str, Any]) -> Process:
        return Process(self, checked(whole, self.ask("process_start", fields), "process", 1))

    def fetch(self, url: str, method: str = "GET", headers: Headers | None = None,
              body: bytes | str = b"") -> Fetched:
        """
        Send a request by http or https as this sandbox's policy of egress allows it, and return the response. The
        daemon's broker sends it: nothing runs in the sandbox. Redirects are followed, each decided anew.

        Args:
            url: http or https, at most 8,192 characters.
            method: such as "POST".
            headers: fields of the request, at most 64; those of the connection can't be set.
            body: at most 16 MiB, and as many as the policy's limit `request`.

        Raises:
            FetchFailed: there is no response; its text begins as docs/egress.md has it, and `cause` is a word for it.
            Busy: 16 fetches of yours are under way.
            SandboxOver, DaemonError: as for `run`.
        """
        from leeward.client.fetching import fetch_fields, fetched_of  # most sandboxes have nothing fetched

        return fetched_of(*self._links.call("sandbox_fetch", {
            "sandbox": self.id, **fetch_fields(url, method, headers, body)}))

    # --- Python ---------------------------------------------------------------------

    def execute(self, code: str | bytes, **options: Unpack[CodeOptions]) -> Result:
        """
        Run Python code in a fresh interpreter with the sandbox's files.

        Args:
            code: Python source, at most 16 MiB.

        Keyword Args:
            args (Iterable[str]): `sys.argv[1:]`.
            env (Mapping[str, str]): environment variables, beside the sandbox's.
            files (Mapping[str, bytes]): files to write to /workspace before, by relative name.
            stdin (bytes | str): its standard input, at most 64 MiB.
            collect (Iterable[str]): glob patterns of files below /workspace to return in `Result.files`.
            display (bool): as for Client.execute.
            timeout (float): seconds that it may run.
            output (int | str): bytes of stdout and stderr together.
            name (str): the file name that tracebacks show; `<string>` by default.
            functions (Mapping[str, Callable]): as for Client.execute.
            call_timeout (float): as for Client.execute.
            stop_clock (bool): as for Client.execute.

        Returns:
            As Client.execute.

        Raises:
            SandboxOver, Busy, DaemonError: as for `run`.
        """
        return self._execute(0, code, options)

    def _execute(self, kernel: int, code: str | bytes, options: CodeOptions | TurnOptions) -> Result:
        fields = {"sandbox": self.id, **code_fields(code, options), **({"kernel": kernel} if kernel else {})}
        if kernel and {"display": True} == options:  # code alone
            with self._links.one() as link:
                return result_of(*kernel_seats.execute(link, fields))
        return result_of(*self._links.call("sandbox_execute", fields, functions=served_by(options)))

    def kernel(self) -> Kernel:
        """
        Start a Python that keeps its state between requests. Several of them share the sandbox's files and limits.

        Raises:
            SandboxOver, Busy, DaemonError: as for `run`.
        """
        return Kernel(self, checked(whole, self.ask("kernel_open", {}), "kernel", 1))

    def processes(self) -> Rows:
        """
        The processes that clients have started, and the newest of those that have ended: a map each, with `process`,
        `pid`, `title`, `argv`, `age` in seconds, `over`, and `exit_code` once that is known.
        """
        return checked(rows, self.ask("process_list", {}), "processes")

    def process(self, number: int) -> Process:
        """
        The process with this number, of `processes`.
        """
        process = Process(self, number)
        process._row()
        return process

    def _overlay(self, target: str) -> Overlay:
        from leeward.client.overlay import Overlay

        return Overlay(self, target)

    # --- the sandbox ----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """
        What it is and has: `sandbox`, `profile`, `age`, `idle`, `unused` and `left` in seconds, `processes`,
        `memory`, `memory_limit` and `memory_peak` in bytes, `cpu_time` in seconds, `oom_kills` (processes that were
        ended for want of memory), `forks_refused`, `denied` (refused calls by name), `metadata`.
        """
        return checked(answer, self.ask("sandbox_info", {}))

    def extend(self, *, idle: float | None = None, lifetime: float | None = None) -> dict[str, Any]:
        """
        Change when the daemon ends it.

        Args:
            idle: seconds without a call.
            lifetime: seconds from now on.

        Returns:
            As `info`.
        """
        asked = {name: value for name, value in (("idle", idle), ("lifetime", lifetime)) if value is not None}
        return checked(answer, self.ask("sandbox_extend", asked))

    def set_timeout(self, seconds: float) -> None:
        """
        Have the daemon end it after so many seconds from now on: `extend` with a lifetime.
        """
        self.extend(lifetime=seconds)

    def kill(self) -> None:
        """
        End it with everything in it, and return when no process of it is left. Calls that wait get SandboxOver.
        """
        self.ask("sandbox_kill", {})

    def close(self) -> None:
        """
        `kill`, if it was ever used and isn't over yet, and close the connections.
        """
        with self._opening:
            self._closed = True
        # Whatever is refused, it is over, or will be when it was idle for long enough.
        with contextlib.closing(self._links), contextlib.suppress(DaemonError):
            if self._id:
                self._links.call("sandbox_kill", {"sandbox": self._id}, time.monotonic() + CLOSE_S)

    def detach(self) -> str:
        """
        Close the connections, and leave the sandbox as it is.

        Returns:
            Its id, for `attach`.
        """
        found = self.id
        self._links.close()
        return found

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self._id or 'not open yet'}>"

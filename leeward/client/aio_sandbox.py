"""
A live sandbox, for asyncio: one object for its commands, its processes and their output.

Theory of operation. A sandbox belongs to a user, not to a connection: every request names the sandbox by its id. Calls
of several tasks don't wait for each other: aio_free_connections.py. The first call opens the sandbox; if several tasks make a
first call at the same time, one of them opens it for all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from leeward.base.closing import AsyncClosing
from leeward.client import sandbox_calls
from leeward.client.aio_free_connections import AsyncFreeConnections
from leeward.client.aio_overlay_calls import AsyncOverlayCalls
from leeward.client.aio_process import AsyncKernel, AsyncProcess
from leeward.client.aio_snapshot import AsyncSnapshot
from leeward.client.aio_waiting import Lock, shielded
from leeward.client.conversation import checked
from leeward.client.host_view import add_host_view
from leeward.client.mounts import Mount, mounts_of
from leeward.client.options import TurnOptions, arrivals_of, arrived, awaited_by, requirements_of
from leeward.client.sandbox_calls import CLOSE_S, CodeOptions, OnData, OpenOptions, Rows, StartOptions, TerminalOptions
from leeward.errors import DaemonError, SandboxOver
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import answer, page, rows, sandbox_id, whole

# Imported in functions: what not every start needs; 62 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.aio import AsyncClient  # asyncio
    from leeward.client.aio_files import AsyncFiles
    from leeward.client.aio_forking import Copies
    from leeward.client.aio_ports import AsyncPublished
    from leeward.client.conversation import Answer
    from leeward.client.fetching import Fetched, Headers
    from leeward.spec.outcome import Result


class AsyncSandbox(AsyncOverlayCalls, AsyncClosing):
    """
    A sandbox that keeps its files and processes between calls, until it is closed.

        async with leeward.AsyncSandbox() as box:
            await box.shell("echo 40 2 > numbers")
            added = await box.run(["awk", "{ print $1 + $2 }", "numbers"])
            print(added.stdout_text)

    The first call opens the sandbox. Tasks may share this object, and their calls run at the same time. Without a context
    or `close` it lives until its idle time has passed, unless it is `held`; any program of the user can `attach` to it.
    Every call raises SandboxOver if the sandbox has ended, and DaemonError as Client.execute.

    With asyncio, cancelling a task that waits for `run` or `shell` ends that program.

    Args:
        socket: path of the daemon's socket; as for Client.
        retry_busy: as for Client: False raises Busy at once.
        mounts: folders of the host that the sandbox shows; at most 16.
        workdir: the folder of the host that the sandbox has as /workspace, and can write to.
        overlay: keep changes of *workdir* in the sandbox; `diff` lists them.
        compare: read all of *workdir* at the opening, so that `diff` can list what was written there since.
        copy: copy *workdir* into the sandbox instead, also to another machine; `Files.download` brings it back.

    With asyncio, `client` is an AsyncClient, whose socket and connections this sandbox uses beside other sandboxes and
    calls; `retry_busy` is its own then. What is `held` has another connection.

    Keyword Args:
        profile (str): what the sandbox sees and may do; "python" by default.
        environment (str): as for Client.execute.
        packages (Iterable[str]): as for Client.execute.
        egress (str): as for Client.execute.
        allow_network (bool): as for Client.execute.
        policy (Mapping[str, Any]): as for Client.execute, also in its short form.
        fetch_policy (Mapping[str, Any]): the same for `fetch` alone, in its short form.
        env (Mapping[str, str]): environment variables of every process in the sandbox.
        memory (int | str): bytes, or a size such as "512M", for all processes and files of the sandbox together.
        processes (int): processes and threads at once.
        descriptors (int): open descriptors in each process.
        files (int | str): bytes, or a size, in /workspace, /tmp and /dev/shm together. They count as memory, too.
        timeout (float): seconds for each `run` and `shell` that sets none.
        output (int | str): bytes of stdout and stderr together, of each `run` and `shell` that sets none.
        overflow (str): what happens to programs and code that write more and don't say so themselves: with "cut", the
            default, they go on, and the beginning and the end of their output are kept; "end" ends them.
        idle (float): seconds without a call after which the daemon ends the sandbox.
        lifetime (float): seconds after which the daemon ends the sandbox in any case.
        show_secrets (bool): for the profile "shell": hide nothing.
        own_home (bool): for "approved", and profiles based on it or on "agent": give it a home as "agent" has.
        hide (Sequence[str]): with such a home: paths in its mounts to show as an unreadable file, or an empty folder.
        protect (Sequence[str]): paths in its mounts that can't be written.
        pin (Sequence[str]): folders in its mounts that, like those above them, can't be moved.
        image (str): an image of the daemon's user, whose root file system the sandbox has; code runs there by its own Python.
        user (str): who runs in the image: a name of the image's or a number; the image's own by default.
        held (bool): the daemon ends the sandbox when this program ends, however it ends, until `detach`; where a copy of
            a folder has changes, its processes, and the sandbox ten minutes later.
        sleeps (bool): when it was idle for too long it sleeps, as by `pause`, in place of its end; it ends if it can't.
        metadata (Mapping[str, str]): texts that `info` and `list` show; at most 64 entries, 16 KiB.
    """

    def __init__(self, *, socket: str | os.PathLike[str] | None = None, mounts: Iterable[Mount] = (),
                 workdir: str | os.PathLike[str] | None = None, overlay: bool = False, compare: bool = False,
                 copy: bool = False,
                 client: AsyncClient | None = None,  # asyncio
                 retry_busy: bool = True, **options: Unpack[OpenOptions]) -> None:
        # blocking: self._connections = FreeConnections(socket, retry_busy)
        self._connections = AsyncFreeConnections(socket, retry_busy, client)  # asyncio
        self._packages = requirements_of(options)
        folders = mounts_of(mounts, workdir, overlay, compare, copy)
        self._copies = [mount for mount in folders if mount.copy]
        self._fields, self._mounts = add_host_view(sandbox_calls.open_fields(**options),
                                                   tuple(mount for mount in folders if not mount.copy))
        self._opening = Lock()
        self._id, self._closed = "", False
        self._held = self._attached = False  # its processes and kernels are, by `attach`; it wasn't opened here
        self._states = {}
        # blocking: self._applied = {}

    @classmethod
    async def attach(cls, sandbox: str, *, socket: str | os.PathLike[str] | None = None, held: bool = False,
                     client: AsyncClient | None = None,  # asyncio
                     retry_busy: bool = True) -> AsyncSandbox:
        """
        The sandbox with this id, which another program of the same user has opened; RequestRejected if it isn't an id.
        If *held*, the daemon ends the processes and kernels that this object starts when this program ends, however it
        ends, or at `detach`. *retry_busy* as for `AsyncSandbox`.

        With asyncio, `client` as for `AsyncSandbox`.
        """
        # blocking: box = cls(socket=socket, retry_busy=retry_busy)
        box = cls(socket=socket, retry_busy=retry_busy, client=client)  # asyncio
        box._id, box._held, box._attached = sandbox_calls.id_of(sandbox), held, True
        try:
            await box.info()
        except BaseException:
            await box._connections.close()
            raise
        return box

    @staticmethod
    async def list(*, socket: str | os.PathLike[str] | None = None) -> Rows:
        """The `info` of each sandbox of this user, the oldest first."""
        connections = AsyncFreeConnections(socket)
        try:
            reply, _ = await connections.call("sandbox_list", {})
            found, last = checked(page, reply)
            while last:
                reply, _ = await connections.call("sandbox_list", {"after": last})
                more, last = checked(page, reply, last)
                found += more
            return found
        finally:
            await connections.close()

    # blocking: @property
    async def id(self) -> str:
        """The sandbox's id, 26 characters. The first use opens the sandbox."""
        return await self._named()

    async def _named(self) -> str:
        if not self._id:
            async with self._opening:
                if not self._id:
                    if self._closed:
                        raise SandboxOver("the sandbox was closed before it was used", "killed", may_have_run=False)
                    opened = checked(sandbox_id, await self._open())
                    if self._copies:
                        await self._copy_to(opened)
                    self._id = opened
        return self._id

    async def _copy_to(self, opened: str) -> None:
        """Copy the folders of the host before any other call; what fails ends the sandbox."""
        box = await AsyncSandbox.attach(opened, socket=self._connections.socket)
        try:
            for mount in self._copies:
                await box.files.upload(mount.source, mount.target)
        except BaseException:
            await box.close()
            raise
        await box.detach()

    @property
    def files(self) -> AsyncFiles:
        """The sandbox's files."""
        from leeward.client.aio_files import AsyncFiles  # most programs don't need it
        return AsyncFiles(self)

    async def _open(self) -> Reply:
        if not self._packages:
            return await self._opened(self._fields)
        from leeward.client.packages import elsewhere, wanted_packages, with_environment_async

        elsewhere(self._connections.socket)
        await self._connections.call("sandbox_list", {})  # starts a daemon if there is none, which `status` doesn't
        status, _ = await self._connections.call("status", {})
        wanted = wanted_packages(self._packages, self._connections.socket, checked(answer, status))
        return await with_environment_async(self._fields, wanted, self._opened)

    async def ask(self, op: str, fields: Mapping[str, Any], seconds: float | None = None) -> Reply:
        """The reply to a request about this sandbox, which may take *seconds*; its descriptors are closed."""
        reply, descriptors = await self._connections.call(op, {"sandbox": await self._named(), **fields}, seconds)
        for fd in descriptors:
            os.close(fd)
        return reply

    async def begin(self, op: str, fields: Mapping[str, Any]) -> Reply:
        """As `ask`, for a request that starts a process or a kernel."""
        if not self._held:
            return await self.ask(op, fields)
        reply, _ = await self._connections.call_lasting(op, {"sandbox": await self._named(), **fields, "held": True})
        return reply

    # --- programs -------------------------------------------------------------------

    async def run(self, argv: Iterable[str], *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
                  **options: Unpack[StartOptions]) -> Result:
        """
        Run a program and wait for its end.

        Args:
            argv: the program, which is looked up in PATH, and its arguments.
            on_stdout: called with each piece of standard output as it arrives. The result has the whole output as well.
            on_stderr: called with each piece of standard error as it arrives.

        Keyword Args:
            cwd (str): the folder to start in; /workspace by default.
            env (Mapping[str, str]): environment variables, added to the sandbox's.
            stdin (bytes | str): the program's standard input, at most 64 MiB. Empty by default.
            timeout (float): seconds after which the program and all its descendants are killed.
            output (int | str): bytes of stdout and stderr together.
            overflow (str): what happens to a program that writes more: with "cut" it goes on, and the beginning and the
                end of its output are kept; with "end" it is killed. By default as for the sandbox.
            title (str): the name that `processes` shows; the first word of *argv* by default.
            cpu_time (float): processor seconds of the program and its descendants; then `timed_out`, with limit `cpu`.
            clean (bool): pass on only PATH of the sandbox's environment variables; *env* is added.
            warm (bool): the daemon may start such a program in advance, since it reads all of stdin first. Not `start`.
            ends_children (bool): kill what the program leaves running, before its result is there.

        Returns:
            How the program ended: exit code 127 for a missing program and 126 for a file that can't be run, with a line
                on stderr as a shell prints it. Output from before a time limit or a kill is included. After the
                program's end, the daemon waits 50 ms for output of children that live on.

        Raises:
            SandboxOver: the sandbox has ended.
            Busy: the sandbox runs as many processes as it may.
            DaemonError: as for Client.execute.
        """
        return await self._run(sandbox_calls.argv_of(argv), options, on_stdout, on_stderr)

    async def shell(self, line: str, *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
                    **options: Unpack[StartOptions]) -> Result:
        """Run a line by `/bin/sh -c`. The options, the result and the errors are those of `run`."""
        return await self._run(line, options, on_stdout, on_stderr)

    async def _run(self, what: Sequence[str] | str, options: StartOptions, on_stdout: OnData | None,
                   on_stderr: OnData | None) -> Result:
        fields = sandbox_calls.program_fields(what, **options)
        if on_stdout is None and on_stderr is None:
            return sandbox_calls.result(await self.run_fields(fields))
        process = await self.start_fields(sandbox_calls.bounded_fields(fields))
        try:
            return await process.result(on_stdout, on_stderr)
        except BaseException:
            try:
                await shielded(process.kill)
            except DaemonError:
                pass  # the caller gets the first error
            raise

    async def run_fields(self, fields: Mapping[str, Any]) -> Answer:
        """The answer to a process_run request with these fields, whose descriptors the caller owns."""
        return await self._connections.call("process_run", {"sandbox": await self._named(), **fields})

    async def start(self, argv: Iterable[str] | str, **options: Unpack[StartOptions]) -> AsyncProcess:
        """
        Start a program, or one line for the shell, and return at once; it runs until it ends, is killed, or the sandbox
        ends. Takes the options of `run` but `warm`; without `timeout` and `output` nothing bounds time and output. The
        end of output that is too long comes as the last chunks. `stdin=None` leaves standard input open for
        `AsyncProcess.write`.
        """
        what = argv if isinstance(argv, str) else sandbox_calls.argv_of(argv)
        opened = "stdin" in options and options["stdin"] is None
        fields = sandbox_calls.program_fields(what, **options)
        return await self.start_fields({**fields, "open": True} if opened else fields)

    async def terminal(self, argv: Iterable[str] | str = ("sh",), size: tuple[int, int] = (24, 80),
                       **options: Unpack[TerminalOptions]) -> AsyncProcess:
        """
        Start a program on a terminal, with job control, line editing and Ctrl-C. `AsyncProcess.write` types;
        `AsyncProcess.read` returns what the terminal shows, all of it as stdout; `AsyncProcess.resize` changes the
        terminal's size. Busy if 16 terminals are open in the sandbox, or 256 in all sandboxes of the user.

        Args:
            argv: the program and its arguments, or one line for the shell.
            size: rows and columns, each from 1 to 65,535.

        Keyword Args:
            cwd (str): the folder to start in; /workspace by default.
            env (Mapping[str, str]): environment variables, added to the sandbox's. TERM is xterm-256color by default.
            timeout (float): seconds; without it there is no limit on time.
            title (str): the name that `processes` shows.
        """
        what = argv if isinstance(argv, str) else sandbox_calls.argv_of(argv)
        return await self.start_fields(sandbox_calls.terminal_fields(what, size, options))

    async def start_fields(self, fields: Mapping[str, Any]) -> AsyncProcess:
        return AsyncProcess(self, checked(whole, await self.begin("process_start", fields), "process", 1))

    async def fetch(self, url: str, method: str = "GET", headers: Headers | None = None,
                    body: bytes | str = b"") -> Fetched:
        """
        Send an HTTP or HTTPS request, if this sandbox's egress policy allows it, and return the response. The daemon's
        broker sends the request: nothing runs in the sandbox. It follows redirects, and checks each by the policy.

        Args:
            url: http or https, at most 8,192 characters.
            method: such as "POST".
            headers: header fields of the request, at most 64; those of the connection can't be set.
            body: at most 16 MiB, and no more than the policy's limit `request`.

        Raises:
            FetchFailed: there is no response; docs/egress.md lists how its text begins, and the words of `cause`.
            Busy: 16 fetches of this user are under way.
        """
        from leeward.client.fetching import fetch_fields, fetched_of  # most programs don't need it

        fields = {"sandbox": await self._named(), **fetch_fields(url, method, headers, body)}
        return fetched_of(*await self._connections.call("sandbox_fetch", fields))

    async def publish(self, port: int, host_port: int = 0) -> AsyncPublished:
        """
        Make a server in the sandbox reachable on 127.0.0.1 of the host, for every user of the host, until the result is
        closed, which is a context as well. The server may start later; connections to none are reset. Programs can
        listen where the profile has `loopback`, as `workdir` and `agent` have. An open connection isn't use of the
        sandbox that keeps it from ending after its idle time.

        Args:
            port: the server's, of TCP, on 127.0.0.1 or ::1 in the sandbox.
            host_port: on the host; 0 for a free one, which is `AsyncPublished.port`.

        Raises:
            RequestRejected: the port of the host is taken.
        """
        from leeward.client.aio_ports import AsyncPublished  # most programs don't need it

        return await AsyncPublished.open(self, port, host_port)

    # --- Python ---------------------------------------------------------------------

    async def execute(self, code: str | bytes, **options: Unpack[CodeOptions]) -> Result:
        """
        Run Python code, at most 16 MiB, in a fresh interpreter with the sandbox's files. Takes the options of
        Session.execute but `deadline` and `label`, and `stdin`; the result is as for
        Client.execute, the errors as for `run`.
        """
        return await self._execute(0, code, options)

    async def _execute(self, kernel: int, code: str | bytes, options: CodeOptions | TurnOptions,
                       seconds: float | None = None) -> Result:
        plain = options.keys() == {"display"} if kernel else not options
        if plain and seconds is None and isinstance(code, (str, bytes)):  # the common case
            key = await self._named(), kernel, bool(options.get("display"))
            text = code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code
            return sandbox_calls.result(await self._connections.execute_in_kernel(key, text))
        fields = {"sandbox": await self._named(), **sandbox_calls.code_fields(code, options)}
        fields |= {"kernel": kernel} if kernel else {}
        arrivals = arrivals_of(options)
        served = awaited_by(options, arrivals)
        answer = await self._connections.call("sandbox_execute", fields, seconds, served)
        return arrived(sandbox_calls.result(answer), arrivals)

    async def kernel(self, *, snapshot: AsyncSnapshot | str | None = None, same_random: bool = False) -> AsyncKernel:
        """
        Start a Python process that keeps its state between requests. All kernels share the sandbox's files and limits.

        Args:
            snapshot: begin with the state of this one, taken in any sandbox of this user, or with its id. Files that it
                had open have to be there. SnapshotFailed if it can't be loaded.
            same_random: with a snapshot: random numbers go on from there, as in every such copy; else `random` and others
                are seeded anew.
        """
        fields: dict[str, Any] = {} if snapshot is None else {"snapshot": str(snapshot)}
        if same_random:
            fields["same_random"] = True
        return AsyncKernel(self, checked(whole, await self.begin("kernel_open", fields), "kernel", 1))

    async def fork(self, count: int = 1, kernels: Iterable[AsyncKernel] = (), *,
                   same_random: bool = False) -> Copies:
        """
        Open *count* sandboxes that are copies of this one: with its options, what is in /workspace, /tmp and /dev/shm, what
        it has changed in overlays and of its image's root, and copies of these *kernels* of its, in this order, which share
        the memory that none of them writes. Programs and checkpoints aren't copied. The files are taken after the kernels'
        states: what changes meanwhile may be old or new.

        Args:
            count: how many.
            kernels: kernels of this sandbox.
            same_random: as for `kernel`.

        Raises:
            SnapshotFailed: a kernel has what can't be taken, or its copy can't begin; no copy is left.
            ValueError: this object hasn't opened the sandbox itself, or it writes to folders of the host or has a home.
        """
        if self._attached or "home" in self._fields or any(mount.writable for mount in self._mounts):
            raise ValueError("a sandbox that was attached, writes to folders of the host or has a home can't be forked")
        from leeward.client.aio_forking import forks  # most programs don't need it

        return await forks(self, count, [*kernels], same_random=same_random)

    def unopened_copy(self) -> AsyncSandbox:
        """A sandbox with these options, which isn't opened yet and has none of the files."""
        made = AsyncSandbox(socket=self.socket)
        made._fields, made._packages, made._mounts = self._fields, self._packages, self._mounts
        return made

    async def copy_files(self, source: AsyncSandbox) -> None:
        """Make here what *source* has in its writable folders; RequestRejected if it doesn't fit, or something is here."""
        await self.ask("sandbox_copy", {"source": await source._named()})

    @property
    def socket(self) -> str:
        """The path of the socket of the sandbox's daemon."""
        return self._connections.socket

    async def processes(self) -> Rows:
        """
        The processes that clients have started, with the newest of those that have ended. Each is a dict with `process`
        (its number), `pid`, `title`, `argv`, `age` in seconds, `over`, and `exit_code` once it is known.
        """
        return checked(rows, await self.ask("process_list", {}), "processes")

    async def process(self, number: int) -> AsyncProcess:
        """The process with this number in `processes`. Raises ProcessOver if the sandbox doesn't list it."""
        process = AsyncProcess(self, number)
        await process.row()
        return process

    # --- the sandbox ----------------------------------------------------------------

    async def info(self) -> dict[str, Any]:
        """
        The sandbox's state: `sandbox`, `profile`, `image`, `age`, `idle`, `unused` and `left` in seconds, `processes`,
        `memory`, `memory_limit` and `memory_peak` in bytes, `cpu_time` in seconds, `oom_kills` (processes that the
        kernel killed for lack of memory), `forks_refused`, `denied` (refused calls by name), `metadata`.
        """
        return checked(answer, await self.ask("sandbox_info", {}))

    async def extend(self, *, idle: float | None = None, lifetime: float | None = None,
                     metadata: Mapping[str, str] | None = None, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Have the daemon end the sandbox after *idle* seconds without a call, or *lifetime* seconds from now; returns
        `info`. *metadata* take the place of the former ones, unless they are empty. *policy* takes the place of the
        sandbox's `policy` and `fetch_policy`, within the operator's: connections that are open end.

        Raises:
            RequestRejected: the policy is invalid, or the sandbox was opened without `egress`; with *metadata* or *policy*
                also if it sleeps.
        """
        asked = {name: value for name, value in (
            ("idle", idle), ("lifetime", lifetime), ("metadata", metadata and dict(metadata)),
            # An empty policy allows nothing, but an empty map in a request means no policy.
            ("policy", None if policy is None else dict(policy) or {"allow": []})) if value is not None}
        return checked(answer, await self.ask("sandbox_extend", asked))

    async def set_timeout(self, seconds: float) -> None:
        """Have the daemon end the sandbox *seconds* from now: `extend` with a lifetime."""
        await self.extend(lifetime=seconds)

    async def pause(self) -> None:
        """
        Let the sandbox sleep: the daemon keeps its files and the states of its kernels, and it has no process and no worker.
        The next call wakes it, its kernels as they were; `info` and `extend` don't. It doesn't end by being idle meanwhile.

        Raises:
            RequestRejected: programs run in it, or it shows folders of the host, has a home or an image.
            SnapshotFailed: a kernel has what can't be taken. It is as it was.
        """
        await self.ask("sandbox_pause", {})

    async def kill(self) -> None:
        """End the sandbox, and return when none of its processes is left. Calls that wait raise SandboxOver."""
        await self.ask("sandbox_kill", {})

    async def close(self) -> None:
        """`kill` the sandbox, if it was opened, and close the connections."""
        async with self._opening:
            self._closed = True
        try:
            if self._id:
                await self._connections.call("sandbox_kill", {"sandbox": self._id}, CLOSE_S)
        except DaemonError:
            pass  # the sandbox has ended, or ends after its idle time
        finally:
            self._close_blocking()  # asyncio
            await self._connections.close()

    async def detach(self) -> str:
        """Close the connections, and let the sandbox run on; returns its id, for `attach`."""
        found = await self._named()
        if self._fields.get("held"):
            await self.ask("sandbox_extend", {"detach": True})
        self._close_blocking()  # asyncio
        await self._connections.close()
        return found

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self._id or 'not open yet'}>"

"""
The blocking client.

Runs in:   anybody's program.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, Unpack

from leeward.client.egress_asks import EgressAsk, asks_of, taken
from leeward.client.link import Link
from leeward.client.options import Options, SessionOptions, fields_of, requirements_of, served_by, session_fields
from leeward.client.results import result_of
from leeward.client.session import Session
from leeward.outcome import Result
from leeward.spec.paths import client_socket
from leeward.wire.replies import Reply

# Imported in functions: what not every start needs; 49 ms of processor time for all of it.

T = TypeVar("T")


class Client:
    """
    Runs code in the daemon's sandboxes, one job at a time.

        with leeward.Client() as client:
            result = client.execute("print(6 * 7)")

    The first call connects. Threads may share a client, but then their calls run one
    after the other; to run jobs in parallel give each thread a client of its own, or use
    AsyncClient. After a fork, parent and child each use a connection of their own.

    Args:
        socket: path of the daemon's socket. By default the one in LEEWARD_SOCKET, else
            that of the user's own daemon.
        retry: send a request again, over a new connection, if nothing of the request has run: the daemon is stopping
            and refused it, or closed the connection before it received a byte. The client tries for 10 seconds, or
            until the call's deadline. If *retry* is False, these errors are raised, except for a connection that was
            closed while it was idle.
        retry_busy: send a request again that the daemon refused because it is busy, after the time that the daemon
            names or after a short pause. The client tries until the call's deadline, or for 30 seconds. If *retry_busy*
            or *retry* is False, Busy is raised at once.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, retry: bool = True,
                 retry_busy: bool = True) -> None:
        self.socket = client_socket(socket)
        self._retry, self._retry_busy = retry, retry_busy
        self._link = Link(self.socket)
        self._lock = threading.Lock()

    def execute(self, code: str | bytes | None = None, *, deadline: float | None = None, idempotent: bool = False,
                **options: Unpack[Options]) -> Result:
        """
        Run code in a fresh process, and wait for its result.

        Args:
            code: Python source, at most 16 MiB. Either this or `module` has to be given.
            deadline: seconds that this call may take in all, time in the queue included.
                Without it the call waits as long as the daemon is responsive; the
                daemon bounds the time in the queue and the job's time.
            idempotent: the job may run twice: send the request again also if the connection is lost while the job may
                be running.

        Keyword Args:
            module (str): the name of a module, which is run as `python -m` runs it.
            args (Iterable[str]): `sys.argv[1:]`.
            env (Mapping[str, str]): environment variables, added to the sandbox's own.
            files (Mapping[str, bytes | str]): files to write to /workspace before the job starts, by their names
                relative to /workspace or absolute paths in it; text is written as UTF-8. At most 1,024 files, together
                64 MiB.
            stdin (bytes | str): the job's standard input, at most 64 MiB. Empty by default.
            collect (Iterable[str]): files below /workspace to return in `Result.files`: names of files, names of
                folders for all files in them, and glob patterns with `**` and `{a,b}`. "." is all of /workspace.
                `Result.left_out` lists the files that weren't returned.
            display (bool): collect what the code shows: the value of its last expression, `display(...)`, figures of
                matplotlib. They are in `Result.results`, and the value's repr is `Result.value`. Not with `module`.
            timeout (float): seconds that the job may run; time in the queue doesn't count.
            memory (int | str): bytes, or a size such as "512M", for all the job's processes
                and files together.
            processes (int): processes and threads at once.
            output (int | str): bytes of stdout and stderr together.
            overflow (str): what happens to a job that writes more: "end", the default, ends it; with "cut" it goes on,
                and the beginning and the end of its output are kept.
            name (str): the file name that tracebacks show; `<string>` by default.
            label (str): your own name for the job, at most 64 letters, digits and ._:/@-. The daemon's log and the
                result have it. The result also has the job's number in the log.
            functions (Mapping[str, Callable]): functions that the code may call, by their names in the code. Each call
                runs in this process, in a thread of its own, with arguments that the job chooses: don't trust them.
                Arguments and results are values of JSON and bytes, 512 KiB at most. At most 64 functions; at most 16
                calls run at once. Not with `module`.
            call_timeout (float): seconds that a call of a function waits for its answer, 60 by default; then the call
                raises TimeoutError in the job.
            stop_clock (bool): don't count the time of calls for the job's time limit, up to the longest limit that the
                daemon allows.
            profile (str): the profile, which says what the sandbox shows and permits: `python`, `workdir`, or a profile
                that the operator has configured.
            environment (str): the name of an environment in the daemon's configuration: an interpreter and its
                packages.
            packages (Iterable[str]): requirements for pip, in place of `environment`, as for Sandbox. The first call
                installs them.
            egress (str): the name of an egress policy in the daemon's configuration; without one the job has no
                network.
            policy (Mapping[str, Any]): a policy as docs/egress.md describes it, which narrows the policy of `egress`.
            allow_network (bool): reach all public names and addresses on the ports 80 and 443, if the operator has set
                `allow_network`; in place of `egress`.

        Returns:
            How the job ended. A failure of the job is a Result, never an exception.

        Raises:
            DaemonAway: no daemon answers on the socket, or it closed the connection.
            NoAnswer: *deadline* has passed, or the daemon didn't respond for 20 s.
            Refused: the daemon refused the request; the subclass says why, such as Busy,
                QueueTimeout or RequestRejected.
            BadReply: the bytes received aren't leeward's protocol.

        Each of these errors has the attribute `may_have_run`: whether the job may have run.
        """
        fields, served = fields_of(code, options), served_by(options)
        until = None if deadline is None else time.monotonic() + deadline

        def attempt(fields: Mapping[str, Any]) -> tuple[Reply, list[int]]:
            with self._lock:
                return self._link.call("execute", fields, until, retry=self._retry, idempotent=idempotent,
                                       retry_busy=self._retry_busy, functions=served)

        return result_of(*self._with_packages(options, fields, attempt))

    def _with_packages(self, options: Options | SessionOptions, fields: Mapping[str, Any],
                       attempt: Callable[[Mapping[str, Any]], T]) -> T:
        """The result of *attempt* with *fields*, to which the environment of the packages in *options* is added."""
        requirements = requirements_of(options)
        if not requirements:
            return attempt(fields)
        from leeward.client import packages

        wanted = packages.wanted_packages(requirements, self.socket, self.status())
        return packages.with_environment(fields, wanted, attempt)

    def interrupt(self) -> None:
        """
        Raise KeyboardInterrupt in the job that `execute` waits for. A job that still waits for a worker is cancelled,
        and `execute` raises Cancelled.

        Call it from another thread than the one that waits. It doesn't wait for the job to end.
        """
        self._link.hurry("interrupt")

    def session(self, *, deadline: float | None = None, **options: Unpack[SessionOptions]) -> Session:
        """
        Open a session: one process that keeps its state between jobs.

        The session has a connection of its own, and occupies one of the daemon's workers
        until it is closed.

            with client.session() as session:
                session.execute("x = 6")
                session.execute("print(x * 7)")

        Args:
            deadline: seconds that this call may take in all, also while the daemon is busy.

        Keyword Args:
            memory (int | str): bytes, or a size such as "512M", for the whole session.
            processes (int): processes and threads at once, for the whole session.
            timeout (float): seconds for each job that doesn't set its own.
            output (int | str): bytes of stdout and stderr together, for each job that
                doesn't set its own.
            overflow (str): what happens to a job that writes more and doesn't say so itself: with "cut", the default,
                it goes on, and the beginning and the end of its output are kept; "end" ends it, and the state is lost.
            idle (float): seconds without a job after which the daemon ends the session.
            profile (str): as for `execute`.
            environment (str): as for `execute`.
            packages (Iterable[str]): as for `execute`.
            egress (str): as for `execute`.
            policy (Mapping[str, Any]): as for `execute`.
            allow_network (bool): as for `execute`.

        Raises:
            Busy: the daemon has as many sessions as it can have, and none of them ended in time.
            DaemonError: as for `execute`.
        """
        until = None if deadline is None else time.monotonic() + deadline
        return self._with_packages(options, session_fields(options), lambda fields: Session(
            self.socket, fields, deadline=until, retry=self._retry, retry_busy=self._retry_busy))

    def ping(self, timeout: float = 5.0) -> float:
        """
        Measure the daemon's response time.

        Args:
            timeout: seconds to wait for the answer.

        Returns:
            Seconds from the request to the answer.

        Raises:
            DaemonError: as for `execute`.
        """
        start = time.monotonic()
        self._simple("ping", timeout)
        return time.monotonic() - start

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """
        Ask for the daemon's state: workers, jobs, layers.

        Args:
            timeout: seconds to wait for the answer.

        Returns:
            What `leeward status --json` prints; docs/wire.md lists the fields.

        Raises:
            DaemonError: as for `execute`.
        """
        return self._simple("status", timeout)

    def egress_asks(self, after: int = 0, wait: float = 0.0) -> list[EgressAsk]:
        """
        The connections and requests of sandboxes that wait for an answer, by a rule of `ask` of their policy
        (docs/egress.md), the oldest first; for the operator alone. A call with a *wait* registers this client as a
        listener until it is closed; without a listener such connections are refused at once.

        Args:
            after: return the asks with higher numbers than this, at most 64.
            wait: seconds to wait if there is no ask, at most 3,600. Other threads that share this client wait, too.

        Raises:
            Forbidden: this user is a guest of the daemon.
            DaemonError: as for `execute`.
        """
        return asks_of(self._simple("egress_asks", wait + 5.0, {"after": after, "wait": wait}))

    def answer_egress_ask(self, ask: int, allow: bool, message: str = "", timeout: float = 5.0) -> bool:
        """
        Answer an ask: allow the connection or request that waits, or refuse it.

        Args:
            ask: the ask's number.
            allow: True to allow the connection or request, False to refuse it.
            message: the text of the answer 403 to a refused HTTP request, at most 500 characters; by default "Denied by
                leeward (request N)".
            timeout: seconds to wait for the daemon.

        Returns:
            False if the connection or request didn't wait any more.

        Raises:
            Forbidden, DaemonError: as for `egress_asks`.
        """
        return taken(self._simple("egress_answer", timeout, {"ask": ask, "allow": allow, "message": message}))

    def _simple(self, op: str, timeout: float, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._lock:
            reply, _ = self._link.call(op, fields or {}, time.monotonic() + timeout, retry=self._retry,
                                       retry_busy=self._retry_busy)
        assert reply.ok is not None
        return reply.ok

    def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        with self._lock:
            self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

"""The client of jobs, for asyncio."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Unpack

from leeward.base.closing import AsyncClosing
from leeward.client.aio_calls import AsyncCalls
from leeward.client.egress_asks import EgressAsk, asks_of, taken
from leeward.client.options import Options, arrivals_of, arrived, awaited_by, fields_of
from leeward.client.results import result_of
from leeward.spec.outcome import Result

# Imported in functions: what not every start needs; 10 ms of processor time for all of it.

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leeward.client.many import AsyncMapJobs, MapEnd, MapWatch


class AsyncClient(AsyncCalls, AsyncClosing):
    """
    Runs code in the daemon's sandboxes.

        async with leeward.AsyncClient() as client:
            result = await client.execute("print(6 * 7)")

    The first call connects.

    With asyncio, there may be any number of calls at once, over one connection: the client sends as many as the daemon
    takes, and the others in turn. It may be used in several event loops, one after the other or each in a thread of its
    own, and has a connection in each.

    Threads may share a blocking client, but then their calls run one after the other; to run jobs in parallel give each
    thread a client of its own, or use asyncio. After a fork, parent and child each use a connection of their own.

    Args:
        socket: path of the daemon's socket; or a daemon on another machine: `https://NAME`, `ssh://USER@NAME`.
            By default the one in LEEWARD_HOST or LEEWARD_SOCKET, else that of the user's own daemon.
        token: for https; by default the one in LEEWARD_TOKEN.
        retry: send a request again, over a new connection, if nothing of it has run: the daemon is stopping and refused
            it, or closed the connection before it received a byte. The client tries for 10 seconds, or until the call's
            deadline. Without *retry* only a connection that was closed while it was idle is made anew.
        retry_busy: send a request again that the daemon refused because it is busy, after the time that the daemon
            names or a short pause: until the call's deadline, or for 30 seconds, which begin again whenever another
            call of this client was served. If *retry_busy* or *retry* is False, Busy is raised at once.
    """

    async def execute(self, code: str | bytes | None = None, *, deadline: float | None = None, idempotent: bool = False,
                      **options: Unpack[Options]) -> Result:
        """
        Run code in a fresh process, and wait for its result. A failure of the job is a Result, never an exception.

        With asyncio, cancelling the task ends the job.

        Args:
            code: Python source, at most 16 MiB. Either this or `module` has to be given.
            deadline: seconds that this call may take in all, the queue included. Without it the call waits as long as
                the daemon is responsive, which bounds the time in the queue and the job's time.
            idempotent: the job may run twice: send the request again also if the connection is lost while it may be
                running.

        Keyword Args:
            module (str): the name of a module, which is run as `python -m` runs it.
            args (Iterable[str]): `sys.argv[1:]`.
            env (Mapping[str, str]): environment variables, added to the sandbox's own.
            files (Mapping[str, bytes | str]): files to write before the job starts, by their paths in /workspace; text
                as UTF-8. At most 1,024 files, together 64 MiB.
            stdin (bytes | str): the job's standard input, at most 64 MiB. Empty by default.
            collect (Iterable[str]): files in /workspace to return in `Result.files`: names of files, names of folders
                for all in them, and glob patterns with `**` and `{a,b}`; "." is all. `Result.left_out` lists what
                wasn't returned.
            display (bool): collect what the code shows (the value of its last expression, `display(...)`, figures of
                matplotlib) in `Result.results`, and the value's repr in `Result.value`. Not with `module`.
            timeout (float): seconds that the job may run; time in the queue doesn't count.
            wall (float): seconds that it may run in all; `timeout` then counts only the time for which the job ran or
                waited by itself, and not that for which it could have run and had no processor (`Result.starved`). A
                job that reaches this bound with time left has the outcome `internal`: the machine was too busy.
            cpu_time (float): seconds of processor time of all its processes together.
            memory (int | str): bytes, or a size such as "512M", for all the job's processes and files together.
            processes (int): processes and threads at once.
            descriptors (int): open descriptors in each process.
            output (int | str): bytes of stdout and stderr together.
            overflow (str): what happens to a job that writes more: "end", the default, ends it; with "cut" it goes on,
                and the beginning and the end of its output are kept.
            name (str): the file name that tracebacks show; `<string>` by default. With another one the code is written
                to this file, as `multiprocessing` needs it for spawn and forkserver.
            label (str): your own name for the job, for the daemon's log and the result: at most 64 letters, digits and
                ._:/@-. The result also has the job's number in the log.
            functions (Mapping[str, Callable]): functions that the code may call, by their names in it; at most 64, 16
                calls at once, and not with `module`. Each call runs in this process, in a thread of its own (with
                asyncio a coroutine function runs in the event loop), with arguments that the job chooses: don't trust
                them. Arguments and results are values of JSON and bytes, 512 KiB at most.
            call_timeout (float): seconds that a call of a function waits for its answer, 60 by default; then the call
                raises TimeoutError in the job.
            stop_clock (bool): don't count the time of calls for the job's time limit, up to the daemon's longest limit.
            on_stdout (Callable[[bytes], object]): called with each piece of standard output as it arrives, the first
                after some 50 ms, and with the rest at the end. The result has all output still; of output that is cut
                its beginning arrives early, and the rest at the end. If one of these functions raises an exception none
                is called any more, and this call raises it when the job has ended.
            on_stderr (Callable[[bytes], object]): the same of standard error.
            on_result (Callable[[Mapping[str, str | bytes]], object]): called with each object that the code shows, as it
                arrives, in order: `Result.results`. What is larger than 512 KiB, and what follows it, comes at the end.
                Needs `display`. With blocking clients it may be called in another thread.
            profile (str): what the sandbox shows and permits: `python`, `workdir`, or a profile that the operator has
                configured.
            environment (str): an environment in the daemon's configuration: an interpreter and its packages.
            packages (Iterable[str]): requirements for pip such as "pandas==2.2", in place of `environment`. The first
                call installs them, unless the daemon has an environment of these packages.
            egress (str): an egress policy in the daemon's configuration; without one the job has no network.
            policy (Mapping[str, Any]): a policy as docs/egress.md describes it, which narrows the policy of `egress`.
            allow_network (bool): reach all public names and addresses on the ports 80 and 443, if the operator has set
                `allow_network`; in place of `egress`.

        Raises:
            DaemonAway: no daemon answers on the socket, or it closed the connection.
            NoAnswer: *deadline* has passed, or the daemon didn't respond for 20 s.
            Refused: the daemon refused the request; the subclass says why, such as Busy, QueueTimeout or
                RequestRejected.
            BadReply: the bytes received aren't leeward's protocol.

        Each of these errors has the attribute `may_have_run`: whether the job may have run.
        """
        until = None if deadline is None else time.monotonic() + deadline
        fields, arrivals = fields_of(code, options), arrivals_of(options)
        served = awaited_by(options, arrivals)
        return arrived(result_of(*await self._with_packages(
            options, fields, lambda fields: self._call("execute", fields, until, idempotent, served))), arrivals)

    def map(self, jobs: AsyncMapJobs, *, ordered: bool = False, at_once: int | None = None, deadline: float | None = None,
            progress: MapWatch | None = None, **options: Unpack[Options]) -> AsyncIterator[MapEnd]:
        """
        Run many jobs, each in a fresh process, as many at once as the daemon takes, and yield each one's end as it comes.

            async for one in client.map(programs, timeout=5):
                print(one.number, one.result.outcome if one.result else one.error)

        A job's failure is in its result, and a refusal of one job in its `error`; all other errors of `execute` are
        raised and end the call. So does leaving the iteration, or an exception in it. Jobs that run then are cancelled.

        With asyncio, an asynchronous iterable may give the jobs, too.

        Args:
            jobs: each is Python source, or a mapping with the arguments of `execute`, which come before *options*. They
                are taken one by one while there is room, so there may be any number.
            ordered: yield in the order of the jobs, else in the order in which they end.
            at_once: jobs that are sent at once at most, 256 by default. As many ends again may wait to be yielded;
                while they do, no further job is taken.
            deadline: seconds for all of it; NoAnswer is raised when they have passed.
            progress: called each time a job has ended, before it is yielded.

        Keyword Args:
            options: those of `execute`, for each job that has no other value of its own.
        """
        from leeward.client.aio_mapping import mapped

        return mapped(self, jobs, ordered=ordered, at_once=at_once, deadline=deadline, progress=progress, options=options)

    async def ping(self, timeout: float = 5.0) -> float:
        """The daemon's response time in seconds. It may take *timeout* seconds; else DaemonError, as for `execute`."""
        start = time.monotonic()
        await self._simple("ping", {}, timeout)
        return time.monotonic() - start

    async def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """The daemon's state, as `leeward status --json` prints it; docs/wire.md lists the fields. Raises as `ping`."""
        return await self._simple("status", {}, timeout)

    async def egress_asks(self, after: int = 0, wait: float = 0.0) -> list[EgressAsk]:
        """
        The connections and requests of sandboxes that wait for an answer, by a rule of `ask` of their policy
        (docs/egress.md), the oldest first; Forbidden if this user is a guest of the daemon. A call with a *wait*
        registers this client as a listener until it is closed; without a listener such connections are refused at once.

        Args:
            after: return the asks with higher numbers than this, at most 64.
            wait: seconds to wait if there is no ask, at most 3,600. Other threads that share this client wait, too.
        """
        return asks_of(await self._simple("egress_asks", {"after": after, "wait": wait}, wait + 5.0))

    async def answer_egress_ask(self, ask: int, allow: bool, message: str = "", timeout: float = 5.0) -> bool:
        """
        Answer an ask: allow the connection or request that waits, or refuse it. Raises as `egress_asks`.

        Args:
            ask: the ask's number.
            allow: False refuses it.
            message: the text of the answer 403 to a refused HTTP request, at most 500 characters; by default "Denied by
                leeward (request N)".
            timeout: seconds to wait for the daemon.

        Returns:
            False if the connection or request didn't wait any more.
        """
        fields = {"ask": ask, "allow": allow, "message": message}
        return taken(await self._simple("egress_answer", fields, timeout))

"""
Carries out approved requests: changes of a project's files in the order of their ids, commands in parallel, of which it
keeps the state and output.

Trust:     none in output. The last KEPT_OUTPUT bytes of each of the last MOST_RUNS commands are kept.
Once:      the queue records that an order is begun before anything is done, and lets one caller begin it. If the
           program ends in between, files are compared with the host (`apply.recover`). Pushes and settings are done
           again, which changes nothing if they were done. A command isn't run again, since it may have run.
Threads:   MOST_FILES for files and MOST_PUSHES for pushes and settings, one of each for a project, so that a slow disk
           or remote delays only its own project; MOST_COMMANDS for commands, MOST_OF_ONE for one sandbox. Any may call
           RunBook, whose subscribers are called without a lock, by the thread that reads the output.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from leeward.apps.approvals.box_rows import SandboxRows, last_info
from leeward.apps.approvals.carrying.apply import OpenProjects, carry_out, recover
from leeward.apps.approvals.carrying.orders import CarriedOrder, CommandOrder, ConfigOrder, PushOrder, unpack_order
from leeward.apps.approvals.carrying.settings import ServiceSettings
from leeward.apps.approvals.git.git_host import git_push, is_local
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, reached
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.base.closing import on_failure
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Bug, LeewardError, ShuttingDown, told, told_with_type
from leeward.spec.outcome import Outcome

#: Commands that run at once, of all sandboxes and of one.
MOST_COMMANDS, MOST_OF_ONE = 64, 4

#: Projects whose files are written at once, and projects whose branches are pushed at once.
MOST_FILES, MOST_PUSHES = 8, 8

#: Bytes of output after which a command is ended.
MOST_OUTPUT = "64M"

#: The end of the output of a command that was timed out.
_TIMED_OUT = b"[timed out]\n"

#: pip installs into PYTHONUSERBASE (`boxes.environment_of`): the interpreter's own packages are the host's.
_PIP = {"PIP_USER": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1"}


class OrderCarrier:
    """
    Carries out what the queue says is due. *life* writes the rows about sandboxes that are opened for a command;
    *fault* is called before each step, with the step's name.
    """

    def __init__(self, queue: ApprovalQueue, runs: RunBook, settings: ServiceSettings, projects: OpenProjects,
                 socket: str | None, life: SandboxRows, fault: Callable[[str], None] = reached) -> None:
        self._queue, self._runs, self._settings, self._projects, self._socket = queue, runs, settings, projects, socket
        self._life, self._fault, self._over = life, fault, False
        self._running, self._lock = dict[int, Sandbox](), threading.Lock()
        self._files = TurnPool("files", MOST_FILES, 1)
        self._others = TurnPool("pushes", MOST_PUSHES, 1)
        self._commands = TurnPool("commands", MOST_COMMANDS, MOST_OF_ONE)
        self._unsubscribe = queue.subscribe(self.carry)

    def start(self) -> None:
        """Carry out what is due already, and complete what another program had begun when it ended."""
        for request, temporary in self._queue.interrupted():
            pool = self._files if request.category == "filesystem" else self._others
            pool.submit(request.project, functools.partial(self._guarded, self._recover, request, temporary))
        for request in self._queue.due():
            self.carry(request)

    def close(self) -> None:
        """Begin nothing more, end the sandboxes that were opened for a command, and wait for writes and pushes."""
        self._over = True
        self._unsubscribe()
        with self._lock:
            running = list(self._running.values())
        for box in running:
            try:
                box.kill()
            except LeewardError:
                pass  # it is over
        for pool in (self._files, self._others, self._commands):
            pool.close()

    def carry(self, request: ApprovalRequest) -> None:
        """Carry out *request* in another thread if it is due. A subscriber of the queue."""
        if request.stage != "due" or self._over:
            return
        carry = functools.partial(self._guarded, self._carry, request, "")
        if request.category in ("exec", "packages"):
            self._commands.submit(request.sandbox, carry)
        else:
            (self._files if request.category == "filesystem" else self._others).submit(request.project, carry)

    def _guarded(self, do: Callable[[ApprovalRequest, str], None], request: ApprovalRequest, temporary: str) -> None:
        """Call *do*; an exception makes this request a failed one."""
        try:
            do(request, temporary)
        except ShuttingDown:
            pass  # the request is due when the service starts again
        except Exception as error:
            try:
                self._queue.begin(request.id)  # if `do` hasn't: a request that is due can't be finished
                self._queue.finish(request.id, told_with_type(error), failed=True)
            finally:
                self._runs.end(request.id, None, told(error))

    def _carry(self, request: ApprovalRequest, temporary: str) -> None:
        if request.category == "filesystem":
            carry_out(self._queue, self._projects.of(request), request.id, self._fault)
            return
        self._fault("begin")
        payload = self._queue.begin(request.id)
        if payload is not None:
            self._fault("begun")
            self._do(request, unpack_order(payload))

    def _recover(self, request: ApprovalRequest, temporary: str) -> None:
        if request.category == "filesystem":
            recover(self._queue, self._projects.of(request), request, temporary)
            return
        payload = self._queue.payload(request.id)
        if payload is None:
            raise Bug("an order that was begun and has no payload")
        order = unpack_order(payload)
        if isinstance(order, CommandOrder):
            self._queue.finish(request.id, "the service ended meanwhile; whether it was run isn't known", failed=True)
        else:
            self._do(request, order)

    def _do(self, request: ApprovalRequest, order: CarriedOrder) -> None:
        match order:
            case CommandOrder():
                self._command(request, order)
            case PushOrder():
                self._push(request, order)
            case ConfigOrder():
                self._configure(request, order)

    def _push(self, request: ApprovalRequest, order: PushOrder) -> None:
        if is_local(order.remote) and request.decided_by not in ("cli", "page"):
            # The project's configuration names the folder, and a rule decides by the branch alone.
            self._queue.finish(request.id, "a person decides about a push to a folder of this host, and no rule",
                               failed=True)
            return
        try:
            git_push(order.repository, order.remote, order.branch, order.commit)
        except BadRequest as error:
            self._done(request, str(error), failed=True)
        else:
            self._done(request)

    def _done(self, request: ApprovalRequest, note: str = "", *, failed: bool = False) -> None:
        self._fault("finish")
        self._queue.finish(request.id, note, failed=failed)
        self._fault("finished")

    def _configure(self, request: ApprovalRequest, order: ConfigOrder) -> None:
        if request.decided_by not in ("cli", "page"):
            self._queue.finish(request.id, "a person decides about the configuration, and no rule", failed=True)
            return
        self._settings.set(order.key, order.value)
        self._done(request)

    def _command(self, request: ApprovalRequest, order: CommandOrder) -> None:
        self._runs.begin(request.id)
        try:
            box = (self._opened(request, order.profile) if order.profile
                   else Sandbox.attach(request.sandbox, socket=self._socket))
        except LeewardError as error:
            self._end(request, None, f"no sandbox to run it in: {error}")
            return
        try:
            if self._over and order.profile:  # `close` may have run before the sandbox was in `_running`
                raise ShuttingDown("the service ends")
            self._run(request, order, box)
        except LeewardError as error:
            self._end(request, None, str(error))
        finally:
            if order.profile:
                with self._lock:
                    self._running.pop(request.id, None)
                info, why = last_info(box)
                box.close()
                self._life.end(box.id, info, why)
            else:
                box.detach()

    def _opened(self, request: ApprovalRequest, profile: str) -> Sandbox:
        """Open a sandbox of *profile* for one command."""
        box = Sandbox(socket=self._socket, profile=profile, held=True, metadata={"request": str(request.id)})
        with on_failure(box.close), self._life.opening():
            self._life.begin(box.id, profile=profile, request=request.id)
        with self._lock:
            self._running[request.id] = box
        return box

    def look(self) -> None:
        """Write the rows about the sandboxes in which commands run."""
        with self._lock:
            running = list(self._running.values())
        for box in running:
            with contextlib.suppress(LeewardError):  # a sandbox that has ended, which its own thread notices
                self._life.look(box.id, box.info())

    def _run(self, request: ApprovalRequest, order: CommandOrder, box: Sandbox) -> None:
        process = box.start(order.line or order.argv, timeout=order.timeout, output=MOST_OUTPUT,
                            cwd=order.cwd or None, title=f"request {request.id}",
                            env=_PIP if request.category == "packages" and order.argv[0] == "pip" else None)
        for chunk in process:
            self._runs.add(request.id, chunk.stream, chunk.data)
        result = process.wait()
        if result is None:
            raise Bug("a process whose output has ended and that has no result")
        if result.outcome == Outcome.TIMED_OUT:
            self._runs.add(request.id, "stderr", _TIMED_OUT)
            self._end(request, TIMED_OUT, f"it ran for more than {order.timeout:g} seconds")
        elif result.outcome not in (Outcome.FINISHED, Outcome.SIGNALLED):
            self._end(request, result.exit_code, f"it was ended: {result.outcome}")
        else:
            self._end(request, result.exit_code, "")

    def _end(self, request: ApprovalRequest, exit_code: int | None, note: str) -> None:
        self._done(request, note or (f"exit status {exit_code}" if exit_code else ""), failed=bool(note))
        self._runs.end(request.id, exit_code, note)


class TurnPool:
    """
    A pool of *threads* threads with *of_one* for each key, so that slow work for one key doesn't delay others. With a
    bound of one, the work for a key is done in the order in which it came.
    """

    def __init__(self, name: str, threads: int, of_one: int) -> None:
        self._pool, self._of_one = ThreadPoolExecutor(threads, name), of_one
        self._lock, self._over = threading.Lock(), False
        self._turns, self._waiting = Counter[str](), defaultdict[str, deque[Callable[[], None]]](deque)

    def submit(self, key: str, do: Callable[[], None]) -> None:
        """Call *do* in a thread when *key* has one free. An exception of *do* is ignored."""
        with self._lock:
            if self._turns[key] >= self._of_one:
                self._waiting[key].append(do)
                return
            self._turns[key] += 1
        self._begin(key, do)

    def close(self) -> None:
        """Begin no more work, and wait for what runs."""
        with self._lock:
            self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, key: str, do: Callable[[], None]) -> None:
        try:
            self._pool.submit(self._in_turn, key, do)
        except RuntimeError:
            pass  # the pool is closed

    def _in_turn(self, key: str, do: Callable[[], None]) -> None:
        """Call *do*, and then begin the next work of the key."""
        try:
            do()
        finally:
            with self._lock:
                after = self._waiting[key].popleft() if self._waiting[key] else None
                if not self._waiting[key]:
                    del self._waiting[key]
                if after is None:
                    self._turns[key] -= 1
                    self._turns += Counter()  # removes keys with 0
                is_over = self._over
            if after is not None and not is_over:
                self._begin(key, after)


#: Bytes of output that are kept of each command, and commands that are kept.
KEPT_OUTPUT, MOST_RUNS = 256 << 10, 200

#: A subscriber of output: called with the request's id, "stdout" or "stderr", and bytes.
OnOutput = Callable[[int, str, bytes], None]

#: The exit code of a command that was timed out, as that of timeout(1).
TIMED_OUT = 124


@dataclass(slots=True)
class CommandRun:
    """One command."""

    id: int
    status: str = "running"  # "running", "completed" or "failed"
    exit_code: int | None = None  # None while the command runs, and if it has none
    output: bytearray = field(default_factory=bytearray)  # the last KEPT_OUTPUT bytes of both streams, as they came
    truncated: bool = False  # whether earlier output was dropped
    note: str = ""  # why it failed
    started: float | None = field(default_factory=time.time)
    ended: float | None = None

    def row(self, *, output: bool = True) -> dict[str, Any]:
        """For JSON."""
        row = {"id": self.id, "status": self.status, "exit_code": self.exit_code, "truncated": self.truncated,
               "note": self.note, "started": self.started, "ended": self.ended}
        return row | ({"output": self.output.decode("utf-8", "replace")} if output else {})


def run_before(request: ApprovalRequest) -> dict[str, Any]:
    """As `CommandRun.row`, for a command that hasn't begun, or that ran before this service started."""
    done = {"applied": "completed", "failed": "failed", "applying": "running"}.get(request.stage, "")
    status = done or (request.status if request.status in ("pending", "approved") else "denied")
    return CommandRun(request.id, status, truncated=bool(done), note=request.note, started=None).row()


class RunBook:
    """The commands that this service has run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: OrderedDict[int, CommandRun] = OrderedDict()
        self._subscribers: list[OnOutput] = []

    def begin(self, number: int) -> None:
        with self._changed:
            self._runs[number] = CommandRun(number)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def add(self, number: int, stream: str, data: bytes) -> None:
        """Add output of a command, and call the subscribers with it."""
        with self._changed:
            run, subscribers = self._runs.get(number), list(self._subscribers)
            if run is not None:
                run.output += data
                over = len(run.output) - KEPT_OUTPUT
                if over > 0:
                    del run.output[:over]
                    run.truncated = True
        for subscriber in subscribers:
            try:
                subscriber(number, stream, data)
            except Exception:  # it costs that subscriber this piece
                pass

    def end(self, number: int, exit_code: int | None, note: str = "") -> None:
        """Record the end of a command: the exit code is None if it never ran, *note* why it failed."""
        with self._changed:
            run = self._runs.get(number)
            if run is not None:
                run.status, run.exit_code = ("failed" if note else "completed"), exit_code
                run.note, run.ended = note, time.time()
            self._changed.notify_all()

    def get(self, number: int, wait: float = 0.0) -> dict[str, Any] | None:
        """
        As `CommandRun.row`, after a running command's end or *wait* seconds; None if it hasn't begun, or isn't kept any
        more.
        """
        end = time.monotonic() + wait
        with self._changed:
            while True:
                run = self._runs.get(number)
                left = end - time.monotonic()
                if run is None or run.status != "running" or left <= 0:
                    return None if run is None else run.row()
                self._changed.wait(left)

    def rows(self) -> list[dict[str, Any]]:
        """All commands that are kept, the newest first, without output."""
        with self._changed:
            return [run.row(output=False) for run in reversed(self._runs.values())]

    def subscribe(self, subscriber: OnOutput) -> Callable[[], None]:
        """Call *subscriber* with all output from now on. Returns a function that ends this."""
        def end() -> None:
            with self._changed:
                self._subscribers.remove(subscriber)

        with self._changed:
            self._subscribers.append(subscriber)
        return end

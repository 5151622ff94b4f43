"""
Each operation while each kind of process is killed or stopped: 15 operations, 8 kinds of processes, two faults.

An operation is answered once, with what is right or with one typed error, within a bound. Then the daemon serves the
same operation, and has no more processes, mounts, groups, descriptors and files than before, and no zombie.

Short, each operation, kind and fault at least once; LEEWARD_LONG has the whole matrix, parts of it by -k.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import features
from kit.approvals import ServedApprovals
from kit.egress import Servers
from kit.live_daemon import LiveDaemon, descendants, held, watched
from kit.waiting import poll_until
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, FetchFailed, RequestRejected
from leeward.isolation.cgroup import hierarchy
from leeward.spec.outcome import Outcome, Result

LONG = bool(os.environ.get("LEEWARD_LONG"))

WORKERS = 2
#: Seconds for which a process is stopped, unless the operation ends before; and until an operation has to be answered.
#: A client tries for ten seconds to reach the next daemon.
STOP_S, ANSWER_S = 5.0 if LONG else 1.0, 25.0 * features.SLOWER
#: The latest moment of a fault, in seconds after the begin of an operation.
LATEST_S = 0.25
#: Groups and descriptors that workers keep for later jobs: how many depends on how jobs met (bench/soak.py).
KEPT = {"groups": 4 * WORKERS, "descriptors": 14 * WORKERS}

#: Answers to a job or a program that was killed.
ENDED = {Outcome.SIGNALLED, Outcome.INTERNAL}

CONFIG = """\
pool_size = {workers}
[egress.web]
allow = ["127.0.0.1:{port}"]
addresses = ["127.0.0.1/32"]
"""

BRIEF = "import time; time.sleep(0.2); "
BIG = bytes(range(256)) * (16 << 10)
NAMES = [f"f{number}" for number in range(40)]
ASK = ("from leeward.approvals import Agent\n"
       'print(Agent().request_permission("sandbox", action="mine", wait=False)["status"])')


class Stand:
    """
    A daemon that is started anew when it was killed, and what operations need beside it.

    Attributes:
        project: a folder of the host.
        port: of a web server.
        daemon: the one that runs now.
        before: what there was of everything before the first fault.
    """

    before: Counter[str]

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self.port = folder, port
        self.project = folder / "project"
        self.project.mkdir()
        (folder / "d").mkdir(mode=0o700)
        config = folder / "c.toml"
        config.write_text(CONFIG.format(workers=WORKERS, port=port))
        self._options = ("--config", str(config))
        self._service: ServedApprovals | None = None
        self.daemon = self._start()

    def _start(self) -> LiveDaemon:
        return LiveDaemon(self._folder / "d", *self._options).__enter__()

    @property
    def service(self) -> ServedApprovals:
        if self._service is None:
            self._service = ServedApprovals(self.daemon, self._folder).__enter__()
        return self._service

    def restart(self) -> None:
        self.daemon.process.wait()
        self.daemon.__exit__(None, None, None)
        self.daemon = self._start()

    def box(self, **options: Any) -> Sandbox:
        return Sandbox(socket=self.daemon.socket, **options)

    def close(self) -> None:
        if self._service is not None:
            self._service.end()
        self.daemon.__exit__(None, None, None)

    # --- processes ------------------------------------------------------------

    def processes(self) -> dict[str, list[int]]:
        """All of the daemon's, by kind; zombies as well."""
        children: dict[int, list[int]] = {}
        states: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry.name))
                states[int(entry.name)] = state
        root = self.daemon.process.pid
        found: dict[str, list[int]] = {"daemon": [root]}
        todo = children.get(root, [])
        while todo:
            pid = todo.pop()
            todo += children.get(pid, [])
            found.setdefault("zombie" if "Z" == states[pid] else kind_of(pid), []).append(pid)
        return found

    def census(self) -> Counter[str]:
        daemon = self.daemon.process.pid
        count = Counter({kind: len(pids) for kind, pids in self.processes().items()})
        groups = sum(1 for each in hierarchy.here() for home in Path(each.own).glob(f"leeward-{daemon}-*")
                     for _ in os.walk(home))  # of what goes meanwhile it tells nothing
        files = sum(1 for path in (self._folder / "d").rglob("*"))
        return count + Counter({"mounts": len(Path(f"/proc/{daemon}/mountinfo").read_text().splitlines()),
                                "groups": groups, "descriptors": held(daemon), "files": files})


def kind_of(pid: int) -> str:
    """By what the process runs, its pid namespaces and its session, as a keeper may have outlived its zygote."""
    with contextlib.suppress(OSError):
        program = Path(f"/proc/{pid}/cmdline").read_bytes()
        for word, kind in ((b"import opener", "opener"), (b"leeward.egress.main", "broker")):
            if word in program:
                return kind
        inside = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        if len(inside) > 1:
            return "init" if "1" == inside[-1] else "process"
        return "zygote" if os.getsid(pid) == pid else "keeper"
    return "gone"


# --- operations ---------------------------------------------------------------


Act = Callable[[], object]


@contextlib.contextmanager
def execute(stand: Stand) -> Iterator[Act]:
    with stand.daemon.client() as client:
        yield lambda: client.execute(f"{BRIEF}print(42)")


@contextlib.contextmanager
def session_execute(stand: Stand) -> Iterator[Act]:
    with stand.daemon.client() as client, client.session() as session:
        assert session.execute("x = 42").ok
        yield lambda: session.execute(f"{BRIEF}print(x)")


@contextlib.contextmanager
def kernel_execute(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        kernel = box.kernel()
        assert kernel.execute("x = 42").ok
        yield lambda: kernel.execute(f"{BRIEF}print(x)")


@contextlib.contextmanager
def sandbox_open(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        yield lambda: len(box.id)


@contextlib.contextmanager
def process_run(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        assert box.id
        yield lambda: box.run(["sh", "-c", "sleep 0.2; echo 42"])


@contextlib.contextmanager
def process_read(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        assert box.id
        yield lambda: box.start(["sh", "-c", "echo 4; sleep 0.2; echo 2"]).result()


@contextlib.contextmanager
def file_write(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        assert box.id
        yield lambda: (box.files.write("big", BIG), box.files.read("big") == BIG)


@contextlib.contextmanager
def file_read(stand: Stand) -> Iterator[Act]:
    with stand.box() as box:
        box.files.write("big", BIG)
        yield lambda: all(box.files.read("big") == BIG for _ in range(4))


@contextlib.contextmanager
def _changed(stand: Stand) -> Iterator[Sandbox]:
    """A sandbox over the project, in which each file was written; on the host each is as before or as there."""
    for name in NAMES:
        (stand.project / name).write_text("old\n")
    with stand.box(workdir=stand.project, overlay=True) as box:
        assert box.shell(f"for f in {' '.join(NAMES)}; do echo new >$f; done").ok
        yield box
    assert set(NAMES) == {path.name for path in stand.project.iterdir()}
    assert {"old\n", "new\n"} >= {path.read_text() for path in stand.project.iterdir()}


@contextlib.contextmanager
def diff(stand: Stand) -> Iterator[Act]:
    with _changed(stand) as box:
        yield lambda: sorted(change.path for change in box.diff()) == sorted(NAMES)


@contextlib.contextmanager
def apply(stand: Stand) -> Iterator[Act]:
    with _changed(stand) as box:
        yield lambda: (len(box.apply()), {path.read_text() for path in stand.project.iterdir()})


@contextlib.contextmanager
def checkpoint(stand: Stand) -> Iterator[Act]:
    with _changed(stand) as box:
        yield lambda: [box.checkpoint(name) for name in ("a", "b")]


@contextlib.contextmanager
def fetch(stand: Stand) -> Iterator[Act]:
    with stand.box(egress="web") as box:
        assert box.id
        yield lambda: [box.fetch(f"http://127.0.0.1:{stand.port}/x").status for _ in range(20)]


@contextlib.contextmanager
def function_call(stand: Stand) -> Iterator[Act]:
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    with stand.daemon.client() as client:
        yield lambda: client.execute(f"{BRIEF}print(double(21))", functions={"double": double})
    assert len(calls) <= 2  # a job that can't have run is sent again


@contextlib.contextmanager
def collect(stand: Stand) -> Iterator[Act]:
    with stand.daemon.client() as client:
        code = f"{BRIEF}open('big', 'wb').write(bytes(4 << 20)); print(42)"
        yield lambda: client.execute(code, collect=["big"])


@contextlib.contextmanager
def approvals_ask(stand: Stand) -> Iterator[Act]:
    service = stand.service
    box = service.open(stand.project)
    try:
        yield lambda: box.run(["python3", "-c", ASK])
    finally:
        with contextlib.suppress(leeward.errors.LeewardError):
            service.connection.close_sandbox(box.id)
        box.detach()


def _is_right(value: object, output: str) -> bool:
    return isinstance(value, Result) and value.ok and output == value.stdout_text


#: Each operation, with what its right answer is.
OPERATIONS: dict[str, tuple[Callable[[Stand], contextlib.AbstractContextManager[Act]], Callable[[Any], bool]]] = {
    "execute": (execute, lambda got: _is_right(got, "42\n")),
    "session execute": (session_execute, lambda got: _is_right(got, "42\n")),
    "kernel execute": (kernel_execute, lambda got: _is_right(got, "42\n")),
    "sandbox open": (sandbox_open, lambda got: 26 == got),
    "process run": (process_run, lambda got: _is_right(got, "42\n")),
    "process start and read": (process_read, lambda got: _is_right(got, "4\n2\n")),
    "file write": (file_write, lambda got: (len(BIG), True) == got),
    "file read": (file_read, lambda got: got is True),
    "diff": (diff, lambda got: got is True),
    "apply": (apply, lambda got: (len(NAMES), {"new\n"}) == got),
    "checkpoint": (checkpoint, lambda got: ["a", "b"] == got),
    "fetch": (fetch, lambda got: [200] * 20 == got),
    "function call": (function_call, lambda got: _is_right(got, "42\n")),
    "collect": (collect, lambda got: _is_right(got, "42\n") and bytes(4 << 20) == got.files["big"]),
    "approvals ask": (approvals_ask, lambda got: _is_right(got, "pending\n")),
}

TARGETS = ("daemon", "zygote", "keeper", "init", "process", "opener", "broker")
#: What starts those that come with the first need of them.
STARTED_BY = {"opener": "diff", "broker": "fetch"}
#: With these all that is below them ends.
DIE_WITH_IT = ("keeper", "init", "process")
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Answer:
    """One operation on a thread: its value or its error, once."""

    def __init__(self, act: Act) -> None:
        self.over = threading.Event()
        self.values: list[object] = []
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._ask, args=(act,))
        self._thread.start()

    def _ask(self, act: Act) -> None:
        try:
            self.values.append(act())
        except BaseException as error:
            self.errors.append(error)
        self.over.set()

    def check(self, is_right: Callable[[Any], bool]) -> None:
        """It came, once, and is right or typed: a lost runner is no fault of the request's."""
        assert self.over.wait(ANSWER_S), "no answer"
        self._thread.join()
        assert 1 == len(self.values) + len(self.errors)
        for error in self.errors:
            if isinstance(error, OSError) and errno.EIO == error.errno:  # the process that does file calls has ended
                continue
            if not isinstance(error, DaemonError | FetchFailed) or isinstance(error, RequestRejected | leeward.BadReply):
                raise error
        for value in self.values:
            assert is_right(value) or (isinstance(value, Result) and value.outcome in ENDED), value


def play(stand: Stand, operation: str, target: str, fault: str, moment: float) -> int:
    """One row of the matrix; returns how many processes were hit."""
    begin, is_right = OPERATIONS[operation]
    if target in STARTED_BY and target not in stand.processes():
        serves(stand, STARTED_BY[target])
    with ExitStack() as ends:
        ends.enter_context(contextlib.suppress(DaemonError))  # what a daemon took with it can't be closed any more
        act = ends.enter_context(begin(stand))
        answer = Answer(act)
        answer.over.wait(moment)
        hit = []
        pids = stand.processes().get(target, [])
        assert pids or target in ("init", "process")  # an operation may be over, and the next one's not there yet
        below = [each for pid in pids for each in descendants(pid)] if target in DIE_WITH_IT else []
        wait = ends.enter_context(watched([*pids, *below]))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                hit.append(os.pidfd_open(pid))
                ends.callback(os.close, hit[-1])
        send(hit, FAULTS[fault])
        if "stop" == fault:
            answer.over.wait(STOP_S)
            send(hit, signal.SIGCONT)
        elif "daemon" == target:
            stand.restart()
        answer.check(is_right)
        if "kill" == fault:
            assert [] == wait(ANSWER_S)
    stand.daemon.idle()  # a job that is sent to one of them before the daemon knows of its end is lost with it
    return len(hit)


def send(pidfds: list[int], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for fd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)


def serves(stand: Stand, operation: str) -> None:
    """The operation without a fault."""
    begin, is_right = OPERATIONS[operation]
    with begin(stand) as act:
        value = act()
    assert is_right(value), value


def rows() -> list[tuple[str, str, str]]:
    """The whole matrix, or a part with each operation, each target and each fault of a target."""
    every = list(itertools.product(OPERATIONS, TARGETS, FAULTS))
    if LONG:
        return every
    faults = list(itertools.product(FAULTS, TARGETS))
    pairs = zip(itertools.cycle(OPERATIONS), itertools.cycle(faults), strict=False)
    return [(operation, target, fault)
            for operation, (fault, target) in itertools.islice(pairs, max(len(OPERATIONS), len(faults)))]


def cases() -> list[Any]:
    """The rows by operation and target."""
    found: dict[tuple[str, str], list[str]] = {}
    for operation, target, fault in rows():
        found.setdefault((operation, target), []).append(fault)
    return [pytest.param(operation, target, faults, id=f"{operation}-{target}")
            for (operation, target), faults in found.items()]


@pytest.fixture(scope="module")
def stand(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """With what there is of everything once each operation was served, and each runner that is then made is there."""
    made = Stand(tmp_path_factory.mktemp("matrix"), host.http)
    for operation in dict.fromkeys(case.values[0] for case in cases()):
        serves(made, operation)
    made.daemon.until(lambda status: WORKERS == status["workers"]["idle"] and not status["runners_arming"])
    made.before = made.census()
    yield made
    made.close()


@pytest.mark.needs("extra-web")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("operation", "target", "faults"), cases())
def test_an_operation_is_answered_once_whatever_process_fails(stand: Stand, operation: str, target: str,
                                                              faults: list[str]) -> None:
    chooser = random.Random(f"{operation} {target}")
    for fault in faults:
        begun = time.monotonic()
        try:
            hit = play(stand, operation, target, fault, chooser.uniform(0.0, LATEST_S))
            serves(stand, operation)
            poll_until(lambda: not more(stand.census(), stand.before), "it is as before")
        except BaseException as error:
            error.add_note(f"{operation}, {target}, {fault}: {more(stand.census(), stand.before)}; {stand.processes()}")
            error.add_note(f"{stand.daemon.log[-5:]}")
            raise
        print(f"{operation}, {target}, {fault}: {hit} processes, {time.monotonic() - begun:.1f} s")


def more(now: Counter[str], before: Counter[str]) -> dict[str, int]:
    """What there is more of than before, and each zombie."""
    return {name: now[name] - before[name] for name in now
            if now[name] > before[name] + KEPT.get(name, 0) or "zombie" == name}

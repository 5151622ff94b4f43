"""Live sandboxes and folders with tools."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.figures.row import FigureSettings, Row, absolute, compared, in_turn, missing
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.client.workdir import WorkdirSandbox
from leeward.errors import LeewardError
from leeward_cli.bench.floors import CODE, CalledSubject, Spawn, check, printing
from leeward_cli.bench.ours import OURS, armed, daemon, fresh, good, in_session
from leeward_cli.bench.rounds import GAP_S, timed

# --- Live sandboxes: the object, its first use, a program in it, a kernel

_TRUE = "/bin/true"
#: Objects made in a turn, because one takes too little time to measure.
_OBJECTS = 200
#: Seconds after which a daemon is at rest, once it serves.
_BEGUN_S = 1.0


def forked() -> None:
    """Start a program by fork and exec in the bench itself, and wait for it."""
    pid = os.fork()
    if not pid:
        try:
            os.execv(_TRUE, [_TRUE])
        finally:
            os._exit(127)
    if os.waitpid(pid, 0)[1]:
        raise LeewardError(f"bench: {_TRUE} failed")


def measure_live(settings: FigureSettings) -> Sequence[Row]:
    return [_object(settings), *_first_use(settings), *calls(settings)]


def _object(settings: FigureSettings) -> Row:
    def make() -> None:
        for _ in range(_OBJECTS):
            Sandbox()

    rounds = [[timed(make) / _OBJECTS] for _ in range(settings.rounds)]
    return absolute("creation of a Sandbox object", rounds, "us", 60, f"a mean of {_OBJECTS} a round")


def _first_use(settings: FigureSettings) -> Sequence[Row]:
    known: list[list[float]] = []
    folder: list[list[float]] = []
    new: list[list[float]] = []
    with tempfile.TemporaryDirectory() as work:
        with daemon(None) as path:
            plain, with_folder = partial(Sandbox, socket=path), partial(Sandbox, socket=path, workdir=work)
            known += [[_opened(path, plain)] for _ in range(settings.rounds)]
            _opened(path, with_folder)
            folder += [[_opened(path, with_folder)] for _ in range(settings.some(20))]
        for _ in range(settings.some(10)):
            with daemon(None) as path:
                armed(path, 1)
                time.sleep(_BEGUN_S)  # the process that opens folders was started with the daemon, and imports
                new.append([_opened(path, partial(Sandbox, socket=path, workdir=work))])
    return [
        absolute("first use of a sandbox of a known shape", known, "ms", 2,
                  "the daemon's own profile, a runner armed"),
        absolute("the same with a folder of the host's", folder, "ms", None, "and again each time"),
        absolute("first use of a sandbox of a new shape", new, "ms", 15,
                  "the first one of a daemon with a folder of the host's, a second after its start"),
    ]


def _opened(path: str, make: Callable[[], Sandbox]) -> float:
    """Return the seconds from making the object to its id, in a daemon without other work."""
    armed(path, 1)
    time.sleep(GAP_S)
    box = make()
    start = time.perf_counter()
    try:
        if not box.id:
            raise LeewardError("bench: a sandbox without an id")
        return time.perf_counter() - start
    finally:
        box.close()


def calls(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        client = stack.enter_context(Client(path))
        box = stack.enter_context(Sandbox(socket=path))
        ours = CalledSubject('box.run(["true"])', lambda: check("true", good(box.run(["true"])).stdout, b""))
        by_fork = CalledSubject(f"{_TRUE} by fork and exec", forked)
        programs = in_turn([ours, by_fork], settings.some(20), 10)
        own = box.kernel()
        kernel = printing("a kernel's call", lambda: good(own.execute(CODE)).stdout)
        session = in_session(stack.enter_context(client.session()))
        jobs = in_turn([kernel, session], settings.some(20), 10)
    return [compared(f"{ours.name} over {by_fork.name}", programs, ours.name, by_fork.name, 2),
            compared("a kernel's call over a session's", jobs, kernel.name, session.name, 1.15)]


# --- WorkdirSandbox and environments: beside bwrap, a job without an environment, and Node outside of a sandbox.
#
# LEEWARD_BENCH_ENVIRONMENT names a virtual environment with numpy, which these rows need.

#: Of the daemon's own pool and of the environment's.
_WORKERS = 4
#: Seconds in which the pool of folders arms the next runner.
_REST_S = 0.5
_ENVIRONMENT = "LEEWARD_BENCH_ENVIRONMENT"
_WARM = "p50 of a job in a warm environment with numpy over a plain job"
_NODE = "console.log('hello world')"
#: Seconds between calls, in which the next Node starts.
_BOOT_S = 0.2


def measure_workdir(settings: FigureSettings) -> Sequence[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_folder_object(settings, folder), *_first(settings, folder), _environment(settings), *_node(settings, folder)]


def _folder_object(settings: FigureSettings, folder: str) -> Row:
    made: list[WorkdirSandbox] = []

    def make() -> None:
        made.extend(WorkdirSandbox(folder) for _ in range(_OBJECTS))

    rounds = []
    for _ in range(settings.rounds):
        rounds.append([timed(make) / _OBJECTS])
        while made:
            made.pop().destroy()
    return absolute("creation of a WorkdirSandbox object", rounds, "us", 60, f"a mean of {_OBJECTS} a round")


def _first(settings: FigureSettings, folder: str) -> Sequence[Row]:
    words = "the first command of a folder"
    bwrap = shutil.which("bwrap")
    beside_it: list[list[float]] = []
    ours: list[list[float]] = []
    with daemon(None) as path:
        with WorkdirSandbox(folder, socket=path) as work:
            _true(work)  # the pool is there now
        for _ in range(settings.some(20)):
            time.sleep(_REST_S)
            with WorkdirSandbox(folder, socket=path) as work:
                ours.append([timed(partial(_true, work))])
            if bwrap is not None:
                places = [word for name in ("/lib", "/lib64", "/bin") if os.path.islink(name)
                          for word in ("--symlink", os.readlink(name), name)]
                spawn = Spawn("bwrap", [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind",
                                        "/usr", "/usr", *places, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                                        "--bind", folder, "/workspace", "/usr/bin/true"], printed=b"")
                beside_it.append([timed(spawn.call)])
    rows = [absolute(words, ours, "ms", 15, "a new object each time, the pool is warm")]
    if bwrap is not None:
        rows.append(absolute("the same by bwrap", beside_it, "ms", None, "with a folder and /usr, without limits"))
    return rows


def _true(work: WorkdirSandbox) -> None:
    good(work.exec("true"))


def _environment(settings: FigureSettings) -> Row:
    env = os.environ.get(_ENVIRONMENT, "")
    if not env:
        return missing(_WARM, 1.3, f"{_ENVIRONMENT} names no virtual environment")
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        config = Path(place, "config.toml")
        config.write_text(f'[environments.numpy]\npath = "{env}"\npreload = ["numpy"]\nmin = {_WORKERS}\n')
        config.chmod(0o600)
        path = stack.enter_context(daemon(None, "--config", str(config), "--pool-size", str(_WORKERS)))
        client = stack.enter_context(Client(path))
        there = client.execute("import sys; print('numpy' in sys.modules)", environment="numpy").stdout
        if there != b"True\n":
            raise LeewardError(f"bench: numpy isn't warm in {env!r}")
        ours = printing("leeward, in an environment with numpy",
                        lambda: good(client.execute(CODE, environment="numpy")).stdout)
        found = in_turn([ours, fresh(client)], settings.rounds, 10)
    return compared(_WARM, found, ours.name, OURS, 1.3)


def _node(settings: FigureSettings, folder: str) -> Sequence[Row]:
    words = {'exec("node", ["-e", ...])': "a Node started for its code, in a folder, over node -e outside",
             "exec_js": "exec_js, by a Node that waits, over node -e outside"}
    node = shutil.which("node")
    if node is None:
        return [missing(each, None, "no node on the PATH") for each in words.values()]
    with daemon(None) as path, WorkdirSandbox(folder, socket=path) as work:
        started, waiting = words
        outside = Spawn("node -e", [node, "-e", _NODE])
        found = in_turn([printing(started, lambda: good(work.exec("node", ["-e", _NODE])).stdout),
                         printing(waiting, lambda: good(work.exec_js(_NODE)).stdout), outside],
                        settings.some(10), 3, _BOOT_S)
    return [compared(each, found, name, outside.name, None, gap_s=_BOOT_S) for name, each in words.items()]

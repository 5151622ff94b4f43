"""
WorkdirSandbox and environments: beside bwrap, a job without an environment, and Node outside of a sandbox.

Runs in:   a developer's shell. LEEWARD_BENCH_ENVIRONMENT names a virtual environment with numpy, which these rows need.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.figures.row import FigureSettings, Row, missing, times
from bench.figures.turns import beside, in_turn
from leeward.client.blocking import Client
from leeward.client.workdir import WorkdirSandbox
from leeward.errors import LeewardError
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE, PRINTED, Spawn, check
from leeward_cli.bench.ours import LeewardSubject, daemon, good
from leeward_cli.bench.rounds import GAP_S, timed

#: Objects made in a turn, because one takes too little time to measure.
_OBJECTS = 200
#: Of the daemon's own pool and of the environment's.
_WORKERS = 4
#: Seconds in which the pool of folders arms the next runner.
_REST_S = 0.5
_ENVIRONMENT = "LEEWARD_BENCH_ENVIRONMENT"
_WARM = "p50 of a job in a warm environment with numpy over a plain job"
_NODE = "console.log('hello world')"
#: Seconds between calls, in which the next Node starts.
_BOOT_S = 0.2


def measure(settings: FigureSettings) -> Sequence[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_object(settings, folder), *_first(settings, folder), _environment(settings), *_node(settings, folder)]


def _object(settings: FigureSettings, folder: str) -> Row:
    made: list[WorkdirSandbox] = []

    def make() -> None:
        made.extend(WorkdirSandbox(folder) for _ in range(_OBJECTS))

    rounds = []
    for _ in range(settings.rounds):
        rounds.append([timed(make) / _OBJECTS])
        while made:
            made.pop().destroy()
    return _absolute("creation of a WorkdirSandbox object", rounds, 1e-6, 60, f"a mean of {_OBJECTS} a round")


def _first(settings: FigureSettings, folder: str) -> Sequence[Row]:
    words = "the first command of a folder"
    bwrap = shutil.which("bwrap")
    beside_it: list[list[float]] = []
    ours: list[list[float]] = []
    with daemon(None) as path:
        with WorkdirSandbox(folder, socket=path) as work:
            good(work.exec("true"))  # the pool is there now
        for _ in range(settings.some(20)):
            time.sleep(_REST_S)
            with WorkdirSandbox(folder, socket=path) as work:
                ours.append([timed(partial(_command, work))])
            if bwrap is not None:
                places = [word for name in ("/lib", "/lib64", "/bin") if os.path.islink(name)
                          for word in ("--symlink", os.readlink(name), name)]
                spawn = Spawn("bwrap", [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind",
                                        "/usr", "/usr", *places, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                                        "--bind", folder, "/workspace", "/usr/bin/true"], printed=b"")
                beside_it.append([timed(spawn.call)])
    rows = [_absolute(words, ours, 1e-3, 15, "a new object each time, the pool is warm")]
    if bwrap is not None:
        rows.append(_absolute("the same by bwrap", beside_it, 1e-3, None, "with a folder and /usr, without limits"))
    return rows


def _command(work: WorkdirSandbox) -> None:
    good(work.exec("true"))


class InEnvironment:
    name = "leeward, in an environment with numpy"

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(self) -> None:
        check(self.name, good(self._client.execute(CODE, environment="numpy")).stdout)


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
        plain, ours = LeewardSubject(client), InEnvironment(client)
        found = in_turn([ours, plain], settings.rounds, 10, GAP_S)
    return Row(_WARM, beside(found, ours.name, plain.name), "x", 1.3,
               measured=[times(each.name, GAP_S, found[each.name]) for each in (ours, plain)])


class InFolder:
    """
    Args:
        fresh: a Node that is started for the code; else one that has waited for it.
    """

    def __init__(self, work: WorkdirSandbox, *, fresh: bool) -> None:
        self._work, self._fresh = work, fresh
        self.name = 'exec("node", ["-e", ...])' if fresh else "exec_js"

    def call(self) -> None:
        got = self._work.exec("node", ["-e", _NODE]) if self._fresh else self._work.exec_js(_NODE)
        check(self.name, good(got).stdout)


def _node(settings: FigureSettings, folder: str) -> Sequence[Row]:
    words = {True: "a Node started for its code, in a folder, over node -e outside",
             False: "exec_js, by a Node that waits, over node -e outside"}
    node = shutil.which("node")
    if node is None:
        return [missing(each, None, "no node on the PATH") for each in words.values()]
    with daemon(None) as path, WorkdirSandbox(folder, socket=path) as work:
        ours = {fresh: InFolder(work, fresh=fresh) for fresh in words}
        outside = Spawn("node -e", [node, "-e", _NODE], printed=PRINTED)
        found = in_turn([*ours.values(), outside], settings.some(10), 3, _BOOT_S)
    return [Row(each, beside(found, ours[fresh].name, outside.name), "x", None,
                measured=[times(name, _BOOT_S, found[name]) for name in (ours[fresh].name, outside.name)])
            for fresh, each in words.items()]


def _absolute(words: str, rounds: Sequence[Sequence[float]], unit: float, target: float | None, note: str) -> Row:
    middle = percentile([each for row in rounds for each in row], 50) / unit
    return Row(words, round(middle, 2), "us" if unit < 1e-3 else "ms", target,
               measured=[times(words, 0.0, rounds)], note=note)

"""A real daemon for integration tests, and the command line beside it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import leeward
import leeward_cli
from kit import faults, features
from leeward.client.process import Process

#: Seconds after which something that hasn't happened counts as failed. The product is far quicker, but the machine may
#: be busy.
PATIENCE = 30.0 * features.SLOWER

#: Where the packages are, so that a fresh interpreter finds them as this one did.
PLACES = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (leeward, leeward_cli))


#: The start of every `leeward` command line here; test_cli.py runs over the C program as well.
PROGRAM = [sys.executable, "-P", "-m", "leeward_cli"]


def command(*argv: str) -> list[str]:
    """The `leeward` command of the tree, or the installation, that these tests run from."""
    return [*PROGRAM, *argv]


def environment(socket: Path | str | None = None, **more: str) -> dict[str, str]:
    places = os.pathsep.join(filter(None, (PLACES, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": places, **more}
    env.pop("LEEWARD_SOCKET", None)
    return env if socket is None else {**env, "LEEWARD_SOCKET": str(socket)}


def run(socket: Path | str, *argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end."""
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(command(*argv), env=environment(socket), capture_output=True, timeout=120, check=False,
                          **options)


def first_line(process: Process) -> bytes:
    """Read the first line of a process in a sandbox, in as many writes as it makes of it. Nothing may follow at once."""
    line = b""
    while not line.endswith(b"\n"):
        chunks = process.read(PATIENCE)
        assert chunks, f"no whole line: {line!r}"
        line += b"".join(chunk.data for chunk in chunks)
    return line


def _group_of_its_own() -> str:
    """
    Make a group for a daemon, if one is delegated to these tests, as tests/vm does: on version 2 a daemon can have
    controllers only in a group of its own. Returns "" if none is delegated.
    """
    folder = os.environ.get("LEEWARD_TEST_GROUPS")
    return tempfile.mkdtemp(prefix="daemon-", dir=folder) if folder else ""


class LiveDaemon:
    """
    `leeward daemon run`, from ready to its end.

    Attributes:
        log: its events so far, as JSON objects.

    A daemon whose --pool-size is given has that many workers for jobs, and makes no further ones, unless it is told
    otherwise by --max-jobs or a configuration.

    Args:
        descriptors: the daemon's hard limit on descriptors; 0 for the limit of the tests.
        build: the modules that prepare the daemon, which is then a test build: daemon_build.py.
        enter: the beginning of its command line, which may take it elsewhere.
    """

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None, descriptors: int = 0,
                 build: Mapping[str, Mapping[str, Any]] | None = None, enter: Sequence[str] = ()) -> None:
        self.socket = folder / "leeward.sock"
        self.log: list[dict[str, Any]] = []
        self._told = threading.Condition()
        self._over = False
        self._group = _group_of_its_own()
        enter = [*enter, "sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', self._group] if self._group else [*enter]
        if descriptors:
            enter += ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors)]
        env, program = dict(env or {}), PROGRAM
        if "--pool-size" in options and "--max-jobs" not in options:
            options = (*options, "--max-jobs", options[options.index("--pool-size") + 1])
        if build is not None:
            program = [sys.executable, "-P", "-m", "kit.daemon_build"]
            env = {"PYTHONPATH": os.pathsep.join((PLACES, str(features.ROOT / "tests"))),
                   "LEEWARD_TEST_BUILD": json.dumps(build), **env}
        self.process = subprocess.Popen(
            [*enter, *program, "daemon", "run", "--log-json", "--socket", str(self.socket), *options],
            env=environment(**env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                row = json.loads(line)
            except ValueError:
                row = {"event": line.decode(errors="replace")}
            with self._told:
                self.log.append(row)
                self._told.notify_all()
        with self._told:
            self._over = True
            self._told.notify_all()

    def logged(self, condition: Callable[[list[dict[str, Any]]], object], since: int = 0) -> None:
        """Wait until *condition* holds of the events from number *since* on."""
        with self._told:
            self._told.wait_for(lambda: self._over or condition(self.log[since:]), PATIENCE)
            assert condition(self.log[since:]), self.log[since:]

    def __enter__(self) -> LiveDaemon:
        try:
            self.logged(lambda rows: any("ready" == row.get("event") for row in rows))
            assert self.process.poll() is None
        except AssertionError as wrong:
            self.end()
            raise AssertionError(f"the daemon is not ready: {self.log}") from wrong
        return self

    def end(self) -> int:
        """Send SIGTERM, and return the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(PATIENCE)
            if self.process.stderr is not None:
                self.process.stderr.close()
            if self._group:
                with contextlib.suppress(OSError):  # busy where the daemon was killed: what it left is the next one's
                    os.rmdir(self._group)
        return status

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()
        assert not [row for row in self.log if faults.EVENT == row.get("event")]

    def run(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run a command that talks to this daemon."""
        return run(self.socket, *argv, **options)

    def client(self) -> leeward.Client:
        return leeward.Client(str(self.socket))

    def until(self, condition: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> float:
        """Ask for the status until *condition* holds. Returns the seconds that this took."""
        start = time.monotonic()
        with self.client() as client:
            while not condition(status := client.status()):
                assert time.monotonic() - start < seconds, status
        return time.monotonic() - start

    def idle(self, seconds: float = PATIENCE) -> float:
        """Wait until no worker is busy or arming, and no runner is on its way."""
        return self.until(lambda status: status["workers"]["idle"] == status["workers"]["total"]
                          and not status["runners_arming"], seconds)


def held(pid: int | str) -> int:
    """
    How many descriptors a process has, but for those of cgroups: of these a worker keeps more or fewer, for its next
    runners, by how soon the kernel takes a job's memory from its group's account.
    """
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them, say
            count += "/cgroup/" not in os.readlink(f"/proc/{pid}/fd/{fd}")
    return count


def descendants(pid: int) -> list[int]:
    """Every process below *pid* that lives, as the host numbers them. Dead ones that wait to be reaped come and go."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as stat:
                state, parent = stat.read().rpartition(")")[2].split()[:2]  # after the command, which may hold anything
                if "Z" != state:
                    parents.setdefault(int(parent), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def open_files(pid: int) -> list[str]:
    """What the descriptors of *pid* are of."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return links


@contextlib.contextmanager
def watched(pids: list[int]) -> Iterator[Callable[[float], list[int]]]:
    """
    Gives a function that waits, at most so many seconds, for all of *pids* to end, and
    returns those that live on.
    """
    fds: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fds[os.pidfd_open(pid)] = pid
    left = dict(fds)

    def wait(seconds: float) -> list[int]:
        until = time.monotonic() + seconds
        while left and (remaining := until - time.monotonic()) > 0:
            for fd in select.select(list(left), [], [], remaining)[0]:
                del left[fd]
        return list(left.values())

    try:
        yield wait
    finally:
        for fd in fds:
            os.close(fd)

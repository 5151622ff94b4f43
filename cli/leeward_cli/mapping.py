"""`leeward map`: one job for each line of a file, as many at once as the daemon takes, and a line for each result."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import click

import leeward
from leeward.client.many import MapEnd, MapProgress
from leeward.client.options import Options, check_names
from leeward.errors import quoted, reason_of
from leeward.spec.sizes import parse_size
from leeward_cli import progress
from leeward_cli.click_options import SOCKET

#: Bytes of the hash by which a line of the results says which job it is of.
_HASH = 8
#: What a job may have beside the options of `execute`, or that aren't among those of every kind of job.
_BESIDE = {"id", "code", "deadline", "idempotent"}
#: The beginning of each line of the results.
_BEGIN = '{"id": '
#: Seconds between two drawings of the bar.
_EACH_S = 0.1


@click.command()
@SOCKET
@click.option("--results", metavar="FILE", help="Append the results to this file. Jobs whose results are in it aren't run"
                                                " again.")
@click.option("--ordered", is_flag=True, help="Results in the order of the jobs; else as they end.")
@click.option("--at-once", metavar="N", type=click.IntRange(1), help="Jobs that are sent at once at most.  [default: 256]")
@click.option("-t", "--timeout", metavar="S", type=float, help="Seconds that a job may run.")
@click.option("--wall", metavar="S", type=float, help="Seconds that it may run in all, if --timeout is to count none for"
                                                       " which it had no processor.")
@click.option("--cpu-time", metavar="S", type=float, help="Seconds of processor time that its processes may use.")
@click.option("--memory", metavar="SIZE", help="Memory that a job may use: 64M, 1G, 512MiB, or bytes.")
@click.option("--output", metavar="SIZE", help="Bytes that a job may write to stdout and stderr together.")
@click.option("--processes", metavar="N", type=int, help="Processes and threads that a job may have at once.")
@click.option("--environment", metavar="NAME", help="An interpreter with its packages, of the daemon's configuration.")
@click.argument("file", metavar="FILE")
def map(socket: str | None, results: str | None, ordered: bool, at_once: int | None, memory: str | None,
        output: str | None, file: str, **given: Any) -> int:
    """
    Run a job for each line of FILE (- is standard input), and print a line of JSON for each result.

    \b
        {"id": "a1", "code": "print(input())", "stdin": "3", "timeout": 5}
        "print(1)"

    A line is code, or an object with the options of Client.execute, which come before those given here, and an `id`,
    else the number of the line. A line of a result has the `id`, a hash of the job, and what `exec --json` prints, or
    `refused` with the reason. The exit status is 1 if a job was refused.
    """
    try:
        given |= {"memory": memory and parse_size(memory), "output": output and parse_size(output)}
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    options = {name: value for name, value in given.items() if value is not None}
    with _opened(file) as lines, _Results(results) as written:
        jobs = _Jobs(lines, written.known)
        bar = _Bar(lines if file != "-" else None)
        refused = 0
        with leeward.Client(socket) as client:
            for one in client.map(jobs, ordered=ordered, at_once=at_once, progress=bar.show, **options):
                refused += one.error is not None
                size, name = jobs.names.pop(one.number)
                bar.passed += size
                written.add({**name, **_row(one)})
        bar.end()
    return 1 if refused else 0


def _opened(file: str) -> IO[bytes]:
    try:
        return open(0 if file == "-" else file, "rb")
    except OSError as error:
        raise click.UsageError(f"{quoted(file)}: {reason_of(error)}") from None


class _Jobs:
    """
    The jobs of *lines*, without those that are *known*; *names* says of those that run which they are, by number, and how
    many bytes of the lines they and what was left out before them take.
    """

    def __init__(self, lines: IO[bytes], known: set[tuple[Any, str]]) -> None:
        self._lines, self._known = lines, known
        self.names: dict[int, tuple[int, dict[str, Any]]] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        seen = set[Any]()
        count = size = 0
        for number, line in enumerate(self._lines, 1):
            size += len(line)
            if not line.strip():
                continue
            job = _job(line, number)
            name = job.pop("id", number)
            if name in seen:
                raise click.UsageError(f"line {number}: the id {quoted(str(name))} is there twice")
            seen.add(name)
            text = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:2 * _HASH]
            if (name, text) in self._known:
                continue
            self.names[count] = size, {"id": name, "job_hash": text}
            count, size = count + 1, 0
            yield job


def _job(line: bytes, number: int) -> dict[str, Any]:
    try:
        job = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"line {number} is no JSON: {error}") from None
    if isinstance(job, str):
        return {"code": job}
    if not isinstance(job, dict) or not isinstance(job.get("id", ""), (str, int)):
        raise click.UsageError(f"line {number} is neither code nor an object with the options of a job")
    try:
        check_names("execute", job.keys() - _BESIDE, Options, _BESIDE)
    except TypeError as error:
        raise click.UsageError(f"line {number}: {error}") from None
    return job


def _row(one: MapEnd) -> dict[str, Any]:
    """What a line says of one end. All text in it is the job's; json escapes what a terminal would obey."""
    result = one.result
    if result is None:
        return {"refused": str(one.error)}
    error = result.error
    return {
        "outcome": result.outcome.value, "exit_code": result.exit_code, "limit": result.limit and result.limit.value,
        "stdout": result.stdout_text, "stderr": result.stderr_text, "truncated": result.truncated,
        "duration": result.duration, "starved": result.starved, "cpu_time": result.cpu_time,
        "memory_peak": result.memory_peak, "denied": dict(result.denied), "value": result.value, "hint": result.hint,
        "error": error and {"type": error.type, "message": error.message, "traceback": error.traceback}}


class _Results:
    """Where results go: standard output, or the file at *path*, whose last line is cut off if it isn't whole."""

    def __init__(self, path: str | None) -> None:
        self.known = set[tuple[Any, str]]()
        if path is None and sys.stdout is None:
            raise click.UsageError("standard output is closed, and there is no --results")
        self._file = sys.stdout if path is None else self._open(path)

    def _open(self, path: str) -> IO[str]:
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise click.UsageError(f"--results {quoted(path)}: {reason_of(error)}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise click.UsageError(f"--results {quoted(path)}: isn't a file on a disk")
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(os.fdopen(fd, "a+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._resume(file)
            except BlockingIOError:
                raise click.UsageError(f"--results {quoted(path)}: another leeward map writes it") from None
            except (ValueError, TypeError, KeyError, RecursionError):
                raise click.UsageError(f"--results {quoted(path)}: isn't a file of results") from None
            opened.pop_all()
        return file

    def _resume(self, file: IO[str]) -> None:
        file.seek(0)
        whole, end = 0, "\n"
        while line := file.readline():
            try:
                row = json.loads(line)
            except ValueError:
                if line.endswith("\n") or not (line.startswith(_BEGIN) or _BEGIN.startswith(line)):
                    raise  # somebody's own file
                break
            if "refused" not in row:
                self.known.add((row["id"], row["job_hash"]))
            whole, end = file.tell(), line[-1]
        file.truncate(whole)
        file.seek(0, os.SEEK_END)
        file.write("" if end == "\n" else "\n")

    def add(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def __enter__(self) -> _Results:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not sys.stdout:
            self._file.close()


class _Bar:
    """
    The bar on a terminal's standard error; of *lines*, a file, it knows which part has been run.

    Attributes:
        passed: bytes of the lines of jobs that have ended.
    """

    def __init__(self, lines: IO[bytes] | None) -> None:
        self._shows = progress.shows()
        self._size = os.fstat(lines.fileno()).st_size if lines is not None else 0
        self._began, self._next, self.passed = time.monotonic(), 0.0, 0

    def show(self, far: MapProgress) -> None:
        now = time.monotonic()
        if not self._shows or now < self._next:
            return
        self._next = now + _EACH_S
        spent, share = now - self._began, self.passed / self._size if self._size else 0.0
        progress.write(progress.row(
            f"{progress.bar(share) + ' ' if self._size else ''}{far.done} jobs, {far.refused} refused,"
            f" {far.done / max(0.001, spent):.0f}/s{progress.left(share, spent)}"))

    def end(self) -> None:
        if self._shows:
            progress.write(progress.CLEAR)

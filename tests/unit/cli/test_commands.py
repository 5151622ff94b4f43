"""The command as a whole process, against our server with a pool that the test plays."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leeward
import leeward_cli
from kit.fake_daemon import PATIENCE, FakeDaemon, Rogue, echo
from leeward.daemon.run.report import Report
from leeward.daemon.serving.parcel import seal
from leeward.errors import Busy, NoAnswer
from leeward.spec.job import Job
from leeward.spec.outcome import JobError, Limit, Outcome, Result
from leeward_cli import fast
from leeward_cli.status import status_text

#: Where the packages are, so that a fresh interpreter finds them as this one did.
PLACES = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (leeward, leeward_cli))


PROGRAM = [sys.executable, "-P", "-m", "leeward_cli"]


@pytest.fixture(autouse=True)
def _program(program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs over the Python program and over the C one."""
    monkeypatch.setitem(globals(), "PROGRAM", program)


def command(*argv: str) -> list[str]:
    return [*PROGRAM, *argv]


def environment(path: Path | str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PLACES, "LEEWARD_SOCKET": str(path)}


def run(path: Path | str, *argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    options = {"capture_output": True, **options}
    return subprocess.run(command(*argv), env=environment(path), timeout=60, check=False, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leeward.sock"


def ended(outcome: Outcome, exit_code: int, **fields: Any) -> Callable[[Job], Report]:
    return lambda job: Report(result=Result(fields.pop("stdout", b""), b"", exit_code, outcome, **fields))


def test_exec_passes_everything_through(path: Path) -> None:
    """Both streams apart and byte for byte, and the status."""
    output = bytes(range(256))
    report = Report(result=Result(output, output[::-1], 7, Outcome.FINISHED))
    with FakeDaemon(path, lambda job: report):
        done = run(path, "exec", "whatever")

    assert (output, output[::-1], 7) == (done.stdout, done.stderr, done.returncode)


def test_large_output_comes_from_the_memory_file(path: Path) -> None:
    """8 MiB through a pipe, and nothing of it lost."""
    content = os.urandom(1 << 20) * 8

    def large(job: Job) -> Report:
        arena = seal([content])
        arena.stdout = (0, len(content))
        return Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena)

    with FakeDaemon(path, large):
        assert content == run(path, "exec", "x").stdout


@pytest.mark.parametrize(("outcome", "code", "says"), [
    (Outcome.TIMED_OUT, 124, b"time limit"), (Outcome.OUT_OF_MEMORY, 137, b"memory limit"),
    (Outcome.OUTPUT_LIMIT, 153, b"output limit"), (Outcome.INTERNAL, 125, b"worker was lost"),
    (Outcome.SIGNALLED, 139, b"was ended"), (Outcome.RAISED, 1, b""), (Outcome.FINISHED, 3, b""),
])
def test_exit_status_by_outcome(path: Path, outcome: Outcome, code: int, says: bytes) -> None:
    """An end that isn't the job's own doing is told in one line on stderr."""
    with FakeDaemon(path, ended(outcome, code)):
        done = run(path, "exec", "x")

    assert code == done.returncode
    assert says in done.stderr
    assert done.stderr.count(b"\n") == (1 if says else 0)


def test_json_is_the_whole_result(path: Path) -> None:
    """One object with the names of Result; binary output as text."""
    result = Result(b"out\xff", b"err", 1, Outcome.RAISED, limit=Limit.FILES, duration=0.5, cpu_time=0.25,
                    memory_peak=1 << 20, denied={"mount": 2}, truncated=True, degraded=("landlock",),
                    error=JobError("ValueError", "no", "Traceback"))
    with FakeDaemon(path, lambda job: Report(result=result)):
        done = run(path, "exec", "--json", "x")

    assert 1 == done.returncode
    assert {
        "stdout": "out\ufffd", "stderr": "err", "exit_code": 1, "outcome": "raised", "limit": "files", "duration": 0.5,
        "cpu_time": 0.25, "memory_peak": 1 << 20, "denied": {"mount": 2}, "truncated": True, "degraded": ["landlock"],
        "error": {"type": "ValueError", "message": "no", "traceback": "Traceback"}, "left_out": [],
        "hint": result.hint,
    } == json.loads(done.stdout)
    assert 1 == done.stdout.count(b"\n")


def test_standard_input_is_the_jobs_only_when_asked(path: Path) -> None:
    """Else it is left alone."""
    with FakeDaemon(path) as daemon:
        run(path, "exec", "x", input=b"secret")
        run(path, "exec", "--stdin", "x", input=b"data\x00")
        jobs = daemon.jobs.get(), daemon.jobs.get()

    assert [b"", b"data\x00"] == [job.stdin for job in jobs]


@pytest.mark.parametrize("argv", [("exec", "x"), ("ping",), ("status",)])
def test_a_missing_daemon_is_one_line_with_both_cures(path: Path, argv: tuple[str, ...]) -> None:
    """Exit 1, and one line that names both cures."""
    done = run(path, *argv)

    assert (1, b"", 1) == (done.returncode, done.stdout, done.stderr.count(b"\n"))
    assert b"leeward daemon start" in done.stderr
    assert b"leeward run" in done.stderr


def test_the_socket_is_the_option_then_the_variable(path: Path, tmp_path: Path) -> None:
    """`--socket` wins."""
    with FakeDaemon(path):
        assert b"Pong!\n" == run(path, "ping").stdout
        assert b"Pong!\n" == run(tmp_path / "none", "ping", "--socket", str(path)).stdout
        assert 1 == run(path, "ping", f"--socket={tmp_path / 'none'}").returncode


def test_status_as_text_and_as_json(path: Path) -> None:
    """As text, and as the object that the daemon sent."""
    with FakeDaemon(path):
        text, as_json = run(path, "status"), run(path, "status", "--json")

    assert b"4 total" in text.stdout
    assert {"workers": {"total": 4}, "uptime": 1.5} == json.loads(as_json.stdout)
    assert 0 == text.returncode == as_json.returncode


def test_status_has_a_line_for_each_thing() -> None:
    """What is a map of its own is a block, with sizes and versions as people write them."""
    text = status_text({
        "workers": {"total": 4, "idle": 3}, "jobs": {"done": 2},
        "layers": {"mounts": {"state": "active", "binds": 17}, "cgroup": {"state": "absent"}}, "degraded": ["landlock"],
        "max_connections": 1024, "fresh_layout": False, "uptime": 1.25,
        "snapshot": "none: no memory file can hold what it has written",
        "pools": [{"profile": "shell", "memory": 3 << 20, "unused": 2.0, "snapshot": "off"}],
        "environments": {"folder": "/var/lib/x", "size": 20 << 30, "egress": "", "version": [3, 11]}})

    assert """\
workers         4 total, 3 idle
jobs            2 done
layers
  mounts        active (binds 17)
  cgroup        absent
degraded        landlock
pool            shell: ? workers, ? busy, 0 of ? sessions and sandboxes, ? jobs done, 3.0 MiB, unused for 2 s, snapshot off
max connections 1024
fresh layout    no
uptime          1.2 s
snapshot        none: no memory file can hold what it has written
environments
  folder        /var/lib/x
  size          20.0 GiB at most
  egress        none
  version       3.11
""" == text
    assert "workers" in status_text({})


def test_a_refusal_is_one_printable_line(path: Path) -> None:
    """Exit 1 and what the daemon said, in one printable line."""
    refusal = Report(refusal=Busy("all\nworkers \x1b[31m are busy", retry_after=3600))  # longer than a client waits
    with FakeDaemon(path, lambda job: refusal) as daemon:
        done = run(path, "exec", "x")

        assert 1 == daemon.jobs.qsize()
    assert (1, b"leeward: all workers \\x1b[31m are busy\n") == (done.returncode, done.stderr)


def test_a_busy_daemon_is_asked_again(path: Path) -> None:
    """Until it has room; nothing is said of it."""
    answers = [Report(refusal=Busy("all workers are busy", retry_after=after)) for after in (None, 0.01)]
    with FakeDaemon(path, lambda job: answers.pop() if answers else echo(job)):
        done = run(path, "exec", "x")

    assert (0, b"x", b"") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("argv", [("exec",), ("exec", "a", "b"), ("exec", "--bogus", "a"), ("ping", "x"), ("bogus",),
                                  ("status", "--", "x"), ("daemon", "run", "--allow-degraded", "seccomp"),
                                  ("daemon", "run", "--pool-size", "many")])
def test_a_usage_error_runs_no_job(path: Path, argv: tuple[str, ...]) -> None:
    """Exit 2, a usage line, and no request is sent."""
    with FakeDaemon(path) as daemon:
        done = run(path, *argv)
        assert daemon.jobs.empty()

    assert (2, b"") == (done.returncode, done.stdout)
    assert b"sage:" in done.stderr


@pytest.mark.parametrize("argv", [(), ("--help",), ("exec", "--help"), ("run", "-h"), ("ping", "--help"),
                                  ("status", "--help"), ("daemon", "--help"), ("doctor", "--help")])
def test_help_says_how_a_command_is_used(path: Path, argv: tuple[str, ...]) -> None:
    """Says how each command is used."""
    done = run(path, *argv)

    assert b"Usage: leeward" in done.stdout + done.stderr
    if argv in (("exec", "--help"), ("run", "-h")):
        for option in (b"--file PATH", b"-m MODULE", b"--timeout S", b"--memory SIZE", b"--env K=V", b"--stdin"):
            assert option in done.stdout


def test_version_is_the_packages(path: Path) -> None:
    """That of the package."""
    assert f"leeward, version {leeward.__version__}\n".encode() == run(path, "--version").stdout


def test_an_argument_after_the_dashes_is_no_option(path: Path) -> None:
    """Not even --help."""
    with FakeDaemon(path) as daemon:
        run(path, "exec", "x", "--", "--help", "-h", "--json")
        assert ("--help", "-h", "--json") == daemon.jobs.get().args


def on_terminal(path: Path, *argv: str) -> bytes:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(*argv), env=environment(path), stdin=subprocess.DEVNULL, stdout=theirs,
                               stderr=subprocess.PIPE)
    os.close(theirs)
    output = b""
    while select.select([ours], [], [], PATIENCE)[0]:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # EIO: the last writer has closed it
            break
        if not chunk:
            break
        output += chunk
    process.communicate(timeout=PATIENCE)
    os.close(ours)
    return output.replace(b"\r\n", b"\n")


HOSTILE = b"a\x1b]52;c;QQ==\x07b\tc\x9b31m\xc2\x9b\n\x1b[2Jd\n"


def test_c114_control_characters_never_reach_a_terminal(path: Path) -> None:
    """Unless asked for; a pipe gets what the job wrote."""
    with FakeDaemon(path, lambda job: Report(result=Result(HOSTILE, HOSTILE, 0, Outcome.FINISHED))):
        shown, raw = on_terminal(path, "exec", "x"), on_terminal(path, "exec", "--raw", "x")
        piped = run(path, "exec", "x").stdout

    assert HOSTILE == piped
    assert b"\x1b" in raw  # control: the bytes do go to the terminal
    assert b"a\\x1b]52;c;QQ==\\x07b\tc\\x9b31m\\x9b\n\\x1b[2Jd\n" == shown


def test_ctrl_c_is_for_the_job(path: Path) -> None:
    """The second one takes it back where it has no worker yet, and the command ends as by the signal."""
    with FakeDaemon(path, lambda job: None) as daemon:
        process = subprocess.Popen(command("exec", "while True: pass"), env=environment(path), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        daemon.jobs.get(timeout=60)
        process.send_signal(signal.SIGINT)
        daemon.interrupted.get(timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        daemon.cancelled.get(timeout=PATIENCE)
        stdout, stderr = process.communicate(timeout=PATIENCE)

    assert (-signal.SIGINT, b"", b"") == (process.returncode, stdout, stderr)


def test_a_killed_command_ends_its_job(path: Path) -> None:
    """Nobody is there to take the result."""
    with FakeDaemon(path, lambda job: None) as daemon:
        process = subprocess.Popen(command("exec", "while True: pass"), env=environment(path), stdin=subprocess.DEVNULL)
        daemon.jobs.get(timeout=60)
        process.kill()
        process.wait()
        assert daemon.cancelled.get(timeout=PATIENCE) is not None


def test_a_reader_that_has_seen_enough(path: Path) -> None:
    """`leeward exec ... | head -c 1`: ended by SIGPIPE, no traceback."""
    with FakeDaemon(path, lambda job: Report(result=Result(b"x" * 60_000, b"", 0, Outcome.FINISHED))):
        read, written = os.pipe()
        os.close(read)
        done = run(path, "exec", "x", capture_output=False, stdout=written, stderr=subprocess.PIPE)
        os.close(written)

    assert (-signal.SIGPIPE, b"") == (done.returncode, done.stderr)


def test_a_closed_standard_output_does_not_become_the_socket(path: Path) -> None:
    """`leeward exec x >&-`: the connection must not become descriptor 1."""
    with FakeDaemon(path) as daemon:
        line = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command("exec", "output")]
        done = subprocess.run(line, env=environment(path), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              check=False, timeout=60)
        assert 1 == daemon.jobs.qsize()

    assert (0, b"") == (done.returncode, done.stderr)


def test_a_full_disk(path: Path) -> None:
    """Exit 1 and the reason."""
    with FakeDaemon(path), open("/dev/full", "wb") as full:
        done = run(path, "exec", "output", capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert 1 == done.returncode
    assert b"leeward: can't write the output: No space left on device\n" == done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("daemon", "run", "--print-config"), ("profiles",)])
def test_a_full_disk_of_a_command_of_click(path: Path, arguments: tuple[str, ...]) -> None:
    """No traceback, neither of the command nor of the interpreter's end."""
    with open("/dev/full", "wb") as full:
        done = run(path, *arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert (1, b"leeward: can't write the output: No space left on device\n") == (done.returncode, done.stderr)


def test_c113_a_daemon_of_another_user_is_refused(path: Path) -> None:
    """Exit 1, one line, no traceback."""
    with Rogue(path, lambda sock: sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")):
        done = run(path, "exec", "x")

    assert 1 == done.returncode
    assert 1 == done.stderr.count(b"\n")
    assert b"Traceback" not in done.stderr


def test_c113_no_module_is_imported_from_the_current_folder(path: Path, tmp_path: Path) -> None:
    """A job may have written modules there."""
    for name in ("leeward", "msgpack", "json", "struct", "fcntl"):
        (tmp_path / f"{name}.py").write_text("print('imported')\n")
    with FakeDaemon(path):
        done = run(path, "exec", "--json", "x", cwd=tmp_path)

    assert 0 == done.returncode
    assert b"imported" not in done.stdout


def test_a_word_without_effect_is_refused(path: Path) -> None:
    """cgroup would permit what needs no permission: value, meaning and the words that there are, and nothing starts."""
    for command in (("daemon", "run"), ("daemon", "start"), ("run", "x")):
        done = run(path, *command, "--allow-degraded", "cgroup")
        said = " ".join(done.stderr.decode().split())

        assert (2, b"") == (done.returncode, done.stdout)
        assert "must be one of landlock (cgroup would mean a start without cgroup controllers" in said
        assert "every result says so), not " in said
        assert "cgroup'" in said


def test_a_printed_configuration_can_be_read_back(path: Path, tmp_path: Path) -> None:
    """What it prints is taken back, and prints the same."""
    first = run(path, "daemon", "run", "--print-config", "--pool-size", "9")
    config = tmp_path / "printed.toml"
    config.write_bytes(first.stdout)
    config.chmod(0o600)
    second = run(path, "daemon", "run", "--config", str(config), "--print-config")

    assert b"pool_size = 9" in first.stdout
    assert first.stdout == second.stdout


def test_a_bad_configuration_is_named(path: Path, tmp_path: Path) -> None:
    """Exit 1, file and key."""
    config = tmp_path / "bad.toml"
    config.write_text("pool_sise = 4")
    config.chmod(0o600)
    for argv in (("daemon", "run"), ("daemon", "start"), ("run", "x")):
        done = run(path, *argv, "--config", str(config))

        assert 1 == done.returncode
        assert f"leeward: {config}: pool_sise: unknown".encode() in done.stderr


def test_stop_without_a_daemon(path: Path) -> None:
    """Exit 1, as every command that needs one."""
    done = run(path, "daemon", "stop")

    assert 1 == done.returncode
    assert b"no daemon answers" in done.stderr


def test_the_fast_path_imports_little(path: Path) -> None:
    """Neither click nor what builds classes by the dozen: a whole exec is one short process."""
    heavy = ("click", "dataclasses", "enum", "typing", "socket", "asyncio", "re", "json", "subprocess")
    program = ("import sys; from leeward_cli.main import main; main(['exec', 'x']);"
               f"print([name for name in {heavy} if name in sys.modules])")
    # -S: an environment's start-up files may import anything, so its packages are found by PYTHONPATH.
    places = os.pathsep.join([PLACES, *(place for place in sys.path if place.endswith("-packages"))])
    with FakeDaemon(path):
        done = subprocess.run([sys.executable, "-S", "-c", program], env={**environment(path), "PYTHONPATH": places},
                              stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)

    assert b"x[]\n" == done.stdout


def test_ping_gives_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that asks whether the daemon lives isn't left hanging."""
    monkeypatch.setattr(fast, "ANSWER_S", 0.2)

    def silent(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    with Rogue(path, silent), pytest.raises(NoAnswer):
        fast.ping(["--socket", str(path)])


def test_the_fake_daemon_echoes() -> None:
    """So that the tests above mean what they say."""
    report = echo(Job(code=b"x"))

    assert report is not None
    assert report.result is not None
    assert b"x" == report.result.stdout

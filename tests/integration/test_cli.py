"""The command line over the real thing: what `leeward exec` and `leeward run` promise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kit import live_daemon
from kit.live_daemon import PATIENCE, LiveDaemon, command, descendants, environment, run, watched


@pytest.fixture(autouse=True)
def _program(program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs over the Python program and over the C one."""
    monkeypatch.setattr(live_daemon, "PROGRAM", program)

DAEMON = ("--pool-size", "2")


def test_exec_prints_a_line(daemon: LiveDaemon) -> None:
    """The shortest way."""
    done = daemon.run("exec", "print('hello')")

    assert (b"hello\n", b"", 0) == (done.stdout, done.stderr, done.returncode)


def test_streams_and_status_apart(daemon: LiveDaemon) -> None:
    """Subprocesses and the interpreter alike."""
    done = daemon.run("exec", "import os, sys; print('out'); print('err', file=sys.stderr); sys.stdout.flush();"
                              "os.system('echo sub; echo suberr >&2'); sys.exit(7)")

    assert (b"out\nsub\n", 7) == (done.stdout, done.returncode)
    assert {b"err", b"suberr"} == set(done.stderr.splitlines())


def test_binary_output_byte_for_byte(daemon: LiveDaemon) -> None:
    """All byte values, and more than fits inline."""
    done = daemon.run("exec", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 20000)")

    assert bytes(range(256)) * 20000 == done.stdout


def test_exec_takes_code_stdin_a_file_and_a_module(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Code, standard input, a file, a module; arguments after --."""
    program = "import sys; print(sys.argv[1:], __name__)"
    script = tmp_path / "job.py"
    script.write_text(program)
    expected = b"['a', '--b'] __main__\n"

    assert expected == daemon.run("exec", program, "--", "a", "--b").stdout
    assert expected == daemon.run("exec", "-", "--", "a", "--b", input=program.encode()).stdout
    assert expected == daemon.run("exec", "--file", str(script), "--", "a", "--b").stdout
    assert b'{\n    "a": 1\n}\n' == daemon.run("exec", "-m", "json.tool", "--stdin", input=b'{"a":1}').stdout
    assert 1 == daemon.run("exec", "-m", "no_such_module").returncode


def test_c117_a_traceback_names_the_jobs_own_file(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Its line, and nothing of the host's folders."""
    script = tmp_path / "job.py"
    script.write_text("x = 1\ndef fail():\n    raise ValueError('no')\nfail()\n")
    done = daemon.run("exec", "--file", str(script))

    assert 1 == done.returncode
    assert b'File "job.py", line 3, in fail' in done.stderr
    assert str(tmp_path).encode() not in done.stderr
    assert b"leeward" not in done.stderr


@pytest.mark.parametrize("command_", ["exec", "run"])
def test_files_in_and_out(daemon: LiveDaemon, command_: str, tmp_path: Path) -> None:
    """A job gets copies, and what it made comes back; what is here already stays, and the status says so."""
    (tmp_path / "in.txt").write_text("abc")
    code = "import os; os.mkdir('out'); open('out/up.txt', 'w').write(open('data/in.txt').read().upper())"
    argv = (command_, "--put", "in.txt:data/in.txt", "--collect", "out/*", code)
    first, again, replaced = (daemon.run(*words, cwd=tmp_path) for words in (argv, argv, (*argv, "--into", ".")))

    assert [(0, b""), (1, b"leeward: 'out/up.txt' is there already and stays as it is; --into FOLDER replaces files\n"),
            (0, b"")] == [(done.returncode, done.stderr) for done in (first, again, replaced)]
    assert "ABC" == (tmp_path / "out/up.txt").read_text()


def test_processes_and_output_have_bounds(daemon: LiveDaemon) -> None:
    """Those of the command line."""
    done = daemon.run("exec", "--output", "10", "print('x' * 100)")
    assert (153, b"x" * 10) == (done.returncode, done.stdout)
    done = daemon.run("exec", "--json", "--processes", "3", "import os, time\nwhile True:\n"
                                                            "    if os.fork() == 0:\n        time.sleep(60)")
    assert "processes" == json.loads(done.stdout)["limit"]


def test_a_path_in_place_of_code(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Nothing runs, and the message has the option."""
    done = daemon.run("exec", "job.py", cwd=tmp_path)

    assert (2, b"") == (done.returncode, done.stdout)
    assert b"--file job.py" in done.stderr


def test_environment_and_standard_input(daemon: LiveDaemon) -> None:
    """Given when asked for, empty else."""
    program = "import os, sys; print(os.environ.get('COLOUR'), sys.stdin.read())"

    assert b"red data\n" == daemon.run("exec", "--env", "COLOUR=red", "--stdin", program, input=b"data").stdout
    assert b"None \n" == daemon.run("exec", program, input=b"data").stdout


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGSEGV, 139), (signal.SIGKILL, 137),
                                                 (signal.SIGABRT, 134)])
def test_a_signal_is_128_and_its_number(daemon: LiveDaemon, number: int, status: int) -> None:
    """Sent by the job to itself."""
    done = daemon.run("exec", "--json", f"import os; os.kill(os.getpid(), {int(number)})")
    result = json.loads(done.stdout)

    assert (status, status, "signalled") == (done.returncode, result["exit_code"], result["outcome"])


#: What a job does too much of, and how that ends. A host without controllers may refuse memory in
#: place of ending the job.
TOO_MUCH: dict[str, tuple[tuple[str, ...], set[tuple[str, str | None, int]]]] = {
    "memory": (("x = bytearray(600 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1",),
               {("out_of_memory", "memory", 137), ("raised", "memory", 1)}),
    "processes": (("import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(60)",),
                  {("raised", "processes", 1)}),
    "time": (("while True: pass", "--timeout", "0.5"), {("timed_out", "time", 124)}),
    "output": (("import os\nfor _ in range(128): os.write(1, b'x' * (1 << 20))",),
               {("output_limit", "output", 153)}),
    "files": (("with open('/workspace/f', 'wb') as f:\n    for _ in range(300): f.write(b'x' * (1 << 20))",),
              {("raised", "files", 1)}),
}


@pytest.mark.parametrize("command_", ["exec", "run"])
@pytest.mark.parametrize("what", TOO_MUCH)
def test_every_limit_ends_a_job_as_documented(daemon: LiveDaemon, what: str, command_: str) -> None:
    """Each ends as documented, and the next job is right."""
    argv, allowed = TOO_MUCH[what]
    done = daemon.run(command_, "--json", *argv)
    result = json.loads(done.stdout)

    assert (result["outcome"], result["limit"], done.returncode) in allowed, {**result, "stdout": ""}
    assert result["truncated"] == (what == "output")
    assert len(result["stdout"]) <= 10 << 20
    assert b"right\n" == daemon.run("exec", "print('right')").stdout


def test_a_lower_memory_limit(daemon: LiveDaemon) -> None:
    """`--memory` takes sizes."""
    program = "x = bytearray(100 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('ok')"

    assert b"ok\n" == daemon.run("exec", program).stdout  # control: it fits the default
    assert daemon.run("exec", "--memory", "64M", program).returncode in (1, 137)


def test_json_has_the_names_of_the_result(daemon: LiveDaemon) -> None:
    """One object, all of them."""
    result = json.loads(daemon.run("exec", "--json", "1/0").stdout)

    assert {"stdout", "stderr", "exit_code", "outcome", "limit", "duration", "cpu_time", "memory_peak", "denied",
            "truncated", "degraded", "error", "left_out", "hint"} == set(result)
    assert ("raised", 1, None, {}) == (result["outcome"], result["exit_code"], result["limit"], result["denied"])
    assert ("ZeroDivisionError", "division by zero") == (result["error"]["type"], result["error"]["message"])
    assert "line 1" in result["error"]["traceback"]
    assert 0 < result["duration"] < PATIENCE
    assert 0 <= result["cpu_time"] < PATIENCE


def test_denied_calls_are_counted(daemon: LiveDaemon) -> None:
    """By name, in the result; the job goes on."""
    program = "import os\nfor _ in range(3):\n    try: os.chroot('/')\n    except PermissionError: pass\nprint('on')"
    result = json.loads(daemon.run("exec", "--json", program).stdout)

    assert ("on\n", {"chroot": 3}) == (result["stdout"], result["denied"])


def test_status_has_the_documented_keys_and_counts(daemon: LiveDaemon) -> None:
    """The documented keys, and that they count."""
    before = json.loads(daemon.run("status", "--json").stdout)
    daemon.run("exec", "1")
    after = json.loads(daemon.run("status", "--json").stdout)

    assert {"workers", "jobs", "runners_made", "layers", "transport", "degraded", "uptime"} <= set(after)
    assert {"total", "idle", "busy", "arming"} == set(after["workers"])
    assert 2 == after["workers"]["total"]
    assert {"done", "failed", "refused"} == set(after["jobs"])
    assert before["jobs"]["done"] + 1 == after["jobs"]["done"]
    assert {"namespaces", "mounts", "landlock", "seccomp", "cgroup"} == set(after["layers"])
    assert all(layer["state"] for layer in after["layers"].values())
    spaces = after["layers"]["namespaces"]
    if 0 == os.geteuid():  # what the kernel counts by user it counts for each worker
        assert ("one for each worker", []) == (spaces["ids"], spaces["not_kept_apart"])
    else:
        assert "one for all workers" == spaces["ids"]
        assert ["descriptors in flight", "pipes"] == spaces["not_kept_apart"]
    assert after["transport"] in ("socket", "uring")
    assert after["uptime"] > before["uptime"] > 0
    text = daemon.run("status").stdout.decode()
    assert "2 total" in text
    assert "landlock" in text


def test_ping_and_doctor(daemon: LiveDaemon) -> None:
    """The short ones."""
    done = daemon.run("ping")
    doctor = daemon.run("doctor", "--json")
    names = {feature["name"]: feature for feature in json.loads(doctor.stdout)["features"]}

    assert (b"Pong!\n", 0) == (done.stdout, done.returncode)
    assert {"kernel", "landlock", "cgroup", "io_uring", "memfd.seals", "namespace.user"} <= set(names)
    assert 0 == doctor.returncode
    assert b"landlock" in daemon.run("doctor").stdout


def test_ctrl_c_ends_the_job(daemon: LiveDaemon) -> None:
    """Its worker is there for others within a second."""
    process = subprocess.Popen(command("exec", "while True: pass"), env=environment(daemon.socket),
                               stdin=subprocess.DEVNULL)
    daemon.until(lambda status: status["workers"]["busy"] == 1)
    process.send_signal(signal.SIGINT)

    assert daemon.until(lambda status: status["workers"]["busy"] == 0) < 1.0
    assert 130 == process.wait(PATIENCE)


#: A line on each stream, one that begins with half a character, and then a wait without an end.
LIVE = ("import os, sys, time\nprint('one'); print('two', file=sys.stderr)\n"
        "os.write(1, '\\xe9'.encode()[:1]); time.sleep(0.3); os.write(1, '\\xe9\\n'.encode()[1:])\ntime.sleep(600)")


#: The same in the shell, which has become `sleep` by the end: while it waits for a child it puts off SIGINT.
LINE = r"echo one; echo two >&2; printf '\303'; sleep 0.3; printf '\251\n'; exec sleep 600"


@pytest.mark.parametrize("argv", [("exec", LIVE), ("exec", "--processes", "4", LIVE), ("run", LIVE),
                                  ("exec", "--profile", "workdir", "--", LINE)], ids=["exec", "python", "run", "line"])
def test_output_is_shown_while_the_job_runs(daemon: LiveDaemon, argv: tuple[str, ...]) -> None:
    """On pipes; once, and Ctrl-C ends it then."""
    with subprocess.Popen(command(*argv), env=environment(daemon.socket), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert [b"one\n", "\xe9\n".encode(), b"two\n"] == [
                stream.readline() for stream in (process.stdout, process.stdout, process.stderr)]
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (b"", 130) == (out, process.returncode)
    assert b"two" not in err


def test_output_that_is_shown_comes_once_and_whole(daemon: LiveDaemon) -> None:
    """Much of it and little, with pauses, a fault at the end, and a reader that goes away."""
    program = ("import os, time\nfor n in (1, 100_000, 3, 300_000, 5):\n    print('x' * n)\n    time.sleep(0.06)\n"
               "os.abort()")
    done = daemon.run("exec", program)
    assert "".join("x" * n + "\n" for n in (1, 100_000, 3, 300_000, 5)).encode() == done.stdout
    assert 1 == done.stderr.count(b"Fatal Python error")
    assert b"leeward/inside" not in done.stderr

    with subprocess.Popen(command("exec", "import itertools, time\nfor n in itertools.count():\n    print(n)\n"
                                  "    time.sleep(0.1)"), env=environment(daemon.socket),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"0\n" == process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) in (-signal.SIGPIPE, 1)
    daemon.until(lambda status: status["workers"]["busy"] == 0)


# --- without a daemon ---------------------------------------------------------


def without(tmp_path: Path, *argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return run(tmp_path / "nobody", *argv, **options)


def test_run_is_exec_without_a_daemon(tmp_path: Path) -> None:
    """The same options, output and status."""
    program = ("import os, sys; print(os.environ['A'], sys.stdin.read(), sys.argv[1:]); print('err', file=sys.stderr);"
               "sys.exit(3)")
    done = without(tmp_path, "run", "--env", "A=b", "--stdin", program, "--", "x", input=b"in")

    assert (b"b in ['x']\n", b"err\n", 3) == (done.stdout, done.stderr, done.returncode)


def test_run_is_confined_as_exec_is(daemon: LiveDaemon, tmp_path: Path) -> None:
    """What a job can see and find out is the same. A sandbox's terminals, which it can't open, `run` hasn't."""
    program = ("import os\nstatus = open('/proc/self/status').read().splitlines()\n"
               "wanted = ('CapEff', 'CapPrm', 'CapBnd', 'NoNewPrivs', 'Seccomp:', 'Uid', 'Groups')\n"
               "print([line for line in status if line.startswith(wanted)])\n"
               "print(sorted(os.listdir('/')), sorted(os.listdir('/dev')), os.getpid())\n"
               "print(sorted(line.split()[4:6] for line in open('/proc/self/mountinfo') if '/dev/pts' not in line))\n")
    by_run, by_exec = without(tmp_path, "run", program), daemon.run("exec", program)

    assert b"NoNewPrivs:\\t1" in by_exec.stdout
    assert by_exec.stdout == by_run.stdout


def test_run_takes_large_results(tmp_path: Path) -> None:
    """By the same memory file."""
    assert b"x" * (5 << 20) == without(tmp_path, "run", "print('x' * (5 << 20), end='')").stdout


def test_run_leaves_no_process_or_file(tmp_path: Path) -> None:
    """Ended from outside in the middle of a job."""
    process = subprocess.Popen(command("run", "print('on', flush=True)\nwhile True: pass"), env=environment(),
                               stdin=subprocess.DEVNULL)
    # A pid namespace's init is there when the job is: zygote, keeper, init, job, spares.
    while len(descendants(process.pid)) < 4:
        assert process.poll() is None
    with watched(descendants(process.pid)) as wait:
        process.kill()
        process.wait()
        assert [] == wait(5.0)

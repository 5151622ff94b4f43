"""What somebody finds who tries leeward by its command line and its client, before he reads much."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon, command, environment
from leeward.spec.outcome import Outcome

PATIENCE_S = 120

DAEMON = ("--pool-size", "2")


#: How a job ends in the middle of its code, what the command line's exit status is then, and what it says.
CUT = {
    "time": ("while True: pass", 124, b"leeward: time limit reached after "),
    "signal": ("os.kill(os.getpid(), 15)", 143, b"killed by SIGTERM"),
    "kill": ("os.kill(os.getpid(), 9)", 137, b"killed by SIGKILL"),
    "fault": ("import ctypes; ctypes.string_at(0)", 139, b"killed by SIGSEGV: segmentation fault, in string_at ("),
    "abort": ("os.abort()", 134, b'killed by SIGABRT: aborted, in <module> ("<string>", line 2)'),
    "exit": ("os._exit(3)", 3, b""),
}


@pytest.mark.smoke
@pytest.mark.parametrize("end", CUT)
def test_output_before_the_end_is_printed(daemon: LiveDaemon, end: str) -> None:
    """With the reason in one line, and Python's own words for a fault."""
    code, status, says = CUT[end]
    done = daemon.run("exec", "--timeout", "2", f"import os; print('said before')\n{code}")

    assert (status, b"said before\n") == (done.returncode, done.stdout), done.stderr
    assert says in done.stderr
    assert (end in ("fault", "abort")) == (b"Fatal Python error: " in done.stderr)


def test_output_before_the_memory_ran_out_is_printed(daemon: LiveDaemon, client: leeward.Client) -> None:
    """Killed at its limit; where memory isn't counted an rlimit refuses it, which is a MemoryError."""
    code = "print('said before')\nx = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1"
    done, result = daemon.run("exec", code), client.execute(code)

    assert done.stdout == result.stdout == b"said before\n"
    assert (137, Outcome.OUT_OF_MEMORY) == (done.returncode, result.outcome) or b"MemoryError" in done.stderr


def test_an_unbuffered_job_loses_no_part_of_a_line(daemon: LiveDaemon) -> None:
    """By the variable that Python has for it. Without it the part of a line is in the buffer of the process that ended."""
    code = "import os; print('half a', end=''); os._exit(0)"

    assert b"half a" == daemon.run("exec", "--env", "PYTHONUNBUFFERED=1", code).stdout
    assert b"" == daemon.run("exec", code).stdout


@pytest.mark.parametrize(("source", "ends"), [
    ("width = 5\nprint(widht)",
     b"    print(widht)\n          ^^^^^\nNameError: name 'widht' is not defined. Did you mean: 'width'?\n"),
    ("x = (1 +", b"    x = (1 +\n        ^\nSyntaxError: '(' was never closed\n"),
])
@pytest.mark.parametrize("newline", ["", "\n"])
def test_a_mistake_is_shown_as_python_shows_it(daemon: LiveDaemon, tmp_path: Path, source: str, ends: bytes,
                                               newline: str) -> None:
    """The line, what in it, and a better name, with a final newline and without one."""
    (tmp_path / "job.py").write_text(source + newline)
    done = daemon.run("exec", "--file", "job.py", cwd=tmp_path)

    assert 1 == done.returncode
    assert done.stderr.endswith(ends), done.stderr
    assert b"leeward" not in done.stderr


def test_no_frame_of_leeward_is_in_a_stack(daemon: LiveDaemon) -> None:
    """Neither in a traceback nor in what `inspect` and `traceback` show of the stack."""
    done = daemon.run("exec", "import inspect, traceback\ntraceback.print_stack()\n"
                              "print([each.function for each in inspect.stack()])\n1 / 0")

    assert b"['<module>']\n" == done.stdout
    assert 2 == done.stderr.count(b'File "<string>"') == done.stderr.count(b'  File "')


def test_mistakes_in_a_call_have_clear_errors(client: leeward.Client) -> None:
    """An unknown option, a function, one pattern where several are taken; text as a file's content is taken."""
    with pytest.raises(TypeError, match="execute\\(\\) has no option 'tiemout'; did you mean 'timeout'\\?"):
        client.execute("1", tiemout=3)  # type: ignore[call-arg]
    with pytest.raises(leeward.RequestRejected, match="code is Python source as text, not the function print: a func"):
        client.execute(print)  # type: ignore[arg-type]
    with pytest.raises(leeward.RequestRejected, match="collect takes several strings, not one"):
        client.execute("1", collect="a")
    with pytest.raises(leeward.RequestRejected, match="'/etc/x' is no plain path below /workspace"):
        client.execute("1", files={"/etc/x": b""})
    good, bad = client.execute("print(open('a').read())", files={"a": "text"}), client.execute("1 / 0")

    assert (True, "text\n") == (good.ok, good.text)
    assert (False, "") == (bad.ok, bad.text)


def test_a_socket_of_the_configuration_is_the_clients(daemon: LiveDaemon, tmp_path: Path) -> None:
    """The same file tells both where it is; the variable and the option come before it."""
    file = tmp_path / ".config" / "leeward" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'socket = "{daemon.socket}"\n')
    file.chmod(0o600)
    program = "import leeward\nwith leeward.Client() as client: print(client.execute('print(1)').text)"
    env = environment(HOME=str(tmp_path), XDG_CONFIG_HOME="")
    options: dict[str, Any] = {"capture_output": True, "timeout": PATIENCE_S, "check": False,
                               "stdin": subprocess.DEVNULL}

    by_command = subprocess.run(command("exec", "print(2)"), env=env, **options)
    by_client = subprocess.run([sys.executable, "-c", program], env=env, **options)
    elsewhere = subprocess.run(command("ping"), env={**env, "LEEWARD_SOCKET": str(tmp_path / "none")}, **options)

    assert (0, b"2\n") == (by_command.returncode, by_command.stdout), by_command.stderr
    assert (0, b"1\n\n") == (by_client.returncode, by_client.stdout), by_client.stderr
    assert 1 == elsewhere.returncode


MAKES = """
import os
for name in ("a.txt", "b.csv", "c.bin", ".hidden"):
    with open(name, "w") as file:
        file.write(name)
os.makedirs("made/in")
with open("made/in/d", "w") as file:
    file.write("d")
os.symlink("/etc/passwd", "link.txt")
"""
WANTED = ("--collect", "*.{txt,csv}", "--collect", ".h*", "--collect", "made", "--collect", "/workspace/c.bin",
          "--collect", "none*")
LEFT = "leeward: not collected: 'link.txt' (a link), 'none*' (nothing there)\n"


@pytest.mark.parametrize("then", ["", "while True: pass"])
def test_files_come_back_and_missing_ones_are_named(daemon: LiveDaemon, tmp_path: Path, then: str) -> None:
    """By braces, a dot, a folder, an absolute name; also when the time was up."""
    done = daemon.run("exec", "--timeout", "2", *WANTED, MAKES + then, cwd=tmp_path)
    told = json.loads(daemon.run("exec", "--json", "--timeout", "2", *WANTED, MAKES + then, "--into", "other",
                                 cwd=tmp_path).stdout)

    assert (124 if then else 0) == done.returncode, done.stderr
    assert LEFT == done.stderr.decode().splitlines(keepends=True)[-1]
    assert {"a.txt", "b.csv", "c.bin", ".hidden", "made/in/d"} == {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")
        if path.is_file() and "other" not in path.parts} == set(told["files"])
    assert [["link.txt", "link"], ["none*", "no_match"]] == sorted(told["left_out"])


VIEW = """
import glob, json, mmap, os, socket
def read(path):
    with open(path) as file:
        return file.read()
maps = mmap.mmap(-1, 4096)
print(json.dumps({
    "root": os.listdir("/"), "home": os.listdir("/home"), "dev": os.listdir("/dev"), "etc": os.listdir("/etc"),
    "memory": read("/proc/meminfo").split()[1], "uptime": float(read("/proc/uptime").split()[0]) > 0,
    "cpuinfo": read("/proc/cpuinfo").count("processor\\t"),
    "stat": [line.split()[0] for line in read("/proc/stat").splitlines() if line.startswith("cpu")],
    "limits": {path: read(path).strip() for path in sorted(glob.glob("/sys/fs/cgroup/*.max"))},
    "resolv": "nameserver" in read("/etc/resolv.conf"), "hostname": read("/etc/hostname").strip(),
    "shells": read("/etc/shells").split(), "protocol": socket.getprotobyname("tcp"), "cpus": os.cpu_count(),
    "memfd": os.memfd_create("m") > 2}))
"""


def test_a_job_sees_a_small_machine(client: leeward.Client) -> None:
    """The folders that programs list, the files that they look into, with the limits of the sandbox and not the host's."""
    seen = json.loads(client.execute(VIEW).stdout)

    assert {"bin", "dev", "etc", "home", "lib", "proc", "sys", "tmp", "usr", "workspace"} <= set(seen["root"])
    assert {"hostname", "hosts", "passwd", "protocols", "resolv.conf", "services", "shells"} <= set(seen["etc"])
    assert {"null", "shm", "stdin", "stdout", "urandom", "zero"} <= set(seen["dev"])
    assert (["sandbox"], "leeward", False) == (seen["home"], seen["hostname"], seen["resolv"])
    assert ("262144", True, 1, ["cpu", "cpu0"], 1) == tuple(
        seen[name] for name in ("memory", "uptime", "cpuinfo", "stat", "cpus"))
    assert {"/sys/fs/cgroup/cpu.max": "100000 100000", "/sys/fs/cgroup/memory.max": "268435456",
            "/sys/fs/cgroup/memory.swap.max": "0", "/sys/fs/cgroup/pids.max": "32"} == seen["limits"]
    assert "/bin/sh" in seen["shells"]
    assert (6, True) == (seen["protocol"], seen["memfd"])


def test_a_job_has_the_term_of_the_daemon(tmp_path: Path) -> None:
    """The daemon's TERM, also in a sandbox's commands."""
    with LiveDaemon(tmp_path, env={"TERM": "screen-256color"}) as daemon:
        with daemon.client() as client:
            assert "screen-256color\n" == client.execute("import os; print(os.environ['TERM'])").text
        with leeward.Sandbox(socket=daemon.socket) as box:
            assert "screen-256color\n" == box.run(["printenv", "TERM"]).text


def test_exit_ends_a_job_of_a_session_and_no_more(client: leeward.Client) -> None:
    """The state and the standard streams are there for the next one, and the source of what was defined."""
    with client.session() as session:
        session.execute("def half(x):\n    return x / 0")
        left = session.execute("exit()")
        failed = session.execute("half(1)")
        source = session.execute("import inspect, sys; print(inspect.getsource(half), sys.stdin.closed)")

    assert left.ok
    assert '  File "<job 1>", line 2, in half\n    return x / 0\n' in failed.stderr_text
    assert "def half(x):\n    return x / 0\n False\n" == source.text


def test_sessions_may_outnumber_workers(daemon: LiveDaemon) -> None:
    """As many as memory has room for, each with its own state."""
    with daemon.client() as client, ExitStack() as stack:
        sessions = [stack.enter_context(client.session()) for _ in range(6)]
        for number, session in enumerate(sessions):
            session.execute(f"mine = {number}")
        texts = [session.execute("print(mine)").text for session in sessions]

    assert [f"{number}\n" for number in range(6)] == texts


def test_a_server_is_refused_with_one_line_that_leads_on(daemon: LiveDaemon) -> None:
    """An exception inside, a count in the result, and one line of the command's own."""
    code = "import socket; socket.create_server(('127.0.0.1', 0))"
    done, told = daemon.run("exec", code), json.loads(daemon.run("exec", "--json", code).stdout)

    assert b"PermissionError" in done.stderr
    assert 1 == done.stderr.count(b"leeward: ") == done.stderr.count(b"`leeward explain network`")
    assert {"network": 1, "socket": 1} == told["denied"]


@pytest.mark.parametrize(("name", "says"), [("network", "`loopback = true`"), ("loopback", "127.0.0.1"),
                                            ("terminal", "`terminal = true`")])
def test_options_of_the_operator_are_explained(name: str, says: str) -> None:
    done = subprocess.run(command("explain", name), env=environment(), capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S, stdin=subprocess.DEVNULL)

    assert 0 == done.returncode, done.stderr
    assert done.stdout.startswith(f"{name}: ")
    assert says in done.stdout

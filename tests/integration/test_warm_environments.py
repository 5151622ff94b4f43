"""Environments whose jobs, sessions and kernels begin as copies of a process that has run the operator's code once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("x86-64")

SETUP = """
import json, os, random, sqlite3, uuid
made = uuid.uuid4().hex
numbers = list(range(10_000))
counter = iter(numbers)
next(counter)
base = sqlite3.connect(":memory:")
base.execute("create table t (x)")
def divide(by):
    return 1 / by
print("not shown")
"""

CONFIG = """
pool_size = 1
rehearse = {rehearse}
[environments.cold]
[environments.warm]
warm = "{folder}/setup.py"
[environments.renewed]
warm = "{folder}/setup.py"
[environments.failing]
warm = "{folder}/failing.py"
[environments.threads]
warm = "{folder}/threads.py"
[environments.opened]
warm = "{folder}/opened.py"
[environments.nothing]
warm = "{folder}/nothing.py"
"""

#: What a process is and may, which is the same in any job of this daemon.
CONFINED = """
import json, os
with open("/proc/self/status") as file:
    status = dict(line.rstrip().split(":", 1) for line in file)
def leads(number):
    try: return os.readlink(f"/proc/self/fd/{number}").split(":")[0]
    except OSError: return None
names = ("Seccomp", "Seccomp_filters", "NoNewPrivs", "CapEff", "CapBnd", "NSpid", "Threads")
files = {number: leads(number) for number in os.listdir("/proc/self/fd")}
print(json.dumps([{name: status[name].strip() for name in names}, files, sorted(os.listdir("/")), os.getcwd()]))
"""


@pytest.fixture(scope="module", params=["true", "false"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "setup.py").write_text(SETUP)
    (folder / "failing.py").write_text("numbers = []\nnumbers[0]\n")
    (folder / "opened.py").write_text("kept = open('/workspace/kept', 'w')\n")
    (folder / "threads.py").write_text("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True,"
                                       " name='waits').start()\n")
    (folder / "config.toml").write_text(CONFIG.format(folder=folder, rehearse=request.param))
    with LiveDaemon(folder, "--config", str(folder / "config.toml")) as made:
        yield made


@pytest.fixture
def client(daemon: LiveDaemon) -> Iterator[leeward.Client]:
    with leeward.Client(daemon.socket) as made:
        yield made


def test_all_begin_as_copies_of_one_process(daemon: LiveDaemon, client: leeward.Client) -> None:
    """Each with a state and random numbers of its own, and none with what the code has printed."""
    look = "print(json.dumps([made, next(counter), len(numbers), random.random(), base.execute('select 1').fetchone()]))"
    spoil = "\nnumbers.clear(); base.execute('drop table t'); made = 0"
    said = [client.execute(look + spoil, environment="warm").stdout_text for _ in range(3)]
    with client.session(environment="warm") as session:
        said.append(session.execute(look + spoil).stdout_text)
        session.reset()
        said.append(session.execute(look + spoil).stdout_text)
    with leeward.Sandbox(socket=daemon.socket, environment="warm") as box:
        said.append(box.execute(look + spoil).stdout_text)
        with box.kernel() as kernel:
            said.append(kernel.execute(look + spoil).stdout_text)
            kernel.reset()
            said.append(kernel.execute(look).stdout_text)
        assert "fine\n" == box.run(["echo", "fine"]).stdout_text
        box.files.write("file", b"x")
        assert b"x" == box.files.read("file")
    found = [json.loads(each) for each in said]
    assert 8 == len(found)
    assert 1 == len({each[0] for each in found})
    assert {(1, 10_000)} == {(each[1], each[2]) for each in found}
    assert 8 == len({each[3] for each in found})


def test_a_copy_is_confined_as_any_job(client: leeward.Client, daemon: LiveDaemon) -> None:
    """It has the same locks, the same descriptors, and its own numbers."""
    cold, warm = (json.loads(client.execute(CONFINED, environment=name).stdout_text) for name in ("cold", "warm"))
    assert cold == warm
    numbers = "import os, threading\nassert os.getpid() == threading.get_native_id() == threading.main_thread().native_id"
    assert client.execute(numbers, environment="warm").ok
    with leeward.Sandbox(socket=daemon.socket, environment="warm") as box, box.kernel() as kernel:
        assert kernel.execute(numbers).ok


def test_a_job_has_all_that_jobs_have(client: leeward.Client) -> None:
    """Input, files, arguments, functions, results, limits, the end of its process, and lines in its tracebacks."""
    got = client.execute("import sys\nprint(sys.stdin.read(), sys.argv[1:], open('a').read(), double(4))\n"
                         "open('b', 'w').write('c')", environment="warm", stdin=b"in", args=["x"], files={"a": b"file"},
                         collect=["b"], functions={"double": lambda number: number * 2})
    assert ("in ['x'] file 8\n", b"c") == (got.stdout_text, got.files["b"])
    failed = client.execute("divide(0)", environment="warm")
    assert failed.error is not None
    assert "ZeroDivisionError" == failed.error.type
    assert "return 1 / by" in failed.stderr_text
    assert 3 == client.execute("exit(3)", environment="warm").exit_code
    late = client.execute("while True: pass", environment="warm", timeout=0.3)
    assert leeward.Outcome.TIMED_OUT is late.outcome
    assert client.execute("import subprocess, threading\nsubprocess.run(['true'], check=True)\n"
                          "t = threading.Thread(target=numbers.clear); t.start(); t.join()", environment="warm").ok


def test_a_kernel_of_it_can_be_taken(daemon: LiveDaemon) -> None:
    """And forked, and rolled back."""
    with leeward.Sandbox(socket=daemon.socket, environment="warm") as box, box.kernel() as kernel:
        kernel.execute("numbers.append(made)")
        with kernel.snapshot() as snapshot, kernel.fork() as branch:
            kernel.execute("numbers.clear()")
            kernel.rollback(snapshot)
            assert "10001" == kernel.execute("len(numbers)").value == branch.execute("len(numbers)").value
            with box.kernel(snapshot=snapshot) as copy:
                assert "True" == copy.execute("numbers[-1] == made and 1 == next(counter)").value


@pytest.mark.parametrize(("name", "why"), [
    ("failing", "IndexError: list index out of range"), ("threads", "threads run: 'waits'"), ("nothing", "no such file"),
    ("opened", "FileNotFoundError.*/workspace/kept")])
def test_why_there_is_no_state(client: leeward.Client, name: str, why: str) -> None:
    with pytest.raises(leeward.PoolFailed, match=f"warm.*{why}"):
        client.execute("1", environment=name)


def test_another_zygote_has_another_state(tmp_path: Path) -> None:
    """Jobs go on meanwhile."""
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "config.toml").write_text(
        f'pool_size = 1\nlayout_jobs = 2\n[environments.warm]\nwarm = "{tmp_path}/setup.py"\n')
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, leeward.Client(daemon.socket) as client:
        def made() -> str:
            got = client.execute("print(made)", environment="warm")
            assert got.ok, got
            return got.stdout_text

        first = made()
        poll_until(lambda: made() != first, "nobody is told that another zygote has taken over")

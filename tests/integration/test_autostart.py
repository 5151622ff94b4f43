"""A daemon by itself: the first command after installing works, for an ordinary user who has done nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.live_daemon import watched
from kit.ordinary_user import Installation, OrdinaryUser

pytestmark = pytest.mark.needs("ordinary-user")


class Fresh:
    """A user's login without a daemon, with a runtime folder of its own."""

    def __init__(self, user: OrdinaryUser, installation: Installation, runtime: Path) -> None:
        self.user, self.installation, self.runtime = user, installation, runtime
        self.socket = runtime / "leeward" / "leeward.sock"

    def environment(self, **more: str) -> dict[str, str]:
        return {"XDG_RUNTIME_DIR": str(self.runtime), **more}

    def leeward(self, *words: str, env: dict[str, str] | None = None,
                **options: str) -> subprocess.CompletedProcess[str]:
        return self.user.run([self.installation.leeward, *words], env=self.environment(**(env or {})), timeout=120,
                             **options)

    def python(self, code: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.user.run([self.installation.python, "-c", code], env=self.environment(**more), timeout=120)

    def status(self) -> dict[str, object]:
        done = self.leeward("status", "--json")
        assert 0 == done.returncode, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


@pytest.fixture
def fresh(ordinary_user: OrdinaryUser, user_install: Installation, open_folder: Path) -> Iterator[Fresh]:
    runtime = open_folder / "fresh"
    runtime.mkdir(mode=0o700)
    os.chown(runtime, ordinary_user.uid, ordinary_user.gid)
    fresh = Fresh(ordinary_user, user_install, runtime)
    try:
        yield fresh
    finally:
        fresh.leeward("daemon", "stop", "--now")
        shutil.rmtree(runtime)


def test_the_first_command_works(fresh: Fresh) -> None:
    """Code, standard input, and then by the same daemon; it ends when idle."""
    first = fresh.leeward("exec", "print(1)")
    assert (0, "1\n", "") == (first.returncode, first.stdout, first.stderr)
    pid = fresh.status()["pid"]
    done = fresh.leeward("exec", "-", input="print(2)")

    assert ("2\n", "") == (done.stdout, done.stderr)
    assert pid == fresh.status()["pid"]
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert b"--idle-exit=600" in words or words[words.index(b"--idle-exit") + 1] == b"600"


def test_standard_input_isnt_lost(fresh: Fresh) -> None:
    """It belongs to the job, though the command is handed from one program to the other."""
    done = fresh.leeward("exec", "--stdin", "import sys; print(sys.stdin.read())", input="data")

    assert (0, "data\n") == (done.returncode, done.stdout), done.stderr


PACKAGES = {
    "exec": ["leeward", "exec", "--package", "six", "print(1)"],
    "ensure": ["leeward", "env", "ensure", "six"],
    "client": ["python", "import leeward\nwith leeward.Client() as client:\n    client.execute('1', packages=['six'])"],
    "session": ["python", "import leeward\nwith leeward.Client() as client:\n    client.session(packages=['six'])"],
    "sandbox": ["python", "import leeward\nwith leeward.Sandbox(packages=['six']) as box:\n    box.run(['true'])"],
    "task": ["python", ("import asyncio, leeward\nasync def main():\n    async with leeward.AsyncClient() as client:\n"
                       "        await client.execute('1', packages=['six'])\nasyncio.run(main())")]}


@pytest.mark.parametrize("way", PACKAGES)
def test_packages_start_a_daemon(fresh: Fresh, way: str) -> None:
    """It has no index yet, and the refusal says what to do; a job without packages would have run."""
    program, *words = PACKAGES[way]
    done = fresh.leeward(*words) if "leeward" == program else fresh.python(words[0])

    assert "pip reaches no index" in done.stderr
    assert fresh.status()["pid"]


def test_commands_that_start_at_once_get_one_daemon(fresh: Fresh) -> None:
    """Six commands: six answers, one daemon."""
    with ThreadPoolExecutor(6) as threads:
        done = list(threads.map(lambda number: fresh.leeward("exec", f"print({number})"), range(6)))

    assert [f"{number}\n" for number in range(6)] == [each.stdout for each in done], [each.stderr for each in done]
    processes = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    mine = [path for path in processes if _is_daemon_of(path, fresh.runtime)]
    assert 1 == len(mine)


def _is_daemon_of(path: Path, runtime: Path) -> bool:
    try:
        words = path.read_bytes()
        environment = (path.parent / "environ").read_bytes()
    except OSError:
        return False
    return b"\0daemon\0run\0" in words and f"XDG_RUNTIME_DIR={runtime}\0".encode() in environment


def test_clients_of_both_kinds(fresh: Fresh) -> None:
    """Client and AsyncClient; a session as well."""
    done = fresh.python("import leeward\nwith leeward.Client() as client, client.session() as session:\n"
                        "    session.execute('x = 5')\n    print(session.execute('print(x)').stdout)")
    assert (0, "b'5\\n'\n") == (done.returncode, done.stdout), done.stderr
    assert 0 == fresh.leeward("daemon", "stop").returncode
    done = fresh.python("import asyncio, leeward\nasync def main():\n    async with leeward.AsyncClient() as client:\n"
                        "        answers = await asyncio.gather(*(client.execute('print(1)') for _ in range(3)))\n"
                        "        print([answer.stdout for answer in answers])\nasyncio.run(main())")
    assert (0, "[b'1\\n', b'1\\n', b'1\\n']\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize("how", ["variable", "option", "named", "ping", "status"])
def test_no_daemon_is_started_where_the_user_says_so_or_only_asks(fresh: Fresh, how: str) -> None:
    """Where the user says so, names a socket, or only asks."""
    words = {"option": ("exec", "1", f"--socket={fresh.socket}"), "ping": ("ping",), "status": ("status",)}.get(
        how, ("exec", "1"))
    env = {"variable": {"LEEWARD_AUTOSTART": "0"}, "named": {"LEEWARD_SOCKET": str(fresh.socket)}}.get(how, {})
    done = fresh.leeward(*words, env=env)

    assert 1 == done.returncode
    assert "leeward daemon start" in done.stderr
    assert not fresh.socket.exists()


def test_an_error_of_the_started_daemon_is_reported(fresh: Fresh) -> None:
    """A mistake in the configuration, by its key."""
    folder = fresh.runtime / "home" / ".config" / "leeward"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("pool_sise = 3\n")
    for path in (fresh.runtime / "home", folder.parent, folder, folder / "config.toml"):
        os.chown(path, fresh.user.uid, fresh.user.gid)
    done = fresh.leeward("exec", "1", env={"HOME": str(fresh.runtime / "home")})

    assert (1, "") == (done.returncode, done.stdout)
    assert "none could be started" in done.stderr
    assert "pool_sise" in done.stderr


def test_a_live_sandbox_keeps_it(fresh: Fresh) -> None:
    """A sandbox starts a daemon by itself, and the daemon stays as long as the sandbox does."""
    opened = ("import leeward\nbox = leeward.Sandbox(idle=600)\nbox.run(['true'])\nprint(box.detach())")
    assert 0 == fresh.leeward("daemon", "start", "--idle-exit=1").returncode
    pid = fresh.status()["pid"]
    assert isinstance(pid, int)
    with watched([pid]) as ended:
        done = fresh.python(opened)
        assert (0, "") == (done.returncode, done.stderr)
        assert [pid] == ended(3.0)
        closed = fresh.python(f"import leeward; leeward.Sandbox.attach({done.stdout.strip()!r}).kill()")
        assert (0, "") == (closed.returncode, closed.stderr)
        assert [] == ended(30)

    again = fresh.python("import leeward\nwith leeward.Sandbox() as box: print(box.run(['echo', 'here']).stdout_text)")
    assert ("here\n\n", "") == (again.stdout, again.stderr)


def test_an_autostarted_daemon_ends_when_it_is_idle(fresh: Fresh) -> None:
    """With --idle-exit, though a client is still connected; that client's next job has a daemon again."""
    assert 0 == fresh.leeward("daemon", "start", "--idle-exit=1").returncode
    pid = fresh.status()["pid"]
    assert isinstance(pid, int)
    code = ("import leeward, select, os, sys\nclient = leeward.Client()\nclient.execute('1')\n"
            "print('connected', flush=True)\nsys.stdin.readline()\nprint(client.execute('print(7)').stdout)")
    with watched([pid]) as ended, fresh.user.popen(
            [fresh.installation.python, "-c", code], env=fresh.environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert "connected\n" == process.stdout.readline()
            assert [] == ended(30)
            process.stdin.write("\n")
            process.stdin.flush()
            assert "b'7\\n'\n" == process.stdout.readline()
        finally:
            process.send_signal(signal.SIGKILL)
    assert pid != fresh.status()["pid"]

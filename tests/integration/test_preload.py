"""Modules that are imported before any job: what they may leave behind, what is told of them, and who imports them where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.attack import make_environment
from kit.box import Box
from kit.live_daemon import environment
from leeward.daemon.pool.begin import Patience
from leeward.daemon.worker.idmaps import MOST_DAEMONS, STRIDE, WORKER_UID_BASE
from leeward.errors import LeewardError
from leeward.spec import libraries

NOISE = """
import os, subprocess, sys
print("to stdout")
sys.stderr.write("to stderr, and no end of the line")
sys.stdout.write("half a line")
subprocess.run(["sh", "-c", "echo from a program >&2"])
os.write(2, b"raw")
"""

#: Starts a thread that waits, and gives it a name as a library in C or Rust does.
WAITS = """
import threading, ctypes
event = threading.Event()
def wait():
    ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
    started.set()
    {act}
started = threading.Event()
threading.Thread(target=wait, daemon=True).start()
started.wait()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def module(folder: Path) -> Path:
    """The file of a module `mine`, in an environment."""
    return make_environment(folder) / "mine.py"


def test_output_of_a_preloaded_module_is_logged_and_in_no_job(folder: Path, module: Path) -> None:
    """It doesn't keep the daemon from starting. Bytes that stayed in a buffer would be in every job's output."""
    module.write_text(NOISE)
    with Box(python_env=str(folder), preload=("mine",)) as box:
        said = "\n".join(str(row["text"]) for row in box.log.of("zygote says"))
        got = [box.run("import mine, sys; print('its own'); print('and this', file=sys.stderr)") for _ in range(2)]

    for each in ("to stdout", "to stderr, and no end of the line", "half a line", "from a program", "raw"):
        assert each in said
    assert [(b"its own\n", b"and this\n")] * 2 == [(each.stdout, each.stderr) for each in got]


def test_of_a_module_that_writes_without_end_a_bound_is_logged(folder: Path, module: Path) -> None:
    module.write_text("import sys\nfor _ in range(10_000): print('a' * 99, file=sys.stderr)\n")
    with Box(python_env=str(folder), preload=("mine",)) as box:
        assert b"1\n" == box.run("print(1)").stdout
        *said, last = (str(row["text"]) for row in box.log.of("zygote says"))

    assert "... and more than is told" == last
    assert (64 << 10) - len(said) <= len("".join(said)) <= 64 << 10  # a row loses the end of its last line


@pytest.mark.parametrize(("text", "told"), [
    ("raise RuntimeError('it is broken')", "preload: module mine: RuntimeError: it is broken$"),
    ("import nothing_of_the_kind", "preload: module mine: ModuleNotFoundError: No module named 'nothing_of_the_kind'$"),
    ("raise SystemExit('no')", "preload: module mine: SystemExit: no$"),
    ("open('/etc/shadow')", "mine: FileNotFoundError: .*'/etc/shadow'; while modules of `preload` are imported"),
    ("try:\n    open('/etc/shadow')\nexcept OSError as e:\n    raise ValueError('no such key') from e",
     "mine: ValueError: no such key; while modules of `preload` are imported there is no network and no home"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
     r"^preload: module mine: the zygote is killed by signal 9 \(Killed\) while it imports it$"),
    ("import ctypes; ctypes.string_at(0)", r"module mine: the zygote is killed by signal 11 \(Segmentation fault\)"),
    ("import os; os._exit(0)", "module mine: the zygote ends with status 0 while it imports it$"),
    ("import os; os.write(2, b'cannot go on\\n'); os._exit(3)",
     "module mine: the zygote ends with status 3 while it imports it: cannot go on$"),
], ids=["raises", "imports", "exits", "reads", "raises for a file", "killed", "segfault", "ends", "last word"])
def test_a_module_that_cant_be_imported_is_named(folder: Path, module: Path, text: str, told: str) -> None:
    module.write_text(text)
    with pytest.raises(LeewardError, match=told), Box(python_env=str(folder), preload=("mine",)):
        pass


@pytest.mark.parametrize(("text", "told", "settings"), [
    ("import os; os.abort()", "module mine: the zygote is killed by signal 6 ", {"fresh_layout": True}),
    ("import signal; signal.pause()", "^preload: module mine: its import takes more than 1 s$", {"patience": Patience(1.0)}),
    ("import signal; signal.pause()", "^preload: module mine: its import takes more than 1 s$",
     {"patience": Patience(1.0), "fresh_layout": True}),
], ids=["aborts, one zygote for each job", "hangs", "hangs, one zygote for each job"])
def test_so_is_one_that_ends_or_keeps_any_zygote(folder: Path, module: Path, text: str, told: str,
                                                 settings: dict[str, Any]) -> None:
    module.write_text(text)
    with pytest.raises(LeewardError, match=told), Box(python_env=str(folder), preload=("mine",), **settings):
        pass


def test_a_thread_that_waits_for_work_is_ended(folder: Path, module: Path) -> None:
    """One of those that the table names, and that waits. The zygote has one thread then, and so has a job."""
    module.write_text(WAITS.format(name=libraries.IDLE[0], act="event.wait()"))
    with Box(python_env=str(folder), preload=("mine",)) as box:
        zygote = box.engine.main.zygotes.current
        assert zygote is not None
        assert [str(zygote.pid)] == os.listdir(f"/proc/{zygote.pid}/task")
        assert b"1\n" == box.run("import mine, os; print(len(os.listdir('/proc/self/task')))").stdout


@pytest.mark.parametrize(("name", "act"), [
    ("polars-other", "event.wait()"),
    (libraries.IDLE[0], "ctypes.CDLL(None).pause()"),
], ids=["unknown", "busy"])
def test_any_other_thread_stops_the_start(folder: Path, module: Path, name: str, act: str) -> None:
    """It isn't in the table; or it is, and doesn't come to rest."""
    module.write_text(WAITS.format(name=name, act=act))
    with pytest.raises(LeewardError, match=f"module mine starts a thread [(]{name}[)]"), \
            Box(python_env=str(folder), preload=("mine",)):
        pass


def test_a_cache_has_a_place_and_it_is_no_jobs(folder: Path, module: Path) -> None:
    """Programs and libraries that want a cache find a folder for it; a job has the environment that all have."""
    module.write_text("import os\nplace = os.environ['XDG_CACHE_HOME']\nos.makedirs(place + '/fonts')\n")
    with Box(python_env=str(folder), preload=("mine",)) as box:
        got = box.run("import mine, os\n"
                      "print(mine.place, os.path.exists(mine.place), os.environ.get('XDG_CACHE_HOME'))")

    assert b"/tmp/.cache False None\n" == got.stdout


def test_the_next_worker_sees_a_file_that_the_host_has_replaced(folder: Path, module: Path) -> None:
    """
    An environment that was deleted, or a file that was replaced as ldconfig replaces its cache: a worker shows the host
    as it is when the worker is made, and not as the zygote found it.
    """
    module.write_text("text = 'before'")
    with Box(python_env=str(folder), recycle_after=1) as box:
        assert b"before\n" == box.run("import mine; print(mine.text)").stdout
        box.settle()
        shutil.rmtree(folder)
        folder.mkdir(mode=0o755)
        (make_environment(folder) / "mine.py").write_text("text = 'afterwards'")
        box.run("")  # by the worker that was ready
        assert b"afterwards\n" == box.run("import mine; print(mine.text)").stdout


def test_no_path_leads_to_the_hosts_tree(folder: Path, module: Path) -> None:
    """It is there for keepers, and covered while modules are imported."""
    module.write_text("import os\ntry:\n    found = os.listdir('/.host')\n"
                      "except OSError as e:\n    found = e.strerror\n"
                      "where = os.getcwd()\n")
    with Box(python_env=str(folder), preload=("mine",)) as box:
        said = box.run("import mine, os; print(mine.found, mine.where, os.path.exists('/.host'))").stdout

    # Without a capability root has no right to a folder of mode 0 either.
    assert b"Permission denied / False\n" == said


HOST_IDS = """
import json
print(json.dumps([open("/proc/self/uid_map").read().split(), open("/proc/self/setgroups").read().strip()]))
"""


@pytest.mark.needs("root", "unreduced")
def test_root_without_the_right_to_mount(tmp_path: Path) -> None:
    """
    As in a container: the zygote has a user namespace then, and each worker a host id of its own nevertheless. What a
    job sees is the same.
    """
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    run = [sys.executable, "-m", "leeward_cli", "run", HOST_IDS]
    said = [json.loads(subprocess.run([*before, *run], env=environment(), capture_output=True, text=True, check=True,
                                      cwd=tmp_path).stdout)
            for before in ([], [setpriv, "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])]

    # Which of the daemons' ranges of ids it is depends on what other daemons run at that moment.
    seen = [(inside, divmod(int(outside) - WORKER_UID_BASE, STRIDE), count, groups)
            for (inside, outside, count), groups in said]
    assert all(0 <= number < MOST_DAEMONS for _, (number, _), _, _ in seen)
    first, second = ((inside, place, count, groups) for inside, (_, place), count, groups in seen)
    assert first == second
    assert "deny" == first[3]

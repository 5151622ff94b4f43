"""
numpy, pandas and matplotlib in jobs, by `python_env`: a CSV goes in, a PNG comes out.

With numpy imported by the job and with numpy warm in the zygote; by whoever runs the tests,
and by root also as an ordinary user.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import features, packages
from kit.live_daemon import LiveDaemon, command, environment
from kit.ordinary_user import Installation, OrdinaryUser
from kit.skip_policy import require

PATIENCE_S = 100

CSV = "city,year,people\nUlm,2020,126405\nUlm,2021,126949\nBern,2020,134794\nBern,2021,133883\n"

JOB = """
import json, os, time
began = time.perf_counter()
import numpy
took = time.perf_counter() - began
import pandas
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

table = pandas.read_csv("in/people.csv")
growth = table.pivot(index="city", columns="year", values="people").pipe(lambda t: t[2021] - t[2020])
matrix = numpy.random.default_rng(7).random((300, 300))
identity = matrix @ numpy.linalg.inv(matrix)
growth.plot.bar(title="Wachstum, résumé")
plt.savefig("growth.png")
print(json.dumps({
    "growth": growth.to_dict(), "inverse": bool(numpy.allclose(identity, numpy.eye(300))), "import": took,
    "threads": len(os.listdir("/proc/self/task")), "where": numpy.__file__,
}))
"""

#: What a program does with leeward's client; it may run as another user, on another interpreter.
PROGRAM = f"""
import base64, json, sys, leeward
with leeward.Client(sys.argv[1]) as client:
    got = client.execute({JOB!r}, files={{"in/people.csv": {CSV!r}.encode()}}, collect=["*.png"], timeout=90)
    after = client.execute("import sys; print('numpy' in sys.modules)")
print(json.dumps({{"stdout": got.stdout_text, "stderr": got.stderr_text, "outcome": str(got.outcome.value),
                   "files": {{name: base64.b64encode(data).decode() for name, data in got.files.items()}},
                   "denied": got.denied, "warm": after.stdout_text.strip()}}))
"""

#: Runs a command to its end, as the user whose daemon it is.
Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.needs("real-packages"), pytest.mark.timeout(5 * PATIENCE_S)]


class Place:
    """An installation of leeward, and an environment for its jobs."""

    def __init__(self, run: Run, python: list[str], env: Path, folder: Path) -> None:
        self.run, self.python, self.env, self.folder = run, python, env, folder

    def leeward(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run([*self.python, "-m", "leeward_cli", *words])

    def job(self, preload: list[str]) -> dict[str, Any]:
        """The program's result, from a daemon of its own."""
        socket = self.folder / "leeward.sock"
        config = self.folder / "config.toml"
        config.write_text(f'python_env = "{self.env}"\npreload = {json.dumps(preload)}\npool_size = 1\n')
        config.chmod(0o644)
        started = self.leeward("daemon", "start", "--config", str(config), "--socket", str(socket))
        assert 0 == started.returncode, started.stderr
        try:
            done = self.run([*self.python, "-c", PROGRAM, str(socket)])
        finally:
            self.leeward("daemon", "stop", "--socket", str(socket))
        assert 0 == done.returncode, done.stderr
        got: dict[str, Any] = json.loads(done.stdout)
        return got


@pytest.fixture(scope="module")
def shown_folder() -> Iterator[Path]:
    with packages.shown_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=["whoever runs this", "an ordinary user"])
def place(request: pytest.FixtureRequest, shown_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Who runs it, and with what."""
    if "whoever runs this" == request.param:
        def run(words: list[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(words, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False, timeout=PATIENCE_S)

        env = request.getfixturevalue("shown_packages")(packages.PACKAGES)
        return Place(run, [sys.executable, "-P"], env, tmp_path_factory.mktemp("packages"))
    require("root", "ordinary-user")
    user: OrdinaryUser = request.getfixturevalue("ordinary_user")
    installation: Installation = request.getfixturevalue("user_install")
    system = features.system_python()
    assert system is not None
    folder = user.home / "packages"
    folder.mkdir(mode=0o755)
    os.chown(folder, user.uid, user.gid)

    def run_as_user(words: list[str]) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = user.run(words, timeout=PATIENCE_S)
        return done

    return Place(run_as_user, [str(installation.python), "-P"], packages.environment_for(system, shown_folder / "his"),
                 folder)


@pytest.mark.parametrize("preload", [[], ["numpy"]], ids=["cold", "preloaded"])
def test_a_csv_becomes_a_picture(place: Place, preload: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Read with pandas, computed with numpy, drawn with matplotlib."""
    got = place.job(preload)

    assert "finished" == got["outcome"], got["stderr"]
    said = json.loads(got["stdout"])
    assert {"Ulm": 544, "Bern": -911} == said["growth"]
    assert said["inverse"]
    assert said["where"].startswith(str(place.env))
    assert base64.b64decode(got["files"]["growth.png"]).startswith(b"\x89PNG\r\n")
    assert str(bool(preload)) == got["warm"]
    # One thread: the processes and threads of a job are counted, and a zygote may have no other.
    assert 1 == said["threads"]
    with capfd.disabled():
        sys.stdout.write(f"\n    import numpy {'preloaded' if preload else 'cold'}: {said['import'] * 1000:.2f} ms\n")


#: Arrays that BLAS computes with its threads, a table, and generators.
ANALYSIS = """
import numpy, pandas
matrix = numpy.random.default_rng(7).random((300, 300))
table = pandas.DataFrame({"town": ["Ulm", "Bern"] * 50, "n": range(100)})
inverse = numpy.linalg.inv(matrix)
"""
ANALYSED = """
assert numpy.allclose(matrix @ inverse, numpy.eye(300)) and 2450 == table.groupby("town").n.sum()["Ulm"]
matrix = numpy.ascontiguousarray(matrix[:200, :200]) @ numpy.ones((200, 3000))
table = pandas.concat([table] * 100, ignore_index=True)
(matrix.shape, len(table), float(numpy.random.rand()))
"""


def test_an_analysis_is_taken_as_a_snapshot(shown_packages: Callable[..., Path], tmp_path: Path) -> None:
    """Its threads of BLAS end at the fork; copies compute on, each with random numbers of its own."""
    config = tmp_path / "config.toml"
    config.write_text(f'python_env = "{shown_packages(packages.PACKAGES)}"\n')
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon, \
            leeward.Sandbox(socket=daemon.socket, memory="1G") as box:
        kernel = box.kernel()
        assert kernel.execute(ANALYSIS, timeout=60).ok
        with kernel.snapshot() as snapshot:
            assert {"numpy", "pandas"} <= snapshot.packages.keys()
            copies = [box.kernel(snapshot=snapshot) for _ in range(3)]
            kernel.execute("matrix = table = None")
            kernel.rollback(snapshot)
        got = [each.execute(ANALYSED, timeout=60) for each in (kernel, *copies)]
        assert all(each.ok for each in got), [each.stderr_text for each in got]
        assert len(got) == len({each.value for each in got})


def test_a_preload_that_starts_a_thread_is_refused(shown_folder: Path, tmp_path: Path) -> None:
    """A thread of the zygote would exist in no job, while others wait for it: the daemon says so and ends."""
    env = shown_folder / "eager"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True, capture_output=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "eager.py").write_text("import threading\n"
                                   "threading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    config = tmp_path / "config.toml"
    config.write_text(f'python_env = "{env}"\npreload = ["eager"]\n')

    got = subprocess.run(command("daemon", "run", "--config", str(config), "--socket", str(tmp_path / "leeward.sock")),
                         env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    assert 1 == got.returncode
    assert "module eager starts a thread" in got.stderr

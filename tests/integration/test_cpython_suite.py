"""
CPython's own tests run inside as they run outside: real input for every layer at once.

Each module runs by `leeward exec -m test -- NAME`, and at the same time outside with the same
interpreter, without site-packages as jobs have it. What passes outside and doesn't inside
has a row with its reason in cpython_exceptions.py, or is a bug of ours.

The default run takes part of the longest modules; LEEWARD_LONG=1 takes all of all.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from integration.cpython_exceptions import HANGS, row_for
from kit.live_daemon import LiveDaemon, command, environment

LONG = bool(os.environ.get("LEEWARD_LONG"))

#: Every module, and the tests that a default run takes of it; () is all of them.
MODULES: dict[str, tuple[str, ...]] = {
    "test_json": (),
    "test_re": (),
    "test_math": (),
    "test_decimal": (),
    "test_collections": (),
    "test_itertools": (),
    "test_functools": (),
    # 70 s. Most classes have twins for other event loops, task types and watchers.
    "test_asyncio": ("*.test_base_events.*", "*.test_futures.*", "*.test_locks.*", "*.test_queues.*",
                     "*.test_streams.*", "*.test_unix_events.*", "*.test_runners.*", "*.test_threads.*",
                     "*.test_selector_events.*", "*.test_server.*", "*.CTask_CFuture_Tests.*",
                     "*.EPollEventLoopTests.*", "*.SubprocessThreadedWatcherTests.*"),
    # 30 s
    "test_subprocess": ("*.POSIXProcessTestCase.*", "*.RunFuncTestCase.*", "*.ContextManagerTests.*"),
    "test_threading": (),
    # 100 s
    "test_concurrent_futures": ("*.ThreadPoolAsCompletedTests.*", "*.ThreadPoolWaitTests.*", "*.FutureTests.*",
                                "*.ProcessPoolForkProcessPoolExecutorTest.test_map*",
                                "*.ProcessPoolSpawnProcessPoolExecutorTest.test_map",
                                "*.ProcessPoolForkserverWaitTest.test_all_completed"),
    "test_sqlite3": (),
    "test_zipfile": (),
    "test_tempfile": (),
    "test_csv": (),
    "test_datetime": (),
    "test_pickle": (),
    "test_hashlib": (),
    "test_unicodedata": (),
    "test_statistics": (),
}

#: Of a module's tests, how many may have a row for another reason than sockets of the internet.
MOST_EXCEPTIONS = 0.03
#: Seconds that a job may take, which is the ceiling of the daemon's default configuration.
TIME_S = 600
#: Seconds after which regrtest shows where a test hangs, and ends.
STUCK_S = 90

#: What a job's environment says as well.
AS_INSIDE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}

#: By module.Class.test: "ok", "skipped: why" or the text of the failure.
Outcomes = dict[str, str]

pytestmark = pytest.mark.needs("cpython-tests")

DAEMON = ("--pool-size", "1")


@pytest.fixture(scope="module")
def python(daemon: LiveDaemon) -> list[str]:
    """The interpreter of the jobs, as they have it: without site-packages."""
    return [daemon.run("exec", "import sys; print(sys.executable)").stdout.decode().strip(), "-S"]


def arguments(module: str, report: str, only: Sequence[str] = ()) -> list[str]:
    """What `python -m test` gets. -v shows in a failure's log what ran last."""
    matches = [f"--match={pattern}" for pattern in only or (() if LONG else MODULES[module])]
    ignored = [f"--ignore=test.{row.tests}" for row in HANGS]
    return ["-v", f"--timeout={STUCK_S}", f"--junit-xml={report}", *matches, *ignored, module]


def outcomes(said: bytes) -> Outcomes:
    """Of every test in the report that *said* ends with; none if it has no report."""
    start, end = said.rfind(b"<testsuites"), said.rfind(b"</testsuites>")
    found: Outcomes = {}
    if end < 0:
        return found
    for case in ET.fromstring(said[start:end] + b"</testsuites>").iter("testcase"):
        bad = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        outcome = "ok" if bad is None else "".join(bad.itertext())
        if bad is not None and "skipped" == bad.tag:
            outcome = f"skipped: {outcome}"
        name = case.get("name") or ""  # none where a subtest failed
        if "ok" == found.get(name, "ok"):  # some modules have two tests of one name: both have to pass
            found[name] = outcome
    return found


@contextlib.contextmanager
def outside(python: list[str], options: list[str], uid: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """The tests in a plain process, in a folder of their own, which belongs to the user *uid*."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "log"), "wb") as log:
        os.chown(folder, uid, uid)
        run = subprocess.Popen([*python, "-m", "test", *options], cwd=folder, env={**AS_INSIDE, "HOME": folder},
                               stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield run
        finally:
            run.kill()
            run.wait()


def ships(python: list[str], module: str) -> bool:
    """Whether this interpreter has the tests of *module*."""
    ask = f"import sys, importlib.util as util; sys.exit(not util.find_spec('test.{module}'))"
    return 0 == subprocess.run([*python, "-c", ask], check=False).returncode


def inside(daemon: LiveDaemon, options: list[str], more: Sequence[str] = ()) -> tuple[Outcomes, str]:
    """The same in a job, with *more* options of its own; and the end of what it said."""
    done = subprocess.run(command("exec", "--timeout", str(TIME_S), *more, "-m", "test", "--", *options), check=False,
                          env=environment(daemon.socket), stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=TIME_S + 60)
    return outcomes(done.stdout), (done.stdout[-3000:] + done.stderr[-3000:]).decode(errors="replace")


@pytest.mark.timeout(2 * TIME_S + 120)
@pytest.mark.parametrize("module", MODULES)
def test_tests_that_pass_outside_pass_inside(module: str, daemon: LiveDaemon, python: list[str], tmp_path: Path,
                                             capfd: pytest.CaptureFixture[str]) -> None:
    """But for the rows of the table, and those are few."""
    def say(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n    {module}: {text}\n")

    if not ships(python, module):
        say(f"not shipped with {python[0]}")
        return
    report = tmp_path / "report.xml"
    with outside(python, arguments(module, str(report))) as run:
        here, log = inside(daemon, arguments(module, "/dev/stdout"))
        run.wait(TIME_S)
    there = outcomes(report.read_bytes()) if report.exists() else {}
    if not there:
        say("fails outside too, as a whole")
        return
    assert here, f"{module} gave no report inside:\n{log}"

    passed = [name for name, outcome in there.items() if "ok" == outcome]
    failed = [name for name, outcome in there.items() if "ok" != outcome and not outcome.startswith("skipped: ")]
    bugs, flaky, reasons, counted = {}, [], Counter[str](), 0
    for name in passed:
        if "ok" == (outcome := here.get(name, "")):
            continue
        row = row_for(name.removeprefix("test."), outcome)
        if row is not None:
            reasons[row.why] += 1
            counted += not row.internet
        elif "ok" == inside(daemon, arguments(module, "/dev/stdout", [name]))[0].get(name):
            flaky.append(name)  # two interpreters on a small machine: some tests measure time
        else:
            bugs[name] = outcome[-1500:]
    say(f"{len(passed)} pass outside, {len(passed) - sum(reasons.values()) - len(bugs)} inside"
        + "".join(f"\n        {count} don't: {why}" for why, count in reasons.items())
        + "".join(f"\n        passes inside when it is run again: {name}" for name in flaky)
        + "".join(f"\n        fails outside too: {name}" for name in failed if name))

    assert not bugs, "\n".join(f"{name} passes outside; inside:\n{outcome}\n" for name, outcome in bugs.items())
    assert counted <= MOST_EXCEPTIONS * len(passed), reasons
    assert len(flaky) <= max(2, MOST_EXCEPTIONS * len(passed)), flaky

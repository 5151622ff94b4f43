"""
CPython's own tests run inside as they run outside: real input for every layer at once.

Each module runs by `leeward exec -m test -- NAME`, and at the same time outside with the same
interpreter, without site-packages as jobs have it. What passes outside and doesn't inside
has a row with its reason in cpython_exceptions.py, or is a bug of ours.

A run takes a tenth of the modules, another one with each commit, and of the slow ones a part
of their tests; of the interpreter that the tests run by, or in half of the runs of 3.13's, if this
machine has it. An ordinary user's takes two. LEEWARD_LONG=1 takes all of all, as `./dev suites` does.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from integration.cpython_exceptions import ENDS, HANGS, SLOW, row_for
from kit import packages
from kit.beside import TURN, TURNS
from kit.configured import written
from kit.features import ROOT
from kit.live_daemon import LiveDaemon, command, environment

LONG = bool(os.environ.get("LEEWARD_LONG"))

#: In how many parts it is run.
TENTHS = 10
#: What an ordinary user's run has of it: users, groups and limits, files and links. A second each.
HIS = ("test_posix", "test_tempfile")
#: Of the tests that pass outside, how many may have a row; and how many at least a tenth has, and his.
MOST_EXCEPTIONS, FEWEST, FEWEST_HIS = 0.03, 1000, 200
#: Seconds that a job may take, which is the ceiling of the daemon's default configuration.
TIME_S = 600
#: Seconds after which regrtest shows where a test hangs, and ends.
STUCK_S = 300

#: What a job's environment says as well.
AS_INSIDE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
#: Its profile has sockets of loopback, as a process outside has.
CONFIGURATION = "pool_size = 1\n[profiles.servers]\nloopback = true\n"
OPTIONS = ("--profile", "servers", "--memory", "2G", "--processes", "256")
#: Root's rights would pass tests that nobody else's pass. Another user doesn't reach each interpreter.
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if 0 == os.geteuid() else ()

#: The tenth of a whole run's modules, of the slow ones the part, and the environment of another version, if it has its turn.
_TURN, TENTH = divmod(int(os.environ.get(TURN, "0")) // TURNS, TENTHS)
PART, OTHER = _TURN // 2, ROOT / ".venv-python3.13"
HAS_OTHER = _TURN % 2 and Path(OTHER, ".setup").exists()

#: Prints the version of an interpreter, and the modules of CPython's suite: 3.11 had the function elsewhere before 3.11.6.
LISTS = """import platform
try:
    from test.libregrtest.findtests import findtests
except ImportError:
    from test.libregrtest.runtest import findtests
print(platform.python_version(), *findtests())"""

#: By module.Class.test: "ok", "skipped: why" or the text of the failure.
Outcomes = dict[str, str]

pytestmark = pytest.mark.needs("cpython-tests")


@dataclass
class Compared:
    """
    What a module's tests did.

    Attributes:
        passed: how many pass outside; none if it gave no report there.
        excused: how many of these don't inside, by why.
        bugs: those without a row, with what each said, but for the *unsteady* ones, which pass when they run again.
        said: the end of what the module said inside.
    """

    passed: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    bugs: Outcomes = field(default_factory=dict)
    unsteady: list[str] = field(default_factory=list)
    said: str = ""

    def add(self, other: Compared) -> None:
        self.passed += other.passed
        self.excused += other.excused
        self.bugs |= {name: outcome[-1500:] or other.said for name, outcome in other.bugs.items()}
        self.unsteady += other.unsteady


def arguments(module: str, report: str, only: Sequence[str] = ()) -> list[str]:
    """What `python -m test` gets. -v shows in a failure's log what ran last."""
    return ["-v", f"--timeout={STUCK_S}", f"--junit-xml={report}", *(f"--match={name}" for name in only),
            *(f"--ignore=test.{tests}" for tests in HANGS), module]


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


def interruptible() -> None:
    """As a job is, also where a shell in the background runs this."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def outside(python: Sequence[str], options: list[str], uid: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """The tests in a plain process, in a folder of their own, which belongs to the user *uid*."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "log"), "wb") as log:
        os.chown(folder, uid, uid)
        run = subprocess.Popen([*python, "-m", "test", *options], cwd=folder, env={**AS_INSIDE, "HOME": folder},
                               stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=interruptible,
                               start_new_session=True)
        try:
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)  # also what a module that regrtest gave up has left
            run.wait()


def inside(daemon: LiveDaemon, options: list[str], more: Sequence[str] = ()) -> tuple[Outcomes, str]:
    """The same in a job, with *more* options of its own; and the end of what it said."""
    # Of --match and --ignore the last one that fits decides.
    ends = [f"--ignore=test.{tests}" for tests in ENDS]
    done = subprocess.run(command("exec", "--timeout", str(TIME_S), *OPTIONS, *more, "-m", "test", "--", *options, *ends),
                          check=False, env=environment(daemon.socket), stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=TIME_S + 60)
    return outcomes(done.stdout), (done.stdout[-3000:] + done.stderr[-3000:]).decode(errors="replace")


def compared(module: str, daemon: LiveDaemon, python: Sequence[str], report: Path, only: Sequence[str] = (),
             more: Sequence[str] = (), uid: int = -1) -> Compared:
    """Run a module's tests, or *only* those of these names, on both sides at once, and inside again what fails there."""
    report.unlink(missing_ok=True)
    with outside(python, arguments(module, str(report), only), uid) as run:
        here, said = inside(daemon, arguments(module, "/dev/stdout", only), more)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(TIME_S)
    there = outcomes(report.read_bytes()) if report.exists() else {}
    good = [name for name, outcome in there.items() if "ok" == outcome]
    found = Compared(len(good), said=said)
    for name in good:
        # Where a module ends as a whole, what it said is each test's failure.
        outcome = here.get(name, "" if here else said)
        if "ok" == outcome:
            continue
        if row := row_for(name.removeprefix("test."), outcome):
            found.excused[row.why] += 1
        else:
            found.bugs[name] = outcome
    if found.bugs and here:
        once_more, _ = inside(daemon, arguments(module, "/dev/stdout", [*found.bugs]), more)
        found.unsteady = [name for name in found.bugs if "ok" == once_more.get(name)]
        for name in found.unsteady:
            del found.bugs[name]
    return found


def cases(module: str, python: Sequence[str]) -> list[str]:
    """The names of a module's tests."""
    done = subprocess.run([*python, "-m", "test", "--list-cases", module], capture_output=True, text=True, check=True,
                          env=AS_INSIDE)
    return sorted({line for line in done.stdout.splitlines() if re.fullmatch(r"\w+(\.\w+)+", line)})


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with packages.shown_folder() as place:
        more = (f'[environments.other]\npath = "{packages.shown(OTHER / "bin/python", place / "other", OTHER)}"\n'
                if HAS_OTHER else "")
        with LiveDaemon(folder, "--config", str(written(folder / "c.toml", CONFIGURATION + more))) as made:
            yield made


@pytest.mark.timeout(4 * 3600 if LONG else 2 * TIME_S)
def test_what_passes_outside_passes_inside(daemon: LiveDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """But for the rows of the table, and those are few."""
    his = os.geteuid() and not LONG
    more = ("--environment", "other") if HAS_OTHER and not his else ()
    # The jobs' interpreter, as they have it: without site-packages.
    python = [*NO_RIGHTS, daemon.run("exec", *more, "import sys; print(sys.executable)").stdout.decode().strip(), "-S"]
    version, *listed = subprocess.run([*python, "-c", LISTS], capture_output=True, text=True, check=True).stdout.split()
    total = Compared()
    for module in (HIS if his else listed if LONG else listed[TENTH::TENTHS]):
        module = module.removeprefix("test.")
        parts = 1 if LONG else SLOW.get(module, 1)
        only = cases(module, python)[PART % parts::parts] if parts > 1 else ()
        total.add(compared(module, daemon, python, tmp_path / "report.xml", only, more))
    with capfd.disabled():
        part = " ".join(HIS) if his else "all" if LONG else f"part {TENTH + 1} of {TENTHS}"
        sys.stdout.write(f"\n    {version}, {part}: {total.passed} pass outside"
                         + "".join(f"\n        {count} don't inside: {why}" for why, count in total.excused.items())
                         + "".join(f"\n        passes inside when it is run again: {name}" for name in total.unsteady) + "\n")

    assert not total.bugs, "\n".join(f"{name} passes outside; inside:\n{outcome}\n" for name, outcome in total.bugs.items())
    assert total.passed >= (FEWEST_HIS if his else FEWEST)
    assert total.excused.total() <= MOST_EXCEPTIONS * total.passed, total.excused
    assert len(total.unsteady) <= MOST_EXCEPTIONS * total.passed, total.unsteady

"""
The whole run, by processes of pytest beside each other: `./dev test` runs `python -m kit.lanes`.

Runs in:   a developer's shell, as `PYTHONPATH=tests python -m kit.lanes [COMMAND...]`, which installs what they need.

Tests of a daemon mostly wait for it, so one process leaves most of a processor idle. What computes, compiles, boots or
runs whole programs, and has no bound on the time of a job, is the second lane. The third begins with the attacks. The
first lane has everything else; a file that is new is there. Beside the first lane root starts a run of its files and the
third's by an ordinary user, and beside the second one of its own (kit/beside.py). Each commit has a third of the attacks
and a twelfth of the other files in turn, and with LEEWARD_LONG=1 all.

What needs no more than .venv has runs while COMMAND still does, and is shown at once; the first lane is shown when that
is over, and then the others.

`python -m kit.lanes --quick` has most unit tests in the second lane, but for the thorough ones, and the rest of a quick
run (kit/quick.py) in the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from kit import features
from kit.beside import ALSO, TURN, TURNS
from kit.ordinary_user import LANE, WHEEL

#: What needs nothing beyond .venv: a lane of its own, which begins before the others. Its files of integration even out
#: the lanes' times, too.
EARLY = (*(f"tests/integration/test_{name}.py" for name in (
    "leaks", "reaping", "descriptors", "hostile_clients", "crashes", "pool", "daemon_life", "client", "cut_output",
    "many_sessions", "sessions_in_use", "as_a_file", "landlock", "jobs_beyond", "live_sync", "watchdog", "pools_life")),
    "tests/unit", "tests/simulation", "tests/integration/test_decoders.py")

#: The kernels come last: two at once want the processors for a minute.
SECOND = (*(f"tests/integration/test_{name}.py" for name in (
    "sanitizers", "packaging", "releases", "flake", "site", "readme", "warnings", "races", "frameworks",
    "fleet_on_ray", "fleet_page", "image_services", "installs", "oci_image", "kubernetes", "mcp_clients", "moving",
    "cookbook", "real_packages", "real_programs", "preloaded_libraries", "cpython_suite", "containers", "languages",
    "node_client", "other_pythons", "doc_examples", "sandbox_docs",
    "workdir_javascript", "agent_example", "agent_programs", "agent_options", "approved_example",
    "approvals_page", "ui", "llm", "faults", "fault_matrix", "kernel_branches", "many_sandboxes",
    "soak", "tidied_groups")), "tests/vm")

#: What runs beside both, so that few tests of a bounded time are beside another one. Its files even out the lanes' times.
THIRD = ("tests/escapes", *(f"tests/integration/test_{name}.py" for name in (
    "c_sandboxes", "selftest", "operating", "map", "sandbox_files", "cgroup", "approvals_many", "approvals_races",
    "approvals_service", "c_client", "egress_clients", "env_command")))
#: What both have: the look at the ordinary user's run.
BOTH = ("tests/integration/test_as_ordinary_user.py",)

#: Of a quick run, what is beside the rest; and what of it the first lane has, since it mostly waits.
QUICK, WAITS = "tests/unit", "approvals"

#: So many tests that failed run once more, alone.
AGAIN = 8
#: Where a lane's cache has the tests that failed, and those that only passed when an ordinary user ran them once more.
LAST_FAILED, UNSTEADY = "cache/lastfailed", "leeward/unsteady"

#: Seconds to end in.
END_S = 60

#: The exit status of pytest where tests failed, and where all passed.
FAILED, PASSED = 1, 0


class Lane:
    """
    One pytest.

    Args:
        name: of its cache, which remembers what failed.
        said: the file that it writes to; None for our own output.
        number: of the lane: each has users of its own.

    Attributes:
        took: seconds until it wrote last, once it was waited for.
    """

    took = 0.0

    def __init__(self, name: str, *arguments: str, said: IO[bytes] | None = None, number: int = 2) -> None:
        self.cache = features.ROOT / ".pytest_cache" / name
        self.said = said
        for noted in (LAST_FAILED, UNSTEADY):
            (self.cache / "v" / noted).unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if "PYTHONPATH" != name}  # it is this module's
        self._began = time.time()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-o", f"cache_dir={self.cache}", "--durations=15", *arguments],
            cwd=features.ROOT, stdout=said,
            env={**environment, **turn(), **({ALSO: " ".join((*EARLY, *THIRD))} if number == 1 else {LANE: str(number)})},
            stderr=None if said is None else subprocess.STDOUT)

    def wait(self) -> int:
        """Its exit status; that of a shell where a signal has ended it."""
        status = self._process.wait()
        self.took = (time.time() if self.said is None else os.fstat(self.said.fileno()).st_mtime) - self._began
        return status if status >= 0 else 128 - status

    def follow(self) -> int:
        """Print what it has written and still writes, until it ends. Returns its exit status."""
        assert self.said is not None
        shown, over = 0, False
        while True:
            piece = os.pread(self.said.fileno(), 1 << 16, shown)
            if piece:
                sys.stdout.buffer.write(piece)
                sys.stdout.flush()
                shown += len(piece)
            elif over:
                return self.wait()
            else:
                try:
                    self._process.wait(1.0)
                    over = True
                except subprocess.TimeoutExpired:
                    pass

    def end(self) -> None:
        """Interrupt it if it still runs: it ends the daemons that it has started."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def failed(self) -> list[str]:
        """The names of the tests that failed."""
        return self._noted(LAST_FAILED)

    def unsteady(self) -> list[str]:
        """The names of the tests that an ordinary user ran once more, and that passed then."""
        return self._noted(UNSTEADY)

    def _noted(self, name: str) -> list[str]:
        try:
            return sorted(json.loads((self.cache / "v" / name).read_text()))
        except FileNotFoundError:
            return []


@cache
def turn() -> dict[str, str]:
    """A number of this commit's, by which a run has a part of what takes long, as a variable; none where it has all."""
    if os.environ.get("LEEWARD_LONG"):
        return {}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=features.ROOT, capture_output=True, text=True, check=False)
    return {TURN: str(int(head.stdout.strip() or "0", 16) % TURNS ** 4)}


def verdict(statuses: Sequence[int], failed: Sequence[str]) -> tuple[int, bool]:
    """
    The exit status of lanes that ended with *statuses*, and whether the tests that failed may run once more.

    Args:
        failed: their names. A run of another user has had its second chance.
    """
    worst = max((status for status in statuses if status != FAILED), default=PASSED) or max(statuses)
    again = FAILED == worst and 0 < len(failed) <= AGAIN and not any("test_as_ordinary_user" in name for name in failed)
    return worst, again


def run(prepare: Sequence[str]) -> int:
    """
    All lanes to their end, and the tests that failed once more, alone; the exit status.

    Args:
        prepare: installs what tests need; its status doesn't matter, since what is missing is skipped.
    """
    lanes: list[Lane] = []
    with _ended(lanes), contextlib.ExitStack() as files:
        first_said, second_said, third_said = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        lanes.append(early := Lane("early", *EARLY, number=4))
        with _wheel(files):
            if prepare:
                subprocess.run(prepare, check=False)
        lanes.append(first := Lane("first", *(f"--ignore={path}" for path in (*EARLY, *SECOND, *THIRD)), said=first_said,
                                   number=1))
        lanes.append(third := Lane("third", *THIRD, said=third_said, number=3))
        # Not only behind the early lane: then it ran alone for the last quarter of an hour.
        lanes.append(second := Lane("second", *SECOND, *BOTH, said=second_said))
        statuses = [early.wait()]
        print("--- the first lane", flush=True)
        statuses += [first.follow(), second.wait(), third.wait()]
        show(second, third)
    if turn():
        print(f"dev: the ordinary user had part {int(turn()[TURN]) % TURNS + 1} of {TURNS}", flush=True)
    print("dev: minutes by lane:", *(f"{lane.cache.name} {lane.took / 60:.1f}" for lane in lanes), flush=True)
    failed = [name for lane in lanes for name in lane.failed()]
    unsteady = [f"{name}, as an ordinary user" for lane in lanes for name in lane.unsteady()]
    worst, again = verdict(statuses, failed)
    if again:
        worst, passed = once_more(failed)
        unsteady += passed
    if unsteady:
        print("dev: these failed, and passed when they ran once more, alone. Each is a defect to be mended:", *unsteady,
              sep="\n    ", flush=True)
    return worst


@contextlib.contextmanager
def _wheel(files: contextlib.ExitStack) -> Iterator[None]:
    """Make leeward's wheel beside what runs in this block, for all lanes that begin later and while *files* are there."""
    folder = Path(files.enter_context(tempfile.TemporaryDirectory()))
    with subprocess.Popen([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=features.ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        yield
    for made in folder.glob("*.whl"):  # without a compiler there is none, and who asks for it says so
        os.environ[WHEEL] = str(made)
        files.callback(os.environ.pop, WHEEL, None)


def once_more(failed: Sequence[str]) -> tuple[int, list[str]]:
    """Run the tests *failed* alone. Returns the exit status, and the names of those that pass now."""
    print("dev: these failed, and run once more, alone:", *failed, sep="\n    ", flush=True)
    alone = Lane("again", *failed)
    with _ended([alone]):
        status = alone.wait()
    still = alone.failed()
    return status, [name for name in failed if status in (PASSED, FAILED) and name not in still]


def quick() -> int:
    """Both lanes of a quick run; the exit status."""
    lanes: list[Lane] = []
    with _ended(lanes), tempfile.TemporaryFile() as said:
        lanes.append(unit := Lane("early", QUICK, f"--ignore={QUICK}/{WAITS}", "-m", "not thorough", said=said))
        others = sorted(name for name in os.listdir(features.ROOT / QUICK) if name != WAITS)
        lanes.append(first := Lane("first", "--quick", *(f"--ignore={QUICK}/{name}" for name in others), number=1))
        statuses = [first.wait(), unit.wait()]
        show(unit)
    return verdict(statuses, ())[0]


@contextlib.contextmanager
def _ended(lanes: Sequence[Lane]) -> Iterator[None]:
    try:
        yield
    finally:
        for lane in lanes:
            lane.end()


def show(*lanes: Lane) -> None:
    """Print what they wrote."""
    for lane in lanes:
        assert lane.said is not None
        lane.said.seek(0)
        print(f"--- beside it, {lane.cache.name}", flush=True)
        sys.stdout.buffer.write(lane.said.read())
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(quick() if ["--quick"] == sys.argv[1:] else run(sys.argv[1:]))

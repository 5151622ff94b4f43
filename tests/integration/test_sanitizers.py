"""
The shim, and the daemon that uses it, under AddressSanitizer and UndefinedBehaviorSanitizer.

An instrumented build takes the place of the usual shim in runs of their own: in the process of the
tests, in every `leeward` command and daemon that they start, and in the programs by which they
try the shim. Zygotes start without that environment and load the usual shim, and so do keepers and
jobs: what is special about them (memory shared with the init, a stack of its own, a filter that
allows what they need and no more) is what a sanitizer's runtime can't live with.

A report goes to a file, whichever process it is about and whoever swallows its words, and any fails the run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.features import ROOT
from leeward._native._shim import lib

pytestmark = [pytest.mark.needs("sanitizers", "compiler"), pytest.mark.timeout(900)]

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1"

#: Loads the instrumented shim under its usual name before anybody asks for it, and notes which
#: of its functions somebody asks for: in memory that is shared, as files and descriptors are out of
#: reach of a process that has changed its root.
SITECUSTOMIZE = """\
import ctypes, importlib.util, mmap, os, sys
where = os.environ["LEEWARD_TEST_SHIM"]
spec = importlib.util.spec_from_file_location("leeward._native._shim", where)
shim = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shim)

class Noting:
    def __init__(self, lib):
        with open(os.environ["LEEWARD_TEST_CALLED"], "r+b") as file:
            self.__dict__.update(_lib=lib, _names=sorted(dir(lib)), _called=mmap.mmap(file.fileno(), 0))
    def __getattr__(self, name):
        value = self.__dict__[name] = getattr(self._lib, name)
        self._called[self._names.index(name)] = 1
        return value

shim.lib = Noting(shim.lib)

# By its log_path the runtime would set where the other one reports: both have a function of that name.
ubsan, folder = os.environ["LD_PRELOAD"].split()[1], os.path.dirname(where)
getattr(ctypes.CDLL(ubsan), "__sanitizer_set_report_path")(f"{folder}/report-undefined".encode())
"""

#: The shim's own tests: part and test share their stem.
OWN = tuple(sorted(
    str(path.relative_to(ROOT))
    for stem in {source.stem for pattern in ("src/*.c", "*.py") for source in ROOT.glob(f"leeward/_native/{pattern}")}
    for folder in ("unit", "integration") for path in ROOT.glob(f"tests/{folder}/**/test_{stem}.py")))

#: Of the tests of the daemon's side a few of each kind: deaths of each process, refused calls, clients
#: that misbehave, each way to an end, the drivers of cgroups, mounts by the shim's calls.
SOME = (
    "tests/integration/test_begin.py",
    "tests/escapes/test_setup.py::test_c019_cannot_lead_a_mount_point_through_a_link",
    "tests/integration/test_cgroup.py::test_kill_ends_all",
    "tests/integration/test_cgroup.py::test_the_best_driver_is_taken",
    "tests/integration/test_charged_memory.py::test_processes_of_a_live_sandbox_share_one_limit",
    "tests/integration/test_charged_memory.py::test_mappings_are_charged_by_length_without_controllers",
    "tests/integration/test_daemon_life.py::test_start_and_stop",
    "tests/integration/test_daemon_life.py::test_the_log_has_no_input_of_jobs",
    "tests/integration/test_pool.py::test_a_death_under_a_running_job_spoils_that_one_alone",
    "tests/integration/test_pool.py::test_draining_refuses_waiting_jobs_and_lets_running_ones_end",
    "tests/integration/test_pool.py::test_jobs_in_a_row_are_answered_across_the_changes",
    "tests/integration/test_server.py::test_c099_c100_broken_streams",
    "tests/integration/test_server.py::test_c105_a_job_cannot_reach_the_daemon",
    "tests/integration/test_watched_fast_path.py::test_a_job_that_takes_long_is_told_its_processor_time_by_glances",
    "tests/unit/_native/test_process_tree.py",
    "tests/unit/egress/test_splicing.py",
)

#: All of them, for the long run: every integration and escape test but those about the checkout and about
#: speed, and this one.
NOT_THE_DAEMON = {"test_as_ordinary_user", "test_bench", "test_packaging", "test_races", "test_readme",
                  "test_sanitizers"}
ALL = (
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/integration/test_*.py")
            if path.stem not in NOT_THE_DAEMON),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/escapes/test_*.py")),
)

#: Programs with a sanitizer of their own, or under valgrind. And jobs that are forks of the test run, and
#: so have the sanitizer's allocator: it ends a process where the usual one refuses a request, and takes
#: memory of its own.
NOT_INSTRUMENTED = (
    "tests/integration/test_c_client.py::test_valgrind_reports_no_error",
    "tests/integration/test_c_client.py::test_c113_no_bytes_do_harm",
    "tests/integration/test_supervisor.py::test_no_data_races",
    "tests/integration/test_cgroup.py::test_memory_past_the_limit_ends_the_job",
    "tests/integration/test_cgroup.py::test_memory_that_a_fork_shares_is_counted_once",
    "tests/integration/test_cgroup.py::test_memory_below_the_limit_is_there",
    "tests/integration/test_cgroup.py::test_an_ordinary_user_without_delegation_is_held_all_the_same",
    # The functions that are called are noted in shared memory, which no state may have; and a look at all that the
    # sanitizer reserves takes hours.
    "tests/integration/test_state.py",
    # At addresses of its shadow.
    "tests/integration/test_seccomp.py::test_the_limit_on_cores_can_be_read_and_not_changed",
)

#: What the sanitizer says of a job that test_spawn.py clones with the instrumented shim: it leaves by
#: os._exit on the stack that its init had, of which the sanitizer doesn't know. Nothing was found.
KNOWN = re.compile(r"==\d+==WARNING: ASan is ignoring requested __asan_handle_no_return: stack type: default top: .*\n"
                   r"False positive error reports may follow\n"
                   r"For details see https://github.com/google/sanitizers/issues/189\n")

#: Everything that the shim has, in the order in which it is noted.
NAMES = sorted(dir(lib))


@dataclass(frozen=True)
class Build:
    """An instrumented shim, and what its runs leave."""

    folder: Path

    @property
    def shim(self) -> Path:
        return self.folder / "_shim.abi3.so"

    @property
    def environment(self) -> dict[str, str]:
        """In which every Python loads the shim, and reports go to files."""
        compiler = shlex.split(os.environ.get("CC", "gcc"))
        runtimes = [subprocess.run([*compiler, f"-print-file-name=lib{name}.so"], check=True, capture_output=True,
                                   text=True).stdout.strip() for name in ("asan", "ubsan")]
        inherited = {name: value for name, value in os.environ.items() if "LEEWARD_LONG" != name}
        return {
            **inherited,
            "LEEWARD_TEST_SHIM": str(self.shim),
            "LEEWARD_TEST_CALLED": str(self.folder / "called"),
            "PYTHONPATH": str(self.folder),
            # First of all libraries, as the interpreter itself isn't linked with them.
            "LD_PRELOAD": " ".join(runtimes),
            # CPython doesn't free everything at its end. Leaks of ours show in the test of 10,000 jobs.
            # Few bytes in quarantine: that test and others look at how much memory a daemon takes.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=4"
                            f":log_path={self.folder / 'report-address'}",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        for report in self.folder.glob("report*"):
            report.unlink()
        (self.folder / "called").write_bytes(bytes(len(NAMES)))
        (self.folder / "called").chmod(0o666)  # some tests change to another user
        return subprocess.run([sys.executable, *arguments], env=self.environment, cwd=ROOT, capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL)

    def tests(self, *names: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *names,
                        *(f"--deselect={name}" for name in NOT_INSTRUMENTED))

    def reports(self) -> str:
        """What any process of the last run had to report."""
        return KNOWN.sub("", "".join(path.read_text() for path in sorted(self.folder.glob("report*"))))

    def called(self) -> set[str]:
        """The functions of the shim that the last run called."""
        noted = (self.folder / "called").read_bytes()
        return {name for name, was in zip(NAMES, noted, strict=True) if was and name.startswith("lw_")}


def build(folder: Path, source: Path = ROOT) -> Build:
    subprocess.run([sys.executable, source / "build_ffi.py", folder], check=True, capture_output=True,
                   env={**os.environ, "LEEWARD_CFLAGS": FLAGS, "LEEWARD_LDFLAGS": FLAGS})
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    folder.chmod(0o1777)  # reports of processes that changed to another user
    return Build(folder)


@pytest.fixture(scope="module")
def instrumented(open_folder: Path) -> Build:
    (open_folder / "instrumented").mkdir()
    return build(open_folder / "instrumented")


@pytest.fixture(scope="module")
def faulty(open_folder: Path) -> Build:
    """The same with a fault in it: the supervisor has too little memory for a notification."""
    source = open_folder / "faulty-source"
    for name in ("build_ffi.py", "leeward/_native"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if "." not in name else shutil.copy)(ROOT / name, source / name)
    supervisor = source / "leeward" / "_native" / "src" / "supervisor.c"
    right, wrong = "malloc(supervisor->request_size)", "malloc(supervisor->request_size - 8)"
    assert 1 == supervisor.read_text().count(right)
    supervisor.write_text(supervisor.read_text().replace(right, wrong))
    (open_folder / "faulty").mkdir()
    return build(open_folder / "faulty", source)


def test_the_sanitizers_are_awake(instrumented: Build, tmp_path: Path) -> None:
    """The same flags on functions with a fault in them: each is found, and told to us though nobody looks at the process."""
    (tmp_path / "fault.c").write_text(
        "#include <stdlib.h>\n"
        "int beyond(int at) { int four[4] = {0}; return four[at]; }\n"
        "int freed(int at) { volatile int *heap = malloc(16); free((void *)heap); return heap[at]; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", *shlex.split(FLAGS), "-o", tmp_path / "fault.so", tmp_path / "fault.c"],
                   check=True)
    for call, report in (("beyond(3)", ""), ("beyond(4)", "out of bounds"), ("freed(0)", "heap-use-after-free")):
        program = f"import ctypes; ctypes.CDLL({str(tmp_path / 'fault.so')!r}).{call}"
        got = instrumented.run("-c", "import subprocess, sys\n"
                               f"subprocess.run([sys.executable, '-c', {program!r}], capture_output=True)")

        assert (0, "", "") == (got.returncode, got.stdout, got.stderr)
        assert report in instrumented.reports()
        assert bool(report) is bool(instrumented.reports())


def test_the_daemon_is_instrumented_and_its_zygotes_are_not(instrumented: Build, tmp_path: Path) -> None:
    """By what is in their memory: the instrumented shim and the sanitizer in one, the usual shim in the other."""
    program = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from kit.live_daemon import LiveDaemon, descendants
from leeward_cli.bench.spent import zygotes
def mapped(pid):
    paths = set(line.rstrip("\\n").split(maxsplit=5)[-1] for line in open(f"/proc/{{pid}}/maps"))
    return sorted(path for path in paths if "_shim" in path or "libasan" in path)
with LiveDaemon(Path({str(tmp_path)!r}), "--pool-size", "1") as daemon:
    pid = daemon.process.pid
    (zygote,) = zygotes(pid)
    print(json.dumps([mapped(pid), mapped(zygote)]))
"""
    got = instrumented.run("-c", program)

    assert 0 == got.returncode, got.stderr
    daemon, zygote = json.loads(got.stdout)
    assert str(instrumented.shim) in daemon
    assert any("libasan" in path for path in daemon)
    assert 2 == len(daemon)
    assert [str(ROOT / "leeward" / "_native" / "_shim.abi3.so")] == zygote


def test_a_fault_in_the_daemon_is_found(faulty: Build) -> None:
    """The control of those below: a test that passes there doesn't with a fault in the shim; the report names the place."""
    which = "tests/integration/test_daemon_life.py::test_the_log_has_no_input_of_jobs"
    assert which in SOME

    assert 0 != faulty.tests(which).returncode
    assert "heap-buffer-overflow" in faulty.reports()
    assert "src/supervisor.c" in faulty.reports()


@pytest.fixture(scope="module")
def some(instrumented: Build) -> tuple[subprocess.CompletedProcess[str], str, set[str]]:
    """One run of the shim's own tests and of some of the daemon's: how it ended, reports, the functions called."""
    got = instrumented.tests(*OWN, *SOME)
    return got, instrumented.reports(), instrumented.called()


def test_no_fault_shows(some: tuple[subprocess.CompletedProcess[str], str, set[str]]) -> None:
    """Every test passes, and no process had anything to report."""
    got, reports, _ = some

    assert 0 == got.returncode, got.stdout[-10000:] + got.stderr[-10000:]
    assert "" == reports


#: Calls what only keepers, inits and jobs call else, in a process that has namespaces of its own.
REST = """
import os, sys
from leeward._native import mounts, privileges, threads
from leeward._native.steps import Call, Table, returns
from leeward.errors import KernelRefusal
sys.path.append("tests")
from kit.inits import Init
Table([returns(Call.SETHOSTNAME, "here", 4)]).run()
assert (os.uname().nodename, Init().join_error()) == ("here", 0)
mounts.move_mount(mounts.filesystem("tmpfs", {}, 0), "/tmp")
os.chdir("/tmp")
Table([returns(Call.PIVOT_ROOT, ".", "."), mounts.unmount_step(".")]).run()
assert os.listdir("/") == []
assert privileges.capabilities_left() > 0
Table([*privileges.bounding_steps(), *privileges.dropping_steps()]).run()
assert privileges.capabilities_left() == 0
try:
    threads.end(os.getpid())
except KernelRefusal as error:
    assert "EINVAL" in str(error)
threads.end_no_more()
"""


@pytest.mark.needs("user-namespaces")
def test_every_function_of_the_shim_was_called(instrumented: Build,
                                               some: tuple[subprocess.CompletedProcess[str], str, set[str]]) -> None:
    """By the tests above, or here."""
    got = instrumented.run("-c", "import os, subprocess, sys; sys.exit(subprocess.call(['unshare', '--user',"
                           f" '--map-root-user', '--net', '--uts', '--mount', sys.executable, '-c', {REST!r}]))")

    assert (0, "", "") == (got.returncode, got.stderr, instrumented.reports())
    # Some that the headers declare are for other files of the shim alone.
    ours = {name for folder in ("leeward", "tests") for path in (ROOT / folder).rglob("*.py")
            for name in re.findall(r"\blib\.(lw_\w+)", path.read_text())}
    assert ours < set(NAMES)
    states = {"lw_state_known", "lw_state_dump", "lw_state_load", "lw_state_alone"}  # see NOT_INSTRUMENTED; bytes
    assert ours - states == (some[2] | instrumented.called()) - states


if os.environ.get("LEEWARD_LONG"):
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("tests", ALL)
    def test_no_fault_shows_in_any(instrumented: Build, tests: str) -> None:
        """The long form: every test, file by file, each in its short form."""
        got = instrumented.tests(tests)

        assert 0 == got.returncode, got.stdout[-10000:] + got.stderr[-10000:]
        assert "" == instrumented.reports()

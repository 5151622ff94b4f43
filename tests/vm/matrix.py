"""
One row: its kernel, pytest in it, its report.

Runs in:   the host.
"""

from __future__ import annotations

import compileall
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from kit.features import ROOT
from vm import kernels, machine, report
from vm.kernels import KERNELS
from vm.machine import Boot
from vm.report import FEATURES, TESTS, Report
from vm.rows import Row

TURNED_OFF, DIED = 124, 125

_OUT = "/leeward-vm/out"
#: What a test leaves there for a machine that is started once more, and the test that goes on with it.
_KEPT, _GOES_ON = "kept", "tests/vm/test_reboot.py"
#: Of a file system that, unlike the guest's others, can show its files as another user's on every kernel.
_DISK = "/leeward-vm/disk"

#: Seconds for a test that takes the default of pyproject.toml elsewhere.
_TIMEOUT_S = 900

#: The tests that install leeward, from a wheel that this machine makes: to compile it in software takes many minutes.
_INSTALLS, _WHEELS = "test_installs", ROOT / ".venv-vm/wheel"

#: What of the checkout is imported in a guest.
_SOURCES = ("leeward", "cli", "tests")


@dataclass(frozen=True, slots=True)
class Ran:
    """
    Attributes:
        report: None where the guest left none.
    """

    status: int
    report: Report | None


def run(row: Row, tests: Sequence[str], out: BinaryIO, *, seconds: float = 1200.0, asks: bool = True,
        memory: int = 2048, append: str = "") -> Ran:
    """
    Run pytest with *tests* as its arguments on this row; and if one has left something for another boot, what goes on there.

    Args:
        out: what it says, as it says it.
        asks: ask the kernel what it offers, too, which takes some seconds.
        memory: MiB of the guest, of which this machine gives what is touched.
        append: to the kernel's command line.

    Raises:
        Unavailable: this machine can't.
    """
    _compile()
    script = _script(tests)
    if asks:
        doctor = [sys.executable, "-P", "-m", "leeward_cli", "doctor", "--json"]
        script += f"alone {shlex.join(doctor)} >{_OUT}/{FEATURES}\n"
    commit, date = report.commit_here(), time.strftime("%Y-%m-%d", time.gmtime())
    # What an environment has installed besides isn't looked for: half a minute, in software.
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/cli",
                   "LEEWARD_TESTS_OUTSIDE_TMP": _DISK}
    if any(_INSTALLS in test for test in tests):
        environment["LEEWARD_TEST_WHEEL"] = _wheel()
    boot = Boot(kernels.get(KERNELS[row.kernel]), f"{script}exit $status", row.user, row.systemd, environment, seconds,
                memory, append)
    ended = machine.run(boot, out)
    if not ended.status and _KEPT in ended.files:
        out.write(b"vm: the machine is started once more\n")
        again = machine.run(replace(boot, command=f"{_script([_GOES_ON])}exit $status", kept=ended.files[_KEPT]), out)
        ended = again if again.status != 0 else ended
    if ended.status is None:
        out.write(f"\n{ended.console[-4000:]}\nvm: the guest {'was turned off' if ended.turned_off else 'died'}"
                  f" after {ended.seconds:.0f} s\n".encode())
        out.flush()
        return Ran(TURNED_OFF if ended.turned_off else DIED, None)
    if TESTS not in ended.files:
        return Ran(ended.status, None)
    return Ran(ended.status, report.of(row, boot.kernel.release, ended.files, ended.seconds, commit, date))


def _script(tests: Sequence[str]) -> str:
    pytest = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:pytester",
              "-p", "pytest_timeout", "-o", f"timeout={_TIMEOUT_S}", f"--basetemp={_DISK}/tests",
              f"--junitxml={_OUT}/{TESTS}", *tests]
    return f"alone {shlex.join(pytest)}\nstatus=$?\n"


def _compile() -> None:
    """
    Leave Python's caches in the checkout, where it may be written to. Without one a start of a daemon takes half a
    minute longer in a guest, each of them anew for a user who can't keep what he compiled.
    """
    for name in _SOURCES:
        compileall.compile_dir(ROOT / name, quiet=2)


def _wheel() -> str:
    shutil.rmtree(_WHEELS, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", _WHEELS], cwd=ROOT, check=True,
                   capture_output=True)
    return str(next(_WHEELS.glob("*.whl")))

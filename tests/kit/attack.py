"""
The parts of attacks: job code that makes any system call, and an environment with traps in it.

Runs in:   the tests; `PRELUDE` and `ATTEMPTS` in the job.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.box import Box, run_outside
from leeward import Sandbox
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward.spec.outcome import Outcome

NUMBER = NUMBERS[platform.machine()]

#: The namespaces of clone(2), by flag. CLONE_NEWTIME is for unshare(2) and clone3(2) only.
NAMESPACES = {
    "CLONE_NEWTIME": 0x80, "CLONE_NEWNS": 0x20000, "CLONE_NEWCGROUP": 0x2000000, "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000, "CLONE_NEWUSER": 0x10000000, "CLONE_NEWPID": 0x20000000, "CLONE_NEWNET": 0x40000000,
}

#: `value` gives what a call returns or -errno; `call` "" or the errno's name; `attempt` the same for Python code.
PRELUDE = f"""
import ctypes, errno, json, os, signal, sys
NUMBER = {NUMBER!r}
libc = ctypes.CDLL(None, use_errno=True)
def value(name, *args):
    plain = [ctypes.c_ulong(arg & (1 << 64) - 1) if isinstance(arg, int) else arg for arg in args]
    got = libc.syscall(ctypes.c_long(NUMBER[name]), *plain)
    return -ctypes.get_errno() if -1 == got else got
def call(name, *args):
    got = value(name, *args)
    return errno.errorcode[-got] if got < 0 else ""
def attempt(function, *args, **options):
    try:
        function(*args, **options)
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
def status(name, pid="self"):
    for line in open(f"/proc/{{pid}}/status"):
        if line.startswith(name + ":"):
            return line.partition(":")[2].strip()
def tell(said):
    print(json.dumps(said), flush=True)
"""

#: Before the code of a job that makes attempts: `attempt(name, call)` notes in `tried` what became of each.
ATTEMPTS = """
import errno, json
tried = {}
def attempt(name, call):
    try:
        tried[name] = "done: %r" % (call(),)
    except OSError as error:
        tried[name] = errno.errorcode[error.errno]
"""

#: Tells what each of `paths` holds, or the errno's name.
READ = """
def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return errno.errorcode[error.errno]
tell([read(path) for path in paths])
"""


def within(box: Box, attack: str, limits: dict[str, Any] | None = None, **given: object) -> Any:
    """Run *attack* as a job in *box*, with the variables *given*, and return what it reports."""
    got = box.run(_source(attack, given), limits=limits)
    assert Outcome.FINISHED is got.outcome, (got, got.error, got.stderr.decode())
    assert not got.stderr, got.stderr.decode()
    return json.loads(got.stdout)


def in_image(box: Sandbox, attack: str, **given: object) -> Any:
    """The same by the interpreter of the image that *box* has."""
    got = box.execute(_source(attack, given))
    assert got.error is None, (got.error, got.stderr_text)
    return json.loads(got.stdout)


def without(attack: str, *, cwd: Path | None = None, **given: object) -> Any:
    """Run *attack* in an interpreter outside any sandbox, and return what it reports."""
    return json.loads(run_outside(_source(attack, given), cwd=cwd))


def _source(attack: str, given: Mapping[str, object]) -> str:
    variables = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    return PRELUDE + variables + attack


def serves(box: Box) -> bool:
    """Whether three small jobs after an attack are answered as usual."""
    return all(b"2\n" == box.run("print(1 + 1)").stdout for _ in range(3))


def make_environment(folder: Path) -> Path:
    """
    Make a virtual environment of this run's base interpreter, with nothing in it.

    Returns:
        Its site-packages.
    """
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    return packages

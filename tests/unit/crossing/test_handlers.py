"""The handlers that jobs begin with, in processes of their own: pytest has some itself."""

from __future__ import annotations

import subprocess
import sys

from leeward.crossing import handlers

#: What this process's kernel side catches, as the bits of `handlers.HANDLED`.
_CAUGHT = """
import faulthandler, os, signal
from leeward._native.steps import Table
from leeward.crossing import birth, handlers

def caught():
    status = open("/proc/self/status").read()
    mask = int(status.split("SigCgt:")[1].split()[0], 16)
    return {number for number in handlers.HANDLED if mask >> number - 1 & 1}
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", _CAUGHT + code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_before_they_are_taken_there_are_no_steps() -> None:
    assert [] == handlers.steps()


def test_the_zygote_keeps_the_interpreters_part_alone() -> None:
    said = run("""
handlers.take()
print(caught(), faulthandler.is_enabled(), callable(signal.getsignal(signal.SIGURG)))
""")
    assert "set() True True\n" == said


def test_the_steps_install_all_of_them() -> None:
    assert "True\n" == run("""
handlers.take()
Table(handlers.steps()).run()
print(set(handlers.HANDLED) == caught())
""")


def test_a_fault_is_printed_as_by_faulthandler_itself() -> None:
    """On the alternate stack: this fault is the end of the other one."""
    said = run("""
import ctypes
handlers.take()
pid = os.fork()
if not pid:
    Table(handlers.steps()).run()
    os.dup2(1, 2)
    ctypes.string_at(0)
print(os.waitpid(pid, 0)[1] & 0x7F == signal.SIGSEGV)
""")
    assert "Fatal Python error: Segmentation fault" in said
    assert said.endswith("True\n")


def test_disabling_it_brings_the_default_back() -> None:
    assert "{<Signals.SIGURG: 23>}\n" == run("""
handlers.take()
Table(handlers.steps()).run()
faulthandler.disable()
print(caught())
""")

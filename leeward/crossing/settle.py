"""
What the interpreter of every job looks like, arranged once in the zygote.

Runs in:   the zygote.
"""

from __future__ import annotations

import builtins
import os
import resource
import signal
import sys

from leeward.isolation.plan import ZygotePlan

#: Top-level names that are ours, not the job's: it would find our versions in place of its own.
_OURS = ("leeward", "msgpack", "_cffi_backend", "cffi")

#: The interpreter itself ignores these; subprocess gives them back to what it starts.
_LEFT = {signal.SIGPIPE, signal.SIGXFSZ}

#: `room_for_names` tries so many; the table of a bare interpreter has room for 20,000.
_MOST_NAMES = 1 << 18
#: A table of that size takes a hundred pages and more; a name of its own, one.
_MOVED_PAGES = 32

#: Ours, kept alive though the import system no longer knows them.
_kept: dict[str, object] = {}


def interpreter(plan: ZygotePlan) -> None:
    """
    sys.path, sys.executable and the names that `site` adds, as a job expects them.
    """
    for path in plan.import_path:
        sys.path.remove(path)
    # '' stands for the folder at the time of import; that of the job, /workspace, is put there later.
    sys.path[:] = [path for path in sys.path if path]
    sys.executable = plan.executable
    if plan.bare:
        import site  # not run under -S: only its names

        site.setquit()
        site.setcopyright()
        site.sethelper()
        for name in ("exit", "quit", "help"):
            assert hasattr(builtins, name)
    sys.argv[:] = [""]
    os.environ.clear()
    os.environ.update(dict(plan.environment))


def signals() -> None:
    """
    As a fresh login has them: a daemon started by nohup or in the background of a shell
    ignores some, or has some blocked, and both are inherited through exec.
    """
    for number in signal.valid_signals() - _LEFT:
        if signal.SIG_IGN is signal.getsignal(number):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_ours_apart() -> None:
    """
    Take our modules out of sys.modules, and keep them.

    A job that imports msgpack gets its own, or none; never ours.
    """
    for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
        _kept[name] = sys.modules.pop(name)


def room_for_names() -> None:
    """
    Make the interpreter's table of interned strings grow now, and not in every clone.

    Compiling interns names. The table has tens of thousands; where it is nearly full, the first
    names of each job make it move house: 0.4 ms, and some hundred pages. It doesn't tell its size,
    but moving shows: it is the only thing here that takes that many new pages at once.
    """
    for number in range(_MOST_NAMES):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        sys.intern(f"leeward room {number}")
        if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before >= _MOVED_PAGES:
            return

"""Sets up the interpreter as every job will see it, once, in the zygote."""

from __future__ import annotations

import builtins
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from types import ModuleType

from leeward.base.points import point
from leeward.isolation.plan import ZygotePlan

#: Top-level modules that leeward brings along; a job must not get these in place of its own versions.
_OURS = ("leeward", "msgpack", "_cffi_backend", "cffi")

_CACHES = "/tmp/.cache"
#: The interpreter itself ignores these signals; subprocess restores their defaults in its children.
_LEFT = {signal.SIGPIPE, signal.SIGXFSZ}
#: Names that `room_for_names` adds at most; the table of a bare interpreter has room for 20,000.
_MOST_NAMES = 1 << 18
#: A new table takes a hundred pages and more; a new name takes one.
_MOVED_PAGES = 32
#: leeward's modules, kept alive after they were removed from sys.modules.
_kept: dict[str, ModuleType] = {}


@point("environment.interpreter")
def interpreter(plan: ZygotePlan) -> None:
    """Set sys.path, sys.executable and the names that `site` adds, as a job expects them."""
    for path in plan.import_path:
        sys.path.remove(path)
    # '' stands for the current folder at the time of import; a job's folder, /workspace, is added later.
    sys.path[:] = [path for path in sys.path if path]
    sys.executable = plan.executable
    if plan.bare:
        import site  # under -S the import only defines the names, and doesn't run it

        site.setquit()
        site.setcopyright()
        site.sethelper()
        for name in ("exit", "quit", "help"):
            assert hasattr(builtins, name)
    # Line-buffered, as on a terminal, because the content of the buffer is lost if a job is killed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper: the interpreter made it
    sys.argv[:] = [""]
    os.environ.clear()
    os.environ.update(dict(plan.environment))


@contextlib.contextmanager
def own_variables(plan: ZygotePlan) -> Iterator[None]:
    """
    Here caches are written to the zygote's own /tmp, as it has no home; their paths are valid in a job, too. And
    libraries start no threads.
    """
    jobs = dict(plan.environment)
    own = {"XDG_CACHE_HOME": _CACHES, **dict(plan.alone)}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
        os.environ.update({name: jobs[name] for name in own if name in jobs})


def signals() -> None:
    """Reset signals, which a daemon started by nohup or in the background inherits ignored or blocked."""
    for number in signal.valid_signals() - _LEFT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ours() -> dict[str, ModuleType]:
    """leeward's modules, and those that they need."""
    return _kept


def keep_ours_apart() -> None:
    """Remove leeward's modules from sys.modules, but keep them: a job that imports msgpack gets its own, or none."""
    for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
        _kept[name] = sys.modules.pop(name)


def room_for_names() -> None:
    """
    Make the interpreter's table of interned strings grow now, and not in every clone. Compiling interns names, and the
    table has tens of thousands. If it is nearly full, the first names of each job make it grow, which copies it: 0.4
    ms, and some hundred pages. Its size can't be read, but growth can be detected: nothing else here takes that many
    new pages at once.
    """
    for number in range(_MOST_NAMES):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        sys.intern(f"leeward room {number}")
        if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before >= _MOVED_PAGES:
            return

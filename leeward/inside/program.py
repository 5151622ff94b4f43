"""Runs a job's code as `python -c` and `python -m` do."""

from __future__ import annotations

import atexit
import builtins
import errno
import io
import os
import re
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from leeward.base.dataclass import dataclass
from leeward.inside import awaiting, tracebacks, workspace_files

T = TypeVar("T")
U = TypeVar("U")

#: The file name in tracebacks for code without a name.
NAME = "<string>"

#: Runs source under a name in a namespace, in another way than `exec` does.
Runs = Callable[[bytes, str, dict[str, Any]], object]

#: The globals of the modules whose frames aren't shown in a job's tracebacks.
ours: list[dict[str, Any]] = [globals()]

_KILLED_BY_INTERRUPT = 130  # 128 + SIGINT, as in a shell
_LOST_OUTPUT = 120  # as the interpreter's own


@dataclass(frozen=True, slots=True)
class End:
    """How the main module ended."""

    exit_code: int
    error: tuple[str, str, str] | None = None
    limit: str | None = None


class _LaterFile:
    """
    The main module's __file__ for code without one that asks whether it is the main module: written when `multiprocessing`
    looks for it, whose children by spawn or forkserver import the main file again.
    """

    _ASKS = re.compile(rb"""__name__\s*==\s*['"]__main__['"]|['"]__main__['"]\s*==\s*__name__""")

    source: bytes | str = b""  # of the job that runs

    def __get__(self, main: types.ModuleType | None, _kind: type | None = None) -> str:
        source = self.source.encode("utf-8", "surrogatepass") if isinstance(self.source, str) else self.source
        if main is None or self._ASKS.search(source) is None:
            raise AttributeError("module '__main__' has no attribute '__file__'")
        path = f"/tmp/.leeward-main-{hash(source) & (1 << 64) - 1:x}.py"
        try:
            with open(path, "wb") as file:
                file.write(source)
        except OSError:
            raise AttributeError("module '__main__' has no attribute '__file__'") from None
        return path


_later_file = _LaterFile()
#: The type of main modules, which calls itself as that of others.
_Main: type[types.ModuleType] = type("module", (types.ModuleType,), {"__file__": _later_file, "__module__": "builtins"})

#: The end of most jobs.
IN_ORDER = End(0)


def set_up() -> types.ModuleType:
    """Prepare for every job, before one comes. Returns the main module."""
    sys.argv[:] = ["-c"]
    sys.path.insert(0, workspace_files.WORKSPACE)
    return _fresh_main()


def nudged(number: int, frame: types.FrameType | None) -> None:
    """Handle a SIGURG that follows an interrupt, so that a call which was about to block when SIGINT came ends."""


class Interrupts:
    __slots__ = ("on", "wanted")

    def __init__(self) -> None:
        # on: a job is running, and KeyboardInterrupt is raised in it; wanted: a signal came while none was. Plain
        # attributes: the interpreter runs no signal handler between two such assignments.
        self.on = self.wanted = False

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        if not self.on:
            self.wanted = True
        elif not awaiting.took_interrupt():
            raise KeyboardInterrupt


def run_next(source: bytes, name: str, main: types.ModuleType, interrupts: Interrupts,
             runs: Runs | None) -> End:
    """Run one job of a session, whose source is known to `tracebacks`: the interpreter doesn't end with it."""
    def run() -> None:
        try:
            interrupts.on = True
            if interrupts.wanted:
                raise KeyboardInterrupt
            _execute(source, name, main, runs)
        finally:
            interrupts.on = False

    return _end_of(run)


def run_code(source: bytes, main: types.ModuleType) -> End:
    """Run a job that has only code, not to the interpreter's end."""
    def run() -> None:
        tracebacks.remember(source, NAME)
        _execute(source, NAME, main)

    return _end_of(run)


def _end_of(run: Callable[[], None]) -> End:
    """Call *run*, which runs code of the job."""
    try:
        run()
        return IN_ORDER
    except SystemExit as leaving:
        return End(_exit_code(leaving))
    except BaseException as error:  # a job may raise anything
        left = error
    return raised(left)  # here, since what a hook raises has another context there


def _execute(source: bytes, name: str, main: types.ModuleType, runs: Runs | None = None) -> None:
    _later_file.source = source
    if runs is None:
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)  # what leeward is for; the locks are on
    else:
        runs(source, name, main.__dict__)


def run_main(fields: dict[str, Any], main: types.ModuleType, runs: Runs | None) -> End:
    """Run the main module to its end, threads and atexit functions included."""
    take_environment(fields["env"])
    module, name, source = fields["module"], fields["name"], fields["code"]
    sys.argv[:] = [name if module is None and name != NAME else "-m" if module else "-c", *fields["args"]]

    def run() -> None:
        if module is None:
            tracebacks.remember(source, name)
            _lay_main(main, source, name)
            _execute(source, name, main, runs)
        else:
            runpy._run_module_as_main(module, alter_argv=True)  # type: ignore[attr-defined]  # as `python -m` does

    return wind_up(_end_of(run))


def take_environment(env: Mapping[str, str]) -> None:
    """Add *env* to the environment, and apply the variables that the interpreter reads only at its start."""
    os.environ.update(env)
    if env.get("PYTHONUNBUFFERED"):
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            stream.flush()
            raw = io.FileIO(stream.fileno(), "w", closefd=False)  # as `python -u` does
            unbuffered = io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)
            setattr(sys, name, unbuffered)
            setattr(sys, f"__{name}__", unbuffered)


def _fresh_main() -> types.ModuleType:
    main = _Main("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _lay_main(main: types.ModuleType, source: bytes | str, name: str) -> None:
    """
    Write a script that has a name to the current folder, and set __file__: children that multiprocessing starts by
    spawn or forkserver import it again.
    """
    if name.startswith("<") or "/" in name:
        return
    path = os.path.join(os.getcwd(), name)
    try:
        with open(path, "xb") as file:
            file.write(source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass"))
    except (OSError, ValueError):
        return  # a file of the job has this name, or no file can have it: no script is written
    main.__dict__.update(__file__=path, __cached__=None)


def _exit_code(leaving: SystemExit) -> int:
    code = _tried(leaving, lambda: leaving.code)
    if code is None:
        return 0
    if isinstance(code, int):
        code = int.__int__(code)  # of a class of the job's own, say
        return code & 0xFF if -1 << 63 <= code < 1 << 63 else 255  # as the interpreter where it doesn't fit
    _tried(None, _say, code)
    return 1


def _tried(default: T, ask: Callable[..., U], *args: object) -> T | U:
    """What *ask* returns, which uses what is the job's own, and may raise anything."""
    try:
        return ask(*args)
    except BaseException:
        return default


def _say(last: object) -> None:
    if (file := getattr(sys, "stderr", None)) is None:
        os.write(2, f"{last}\n".encode("utf-8", "backslashreplace"))
    else:
        print(last, file=file)


def raised(error: BaseException) -> End:
    """Print the traceback as the interpreter would, without leeward's frames, whatever the job has made of its class."""
    kind, code = type(error), _KILLED_BY_INTERRUPT if issubclass(type(error), KeyboardInterrupt) else 1
    shown = _tried("", _own_text, error)
    hook: Any = getattr(sys, "excepthook", None)
    try:
        if hook is sys.__excepthook__:
            _tried(None, lambda: sys.stderr.write(shown))
        else:
            hook(kind, error, error.__traceback__)
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException as another:
        said = _tried("", _own_text, another)
        _tried(None, _say, f"Error in sys.excepthook:\n{said}\nOriginal exception was:\n{shown}"[:-1])
    return End(code, (_tried("Exception", lambda: str.__str__(kind.__qualname__)),
                      _tried("(no text: its __str__ failed)", lambda: str.__str__(str(error))), shown),
               _tried(None, _limit_behind, error))


def _own_text(error: BaseException) -> str:
    error.__traceback__ = tracebacks.own_frames(error.__traceback__, ours, Interrupts.__call__.__code__)
    _tried(None, tracebacks.add_line, error)
    return tracebacks.text_of(error)


def unprepared(error: OSError) -> End:
    """The end of a job whose files or standard input could not be written."""
    name = type(error).__name__
    _tried(None, _say, f"{name}: {error}")
    return End(1, (name, str(error), ""), _limit_behind(error))


def _limit_behind(error: BaseException) -> str | None:
    """The limit of which this exception is the usual symptom."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "files"
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "descriptors"
    if isinstance(error, OSError) and error.errno == errno.EAGAIN and _makes_processes(error.__traceback__):
        return "processes"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "processes"
    return None


def _makes_processes(tb: types.TracebackType | None) -> bool:
    """Whether the code that has raised an error names a call that makes a process: most others that fail so don't block."""
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and any("fork" in name or "spawn" in name for name in tb.tb_frame.f_code.co_names)


def wind_up(end: End) -> End:
    """Do what the interpreter does at its end: join threads, run atexit functions, flush. KeyboardInterrupt meanwhile."""
    if _anyone_waits():
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that aren't daemons
            atexit._run_exitfuncs()
        except SystemExit as leaving:
            end = End(_exit_code(leaving), end.error, end.limit)
        except BaseException:  # printed without a change of the exit code, as by the interpreter
            traceback.print_exc()
    lost = flush()
    for error in lost.values():
        if isinstance(error, KeyboardInterrupt):
            raise error
    if "stdout" in lost:
        _tried(None, _tell_lost, lost["stdout"])
    return End(_LOST_OUTPUT, end.error, end.limit) if lost else end


def _tell_lost(error: BaseException) -> None:
    """Say that standard output is lost, as the interpreter does."""
    what = "on flushing sys.stdout:" if sys.version_info >= (3, 13) else f"in: {sys.stdout!r}"
    error.__traceback__ = tracebacks.own_frames(error.__traceback__, ours, Interrupts.__call__.__code__)
    _say(f"Exception ignored {what}\n{''.join(traceback.format_exception(error))[:-1]}")


def _anyone_waits() -> bool:
    """Whether there is a thread to join, or an atexit function to call. Most jobs have neither."""
    # Not active_count(), which takes a lock. Without another thread nothing can change the count.
    threads = len(threading._active) + len(threading._limbo)  # type: ignore[attr-defined]
    return threads > 1 or atexit._ncallbacks() > 0 or bool(threading._threading_atexits)  # type: ignore[attr-defined]


def flush() -> dict[str, BaseException]:
    """Flush both streams, which may be the job's own. Returns why what was written is lost, by stream."""
    lost = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            lost[name] = error
    return lost


def flush_for_copy() -> None:
    """As `flush`, before a process is copied. Raises what a stream of the job's own has raised, unless it is closed."""
    for error in flush().values():
        if not isinstance(error, (AttributeError, OSError, ValueError)):
            raise error


def rehearse(source: bytes, main: types.ModuleType) -> End:
    """Run all of `run_code` that can be run twice: not the interpreter's end, but the check whether one is needed."""
    end = run_code(source, main)
    _anyone_waits()
    flush()
    main.__dict__.clear()  # breaks the reference cycle between the module and its functions
    return end

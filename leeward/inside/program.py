"""
Runs a job's code the way `python -c` and `python -m` would.

Runs in:   the job's process, after the last lock.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import linecache
import os
import runpy
import sys
import threading
import traceback
import types
from typing import Any

from leeward.dataclass import dataclass
from leeward.inside import files

#: What tracebacks call code that came without a name.
NAME = "<string>"

_KILLED_BY_INTERRUPT = 130  # 128 + SIGINT, as the shell says it


@dataclass(frozen=True, slots=True)
class End:
    """
    How the main module ended.
    """

    exit_code: int
    error: tuple[str, str, str] | None = None
    limit: str | None = None


#: The end of most jobs.
IN_ORDER = End(0)


def set_up() -> types.ModuleType:
    """
    What is the same for every job, done before there is one; its main module.
    """
    sys.argv[:] = ["-c"]
    sys.path.insert(0, files.WORKSPACE)
    return _fresh_main()


def run_code(source: bytes, main: types.ModuleType) -> End:
    """
    Run a job that is code and nothing else to its end.
    """
    return wind_up(_run_code(source, main))


class Interrupts:
    """
    A handler of SIGINT for jobs that come one after the other.

    Attributes:
        on: a job runs, in which KeyboardInterrupt is raised. Set as plain attributes in `run_next`: between two
            such steps the interpreter runs no handler.
        wanted: one came while none ran.
    """

    __slots__ = ("on", "wanted")

    def __init__(self) -> None:
        self.on = self.wanted = False

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        if self.on:
            raise KeyboardInterrupt
        self.wanted = True


def run_next(source: bytes, name: str, main: types.ModuleType, interrupts: Interrupts) -> End:
    """
    Run one job of several: the interpreter doesn't end with it.
    """
    try:
        try:
            interrupts.on = True
            if interrupts.wanted:
                raise KeyboardInterrupt
            exec(_compiled(source, name), main.__dict__)  # what leeward is for; the locks are on
        finally:
            interrupts.on = False
        return IN_ORDER
    except SystemExit as leaving:
        return End(_exit_code(leaving))
    except BaseException as error:  # a job may raise anything
        return raised(error, source, name)


def _run_code(source: bytes, main: types.ModuleType) -> End:
    try:
        exec(_compiled(source, NAME), main.__dict__)  # what leeward is for; the locks are on
        return IN_ORDER
    except SystemExit as leaving:
        return End(_exit_code(leaving))
    except BaseException as error:  # a job may raise anything
        return raised(error, source, NAME)


def run(fields: dict[str, Any], main: types.ModuleType) -> End:
    """
    Run the main module to its end, threads and atexit functions included.
    """
    return wind_up(_run_main(fields, main))


def _run_main(fields: dict[str, Any], main: types.ModuleType) -> End:
    os.environ.update(fields["env"])
    module, name, source = fields["module"], fields["name"], fields["code"]
    sys.argv[:] = [name if module is None and name != NAME else "-m" if module else "-c", *fields["args"]]
    try:
        if module is None:
            _lay_main(main, source, name)
            exec(_compiled(source, name), main.__dict__)  # what leeward is for; the locks are on
        else:
            runpy._run_module_as_main(module, alter_argv=True)  # type: ignore[attr-defined]  # as `python -m` does
        return IN_ORDER
    except SystemExit as leaving:
        return End(_exit_code(leaving))
    except BaseException as error:  # a job may raise anything
        return raised(error, source, name)


def _fresh_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _lay_main(main: types.ModuleType, source: bytes | str, name: str) -> None:
    """
    Put a script that has a name into the current folder, and say so: __file__, and children
    that multiprocessing starts by spawn or forkserver, which import it again.
    """
    if name.startswith("<") or "/" in name:
        return
    path = os.path.join(os.getcwd(), name)
    try:
        with open(path, "xb") as file:
            file.write(source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass"))
    except (OSError, ValueError):
        return  # one of the job's own files has this name, or no file can; then it goes without
    main.__file__ = path


def _compiled(source: bytes | str, name: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)


def _exit_code(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def raised(error: BaseException, source: bytes | str | None, name: str) -> End:
    """
    Print the traceback as the interpreter would, without the frames that are ours.
    """
    error.__traceback__ = _own_frames(error.__traceback__)
    if source is not None:
        text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    shown = "".join(traceback.format_exception(error))
    try:
        if sys.excepthook is sys.__excepthook__:
            sys.stderr.write(shown)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # a job's own hook, or its own stderr: nothing more can be told there
        shown += "(and sys.excepthook failed)\n"
    code = _KILLED_BY_INTERRUPT if isinstance(error, KeyboardInterrupt) else 1
    return End(code, (type(error).__qualname__, _text(error), shown), _limit_behind(error))


def unprepared(error: OSError) -> End:
    """
    The end of a job whose files or standard input could not be laid out.
    """
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return End(1, (type(error).__qualname__, str(error), ""), _limit_behind(error))


def _own_frames(tb: types.TracebackType | None) -> types.TracebackType | None:
    while tb is not None and tb.tb_frame.f_globals is globals():
        tb = tb.tb_next
    last = tb
    while last is not None and last.tb_next is not None:
        if Interrupts.__call__.__code__ is last.tb_next.tb_frame.f_code:
            last.tb_next = None
        else:
            last = last.tb_next
    return tb


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # a job's own __str__
        return "(no text: its __str__ failed)"


def _limit_behind(error: BaseException) -> str | None:
    """
    The limit that this exception is the usual sign of.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "files"
    if isinstance(error, OSError) and error.errno == errno.EAGAIN and not isinstance(error, ConnectionError):
        return "processes"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "processes"
    return None


def wind_up(end: End) -> End:
    """
    What the interpreter does at its end: join threads, run atexit functions, flush.
    """
    if _anyone_waits():
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that aren't daemons
            atexit._run_exitfuncs()
        except SystemExit as leaving:
            end = End(_exit_code(leaving), end.error, end.limit)
        except BaseException:  # as the interpreter: told, and no change of the exit code
            traceback.print_exc()
    flush()
    return end


def _anyone_waits() -> bool:
    """
    Is there a thread to join, or a function to call at the end? Most jobs have neither.
    """
    # Not active_count(), which locks: nobody else is here who could change what is counted.
    threads = len(threading._active) + len(threading._limbo)  # type: ignore[attr-defined]
    return threads > 1 or atexit._ncallbacks() > 0 or bool(threading._threading_atexits)  # type: ignore[attr-defined]


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed or replaced by the job


def rehearse(source: bytes, main: types.ModuleType) -> End:
    """
    All of `run_code` that can be done twice: not the end of the interpreter, but the question whether there is one.
    """
    end = _run_code(source, main)
    _anyone_waits()
    flush()
    main.__dict__.clear()  # its functions and it hold each other: no collector has to come
    return end

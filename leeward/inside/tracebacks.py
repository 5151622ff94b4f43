"""Tracebacks of a job, with its own lines and none of leeward's frames."""

from __future__ import annotations

import io
import linecache
import re
import sys
import threading
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

#: Bytes of source that a session keeps for tracebacks and `inspect`; each job counts some more for its list of lines.
_KEPT_BYTES, _ENTRY_BYTES = 8 << 20, 512

#: Before 3.12 only the interpreter's own printer, in C, knows suggestions. Before 3.13 it can't show lines of a job's code,
#: and marks other letters in syntax errors.
_SUGGESTS, _PRINTS_HERE = sys.version_info >= (3, 12), sys.version_info >= (3, 13)
_SUGGESTION = re.compile(r"^(.*)(\. Did you mean: '.*'\?)$", re.MULTILINE)
_MISNAMED = (NameError, AttributeError)

#: The globals of modules that a job calls: their frames are left out, with all frames that these have called.
ends: list[dict[str, Any]] = []


def remember(source: bytes | str, name: str) -> int:
    """Let `linecache`, and so tracebacks and `inspect.getsource`, find the lines of *source*. Returns its size in bytes."""
    text = _decoded(source) if isinstance(source, bytes) else source
    lines = io.StringIO(text, None).readlines()  # as of a file: `splitlines` knows more ends of lines than the compiler
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"  # as linecache does for a file: carets are counted from the end of a line
    linecache.cache[name] = (len(text), None, lines, name)
    return len(source)


def _decoded(source: bytes) -> str:
    if b"coding" in source or source.startswith(b"\xef\xbb\xbf"):
        from importlib.util import decode_source  # few jobs have such code

        try:
            return decode_source(source)
        except (SyntaxError, UnicodeDecodeError):
            pass
    return source.decode("utf-8", "replace")


class Sources:
    """The sources of a session's newest jobs, up to _KEPT_BYTES."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def add(self, source: bytes, name: str) -> None:
        self._total -= self._sizes.pop(name, 0)
        size = self._sizes[name] = remember(source, name) + _ENTRY_BYTES
        self._total += size
        while self._total > _KEPT_BYTES and len(self._sizes) > 1:
            oldest, size = self._sizes.popitem(last=False)
            self._total -= size
            linecache.cache.pop(oldest, None)


def add_line(error: BaseException) -> None:
    """Add the line of a job's code to a syntax error: the passes after the parser look for it in a file alone."""
    if isinstance(error, SyntaxError) and error.text is None and error.lineno and error.filename in linecache.cache:
        error.text = linecache.getline(error.filename, error.lineno) or None


def text_of(error: BaseException) -> str:
    """The traceback of *error* as the interpreter prints it."""
    try:
        return _text_of(error)
    except Exception:  # the job has broken `traceback`, or made an error that it can't show
        return _said_in_c(error)


def _text_of(error: BaseException) -> str:
    is_alone = error.__context__ is None and error.__cause__ is None
    if isinstance(error, SyntaxError) and is_alone and error.__traceback__ is None and not _PRINTS_HERE:
        said, notes = _said_in_c(error), "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
        if said and not said.endswith(notes):  # early ones of 3.11 leave the notes of a syntax error out
            said += notes
        return said or "".join(traceback.format_exception(type(error), error, error.__traceback__))
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if _SUGGESTS or (is_alone and not isinstance(error, _MISNAMED)):
        return shown
    for found in _SUGGESTION.finditer(_said_in_c(error)):
        before_it, line, after_it = shown.partition(found[1] + "\n")
        shown = before_it + (found[0] + "\n" if line else "") + after_it
    return shown


class _OwnThreads(io.StringIO):
    """Takes what this thread writes to *others*, the standard error of all threads."""

    def __init__(self, others: Any) -> None:
        super().__init__()
        self._others, self._own = others, threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._own else self._others.write(text)


_said = threading.Lock()


def _said_in_c(error: BaseException) -> str:
    """What the interpreter's own printer says of *error*; "" if it can't."""
    if not _said.acquire(timeout=1.0):  # in a child that was forked while another thread had it
        return ""
    before = sys.stderr
    sys.stderr = said = _OwnThreads(before)
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except BaseException:  # the job has replaced the function
        return ""
    finally:
        sys.stderr = before
        _said.release()
    return said.getvalue()


def print_here() -> None:
    """In the zygote, once: have exceptions of threads, and those that nobody can catch, printed with a job's own lines."""
    if not _PRINTS_HERE:
        threading.excepthook = threading.__excepthook__ = _thread_failed
        sys.unraisablehook = sys.__unraisablehook__ = _ignored


@wraps(threading.excepthook)  # a module lists what is its own by `__module__`
def _thread_failed(args: Any) -> None:
    if not isinstance(args, threading.ExceptHookArgs):
        _thread_failed.__wrapped__(args)  # which says what it wants
    file = sys.stderr if sys.stderr is not None else getattr(args.thread, "_stderr", None)
    if args.exc_type is SystemExit or file is None or args.exc_value is None:
        return
    name = threading.get_ident() if args.thread is None else args.thread.name
    file.write(f"Exception in thread {name}:\n{text_of(args.exc_value)}")
    file.flush()


@wraps(sys.unraisablehook)
def _ignored(args: Any) -> None:
    if type(args).__name__ != "UnraisableHookArgs":  # which no module has
        _ignored.__wrapped__(args)
    if sys.stderr is None:
        return
    try:
        about = "" if args.object is None else f" {args.object!r}"
    except Exception:  # of a job's own __repr__
        about = " <object repr() failed>"
    said = args.err_msg or ("Exception ignored in" if about else "")
    shown = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback, chain=False))
    sys.stderr.write((f"{said}:{about}\n" if said else "") + shown)
    sys.stderr.flush()


def own_frames(tb: types.TracebackType | None, ours: Sequence[dict[str, Any]],
               last: types.CodeType) -> types.TracebackType | None:
    """
    *tb* without its first frames if these are of *ours*, modules' globals, and without all frames from *last* or one of
    `ends` on.
    """
    while tb is not None and _among(tb.tb_frame, ours):
        tb = tb.tb_next
    at = tb
    while at is not None and at.tb_next is not None:
        if last is at.tb_next.tb_frame.f_code or _among(at.tb_next.tb_frame, ends):
            at.tb_next = None
        else:
            at = at.tb_next
    return tb


def _among(frame: types.FrameType, ours: Sequence[dict[str, Any]]) -> bool:
    return any(frame.f_globals is each for each in ours)


def hide_frames(ours: Sequence[dict[str, Any]]) -> None:
    """
    In the zygote, once: cut the stacks of `traceback` and `inspect` where the job's code begins: its callers, of
    *ours*, aren't shown. `sys._getframe` and C code see all frames. A module that isn't loaded stays as it is.
    """
    traceback.walk_stack = _walker(traceback.walk_stack, ours)
    inspect = sys.modules.get("inspect")
    if inspect is not None:
        inspect.getouterframes = _outer(inspect.getouterframes, ours)  # type: ignore[attr-defined]  # a module has any
        inspect.getfile = _named(inspect.getfile)  # type: ignore[attr-defined]


def _named(getfile: Callable[[object], str]) -> Callable[[object], str]:
    """`inspect.getfile` that knows the code of a main module without a file, and of its classes."""
    @wraps(getfile)
    def named(object: object) -> str:
        try:
            return getfile(object)
        except (TypeError, OSError):
            name = _source_of(object)
            if name is None:
                raise
            return name
    return named


def _source_of(thing: object) -> str | None:
    """The name in `linecache` of a job's code that is the main module, or has the class *thing* of it; the newest one."""
    if thing is not sys.modules.get("__main__") and not (
            isinstance(thing, type) and getattr(thing, "__module__", None) == "__main__"):
        return None
    wanted = re.compile(rf"\s*class\s+{re.escape(thing.__name__)}\b" if isinstance(thing, type) else "")
    for name in reversed(linecache.cache):
        entry = linecache.cache[name]
        if name[:1] == "<" and len(entry) > 1 and entry[1] is None and any(map(wanted.match, entry[2])):
            return name
    return None


def _walker(walk: Callable[..., Any], ours: Sequence[dict[str, Any]]) -> Callable[..., Any]:
    @wraps(walk)
    def walk_stack(f: types.FrameType | None) -> Iterator[tuple[types.FrameType, int]]:
        # Without a frame `walk` counts its callers, so no other function may be between.
        return walk(f) if f is None else _until(walk(f), ours)
    return walk_stack


def _until(frames: Iterator[tuple[types.FrameType, int]],
           ours: Sequence[dict[str, Any]]) -> Iterator[tuple[types.FrameType, int]]:
    for frame, line in frames:
        if _among(frame, ours):
            return
        yield frame, line


def _outer(outer: Callable[..., Any], ours: Sequence[dict[str, Any]]) -> Callable[..., Any]:
    @wraps(outer)
    def getouterframes(frame: types.FrameType, context: int = 1) -> list[Any]:
        found = outer(frame, context)
        for number, info in enumerate(found):
            if _among(info[0], ours):
                return list(found[:number])
        return list(found)
    return getouterframes

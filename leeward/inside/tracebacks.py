"""Tracebacks of a job, with its own lines and none of leeward's frames."""

from __future__ import annotations

import io
import linecache
import re
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

#: Bytes of source that a session keeps for tracebacks and `inspect`; each job counts some more for its list of lines.
_KEPT_BYTES, _ENTRY_BYTES = 8 << 20, 512

#: Before 3.12 only the interpreter's own printer, in C, knows suggestions; and it can't show lines of a job's code.
_SUGGESTS = sys.version_info >= (3, 12)
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


def add_line(error: SyntaxError) -> None:
    """Add the line to *error*: the passes after the parser look for it in a file alone."""
    if error.text is None and error.filename and error.lineno:
        error.text = linecache.getline(error.filename, error.lineno) or None


def text_of(error: BaseException) -> str:
    """The traceback of *error* as the interpreter prints it."""
    shown = "".join(traceback.format_exception(error))
    return shown if _SUGGESTS else _with_suggestions(shown, error)


def _with_suggestions(shown: str, error: BaseException) -> str:
    if not isinstance(error, _MISNAMED) and error.__context__ is None and error.__cause__ is None:
        return shown
    said, before = io.StringIO(), sys.stderr
    sys.stderr = said
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except BaseException:  # the job has replaced the function
        return shown
    finally:
        sys.stderr = before
    for found in _SUGGESTION.finditer(said.getvalue()):
        before_it, line, after_it = shown.partition(found[1] + "\n")
        shown = before_it + (found[0] + "\n" if line else "") + after_it
    return shown


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

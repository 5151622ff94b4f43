"""
Shows a job's values: its last expression's, those given to `display`, and matplotlib's open figures.

Runs in:   a job with `display`. The zygote imports the module, because a job can't; its own imports are made at its
           first use.
Trust:     none. It runs the job's own methods, and the daemon checks and bounds what it sends.

Such code may use some of IPython's dialect: top-level `await`, `_`, a semicolon that suppresses the value of the last
expression, and a hint for lines that aren't Python.
"""

from __future__ import annotations

import builtins
import re
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from leeward.inside import awaiting, imports, program
from leeward.wire import bundles

# Imported in functions: what not every start needs; 32 ms of processor time for all of it.

#: The method that makes each form. Other forms come only from `_repr_mimebundle_`.
METHODS = {
    "text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_", "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_", "application/json": "_repr_json_",
}
PLAIN = "text/plain"

#: Entries of what was left out, at most.
_MOST_LEFT_OUT = 64

_TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, whose module isn't there yet
_ONLY_AST = 0x400          # ast.PyCF_ONLY_AST
_FUTURES = 0x1fe0000       # of __future__: each feature's compiler_flag that hasn't become the rule

#: Hints by the beginning of a line that isn't Python. The patterns aren't compiled in advance, because few jobs need
#: them.
HINTS = (
    (r"\s*[!%]\s*(pip3?|conda|mamba|uv)\b",
     "packages: %pip with a policy that allows its index (egress=...), packages=[...] of Sandbox, or `leeward env create`"),
    (r"\s*(?:[\w, ]+=\s*)?!",
     "a line with ! is IPython's, not Python: subprocess.run(['ls']) runs a program, `shell` of the sandbox as well"),
    (r"\s*(?:[\w, ]+=\s*)?%", "a line with % is IPython's, not Python: of the magics only %matplotlib and %pip are taken"),
)

#: A line that may be one expression, which is compiled in half the time without a tree. None with what the compiler warns of
#: while it reads, since it would warn twice: a backslash, a number that a word follows. None with what isn't told from code
#: here: comments, and what begins with spaces.
_LINE = re.compile(rb"(?!import |from |[\w.]+ *=[^=])(?!.*\b\d+[A-Za-z_])[\w(\[{'\"-][^\n\r\f#\\]{0,255}\n?")

#: A line that is one statement other than an expression, or no Python: nothing of it is shown.
_STATEMENT = re.compile(
    rb"(?:(?:assert|break|continue|del|for|from|global|if|import|nonlocal|pass|raise|return|try|while|with)\b"
    rb"|[A-Za-z_][\w.]* *=[^=])[^\n\r\f;]{0,255}\n?")

#: A line for pip, and where it installs: the folder is the sandbox's, and on the path of the interpreter that runs the line.
_PIP_LINE = rb"^([ \t]*)[!%][ \t]*pip3?[ \t]+(.*)$"
_PACKAGES = "/tmp/packages"

#: The results of the running job.
_current: Showing | None = None

program.ours += [globals(), vars(awaiting)]


class Shown(NamedTuple):
    """The results to send. `left_out` has a name and a reason of outcome.LeftOutReason each."""

    results: list[bundles.Bundle]
    value: str | None
    left_out: list[tuple[str, str]]


class Showing:
    """What one job shows; other jobs follow in this process if it *goes_on*."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self._goes_on = goes_on
        self.tell: Callable[[int, bundles.Bundle], None] | None = None  # called with each result and its place
        self._results: list[bundles.Bundle] = []
        self._left_out: list[tuple[str, str]] = []
        self._value: str | None = None
        self._room = bundles.MAX_TOTAL
        self._count = 0
        self._adding = threading.RLock()  # threads and signal handlers of the job may show things

    def run(self, source: bytes, name: str, namespace: dict[str, Any]) -> None:
        """Run *source*, and show the value of its last expression, and the figures that are open then."""
        global _current
        _current = self
        builtins.display = display  # type: ignore[attr-defined]  # where IPython has it
        imports.prepare_figures(self._show_figure)
        imports.prepare_ipython(display)
        try:
            value = awaiting.run(_compiled(source, name), namespace, goes_on=self._goes_on)
            if value is not None:
                self._show_value(value)
        finally:
            imports.show_figures()

    def end(self) -> Shown:
        """End the results. `display` prints until another job with `display` begins."""
        global _current
        if _current is self:
            _current = None
        with self._adding:
            self._count = bundles.MAX_RESULTS
            return Shown(self._results, self._value, self._left_out)

    def _show_value(self, value: object) -> None:
        """Show it as the interpreter's prompt."""
        builtins._ = value  # type: ignore[attr-defined]  # as sys.displayhook
        plain = (self.add(value) or {}).get(PLAIN)
        self._value = plain if isinstance(plain, str) else _shortened(_repr(value))

    def add(self, thing: object, *, raw: bool = False) -> bundles.Bundle | None:
        """
        Show *thing*, or the content by MIME type that it maps if *raw*, in each of its forms. None if there is no room
        for it.
        """
        with self._adding:
            if self._count >= bundles.MAX_RESULTS:
                self._leave_out("", "too_many")
                return None
            self._count += 1
            number = self._count
        if not raw and imports.is_figure(thing):
            bundle = self._kept(number, self._figure(number, thing))
        else:
            bundle = self._kept(number, self._given(thing) if raw else self._forms(number, thing))
        with self._adding:
            if bundle:
                self._results.append(bundle)
                if self.tell is not None:
                    self.tell(len(self._results) - 1, bundle)
        return bundle

    def _leave_out(self, name: str, why: str) -> None:
        if len(self._left_out) < _MOST_LEFT_OUT:
            entry = name or f"results after {bundles.MAX_RESULTS}", why
            if entry not in self._left_out:
                self._left_out.append(entry)

    def _kept(self, number: int, forms: Iterator[tuple[str, Any]]) -> bundles.Bundle:
        """The *forms* that can be sent and fit, the first of each kind."""
        bundle: bundles.Bundle = {}
        for kind, made in forms:
            if kind in bundle or made is None:
                continue
            content = _content(kind, made)
            if content is None:
                self._leave_out(f"result {number}: {kind}", "unreadable")
                continue
            if kind == PLAIN and isinstance(content, str) and len(content) > bundles.MAX_PLAIN:
                content = _shortened(content)
                self._leave_out(f"result {number}: the middle of {kind}", "too_large")
            size = bundles.size_of(kind, content)
            with self._adding:
                fits = size <= min(bundles.MAX_ONE, self._room)
                self._room -= size if fits else 0
            if fits:
                bundle[kind] = content
            else:
                self._leave_out(f"result {number}: {kind}", "too_large")
        return bundle

    def _forms(self, number: int, thing: object) -> Iterator[tuple[str, Any]]:
        """Every form of *thing*, plain text first. Methods are looked up in its class: an object may have any attribute."""
        kind = type(thing)
        given: dict[str, Any] = {}
        if getattr(kind, "_repr_mimebundle_", None) is not None:
            made = self._asked(number, "_repr_mimebundle_", lambda: thing._repr_mimebundle_(  # type: ignore[attr-defined]
                include=None, exclude=None))
            given = dict(self._given(made[0] if isinstance(made, tuple) and made else made))
        yield PLAIN, given.get(PLAIN) if isinstance(given.get(PLAIN), str) else _repr(thing)
        yield from given.items()
        for form, method in METHODS.items():
            if form in given or getattr(kind, method, None) is None:
                continue
            if form == "image/jpeg" and getattr(kind, METHODS["image/png"], None) is not None:
                continue  # a picture is shown once
            made = self._asked(number, form, getattr(thing, method))
            yield form, made[0] if isinstance(made, tuple) and made else made

    def _asked(self, number: int, what: str, method: Callable[[], Any]) -> Any:
        try:
            return method()
        except Exception:  # of the job's own method
            traceback.print_exc()
            self._leave_out(f"result {number}: {what}", "unreadable")
            return None

    @staticmethod
    def _given(made: object) -> Iterator[tuple[str, Any]]:
        if isinstance(made, dict):
            yield from ((kind, content) for kind, content in made.items() if kind in bundles.IS_TEXT)

    def _figure(self, number: int, figure: Any) -> Iterator[tuple[str, Any]]:
        yield PLAIN, _repr(figure)
        yield "image/png", self._asked(number, "image/png", lambda: imports.png(figure))

    def _show_figure(self, figure: object) -> None:
        (_current or self).add(figure)


def display(*things: object, raw: bool = False, **_ignored: object) -> None:
    """Show *things*, or contents by MIME type if *raw*, beside what the code prints, each in all its forms."""
    for thing in things:
        if _current is None:
            print(thing)
        else:
            _current.add(thing, raw=raw)


def _compiled(source: bytes, name: str) -> list[types.CodeType]:
    """The code of *source*, and, if it ends with an expression whose value has to be shown, the code of that expression."""
    if _LINE.fullmatch(source):
        try:
            return [compile(source, name, "eval", _TOP_LEVEL_AWAIT, dont_inherit=True)]
        except SyntaxError:
            pass  # it isn't an expression
    try:
        if _STATEMENT.fullmatch(source):
            return [compile(source, name, "exec", _TOP_LEVEL_AWAIT, dont_inherit=True)]
        tree: Any = compile(source, name, "exec", _TOP_LEVEL_AWAIT | _ONLY_AST, dont_inherit=True)
        import ast  # `compile` has loaded it already

        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr) or _is_quiet(source, last):
            return [compile(tree, name, "exec", _TOP_LEVEL_AWAIT, dont_inherit=True)]
        del tree.body[-1]
        body = compile(tree, name, "exec", _TOP_LEVEL_AWAIT, dont_inherit=True)
        flags = _TOP_LEVEL_AWAIT | body.co_flags & _FUTURES
        return [body, compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True)]
    except SyntaxError as error:
        if b"%matplotlib" in source:
            rest = re.sub(rb"^%matplotlib\b.*", b"", source, flags=re.MULTILINE)  # figures are shown anyway
            if rest != source:
                return _compiled(rest, name)
        if re.search(_PIP_LINE, source, re.MULTILINE) and _has_network():
            builtins.__pip__ = _pip  # type: ignore[attr-defined]
            return _compiled(re.sub(_PIP_LINE, lambda line: b"%b__pip__(%a)" % (line[1], line[2].decode("utf-8", "replace")),
                                    source, flags=re.MULTILINE), name)
        _hint(error, source)
        raise


def _has_network() -> bool:
    import socket

    try:
        socket.socket().close()
    except OSError:
        return False
    return True


def _pip(line: str) -> None:
    """Run pip with the words of *line*, by its module or the wheel that the standard library brings."""
    import glob
    import importlib.util
    import os
    import shlex
    import subprocess
    import sys
    import sysconfig

    words = shlex.split(line)
    own, bundled = (importlib.util.find_spec(name) for name in ("pip", "ensurepip"))
    places = [f"{os.path.dirname(bundled.origin)}/_bundled"] if bundled and bundled.origin else []
    places += filter(None, [sysconfig.get_config_var("WHEEL_PKG_DIR")])  # Debian's and Fedora's
    wheels = [wheel for place in places for wheel in glob.glob(f"{place}/pip-*.whl")]
    if words[:1] == ["install"]:
        words[1:1] = ["--upgrade", "--target", _PACKAGES]
    program = ["-m", "pip"] if own or not wheels else [f"{wheels[0]}/pip"]
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    if subprocess.run([sys.executable, *program, *words], check=False, env={**quiet, **os.environ}).returncode:
        print(HINTS[0][1], file=sys.stderr)
    elif _PACKAGES not in sys.path and os.path.isdir(_PACKAGES):
        others = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
        sys.path.insert(sys.path.index(others[0]) if others else len(sys.path), _PACKAGES)
    importlib.invalidate_caches()


def _is_quiet(source: bytes, last: Any) -> bool:
    lines = source.splitlines()
    if last.end_lineno > len(lines):
        return False
    behind: bytes = lines[last.end_lineno - 1][last.end_col_offset:]
    return behind.lstrip().startswith(b";")


def _hint(error: SyntaxError, source: bytes) -> None:
    lines = source.decode("utf-8", "replace").splitlines()
    line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
    for begins, hint in HINTS:
        if re.match(begins, line):
            if hasattr(error, "add_note"):  # Python 3.11; an image may have an older one
                error.add_note(hint)
            return


def _shortened(text: str) -> str:
    """*text*, without its middle if it is longer than can be sent."""
    if len(text) <= bundles.MAX_PLAIN:
        return text
    half = bundles.MAX_PLAIN // 2 - 32
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _repr(thing: object) -> str:
    try:
        return repr(thing)
    except Exception as error:  # of the job's own method
        return f"<{type(thing).__name__}: its __repr__ raised {type(error).__name__}>"


def _content(kind: str, made: Any) -> str | bytes | None:
    """The result of a job's method, as *kind* is sent; None if it doesn't fit."""
    if kind == "application/json" and not isinstance(made, str):
        import json

        try:
            return json.dumps(made)
        except (TypeError, ValueError, RecursionError):
            return None
    if bundles.IS_TEXT[kind]:
        return str(made) if isinstance(made, str) else None
    if isinstance(made, str):
        import binascii

        try:
            return binascii.a2b_base64("".join(made.split()), strict_mode=True)
        except ValueError:
            return None
    return bytes(made) if isinstance(made, (bytes, bytearray, memoryview)) else None

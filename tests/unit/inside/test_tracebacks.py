"""What a job's tracebacks show."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from leeward.inside import program, tracebacks


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "cache", {})


#: Each raises in its last line, which has no newline.
RAISE = {
    "a name": "fooled = 1\nfoolde",
    "an attribute": "class C:\n    width = 1\nC().witdh",
    "a call": "def f(x):\n    return x + [1 / 0]\nf(1)",
    "a syntax error": "x = 1\nprint(1",
    "an open string": "x = 'abc",
    "a missing colon": "def f()\n    pass",
    "in another": "number = 1\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('é') from nubmer",
    "letters beyond ASCII": "x = 'ééé'; y = x + 1",
}


def shown(source: str) -> str:
    main: dict[str, Any] = {}
    try:
        exec(compile(source, "<job>", "exec", dont_inherit=True), main)
    except BaseException as error:
        tracebacks.remember(source, "<job>")
        end = program.raised(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        assert end.error is not None
        return end.error[2]
    raise AssertionError("it didn't raise")


class _Text(str):
    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise LookupError


class _Odd(OSError):
    errno = property(lambda self: {}["errno"])  # type: ignore[assignment]
    __class__ = property(lambda self: {}["class"])  # type: ignore[assignment]

    def __str__(self) -> str:
        return _Text("odd")


def _unshowable() -> SyntaxError:
    error = SyntaxError("odd")
    error.lineno, error.text, error.filename = "a", 5, ["/dev/zero"]  # type: ignore[assignment]
    return error


@pytest.mark.parametrize("make", [_Odd, _unshowable])
def test_an_error_whose_class_fails_is_told_as_any(make: Callable[[], BaseException],
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    error = make()
    end = program.raised(error)

    assert end.error is not None
    assert (1, type(error).__name__, "odd") == (end.exit_code, *end.error[:2])
    assert str is type(end.error[1])
    assert end.error[2] == capsys.readouterr().err
    assert end.error[2].endswith("odd\n")


@pytest.mark.parametrize("broken", ["TracebackException", "format_exception"])
def test_a_job_without_traceback_has_its_error_told(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceback, broken, None)
    assert shown("1 / 0").endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("name", RAISE)
def test_a_final_newline_makes_no_difference(name: str) -> None:
    assert shown(RAISE[name]) == shown(RAISE[name] + "\n")


@pytest.mark.parametrize(("name", "suggested"), [("a name", "fooled"), ("an attribute", "width"),
                                                 ("in another", "number")])
def test_suggestions_are_shown_as_by_python(name: str, suggested: str) -> None:
    assert shown(RAISE[name]).endswith(f". Did you mean: '{suggested}'?\n")


def test_carets_are_below_the_failed_expression() -> None:
    *_, line, carets, _ = shown("x = 1; y = foo").splitlines()
    assert line.index("foo") == carets.index("^^^")


def test_a_hook_that_a_job_replaced_costs_it_the_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("Python before 3.12: later ones suggest without the hook")
    monkeypatch.setattr(sys, "__excepthook__", None)
    assert shown(RAISE["a name"]).endswith("name 'foolde' is not defined\n")


def test_the_newest_sources_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_KEPT_BYTES", 10_000)
    sources = tracebacks.Sources()
    for number in range(200):
        sources.add(f"x = {number}".encode(), f"<job {number}>")
    kept = list(linecache.cache)

    assert [f"<job {number}>" for number in range(200 - len(kept), 200)] == kept
    assert 10 < len(kept) < 20
    assert "x = 199\n" == linecache.getline("<job 199>", 1)
    sources.add(b"#" * 50_000, "<large>")
    assert ["<large>"] == list(linecache.cache)
    sources.add(b"y", "<large>")  # the same name again: once
    sources.add(b"z", "<small>")
    assert ["<large>", "<small>"] == list(linecache.cache)


def test_stacks_end_where_a_jobs_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((traceback, "walk_stack"), (inspect, "getouterframes"), (inspect, "getfile")):
        monkeypatch.setattr(module, name, getattr(module, name))
    ours: dict[str, Any] = {}
    exec("def run(code, main): exec(code, main)", ours)
    code = ("import inspect, traceback\n"
            "def f():\n"
            "    return ([each.function for each in inspect.stack()],\n"
            "            [each.name for each in traceback.extract_stack()], traceback.format_stack(limit=1))\n"
            "got = f()")
    before: dict[str, Any] = {}
    ours["run"](code, before)
    tracebacks.hide_frames([ours])
    after: dict[str, Any] = {}
    ours["run"](code, after)

    assert ["f", "<module>", "run"] == before["got"][0][:3]
    assert "run" in before["got"][1]
    assert (["f", "<module>"], ["<module>", "f"]) == after["got"][:2]
    assert 1 == len(after["got"][2])
    assert ["test_stacks_end_where_a_jobs_begin"] == [each.function for each in inspect.stack()][:1]


def test_a_class_without_a_module_has_no_file_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nameless(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise AttributeError

    for module, name in ((traceback, "walk_stack"), (inspect, "getouterframes"), (inspect, "getfile")):
        monkeypatch.setattr(module, name, getattr(module, name))
    tracebacks.hide_frames([])

    with pytest.raises(TypeError):
        inspect.getfile(Nameless("C", (), {}))


@pytest.mark.parametrize(("source", "lines"), [
    (b"x = 1\r\ny\rz", ["x = 1\n", "y\n", "z\n"]), ("'\u2028\x0b'\n\x0cy".encode(), ["'\u2028\x0b'\n", "\x0cy\n"]),
    (b"# coding: latin-1\n'\xe9'", ["# coding: latin-1\n", "'é'\n"]), (b"\xef\xbb\xbfx", ["x\n"]), (b"", []),
    (b"# coding: nonesuch", ["# coding: nonesuch\n"]), (b"'\xff'", ["'\ufffd'\n"]),
])
def test_lines_are_those_of_the_same_file(source: bytes, lines: list[str]) -> None:
    tracebacks.remember(source, "<job>")

    assert lines == linecache.getlines("<job>")


@pytest.mark.parametrize("source", ["x = 1\nfrom __future__ import annotations", "x = 1\nfrom __future__ import nonesuch"])
def test_a_late_syntax_error_has_its_line(source: str) -> None:
    assert "    from __future__ import" in shown(source)

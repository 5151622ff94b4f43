"""What a job shows, made in this process."""

from __future__ import annotations
import __future__

import ast
import base64
import builtins
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leeward.inside import awaiting, imports, showing
from leeward.inside.showing import Showing, Shown
from leeward.wire import bundles


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(imports, "_show_one", None)
    monkeypatch.setattr(imports, "_acts", {})
    monkeypatch.setattr(imports, "offers", {})
    for name in [each for each in sys.modules if "IPython" == each.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(showing, "_current", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [each for each in sys.modules if "IPython" == each.partition(".")[0]]:
        del sys.modules[name]
    for name in ("display", "_"):
        if hasattr(builtins, name):
            delattr(builtins, name)


def shown(code: str, namespace: dict[str, Any] | None = None) -> Shown:
    made = Showing()
    made.run(code.encode(), "<job>", {} if namespace is None else namespace)
    return made.end()


@pytest.mark.parametrize(("code", "value"), [
    ("1 + 1", "2"), ("x = 1", None), ("None", None), ("", None), ("# nothing", None), ("1;", None),
    ("1 ; # quiet", None), ("(1);", None), ("x = 1; x", "1"), ("'a'\n", "'a'"), ("if 1:\n    2", None),
    ("'''a\nb'''", "'a\\nb'"),
    ("from __future__ import annotations\n3", "3"), ("def f(): return 4\nf()", "4"), ("lambda: 0;\n5", "5"),
    ("(\n6\n)", "6"), ("'é;'", "'é;'"), ("'é' ;", None), ("import asyncio\nawait asyncio.sleep(0, 7)", "7"),
    ("async def f(): return 8\nx = await f()\nx", "8"),
])
def test_the_value_is_the_last_expressions(code: str, value: str | None) -> None:
    got = shown(code)

    assert value == got.value
    assert ([] if value is None else [{"text/plain": value}]) == got.results


@pytest.mark.parametrize("line", [
    "print('x')\n", "a + 1", "(b := a)", "b := a", "a, 2", "*a, 2", "await a", "[x async for x in a]", "lambda: 0", "-1",
    "a == 1", "a = 1", "a += 1", "a;", "import os", "pass", "f(", "f(x for x in a, 1)", "a = !ls", "1 is 1",
    "'a'", "b = 1if a else 2", "print('\\d')", "a # b", "yield a", "'\xe4'", "(1)(2)",
    "a = await b", "if a: a", "for a in b: a; a", "del a; a", "a = 1;", "pass ; 'a'", "a = '\\d'", "assert (1, 2)",
    "a = 1if b else 2", "from __future__ import annotations", "a = 1  # b", "raise (", "return 1", "with a: await b",
    "try: a", "match = a == b",
])
def test_a_line_is_compiled_alone_as_with_a_tree(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> tuple[object, list[str]]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                last = showing._compiled(line.encode(), "<job>")[-1]
            except SyntaxError as error:
                return (error.args, getattr(error, "__notes__", None)), [str(each.message) for each in warned]
        return (last.co_code, last.co_flags, last.co_names, [*last.co_positions()]), [str(each.message) for each in warned]

    alone = compiled()
    for short_cut in ("_LINE", "_STATEMENT"):
        monkeypatch.setattr(showing, short_cut, re.compile(rb"(?!)"))

    assert compiled() == alone


def test_tasks_go_on_where_something_is_awaited() -> None:
    space: dict[str, Any] = {}
    shown("import asyncio\nasync def f(): return 5\n"
          "async def g(): return asyncio.ensure_future(f())\nt = await g()", space)

    assert "5" == shown("await t", space).value


def test_the_value_before_is_an_underline() -> None:
    shown("20")

    assert "40" == shown("_ * 2").value


class Everything:
    def __repr__(self) -> str:
        return "everything"

    def _repr_html_(self) -> str:
        return "<b>é</b>"

    def _repr_markdown_(self) -> tuple[str, dict[str, Any]]:
        return "**é**", {"meta": 1}

    def _repr_svg_(self) -> str:
        return "<svg/>"

    def _repr_png_(self) -> bytes:
        return b"\x89"

    def _repr_jpeg_(self) -> bytes:
        raise AssertionError("a picture comes once")

    def _repr_pdf_(self) -> str:
        return base64.encodebytes(b"%PDF" * 40).decode()

    def _repr_latex_(self) -> None:
        return None

    def _repr_json_(self) -> dict[str, int]:
        return {"a": 1}


def test_every_form_of_a_value_is_made() -> None:
    got = shown("display(x)", {"x": Everything()})

    assert [{"text/plain": "everything", "text/html": "<b>é</b>", "text/markdown": "**é**", "image/svg+xml": "<svg/>",
             "image/png": b"\x89", "application/pdf": b"%PDF" * 40, "application/json": '{"a": 1}'}] == got.results
    assert (None, []) == (got.value, got.left_out)


class Bundled(Everything):
    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> object:
        return {"text/plain": "mine", "text/html": "<i>", "application/x-mine": "secret", 1: 2}, {"meta": 1}


def test_a_bundle_of_its_own_comes_first() -> None:
    bundle, = shown("x", {"x": Bundled()}).results

    assert ("mine", "<i>", b"\x89") == (bundle["text/plain"], bundle["text/html"], bundle["image/png"])
    assert set(bundle) <= set(bundles.IS_TEXT)


def test_raw_bytes_of_a_form() -> None:
    got = shown("display({'text/html': '<p>', 'image/png': 'iVBO', 'x/y': 1}, raw=True)")

    assert [{"text/html": "<p>", "image/png": b"\x89PN"[:3]}] == got.results


class Broken:
    def __repr__(self) -> str:
        raise ValueError

    def _repr_html_(self) -> str:
        raise KeyError("mine")

    def _repr_png_(self) -> object:
        return "no base64!"

    def _repr_json_(self) -> object:
        return object()

    def _repr_mimebundle_(self, **_which: object) -> object:
        raise OSError


def test_a_method_that_fails_costs_its_form_alone(capsys: pytest.CaptureFixture[str]) -> None:
    got = shown("x", {"x": Broken()})

    assert [{"text/plain": "<Broken: its __repr__ raised ValueError>"}] == got.results
    assert {f"result 1: {kind}": "unreadable" for kind in
            ("_repr_mimebundle_", "text/html", "image/png", "application/json")} == dict(got.left_out)
    assert "KeyError: 'mine'" in capsys.readouterr().err


def test_an_interrupt_in_a_method_is_the_codes() -> None:
    class Slow:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown("x", {"x": Slow()})


@pytest.mark.parametrize("thing", [Everything, threading.Thread, type, 5, "a", b"a", [Everything]])
def test_a_class_shows_as_a_class(thing: object) -> None:
    """Its methods are for its instances."""
    assert [{"text/plain": repr(thing)}] == shown("x", {"x": thing}).results


def test_a_value_without_room_is_named() -> None:
    many = shown("for n in range(70): display(n)\n'last'")
    assert bundles.MAX_RESULTS == len(many.results)
    assert "'last'" == many.value
    assert [("results after 64", "too_many")] == many.left_out

    large = shown(f"display({{'image/png': bytes({bundles.MAX_ONE + 1})}}, raw=True)\n"
                  "for n in (3, 2, 3): display({'image/png': bytes(n << 20), 'text/html': 'x'}, raw=True)\n"
                  "'x' * 100_000")
    assert [2, 2, 1, 1] == [len(bundle) for bundle in large.results]
    assert {"result 1: image/png": "too_large", "result 4: image/png": "too_large",
            "result 5: the middle of text/plain": "too_large"} == dict(large.left_out)
    assert bundles.MAX_PLAIN - 64 <= len(large.value or "") <= bundles.MAX_PLAIN
    assert "characters left out]" in (large.value or "")


def test_the_last_value_has_its_text_where_no_form_has_room() -> None:
    got = shown(f"for size in ({bundles.MAX_ONE}, {bundles.MAX_TOTAL - bundles.MAX_ONE}):\n"
                "    display({'image/png': bytes(size)}, raw=True)\n'x' * 9")

    assert ("'xxxxxxxxx'", 2) == (got.value, len(got.results))
    assert [("result 3: text/plain", "too_large")] == got.left_out


def test_the_compilers_flags_are_those_of_ast() -> None:
    assert (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, ast.PyCF_ONLY_AST, inspect.CO_COROUTINE) == (
        showing._TOP_LEVEL_AWAIT, showing._ONLY_AST, awaiting._IS_COROUTINE)
    flags = {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names} - {0, inspect.CO_NESTED}
    assert showing._FUTURES == sum(flags)


def test_the_last_expression_has_the_codes_future() -> None:
    assert "'{}'" == shown("from __future__ import annotations\nspace = {}\n"
                           "exec('def f(x: {}): pass', space) or space['f'].__annotations__['x']").value


def test_threads_that_show_at_the_same_time_keep_to_the_bounds() -> None:
    """Else the daemon would refuse all of it."""
    got = shown("""
import threading
def work():
    for _ in range(20):
        display({'image/png': bytes(200_000)}, raw=True)
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
""")

    checked = bundles.checked(got.results)
    assert bundles.MAX_TOTAL // 200_000 == len(checked)


def test_a_value_shown_after_the_end_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    made = Showing()
    made.run(b"f = display", "<job>", space := {})
    before = made.end()

    space["f"]("late")

    assert [] == before.results
    assert "late\n" == capsys.readouterr().out


def test_a_value_shown_before_an_error_is_kept() -> None:
    made = Showing()
    with pytest.raises(ZeroDivisionError):
        made.run(b"display(1)\n1 / 0", "<job>", {})

    assert [{"text/plain": "1"}] == made.end().results


@pytest.mark.parametrize(("line", "hint"), [
    ("!ls", "subprocess"), ("  !ls -l", "subprocess"), ("files = !ls", "subprocess"), ("%pip install x", "packages="),
    ("!pip install x", "packages="), ("%timeit 1", "magics"), ("x = %who", "magics"), ("x = = 1", None),
])
def test_a_line_of_ipythons_gets_a_hint(line: str, hint: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "_has_network", lambda: False)
    with pytest.raises(SyntaxError) as caught:
        shown(f"x = 1\n{line}\n")

    notes = "".join(getattr(caught.value, "__notes__", []))
    assert (hint in notes) if hint else not notes


def test_ipythons_display_without_ipython(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8")

    got = shown("from IPython.display import display, HTML, Image, JSON, Markdown\nfrom IPython import get_ipython\n"
                f"display(HTML('<p>'), Markdown('*a*'), Image(data=b'png'), Image({str(tmp_path / 'a.jpg')!r}), JSON([1]))\n"
                "get_ipython()")

    assert [{"text/html": "<p>"}, {"text/markdown": "*a*"}, {"image/png": b"png"}, {"image/jpeg": b"\xff\xd8"},
            {"application/json": "[1]"}] == [{form: each[form] for form in each if "text/plain" != form}
                                             for each in got.results]
    with pytest.raises(ValueError, match="URL"):
        shown("from IPython.display import Image\nImage(url='https://host.test')")


def test_ipythons_own_display_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed, by its module that has the function."""
    core = tmp_path / "IPython" / "core"
    core.mkdir(parents=True)
    (core.parent / "__init__.py").write_text("")
    (core / "__init__.py").write_text("")
    (core / "display_functions.py").write_text("def display(*things): raise OSError\n")
    (core.parent / "display.py").write_text("from IPython.core.display_functions import *\nMINE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    got = shown("from IPython.display import display, MINE\ndisplay(MINE)")

    assert [{"text/plain": "3"}] == got.results


@pytest.mark.parametrize("line", ["%matplotlib inline", "%matplotlib", "%matplotlib widget"])
def test_the_magic_of_matplotlib_does_nothing(line: str) -> None:
    assert "1" == shown(f"{line}\nimport inspect\ninspect.currentframe().f_lineno - 2").value


@pytest.mark.parametrize(("source", "words"), [
    ("%pip install a", ["install a"]), ("!pip3 install 'a b'  -q", ["install 'a b'  -q"]), ("  %pip list", ["list"]),
    ("%pip install a\n! pip install \"b\" \\\n%matplotlib inline", ["install a", 'install "b" \\'])])
def test_lines_for_pip_where_there_is_a_network(source: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(showing, "_has_network", lambda: True)
    monkeypatch.setattr(showing, "_pip", told.append)

    assert "7" == shown(f"if True:\n  x = 3\n{source}\nx + 4" if "  %" in source else f"x = 3\n{source}\nx + 4").value
    assert words == told


def test_other_magics_have_their_hint() -> None:
    with pytest.raises(SyntaxError) as raised:
        shown("%matplotlib inline\n%timeit 1")

    assert 2 == raised.value.lineno
    [note] = raised.value.__notes__
    assert "a line with % is IPython's, not Python: of the magics only %matplotlib and %pip are taken" == note

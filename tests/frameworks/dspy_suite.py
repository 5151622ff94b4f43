"""A code interpreter of DSPy by its contract, and dspy.RLM with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import dspy
import page
import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreter, CodeInterpreterError, FinalOutput
from dspy.utils import DummyLM

import leeward
from leeward.apps.integrations.dspy import LeewardInterpreter


@pytest.fixture
def interpreter() -> Iterator[LeewardInterpreter]:
    with LeewardInterpreter(timeout=2) as made:
        yield made


def test_values_and_state(interpreter: LeewardInterpreter) -> None:
    assert isinstance(interpreter, CodeInterpreter)
    assert "3\n" == interpreter("print(sum(given))", variables={"given": [1, 2]})
    assert None is interpreter.execute("x = 40")
    assert "42\n" == interpreter.execute("print(x + len(given))")
    assert "1000000\n" == interpreter.execute("print(len(text))", {"text": "x" * 1_000_000})


def test_tools(interpreter: LeewardInterpreter) -> None:
    here: list[int] = []

    def double(number: int) -> int:
        here.append(threading.get_ident())
        return 2 * number

    async def later(text: str) -> set[str]:
        return {text}

    interpreter.tools.update(double=double, later=later)
    assert "42 ['x']\n" == interpreter.execute("print(double(number=21), later('x'))")
    assert here
    with pytest.raises(CodeExecutionError, match="TypeError"):
        interpreter.execute("double('x', 1)")


def test_an_answer(interpreter: LeewardInterpreter) -> None:
    assert FinalOutput({"output": [1]}) == interpreter.execute("SUBMIT([1]); print('not reached')")
    interpreter.output_fields = [{"name": "answer"}, {"name": "sure"}]
    assert FinalOutput({"answer": "x", "sure": 1}) == interpreter.execute("SUBMIT('x', sure=1)")
    with pytest.raises(CodeExecutionError, match="missing 1 required"):
        interpreter.execute("SUBMIT('x')")


@pytest.mark.parametrize(("code", "kind"), [
    ("1 / 0", CodeExecutionError), ("raise SystemExit(3)", CodeExecutionError), ("while True: pass", CodeExecutionError),
    ("x = = 1", SyntaxError),
])
def test_what_is_mended_by_other_code(interpreter: LeewardInterpreter, code: str, kind: type[Exception]) -> None:
    interpreter.execute("kept = 42")
    with pytest.raises(kind):
        interpreter.execute(code)
    assert "42\n" == interpreter.execute("print(kept)")


def test_what_is_not(interpreter: LeewardInterpreter) -> None:
    with pytest.raises(CodeExecutionError):
        interpreter.execute("import os; os._exit(3)")
    for _ in range(2):
        with pytest.raises(CodeInterpreterError) as found:
            interpreter.execute("print(1)")
        assert not isinstance(found.value, CodeExecutionError)


def test_a_sandbox_that_has_ended(interpreter: LeewardInterpreter) -> None:
    interpreter.start()
    leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close()

    with pytest.raises(CodeInterpreterError):
        interpreter.execute("print(1)")


def scripted(*codes: str) -> Any:
    return DummyLM([{"reasoning": "", "code": code} for code in codes])


def test_a_recursive_language_model() -> None:
    model = scripted("x = len(context)", "SUBMIT(answer=str(x))")
    with dspy.context(lm=model):
        done = dspy.RLM("context, question -> answer", interpreter_factory=LeewardInterpreter)(
            context="x" * 300_000, question="how long?")
    assert "300000" == done.answer


def test_the_page() -> None:
    with dspy.context(lm=scripted("SUBMIT(answer='42')")):
        assert "42" == page.run("DSPy", text="x")["done"].answer

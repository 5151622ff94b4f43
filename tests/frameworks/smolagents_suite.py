"""
The tests that smolagents has for executors of any kind, from its source archive, with leeward's executor; an agent with a
scripted model; and what ends code. Run by test_frameworks.py, with an environment `smolagents` of the daemon's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import page
import PIL.Image
import pytest
from smolagents import CodeAgent, FinalAnswerTool, tool
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError

import leeward
from leeward.apps.integrations.smolagents import LeewardExecutor

sys.path.insert(0, os.environ["LEEWARD_TESTS_SOURCES"])
# Their archive lacks this module of their tests.
sys.modules["tests.utils"] = sys.modules["tests.utils.markers"] = SimpleNamespace(require_run_all=lambda cases: cases)  # type: ignore[assignment]
THEIRS = importlib.import_module("tests.test_remote_executors")
OPTIONS: dict[str, Any] = {"environment": "smolagents", "memory": "1G"}


class TestLeeward(THEIRS.CommonDockerExecutorIntegration):  # type: ignore[name-defined, misc]
    @pytest.fixture
    def custom_executor(self) -> Iterator[LeewardExecutor]:
        made = LeewardExecutor(**OPTIONS)
        yield made
        made.cleanup()


@pytest.fixture
def executor() -> Iterator[LeewardExecutor]:
    made = LeewardExecutor(**OPTIONS, timeout=2)
    yield made
    made.cleanup()


def test_values_and_variables(executor: LeewardExecutor) -> None:
    executor.send_variables({"given": [1, 2]})

    ran = executor("print('said'); sum(given) * 14")
    assert ("42", "said\n", False) == (ran.output, ran.logs, ran.is_final_answer)
    assert executor("x = 1").output is None
    assert isinstance(executor("import PIL.Image; PIL.Image.new('RGB', (2, 3))").output, PIL.Image.Image)


def test_a_large_answer_is_whole(executor: LeewardExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})

    assert "x" * 300_000 == executor("final_answer('x' * 300_000)").output


@pytest.mark.parametrize(("code", "said"), [
    ("print('before'); 1 / 0", "(?s)before.*ZeroDivisionError"),
    ("import time; print('before'); time.sleep(60)", "(?s)before.*KeyboardInterrupt"),
    ("import os; os._exit(3)", "ended|over|lost|Exit"),
])
def test_what_ends_code_is_an_error_of_the_agents(executor: LeewardExecutor, code: str, said: str) -> None:
    with pytest.raises(AgentError, match=said):
        executor(code)


def test_a_kernel_that_has_ended_is_replaced(executor: LeewardExecutor) -> None:
    for code in ("import os; os._exit(3)", "6 * 7"):
        with pytest.raises(AgentError):
            executor(code)

    assert "42" == executor("6 * 7").output


def test_a_sandbox_that_has_ended_is_an_error_of_the_agents(executor: LeewardExecutor) -> None:
    leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close()

    with pytest.raises(AgentError):
        executor("6 * 7")


def test_a_pickle_of_the_sandbox_is_not_opened(executor: LeewardExecutor) -> None:
    with pytest.raises(Exception, match="Pickle data rejected"):
        executor("class FinalAnswerException(BaseException): pass\nraise FinalAnswerException('pickle:gASVAAAA')")


class Scripted(Model):
    """A model that says these texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._texts = iter(texts)

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=next(self._texts))


@tool
def double(number: int) -> int:
    """
    Twice a number.

    Args:
        number: the number.
    """
    return 2 * number


def test_an_agent() -> None:
    model = Scripted("<code>\nx = double(20)\n</code>", "<code>\nfinal_answer(x + 2)\n</code>")
    with CodeAgent(tools=[double], model=model, executor=LeewardExecutor(**OPTIONS), verbosity_level=-1) as agent:
        assert 42 == agent.run("what is the answer?")


def test_the_page() -> None:
    model = Scripted("<code>\nfinal_answer(6 * 7)\n</code>")
    assert 42 == page.run("smolagents", model=model)["answer"]

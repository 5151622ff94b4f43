"""
A kernel in a live sandbox as a code interpreter of DSPy.

Runs in:   anybody's program; needs the extra `dspy`.

    import dspy
    from leeward.apps.integrations.dspy import LeewardInterpreter

    dspy.RLM("context, question -> answer", interpreter_factory=lambda: LeewardInterpreter(memory="1G"))

Tools run here and are called from the sandbox, which chooses their arguments: a tool has to check them.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput

from leeward.client.model_text import text_of
from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, LeewardError
from leeward.spec.outcome import Result

#: Where variables pass, and how code gives its answer: by a call, after which it ends.
_VARIABLES = "/tmp/variables.json"
_TAKE = f"import json\nwith open({_VARIABLES!r}) as _file: globals().update(json.load(_file))\n"
_SUBMITTED = "_Submitted"
_SUBMIT = f"""
class {_SUBMITTED}(BaseException):
    pass
def SUBMIT(%s):
    submit_output(locals())
    raise {_SUBMITTED}
"""
#: DSPy's own tools have names that leeward doesn't take: what stands before them, and the function of that name.
_HIDDEN = "tool"
_PASSES = f"def {{0}}(*values, **fields): return {_HIDDEN}{{0}}(*values, **fields)\n"


class LeewardInterpreter:
    """
    An interpreter with a live sandbox of its own, from its first use until `shutdown`.

    Args:
        tools: functions of this program that code in the sandbox can call.
        output_fields: the fields of `SUBMIT`, as DSPy's modules set them.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, tools: Mapping[str, Callable[..., Any]] | None = None,
                 output_fields: list[dict[str, Any]] | None = None, **options: Any) -> None:
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        self.output_fields = output_fields
        self._options: dict[str, Any] = {"held": True, **options}
        self._box: Sandbox | None = None
        self._kernel: Kernel | None = None
        self._submitted: dict[str, Any] | None = None
        self._defined: list[str] | None = None  # the parameters of SUBMIT in the kernel, and hidden tools there

    def start(self) -> None:
        """Open the sandbox, unless it is open."""
        if self._kernel is not None:
            return
        try:
            self._box = Sandbox(**self._options)
            self._kernel = self._box.kernel()
        except (LeewardError, TypeError) as error:
            self.shutdown()
            raise CodeInterpreterError(str(error)) from error

    def shutdown(self) -> None:
        """End the sandbox."""
        box, self._box, self._kernel, self._defined = self._box, None, None, None
        if box is not None:
            box.close()

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """
        Run code; variables stay.

        Returns:
            What it has printed, or FinalOutput if it has called SUBMIT.

        Raises:
            SyntaxError: it isn't Python.
            CodeExecutionError: it raised an exception, or its time was over.
            CodeInterpreterError: the sandbox has ended, or a variable isn't plain.
        """
        self.start()
        assert self._box is not None
        assert self._kernel is not None
        self._submitted = None
        functions = {_HIDDEN * name.startswith("__") + name: _here(tool) for name, tool in self.tools.items()}
        functions["submit_output"] = self._submit
        hidden = [name for name in self.tools if name.startswith("__")]
        names = [field["name"] for field in self.output_fields or ()] or ["output"]
        try:
            if [*names, *hidden] != self._defined:
                self._kernel.execute(_SUBMIT % ", ".join(names) + "".join(_PASSES.format(name) for name in hidden))
                self._defined = [*names, *hidden]
            if variables:
                self._box.files.write(_VARIABLES, json.dumps(variables, default=_plain))
                self._kernel.execute(_TAKE)
            result = self._kernel.execute(code, functions=functions)
        except (DaemonError, OSError, TypeError, ValueError) as error:
            raise CodeInterpreterError(str(error)) from error
        return self._answer(result)

    def __call__(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """As `execute`."""
        return self.execute(code, variables)

    def __enter__(self) -> LeewardInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _submit(self, fields: dict[str, Any]) -> None:
        self._submitted = fields

    def _answer(self, result: Result) -> Any:
        said = result.stdout_text + result.stderr_text
        if result.error is not None and result.error.type == _SUBMITTED and self._submitted is not None:
            return FinalOutput(self._submitted)
        if result.error is not None and result.error.type == "SyntaxError":
            raise SyntaxError(result.error.message)
        if result.error is not None:
            raise CodeExecutionError(f"{said}{result.error.type}: {result.error.message}")
        if not result.ok:
            raise CodeExecutionError(text_of(result))
        return said or None


def _here(tool: Callable[..., Any]) -> Callable[..., Any]:
    """*tool* with this thread's context, which has DSPy's settings; calls come in other threads."""
    context = contextvars.copy_context()

    def call(*values: Any, **fields: Any) -> Any:
        got = context.copy().run(tool, *values, **fields)
        if inspect.iscoroutine(got):
            got = context.copy().run(asyncio.run, got)
        return got if isinstance(got, str) else json.loads(json.dumps(got, default=_plain))
    return call


def _plain(value: Any) -> Any:
    """A model as a dict, a set as a list, anything else as text."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, (set, frozenset)) else str(value)

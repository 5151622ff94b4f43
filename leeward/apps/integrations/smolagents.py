"""
A kernel in a live sandbox as smolagents' executor of code.

Runs in:   anybody's program; needs the extra `smolagents`.

    from smolagents import CodeAgent
    from leeward.apps.integrations.smolagents import LeewardExecutor

    agent = CodeAgent(tools=[], model=model, executor=LeewardExecutor(memory="1G"))
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any

import PIL.Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from leeward.client.model_text import text_of
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, SessionOver
from leeward.spec.outcome import Result

#: The forms of pictures that a value is returned in.
_PICTURES = ("image/png", "image/jpeg")
#: An exception's text is cut after 64 KiB, and a final answer is such a text. So the kernel writes it to a file, too.
_CUT, _ANSWER = 60_000, "/tmp/final_answer"
_KEEP = f"""
def _keeping(tool):
    def final_answer(*args, **kwargs):
        try:
            return tool(*args, **kwargs)
        except BaseException as error:
            if type(error).__name__ == {RemotePythonExecutor.FINAL_ANSWER_EXCEPTION!r}:
                with open({_ANSWER!r}, "w") as file:
                    file.write(error.value)
            raise
    return final_answer
final_answer = _keeping(final_answer)
"""
#: Names of modules or distributions that aren't there.
_MISSING = """
def _missing(names):
    import importlib.metadata, importlib.util, json
    there = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
    print(json.dumps([name for name in names if name.lower() not in there and importlib.util.find_spec(name) is None]))
_missing(%r)
"""


class LeewardExecutor(RemotePythonExecutor):
    """
    An executor with a live sandbox of its own, until `cleanup`.

    Args:
        additional_imports: packages that the sandbox has, as the option `packages` of leeward.Sandbox.
        logger: smolagents' logger; a quiet one by default.
        allow_pickle: as for smolagents' other executors. What a sandbox has pickled can run code here: leave it False.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, additional_imports: Sequence[str] = (), logger: Any = None, allow_pickle: bool = False,
                 **options: Any) -> None:
        super().__init__(list(additional_imports), logger or AgentLogger(level=-1), allow_pickle)
        if additional_imports:
            options["packages"] = [*(options.get("packages") or ()), *additional_imports]
        self._defining, self._absent = False, set[str]()
        self._reaches = any(options.get(name) for name in ("egress", "allow_network", "policy"))
        self._box = Sandbox(**{"held": True, **options})
        self._kernel = self._box.kernel()
        self.installed_packages = list(additional_imports)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define the tools in the kernel."""
        self._defining = True
        try:
            super().send_tools(tools)
        finally:
            self._defining = False
        if "final_answer" in tools:
            self.run_code_raise_errors(_KEEP)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """
        Install what tools import and the sandbox lacks, by pip in the sandbox, if its options let it reach an index.
        Otherwise a tool finds out by itself: it may well do without.
        """
        found = self._kernel.execute(_MISSING % (additional_imports,))
        missing = json.loads(found.stdout_text) if found.ok else additional_imports
        if missing and self._reaches:
            super().install_packages(missing)
        else:
            self._absent |= {"PIL" if name == "pillow" else name for name in missing}
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """
        Run code in the kernel; variables stay.

        Raises:
            AgentError: with what the code has written, and why it ended: an exception, a limit, the sandbox's end. Where
                the kernel has ended, further code finds a new one.
        """
        if self._defining:
            code = re.sub(r"^import (\w+)$", self._import, code, flags=re.MULTILINE)
        try:
            result = self._kernel.execute(code)
        except SessionOver as error:
            self._renew()
            raise AgentError(f"{error}; all variables are lost", self.logger) from error
        except DaemonError as error:
            raise AgentError(str(error), self.logger) from error
        if result.error is not None and result.error.type.rpartition(".")[2] == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._answer(result.error.message), _logs(result), is_final_answer=True)
        if result.error is not None:
            raise AgentError(f"{_logs(result)}\nExecuting code yielded an error:\n{result.error.traceback}", self.logger)
        if not result.ok:
            raise AgentError(text_of(result), self.logger)
        return CodeOutput(_value(result), _logs(result), is_final_answer=False)

    def _import(self, line: re.Match[str]) -> str:
        """A tool's source begins with all that it imports anywhere, also what it can do without."""
        return f"try: {line[0]}\nexcept ImportError: pass" if line[1] in self._absent else line[0]

    def _answer(self, text: str) -> Any:
        if len(text) >= _CUT:
            text = self._box.files.read(_ANSWER).decode()
        return self._deserialize_final_answer(text, self.allow_pickle)

    def _renew(self) -> None:
        try:
            self._kernel.reset()
        except DaemonError:
            pass  # the sandbox has ended; the next call says so

    def cleanup(self) -> None:
        """End the sandbox."""
        self._box.close()


def _logs(result: Result) -> str:
    return result.stdout_text + result.stderr_text


def _value(result: Result) -> Any:
    """The value of the last expression: a picture, or its text."""
    if result.value is None:
        return None
    forms = result.results[-1] if result.results else {}
    for kind in _PICTURES:
        data = forms.get(kind)
        if isinstance(data, bytes):
            return PIL.Image.open(io.BytesIO(data))
    return result.value

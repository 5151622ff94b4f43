"""
Code in the kernel of a sandbox, and what it says as it comes: for the faces whose clients have kernels.

Holds:     when the reader goes while its code runs, the code is interrupted, and the kernel keeps its state. Code that
           waits for other code of its context is withdrawn, and interrupts nothing.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from leeward.apps.serve.calls import check_values
from leeward.apps.serve.e2b.boxes import WORKSPACE, Context, OpenBox
from leeward.apps.serve.problems import ServeProblem, missing, problem_of
from leeward.client.aio_process import AsyncKernel
from leeward.errors import DaemonError, SandboxOver, SessionOver
from leeward.spec.outcome import Outcome, Result

#: Seconds that one request's code may take: as E2B's clients' own default.
CODE_S = 300.0
#: Seconds after which what was written isn't the traceback of an error, which is told by itself: that comes with the
#: end. Whether what was shown is the value of the last expression is known by what follows alone.
_HELD_S = 1.0
#: Seconds that code has to end when it is interrupted.
_INTERRUPT_S = 5.0
#: The context of requests that name none, whose kernel is a sandbox's first; what others' names begin with.
DEFAULT, NAMED = "default", "context-"
_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CodeOutput:
    """A piece of output, and when it came, in nanoseconds since 1970."""

    stream: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class CodeShown:
    """An object that was shown, in its forms; is it the value of the last expression?"""

    forms: Mapping[str, str | bytes]
    is_value: bool = False

    def data(self) -> dict[str, Any]:
        """The forms as JSON has them: bytes in base64, and of JSON its value."""
        return {kind: _value(kind, content) for kind, content in self.forms.items()}


def _value(kind: str, content: str | bytes) -> Any:
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if kind == "application/json":
        with suppress(ValueError, RecursionError, ServeProblem):
            check_values(content.encode("utf-8", "replace"))
            value = json.loads(content)
            json.dumps(value, allow_nan=False)  # 1e999 is read as what isn't JSON
            return value
    return content


@dataclass(frozen=True, slots=True)
class CodeError:
    """The end of code that has failed; is the kernel's state lost?"""

    name: str
    value: str
    traceback: str = ""
    is_lost: bool = False


CodeSaid = CodeOutput | CodeShown | CodeError


@dataclass(frozen=True, slots=True)
class _CodeEnd:
    """That of code: whether its last expression had a value, and how it has failed."""

    has_value: bool
    error: CodeError | None


async def context_of(box: OpenBox, identity: str = DEFAULT) -> Context:
    """
    A context that is there; the default one is made when it is first asked for. One of a sandbox that an earlier server
    has opened is known by its kernel's number.
    """
    number = "1" if identity == DEFAULT else identity.removeprefix(NAMED)
    if identity in box.contexts:
        return box.contexts[identity]
    async with box.making:
        if identity not in box.contexts:
            kernel = AsyncKernel(box.box, int(number)) if _NUMBER.fullmatch(number) else None
            if kernel is None or not box.is_attached or not await _is_there(kernel):
                if identity != DEFAULT:
                    raise missing("there is no such context")
                kernel = await box.box.kernel()
            box.contexts[identity] = Context(kernel, WORKSPACE)
        return box.contexts[identity]


async def _is_there(kernel: AsyncKernel) -> bool:
    """Whether the sandbox has this kernel; one whose process has ended is begun anew."""
    try:
        await _renewed(kernel)
    except SessionOver:
        return False
    return True


async def _renewed(kernel: AsyncKernel) -> bool:
    """Whether a kernel's process had ended, and was begun anew here."""
    try:
        await kernel.execute("", display=False)
    except SessionOver:
        await kernel.reset()
        return True
    return False


async def enter(context: Context) -> None:
    """Have the kernel begin where the context does."""
    if context.cwd != WORKSPACE:
        await context.kernel.execute(f"import os; os.chdir({context.cwd!r}); del os", display=False)


async def restart(context: Context) -> None:
    await context.kernel.reset()
    await enter(context)


async def spoken(context: Context, code: str, env: Mapping[str, str]) -> AsyncGenerator[CodeSaid, None]:
    """Run code, and tell what it says; CodeError is the last, if it has failed."""
    queue: asyncio.Queue[CodeOutput | CodeShown | _CodeEnd | None] = asyncio.Queue()
    task = asyncio.ensure_future(_run(context, code, env, queue))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    held: CodeOutput | CodeShown | None = None
    try:
        while True:
            try:
                async with asyncio.timeout(_HELD_S if isinstance(held, CodeOutput) else None):
                    item = await queue.get()
            except TimeoutError:
                if held:
                    yield held
                held = None
                continue
            if isinstance(item, CodeOutput | CodeShown):
                if held:
                    yield held
                held = item if isinstance(item, CodeShown) or item.stream == "stderr" else None
                if held is None:
                    yield item
                continue
            if item is None:
                await task  # raises: no descriptor was left, say
                return
            if isinstance(held, CodeShown):
                yield replace(held, is_value=item.has_value)
            elif held:
                text = held.text.removesuffix(item.error.traceback if item.error else "")
                if text:
                    yield replace(held, text=text)
            if item.error is not None:
                yield item.error
            return
    finally:
        if not task.done():
            await asyncio.shield(_stop(context, task))


async def _stop(context: Context, task: asyncio.Task[None]) -> None:
    """Interrupt code for which nobody waits any more; one that doesn't end loses its kernel's state."""
    try:
        if context.runs is task:
            await context.kernel.interrupt()
            await asyncio.wait({task}, timeout=_INTERRUPT_S)
            if not task.done():
                await context.kernel.reset()
                await asyncio.wait({task}, timeout=_INTERRUPT_S)  # it has the new process begin where the context does
    except DaemonError:
        pass  # the sandbox has ended
    task.cancel()
    await asyncio.wait({task})


async def _run(context: Context, code: str, env: Mapping[str, str], queue: asyncio.Queue[Any]) -> None:
    def said(stream: str) -> Callable[[bytes], None]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character
        ends.append(lambda: put(decoder.decode(b"", True)))

        def put(text: str) -> None:
            if text:
                queue.put_nowait(CodeOutput(stream, text, time.time_ns()))

        return lambda data: put(decoder.decode(data))

    ends: list[Callable[[], None]] = []
    losses = context.losses
    async with context.turn:
        context.runs = asyncio.current_task()
        try:
            if losses == context.losses:
                end, is_lost = await _ended(context, code, env=env, on_stdout=said("stdout"), on_stderr=said("stderr"),
                                            on_result=lambda forms: queue.put_nowait(CodeShown(forms)))
                context.losses += is_lost and not isinstance(end, SandboxOver)
            else:
                end, is_lost = SessionOver("the state was lost before the code's turn came"), True
        finally:
            context.runs = None
    for finish in ends:
        finish()
    failed = _error_of(end)
    queue.put_nowait(_CodeEnd(isinstance(end, Result) and end.value is not None, failed and replace(failed, is_lost=is_lost)))


async def _ended(context: Context, code: str, **options: Any) -> tuple[Result | DaemonError, bool]:
    """How code in a context ends, and whether the state is lost; then there is a new one."""
    end: Result | DaemonError
    try:
        end = await context.kernel.execute(code, timeout=CODE_S, **options)
    except DaemonError as error:
        end = error
    is_lost = isinstance(end, SessionOver | SandboxOver)
    if isinstance(end, SessionOver) or (isinstance(end, Result) and end.outcome not in (Outcome.FINISHED, Outcome.RAISED)):
        try:
            is_lost |= await _renewed(context.kernel)  # a limit ends the kernel, too, unless it could interrupt the code
            if is_lost:
                await enter(context)
        except DaemonError as error:
            end = error
    return end, is_lost


def _error_of(end: Result | DaemonError) -> CodeError | None:
    """How code has failed; None if it hasn't."""
    if isinstance(end, SandboxOver):
        return CodeError("SandboxOver", "the sandbox has ended")
    if isinstance(end, SessionOver):
        return CodeError("KernelEnded",
                         "the kernel had ended, and its state is lost; a new one is there for the next request")
    if isinstance(end, DaemonError):
        return CodeError(type(end).__name__, problem_of(end).message)
    if end.error is not None and end.outcome is Outcome.RAISED:
        return CodeError(end.error.type, end.error.message, end.error.traceback)
    if end.outcome is Outcome.FINISHED and not end.exit_code:
        return None
    if end.outcome is Outcome.FINISHED:
        return CodeError("SystemExit", str(end.exit_code))
    return CodeError(str(end.outcome), end.hint or "the code was ended")

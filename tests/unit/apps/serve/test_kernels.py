"""Code in a kernel, and what it says, in order and once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from leeward.errors import Busy, SandboxOver, SessionOver
from leeward.spec.outcome import JobError, Outcome, Result

pytestmark = pytest.mark.needs("extra-serve")

DONE = Result(b"", b"", 0, Outcome.FINISHED)
FAILED = replace(DONE, outcome=Outcome.RAISED, error=JobError("ValueError", "x", "Traceback: x\n"))


class PlayedKernel:
    """Says what it is told to; *ends* are those of its requests, one after the other."""

    number = 1

    def __init__(self, says, *ends):
        self.says, self.ends, self.resets, self.codes = says, [*ends], 0, []
        self.asked = asyncio.Event()
        self.interrupted = asyncio.Event()

    async def execute(self, code, on_stdout=None, on_stderr=None, on_result=None, **_options):
        self.asked.set()
        self.codes.append(code)
        takers = {"stdout": on_stdout, "stderr": on_stderr, "shown": on_result}
        for kind, what in self.says if on_stdout else ():
            takers[kind](what)
        end = self.ends.pop(0)
        if end is None:
            await self.interrupted.wait()
            return DONE
        if isinstance(end, Exception):
            await asyncio.sleep(0)
            raise end
        return end

    async def interrupt(self):
        self.interrupted.set()

    async def reset(self):
        self.resets += 1


def in_context(kernel, cwd="/workspace"):
    from leeward.apps.serve.e2b.boxes import Context

    return Context(kernel, cwd)


async def all_of(kernel, code="", context=None):
    from leeward.apps.serve.kernels import CodeOutput, spoken

    async with aclosing(spoken(context or in_context(kernel), code, {})) as said:
        return [(each.stream, each.text) if isinstance(each, CodeOutput) else each async for each in said]


def test_what_is_shown_last_is_the_value_if_there_is_one():
    from leeward.apps.serve.kernels import CodeShown

    says = [("shown", {"text/plain": "1"}), ("shown", {"text/plain": "2"})]
    for end, is_value in ((replace(DONE, value="2"), True), (DONE, False)):
        found = asyncio.run(all_of(PlayedKernel(says, end)))
        assert [CodeShown({"text/plain": "1"}), CodeShown({"text/plain": "2"}, is_value)] == found


def test_a_traceback_is_told_once():
    from leeward.apps.serve.kernels import CodeError

    found = asyncio.run(all_of(PlayedKernel([("stderr", b"own\nTraceback: x\n")], FAILED)))

    assert [("stderr", "own\n"), CodeError("ValueError", "x", "Traceback: x\n")] == found


def test_a_character_in_two_pieces_is_one():
    found = asyncio.run(all_of(PlayedKernel([("stdout", b"a\xc3"), ("stdout", b"\xa9"), ("stdout", b"\xe2\x82")], DONE)))

    assert [("stdout", "a"), ("stdout", "é"), ("stdout", "\ufffd")] == found


@pytest.mark.parametrize(("next_end", "resets"), [(DONE, 0), (SessionOver("over"), 1)])
def test_a_kernel_that_was_begun_anew_meanwhile_keeps_its_new_state(next_end, resets):
    kernel = PlayedKernel([], SessionOver("over"), next_end)

    found = asyncio.run(all_of(kernel))

    assert (["KernelEnded"], resets) == ([each.name for each in found], kernel.resets)


@pytest.mark.parametrize(("ends", "said"), [
    ((SandboxOver("over"),), ("SandboxOver", True)), ((Busy("64 wait"),), ("Busy", False)),
    ((replace(DONE, outcome=Outcome.TIMED_OUT), DONE), ("timed_out", False)),
    ((replace(DONE, outcome=Outcome.OUT_OF_MEMORY), SessionOver("over")), ("out_of_memory", True)),
    ((replace(DONE, exit_code=3),), ("SystemExit", False))])
def test_an_end_says_whether_the_state_is_lost(ends, said):
    """A limit that could interrupt the code keeps it."""
    assert [said] == [(each.name, each.is_lost) for each in asyncio.run(all_of(PlayedKernel([], *ends)))]


def test_forms_are_json():
    from leeward.apps.serve.kernels import CodeShown

    forms = {"image/png": b"\x89", "application/json": '{"a": 1}', "text/plain": "x"}

    assert {"image/png": "iQ==", "application/json": {"a": 1}, "text/plain": "x"} == CodeShown(forms).data()
    # Many values take time and memory beyond their bytes: a result of 4 MiB would keep the loop for most of a second.
    for text in ("[" * 9999, "NaN", "[1e999]", f"[{'[],' * 60_000}1]"):
        assert {"application/json": text} == CodeShown({"application/json": text}).data()


def test_code_is_interrupted_when_its_reader_goes():
    async def test():
        kernel = PlayedKernel([], None)
        task = asyncio.ensure_future(all_of(kernel))
        await kernel.asked.wait()
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled(), kernel.interrupted.is_set(), kernel.resets

    assert (True, True, 0) == asyncio.run(test())


def test_code_that_waits_is_withdrawn_and_interrupts_nobody():
    async def test():
        kernel = PlayedKernel([], None, None)
        context = in_context(kernel)
        first, second = (asyncio.ensure_future(all_of(kernel, code, context)) for code in "ab")
        await kernel.asked.wait()
        second.cancel()
        await asyncio.wait({second})
        untouched = not first.done() and not kernel.interrupted.is_set()
        kernel.interrupted.set()
        return untouched, await first, kernel.codes

    assert (True, [], ["a"]) == asyncio.run(test())


def test_code_that_waits_is_not_run_in_another_state():
    """As a kernel of the daemon's refuses what waits when its process is lost."""
    async def test():
        kernel = PlayedKernel([], SessionOver("over"), DONE, DONE)
        context = in_context(kernel)
        found = await asyncio.gather(*(all_of(kernel, code, context) for code in "ab"))
        return [each.name for said in found for each in said], [*kernel.codes], await all_of(kernel, "c", context)

    assert (["KernelEnded"] * 2, ["a", ""], []) == asyncio.run(test())


def test_what_is_no_refusal_of_the_daemons_ends_the_wait_too():
    """Where the server has no descriptor left, say."""
    async def test():
        async with asyncio.timeout(10):
            await all_of(PlayedKernel([], OSError(24, "no descriptor")))

    with pytest.raises(OSError, match="no descriptor") as failed:
        asyncio.run(test())
    assert not isinstance(failed.value, TimeoutError)


def test_a_kernel_that_does_not_heed_an_interrupt_begins_anew_where_its_context_does(monkeypatch):
    from leeward.apps.serve import kernels

    class Deaf(PlayedKernel):
        async def interrupt(self):
            pass

        async def reset(self):
            self.resets += 1
            self.interrupted.set()

        async def execute(self, code, **options):
            found = await super().execute(code, **options)
            if "deaf" == code:
                raise SessionOver("reset")
            return found

    async def test():
        kernel = Deaf([], None, DONE, DONE)
        task = asyncio.ensure_future(all_of(kernel, "deaf", in_context(kernel, "/tmp/x")))
        await kernel.asked.wait()
        task.cancel()
        await asyncio.wait({task})
        return kernel.resets, kernel.codes

    monkeypatch.setattr(kernels, "_INTERRUPT_S", 0.5)
    assert (1, ["deaf", "", "import os; os.chdir('/tmp/x'); del os"]) == asyncio.run(test())

"""Requests of Jupyter's clients, and one socket's messages with a kernel that is played."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant, TenantQuota
from leeward.errors import SandboxOver
from unit.apps.serve.test_kernels import DONE, FAILED, PlayedKernel

pytestmark = pytest.mark.needs("extra-serve")


def message(kind="execute_request", channel="shell", **content):
    head = {"msg_type": kind, "msg_id": f"of {kind}"}
    return json.dumps({"header": head, "channel": channel, "content": content})


def run(kernel, *messages, quota=None):
    """What a client is sent, up to the last answer: channel, kind, content, and the head of its request."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b.boxes import WORKSPACE, Context
    from leeward.apps.serve.jupyter_face import KernelSocket
    from leeward.apps.serve.sockets import ClientGone

    said, left, over = [], [*messages], asyncio.Event()
    waits = sum("interrupt_request" not in each for each in messages)

    async def sent(event):
        said.append(json.loads(event["text"]))
        if sum({"execution_state": "idle"} == each["content"] for each in said) == waits:
            over.set()

    async def next_message():
        if left:
            return left.pop(0)
        await over.wait()
        raise ClientGone

    async def test():
        tenant = ServeTenant("t", "t", quota=quota or TenantQuota())
        call = SimpleNamespace(tenant=tenant, use=Use(), send=sent, message=next_message)
        door = SimpleNamespace(check_jobs=lambda _: None)
        with pytest.raises(ClientGone):
            await KernelSocket(door, call, None, Context(kernel, WORKSPACE)).run()
        assert (0, 0) == (call.use.held, call.use.jobs)

    asyncio.run(test())
    return [(each["channel"], each["msg_type"], each["content"], each["parent_header"]) for each in said]


@pytest.mark.parametrize("text", [b"{}", "[]", "{", '{"header": 1}', '{"content": []}',
                                  '{"header": {"msg_id": "%s"}}' % ("x" * 257), '{"channel": 1}',
                                  '{"content": {"code": []}}', '{"content": {"cursor_pos": "1"}}',
                                  '{"content": {"silent": 1}}', '{"content": {"restart": {}}}',
                                  '{"content": [%s]}' % ("1," * 60_000 + "1")])
def test_what_is_no_request_is_refused(text):
    from leeward.apps.serve.jupyter_face import asked_of

    with pytest.raises(ServeProblem):
        asked_of(text)


def test_answers_repeat_a_few_short_texts_of_a_head():
    """Each line of output has it: a long one would be sent a thousand times."""
    from leeward.apps.serve.jupyter_face import HEAD, asked_of

    asked = asked_of(json.dumps({"channel": "/etc", "header": {**dict.fromkeys((*HEAD, "more"), "x"), "date": 1.5}}))

    assert ("shell", {*HEAD} - {"date"}) == (asked.channel, set(asked.head))


def test_what_waits_takes_no_more_memory_than_its_bytes():
    """Else 1024 of a socket, of which few bytes count, would take gigabytes."""
    from leeward.apps.serve.jupyter_face import asked_of

    text = json.dumps({"content": {"code": "x", "user_expressions": [{}] * 20_000}})
    tracemalloc.start()
    try:
        kept = asked_of(text)
        assert tracemalloc.get_traced_memory()[0] < kept.size
    finally:
        tracemalloc.stop()
    assert ("x", len(text)) == (kept.code, kept.size)


def test_ids_are_of_five_words():
    from leeward.apps.serve.jupyter_face import kernel_of

    for sandbox in ("abcdefghijklmnopqrstuvwx23", "abcdefghijklmnopqrstuvwx2345672345"):
        assert re.fullmatch(r"\w+-\w+-\w+-\w+-\w+", kernel_of(sandbox))
        assert sandbox == kernel_of(sandbox).replace("-", "")


def test_code_is_answered_in_order():
    kernel = PlayedKernel([("stdout", b"hi\n"), ("shown", {"text/plain": "4"})], DONE)

    found = run(kernel, message(code="x"))

    assert [("iopub", "status"), ("iopub", "execute_input"), ("iopub", "stream"), ("iopub", "display_data"),
            ("shell", "execute_reply"), ("iopub", "status")] == [each[:2] for each in found]
    assert {"of execute_request"} == {parent["msg_id"] for *_, parent in found}


def test_what_waits_behind_an_error_is_aborted():
    failing = PlayedKernel([], FAILED, DONE)
    found = run(failing, message(code="1/0"), message(code="2"), message("history_request"))

    replies = [content["status"] for channel, _, content, _ in found if channel == "shell"]
    assert ["error", "aborted", "ok"] == replies
    assert [DONE] == failing.ends

    going_on = PlayedKernel([], FAILED, DONE)
    run(going_on, message(code="1/0", stop_on_error=False), message(code="2"))
    assert [] == going_on.ends


@pytest.mark.parametrize(("end", "states"), [
    (FAILED, ["busy", "idle"]), (SandboxOver("over"), ["busy", "dead", "idle"])])
def test_the_end_of_the_sandbox_is_a_dead_kernel(end, states):
    found = run(PlayedKernel([], end), message(code="x"))

    assert states == [content["execution_state"] for _, kind, content, _ in found if "status" == kind]


@pytest.mark.parametrize(("kind", "key"), [
    ("kernel_info_request", "language_info"), ("complete_request", "matches"), ("inspect_request", "found"),
    ("history_request", "history"), ("is_complete_request", "status"), ("comm_info_request", "comms")])
def test_each_kind_has_its_answer(kind, key):
    kernel = PlayedKernel([("stdout", b'{"matches": ["zip(", 1]}')], DONE)

    found = run(kernel, message(kind, "control", code="zi", cursor_pos=2), message("unheard_of"))

    assert ("control", kind.replace("request", "reply")) == found[1][:2]
    assert key in found[1][2]
    assert 5 == len(found)
    assert ["zip"] == found[1][2].get("matches", ["zip"])


def test_a_long_word_takes_no_time():
    code = "a" * (1 << 20) + "!"

    for at in (1 << 20, (1 << 20) + 1, 1 << 60, -1):
        assert 3 == len(run(PlayedKernel([], DONE), message("complete_request", code=code, cursor_pos=at)))


def test_an_interrupt_passes_code_that_runs():
    kernel = PlayedKernel([], None)

    found = run(kernel, message(code="x"), message("interrupt_request", "control"), message("history_request"))

    assert ("control", "interrupt_reply") in [each[:2] for each in found]
    assert kernel.interrupted.is_set()


def test_what_waits_for_its_pace_counts_too(monkeypatch):
    """Else each of a tenant's sockets would have one large message more."""
    from leeward.apps.serve import jupyter_face

    held = []

    async def in_pace(use, _tenant):
        held.append(use.held)

    monkeypatch.setattr(jupyter_face, "in_pace", in_pace)
    asked = message("history_request", code="\u00e9" * 10)
    run(PlayedKernel([]), asked)

    assert [len(asked.encode())] == held


def test_what_waits_counts_as_bodies_do():
    from leeward.apps.serve.calls import BODIES

    with pytest.raises(ServeProblem) as refused:
        run(PlayedKernel([], None), *[message(code="x" * 1000)] * (BODIES + 2), quota=TenantQuota(body=1000))
    assert 429 == refused.value.status

"""Calls about the files and processes of one sandbox."""

from __future__ import annotations

import asyncio
import gzip
import struct
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import ServeProblem, missing
from leeward.apps.serve.tokens import ServeTenant, TenantQuota
from leeward.errors import DaemonError

pytestmark = pytest.mark.needs("extra-serve")


@pytest.mark.parametrize("kept", [True, False])
def test_a_call_whose_connection_was_closed_since_the_sandbox_ended_is_told_that(kept):
    from leeward.apps.serve.calls import ServeCall, Use
    from leeward.apps.serve.e2b.envd import GONE, EnvdFace

    box, one = SimpleNamespace(id="a" * 26), ServeTenant("one", "1")

    async def find(tenant, identity):
        assert (one, box.id) == (tenant, identity)
        raise missing("The sandbox was not found")

    async def handler(call, box):
        raise DaemonError("closed")

    face = EnvdFace(None, SimpleNamespace(has=lambda _: kept, find=find))
    call = ServeCall(SimpleNamespace(state=SimpleNamespace(box=box)), one, Use())
    with pytest.raises(DaemonError if kept else ServeProblem) as raised:
        asyncio.run(face.in_box(handler)(call))
    assert kept or (502, GONE) == (raised.value.status, raised.value.message)


@pytest.mark.parametrize(("user", "found"), [("", "b" * 26), ("u", None), ("x:read:", None)])
def test_a_link_to_a_file_is_for_its_path_alone(user, found):
    """Whoever names a file `a:write:x` gets no link to write `a` when its reader is given one."""
    from leeward.apps.serve.e2b.envd import EnvdFace, signature

    async def ids():
        return ["a" * 26, "b" * 26]

    async def of_box(request, identity, tenant):
        return identity

    tokens = SimpleNamespace(fresh=lambda: None, derived=lambda purpose, identity: f"{purpose}-{identity}")
    face = EnvdFace(SimpleNamespace(tokens=tokens), SimpleNamespace(ids=ids))
    face.of_box = of_box
    signed = signature("a:write:x", "read", "", f"envd-{'b' * 26}", "")
    path, method = ("a", "POST") if user else ("a:write:x", "GET")
    request = SimpleNamespace(query_params={"path": path, "signature": signed, "username": user}, method=method, headers={})
    if found is None:
        with pytest.raises(ServeProblem, match="token"):
            asyncio.run(face.knows_file(request))
    else:
        assert found == asyncio.run(face.knows_file(request))


def called(body, most):
    """A call with these pieces as its body."""
    from leeward.apps.serve.calls import ServeCall, Use

    left = [*body]

    async def receive():
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return ServeCall(SimpleNamespace(headers={}, receive=receive), ServeTenant("one", "1", TenantQuota(body=most)), Use())


def test_what_is_unpacked_counts_for_its_tenant():
    """Else small bodies would fill the disk, many at the same time."""
    from leeward.apps.serve.e2b.envd import _unpacked

    async def run(call):
        return sum([len(piece) async for piece in _unpacked(call, call.pieces(1 << 20), 1 << 20)])

    for quota, refused in ((20_000, False), (9_000, True)):
        call = called([gzip.compress(bytes(40_000))], quota)
        if refused:
            with pytest.raises(ServeProblem, match="too much"):
                asyncio.run(run(call))
        else:
            assert 40_000 == asyncio.run(run(call))


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "x"}, {"Content-Type": "multipart/form-data; boundary=a"}])
def test_what_is_no_form_is_refused(headers):
    from starlette.datastructures import Headers

    from leeward.apps.serve.e2b.envd import form_of

    call = called([b"--b\r\n"], 2000)
    call.request.headers = Headers(headers)
    with pytest.raises(ServeProblem, match="form"):
        asyncio.run(form_of(call, call.pieces(2000), 2))


def test_what_has_come_of_a_message_counts_for_its_tenant():
    """Until it is whole: many streams of input may have one each that isn't."""
    from leeward.apps.serve.e2b.connect_rpc import _messages, frame

    whole = frame(b'{"keepalive": {}}')
    call = called([whole * 100, whole[:9]], 2000)

    async def run(call):
        return len([each async for each in _messages(call, "process.StreamInputRequest", True)])

    assert (100, 9) == (asyncio.run(run(call)), call.use.held)
    with pytest.raises(ServeProblem, match="too much"):
        asyncio.run(run(called([struct.pack(">BI", 0, 8 << 20), bytes(9000)], 2000)))


def test_a_tenants_many_folders_are_looked_at_less_often(monkeypatch):
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b import filesystem

    use, looks = Use(), []

    async def ask(op, fields):
        looks.append(asyncio.get_running_loop().time())
        return {}

    async def run(count):
        looks.clear()
        box = SimpleNamespace(box=SimpleNamespace(ask=ask))
        watchers = [filesystem.Watcher(box, use, "/", False) for _ in range(count)]
        for each in watchers:
            await each.begin()
        while len(looks) < 3 * count:
            await asyncio.sleep(0.001)
        for each in watchers:
            each.close()
            each.close()
        return (looks[-1] - looks[0]) / 2

    monkeypatch.setattr(filesystem.file_calls, "answer_of", lambda *_: {"rows": []})
    monkeypatch.setattr(filesystem, "LOOKS_S", 0.01)
    monkeypatch.setattr(filesystem, "RESTS", 0)
    assert asyncio.run(run(1)) < 0.1
    assert asyncio.run(run(20 * filesystem.OFTEN)) > 0.19
    assert 0 == use.watchers

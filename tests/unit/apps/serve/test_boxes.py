"""What the server keeps of sandboxes."""

from __future__ import annotations

import asyncio

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant, TenantQuota

pytestmark = pytest.mark.needs("extra-serve")

ONE, OTHER, ENDED = "a" * 26, "b" * 26, "c" * 26


@pytest.fixture
def boxes(monkeypatch, tmp_path):
    """The sandboxes of a daemon that lists ONE, of tenant 1, and OTHER, of tenant 2. ENDED has ended."""
    from leeward.apps.serve import nodes
    from leeward.apps.serve.door import Door, DoorOptions
    from leeward.apps.serve.e2b import boxes
    from leeward.apps.serve.tokens import TokenFile
    from leeward.errors import SandboxOver

    rows = {ONE: {"serve.tenant": "1", "own.a": "b"}, OTHER: {"serve.tenant": "2"}, "d" * 26: {}}

    class Box:
        detached, homes, socket = False, 0, ""

        def __init__(self, identity="", metadata=None, **_):
            self.identity = identity or f"{len(rows):a>26}".translate(dict(zip(b"0123456789", "qrstuvwxyz", strict=True)))
            rows.setdefault(self.identity, metadata)
            self.files = self

        async def id(self):
            return self.identity

        async def exists(self, path):
            Box.homes += 1
            return True

        @classmethod
        async def attach(cls, identity, **_):
            if identity not in rows:
                raise SandboxOver("gone")
            return cls(identity)

        @staticmethod
        async def list(**_):
            boxes.lists += 1
            found = [{"sandbox": identity, "metadata": metadata} for identity, metadata in rows.items()]
            await boxes.answer()
            return found

        async def info(self):
            if self.identity not in rows:
                raise SandboxOver("gone", "idle")
            return {"metadata": rows[self.identity]}

        async def detach(self):
            self.detached = True

        async def kill(self):
            del rows[self.identity]

    async def at_once():
        pass

    monkeypatch.setattr(nodes, "AsyncSandbox", Box)
    monkeypatch.setattr(boxes, "lists", 0, raising=False)
    monkeypatch.setattr(boxes, "answer", at_once, raising=False)
    return boxes.Boxes(Door(TokenFile(str(tmp_path / "tokens")), DoorOptions())), rows


def found(boxes, tenant, identity):
    """The metadata of a sandbox that a tenant looks for, or the status of the refusal."""
    try:
        box = asyncio.run(boxes.find(None if tenant is None else ServeTenant("x", tenant), identity))
    except ServeProblem as problem:
        return problem.status
    return box.metadata


def test_each_look_up_compares_the_tenant(boxes):
    """Also the second one, which asks the daemon nothing."""
    for _ in range(2):
        assert {"a": "b"} == found(boxes[0], "1", ONE)
        assert 404 == found(boxes[0], "2", ONE)
        assert 404 == found(boxes[0], "", ONE)


@pytest.mark.parametrize("identity", [ENDED, "", "a" * 25, "A" * 26, "a" * 25 + "1", "../" + "a" * 23, "a" * 26 + "\n"])
def test_what_is_no_sandbox_is_unknown(boxes, identity):
    assert 404 == found(boxes[0], None, identity)


def test_a_sandbox_that_no_tenant_has_opened_is_nobodys(boxes):
    assert 404 == found(boxes[0], None, "d" * 26)


def test_a_tenant_sees_its_own_rows(boxes):
    assert [ONE] == [row["sandbox"] for row in asyncio.run(boxes[0].rows(ServeTenant("x", "1")))]


def test_what_has_ended_is_forgotten(boxes):
    """Whatever was kept for it."""
    from leeward.apps.serve.e2b.boxes import Context

    async def run():
        box = await boxes[0].find(None, ONE)
        box.contexts["x"] = Context(None, "/")
        del boxes[1][ONE]
        await boxes[0].ids()
        await asyncio.sleep(0)
        return box.box.detached, list(boxes[0]._kept)

    assert (True, []) == asyncio.run(run())


async def opened(boxes, tenant, use, **options):
    """The id of a new sandbox, or the status of the refusal."""
    try:
        return (await boxes.open(tenant, use, "base", {}, "", profile="workdir", **options)).id
    except ServeProblem as problem:
        return problem.status


def test_the_daemon_is_asked_what_there_is_only_where_it_matters(boxes):
    """Each look at all sandboxes takes the daemon longer the more there are."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b import boxes as module

    tenant, use = ServeTenant("x", "1", TenantQuota(sandboxes=9)), Use()  # ONE is its first

    async def run():
        found = [await opened(boxes[0], tenant, use) for _ in range(3)]
        few = module.lists
        found += [await opened(boxes[0], tenant, use) for _ in range(6)]
        assert found[8:] == [429]
        del boxes[1][found[0]]  # it has ended by itself
        return few, module.lists, await opened(boxes[0], tenant, use), use.opening

    few, most, again, left = asyncio.run(run())
    assert (1, True, True, 0) == (few, most >= 6, isinstance(again, str), left)


def test_servers_that_open_at_the_same_time_have_no_more_than_the_quota_together(monkeypatch, boxes):
    from leeward.apps.serve import nodes
    from leeward.apps.serve.calls import Use

    tenant, use, (made, rows) = ServeTenant("x", "1", TenantQuota(sandboxes=4)), Use(), boxes
    made._door.tokens.servers = 2
    identity = nodes.AsyncSandbox.id

    async def beside(self):
        rows.update({each: {"serve.tenant": "1"} for each in "efg"})  # another server's
        return await identity(self)

    async def run():
        found = [await opened(made, tenant, use)]
        monkeypatch.setattr(nodes.AsyncSandbox, "id", beside)
        return [*found, await opened(made, tenant, use), sum(each.get("serve.tenant") == "1" for each in rows.values())]

    first, refused, count = asyncio.run(run())
    assert (26, 429, 5, 0) == (len(first), refused, count, use.opening)  # ONE, the first, and the other server's


def test_what_is_opened_while_the_daemon_lists_counts(monkeypatch, boxes):
    """Who opens the next one waits for a list that was asked for later."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b import boxes as module

    tenant, use = ServeTenant("x", "1", TenantQuota(sandboxes=2)), Use()

    async def run():
        asked, goes_on = asyncio.Event(), asyncio.Event()

        async def later():
            if not asked.is_set():
                asked.set()
                await goes_on.wait()

        monkeypatch.setattr(module, "answer", later)
        first = asyncio.ensure_future(boxes[0].ids())  # lists ONE, and tells it late
        await asked.wait()
        made = asyncio.ensure_future(opened(boxes[0], tenant, use))
        others = [asyncio.ensure_future(boxes[0].rows(tenant)) for _ in range(20)]
        await asyncio.sleep(0)
        goes_on.set()
        await first
        await asyncio.gather(*others)
        assert 2 == module.lists
        return await made, await opened(boxes[0], tenant, use)

    made, refused = asyncio.run(run())
    assert (True, 429) == (isinstance(made, str), refused)


def test_a_profiles_home_is_looked_for_in_a_sandbox_that_nobody_has_used(boxes):
    from leeward.apps.serve.calls import Use

    async def run():
        tenant, use = ServeTenant("x", "1"), Use()
        made = [await boxes[0].open(tenant, use, "base", {}, "", profile=each) for each in ("workdir", "workdir", "other")]
        looked = type(made[0].box).homes
        return looked, [await box.path("a") for box in made], type(made[0].box).homes

    assert (2, ["/home/user/a"] * 3, 2) == asyncio.run(run())


class Kernel:
    """One that has a snapshot, while which is taken *meanwhile* is called."""

    def __init__(self, number, meanwhile=lambda: None):
        self.number, self.meanwhile, self.is_closed = number, meanwhile, False

    async def snapshot(self):
        self.meanwhile()
        return self

    async def close(self):
        self.is_closed = True

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


@pytest.fixture
def copied(monkeypatch, boxes):
    """Makes a sandbox, with what a test says of it, and a copy of it."""
    from leeward.apps.serve import nodes
    from leeward.apps.serve.calls import Use

    async def kernel(self, **_):
        self.kernels = getattr(self, "kernels", 0) + 1
        return Kernel(self.kernels)

    async def copy_files(self, source):
        pass

    monkeypatch.setattr(nodes.AsyncSandbox, "kernel", kernel, raising=False)
    monkeypatch.setattr(nodes.AsyncSandbox, "copy_files", copy_files, raising=False)
    tenant, use = ServeTenant("x", "1", TenantQuota(sandboxes=9)), Use()

    async def make(prepare, key="", **options):
        source = await boxes[0].open(tenant, use, "base", {}, "", profile="workdir", **options)
        prepare(source)
        return source, [await boxes[0].copy(tenant, use, source, {}, 5.0, key=key) for _ in range(2)]

    return make


def test_contexts_may_come_and_go_while_a_sandbox_is_copied(copied):
    """And the copy's have nobody who runs code in them."""
    from leeward.apps.serve.e2b.boxes import Context

    def prepare(source):
        def comes():
            source.contexts["context-9"] = Context(Kernel(9), "/")

        source.contexts["default"] = busy = Context(Kernel(1, comes), "/a", 3, 4.0)
        busy.running = busy.sockets = 1

    _, (made, _) = asyncio.run(copied(prepare))
    assert ["default"] == list(made.contexts)
    found = made.contexts["default"]
    assert ("/a", 3, 4.0, 0, 0) == (found.cwd, found.count, found.used, found.running, found.sockets)


def test_a_new_context_of_a_copy_takes_no_others_name(copied):
    """The copy's kernels are numbered anew, and its contexts have the names of their source's."""
    from leeward.apps.serve.e2b import code
    from leeward.apps.serve.e2b.boxes import Context

    class Call:
        async def fields(self):
            return {"cwd": "/workspace"}

    def prepare(source):
        source.contexts |= {"default": Context(Kernel(1), "/a"), "context-3": Context(Kernel(3), "/b")}

    async def run():
        _, (made, _) = await copied(prepare)
        await code.CodeFace(None, None).create(Call(), made)
        return made.contexts

    assert ["/a", "/b", "/workspace"] == [each.cwd for each in asyncio.run(run()).values()]


def test_a_copy_sleeps_when_its_time_is_over_as_its_source_does(copied):
    """It ends no earlier: its time is said again by requests about what it may be unused."""
    async def run():
        return [(await copied(lambda source: None, sleeps=sleeps))[1][0].options for sleeps in (True, False)]

    assert [(None, 5.0), (5.0, 5.0)] == [(each["lifetime"], each["idle"]) for each in asyncio.run(run())]


def test_a_copy_that_is_asked_for_again_by_its_key_is_the_same(copied):
    async def run():
        return [len({each.id for each in (await copied(lambda source: None, key))[1]}) for key in ("key", "")]

    assert [1, 2] == asyncio.run(run())


def test_what_may_have_been_opened_unseen_is_asked_for(boxes):
    """As by a connection that has ended before the answer."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b import boxes as module

    tenant, use = ServeTenant("x", "1", TenantQuota(sandboxes=9)), Use()

    async def run():
        await boxes[0].ids()
        boxes[1].update({f"{number:u>26}".replace("0", "x"): {"serve.tenant": "1"} for number in "234567ab"})
        boxes[0].doubt()
        refused, lists = await opened(boxes[0], tenant, use), module.lists
        return refused, lists, await opened(boxes[0], ServeTenant("y", "2"), Use()), module.lists

    refused, lists, made, same = asyncio.run(run())
    assert (429, 26, lists) == (refused, len(made), same)


def test_callers_without_a_token_wait_for_one_list(monkeypatch, boxes):
    """However many come at once."""
    from leeward.apps.serve.e2b import boxes as module

    async def later():
        await asyncio.sleep(0)

    monkeypatch.setattr(module, "answer", later)

    async def run():
        return await asyncio.gather(*(boxes[0].ids() for _ in range(50))), module.lists

    found, lists = asyncio.run(run())
    assert ([[ONE, OTHER]] * 50, 1) == (found, lists)


def test_a_connection_to_a_sandbox_that_cannot_be_looked_at_is_closed(monkeypatch, boxes):
    from leeward.errors import DaemonAway

    made = []

    async def run():
        attach = boxes[0]._door.nodes.attach

        async def attached(identity):
            made.append(await attach(identity))
            made[0].info = away
            return made[0]

        monkeypatch.setattr(boxes[0]._door.nodes, "attach", attached)
        with pytest.raises(DaemonAway):
            await boxes[0].find(None, ONE)

    async def away():
        raise DaemonAway("away")

    asyncio.run(run())
    assert [True] == [each.detached for each in made]

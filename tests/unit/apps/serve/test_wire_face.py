"""Which operations of the wire clients on other machines may ask for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import busy
from leeward.wire.frames import FrameReader, decode, encode
from leeward.wire.requests import OPERATIONS

pytestmark = pytest.mark.needs("extra-serve")

#: What no such client may ask for: the daemon itself, what others do, and what needs descriptors.
REFUSED = {"shutdown", "recall", "egress_log", "egress_asks", "egress_answer", "sandbox_dock", "arena", "slot",
           "snapshot_export", "snapshot_read", "snapshot_import", "snapshot_write"}


def test_each_operation_is_judged():
    """A new one is refused until somebody has thought about it: here, and in the face."""
    from leeward.apps.serve.wire_face import ABOUT_SANDBOXES, ABOUT_SNAPSHOTS, COUNTED, PLAIN

    named = PLAIN | COUNTED | ABOUT_SANDBOXES | ABOUT_SNAPSHOTS | {"execute", "sandbox_list", "status"}

    assert REFUSED == OPERATIONS.keys() - named
    assert named <= OPERATIONS.keys()


def test_each_field_of_what_begins_is_judged():
    """A new field might name something of the server's user that isn't the tenant's: think about it in the face first."""
    whole = {op: set(OPERATIONS[op].checks) for op in ("sandbox_open", "session_open", "execute")}
    same = {"egress", "environment", "limits", "policy", "profile"}

    assert same | {"cwd", "dock", "env", "fetch_policy", "held", "hide", "home", "idle", "image", "lifetime", "metadata",
                   "mounts", "pin", "protect", "show_secrets", "sleeps", "user"} == whole["sandbox_open"]
    assert same | {"idle"} == whole["session_open"]
    assert same | {"args", "code", "collect", "display", "env", "files", "functions", "label", "module", "name", "session",
                   "stdin"} == whole["execute"]


def test_no_image_and_no_folder_is_a_tenants():
    async def test(played):
        for number, field in enumerate(({"image": "debian"}, {"mounts": [["/etc", "/etc", 0]]}, {"dock": 1}), 1):
            await played.says(id=number, op="sandbox_open", **field)
            assert "bad_request" == played.given[-1]["error"]["kind"]
        assert ["keep_results"] == played.ops()

    run(test)


def test_what_is_about_this_connection_names_no_sandbox():
    from leeward.apps.serve.wire_face import ABOUT_SANDBOXES, PLAIN

    assert not [op for op in PLAIN if "sandbox" in OPERATIONS[op].checks]
    assert ABOUT_SANDBOXES == {op for op in OPERATIONS if "sandbox" in OPERATIONS[op].checks}


def test_files_are_copied_from_ones_own_sandboxes_alone():
    """To the daemon all tenants are one user, who may name any sandbox as the source."""
    async def test(played):
        await played.says(id=1, op="sandbox_open")
        await played.answers(1, sandbox="a" * 26)
        asked = len(played.asked)
        for number, other in enumerate(("o" * 26, 7, ["a" * 26], ""), 2):
            await played.says(id=number, op="sandbox_copy", sandbox="a" * 26, source=other)
            assert "sandbox_over" == played.given[-1]["error"]["kind"]
        assert asked == len(played.asked)
        await played.says(id=10, op="sandbox_copy", sandbox="a" * 26, source="a" * 26)
        assert "a" * 26 == played.asked[-1]["source"]

    run(test, sandboxes=1)


def test_snapshots_are_their_tenants_alone():
    """To the daemon all tenants are one user, which may begin with any of its snapshots."""
    async def test(played):
        mine, other, box = "m" * 26, "o" * 26, {"sandbox": "a" * 26, "kernel": 1}
        await played.says(id=1, op="sandbox_open")
        await played.answers(1, sandbox="a" * 26)
        await played.says(id=2, op="kernel_snapshot", **box)
        await played.answers(2, snapshot=mine)
        asked = len(played.asked)
        for number, (op, fields) in enumerate((
                ("kernel_open", {"sandbox": "a" * 26}), ("kernel_rollback", box), ("snapshot_info", {}),
                ("snapshot_remove", {})), 3):
            await played.says(id=number, op=op, snapshot=other, **fields)
            assert "snapshot_failed" == played.given[-1]["error"]["kind"]
        assert asked == len(played.asked)
        await played.says(id=10, op="kernel_snapshot", **box)
        assert "busy" == played.given[-1]["error"]["kind"]
        await played.says(id=11, op="kernel_open", sandbox="a" * 26, snapshot=mine)
        assert mine == played.asked[-1]["snapshot"]
        await played.answers(11, kernel=2)
        await played.says(id=12, op="snapshot_list")
        await played.answers(12, snapshots=[{"snapshot": mine}, {"snapshot": other}])
        assert {"snapshots": [{"snapshot": mine}]} == played.given[-1]["ok"]
        await played.says(id=13, op="snapshot_list")
        await played.answers(13, snapshots=[{"snapshot": other}])
        await played.says(id=14, op="kernel_snapshot", **box)
        assert "kernel_snapshot" == played.asked[-1]["op"]
        await played.answers(14, snapshot="n" * 26)

    run(test, sandboxes=1)


class Played:
    """A connection of a client's to a daemon, both played, by a server whose turns the test gives."""

    def __init__(self, **quota):
        from leeward.apps.serve import wire_face
        from leeward.apps.serve.calls import Use
        from leeward.apps.serve.e2b.boxes import Boxes
        from leeward.apps.serve.sockets import SocketCall
        from leeward.apps.serve.tokens import ServeTenant, TenantQuota

        self.tenant, self.use = ServeTenant("one", "t1", TenantQuota(**quota)), Use()
        self.turn, self.turns, self.rows = asyncio.Event(), 0, []
        self._incoming, self.given, self.asked = asyncio.Queue(), [], []
        self._client, self._daemon = FrameReader(), FrameReader()
        self.reader = asyncio.StreamReader()
        options = SimpleNamespace(profile="", environment="")
        door = SimpleNamespace(options=options, regularly=[], tenant=lambda _: self.tenant, turn=self._turn,
                               tokens=SimpleNamespace(servers=1))
        door.boxes = Boxes(door)
        door.boxes._all = self._rows
        self.boxes = door.boxes
        call = SocketCall(None, self.tenant, self.use, self._incoming.get, self._send)
        self._connection = wire_face.WireConnection(wire_face.WireFace(door), door, call, self.reader, self)

    async def _rows(self):
        return self.rows

    @asynccontextmanager
    async def _turn(self, call):
        await self.turn.wait()
        self.turns += 1
        try:
            yield
        finally:
            self.turns -= 1

    async def _send(self, message):
        self.given += map(decode, self._client.feed(message["bytes"]))

    def write(self, data):
        self.asked += map(decode, self._daemon.feed(data))

    async def drain(self):
        pass

    async def says(self, **message):
        """A request of the client's."""
        await self._incoming.put({"type": "websocket.receive", "bytes": encode({"v": 1, **message})})
        await settled()

    async def answers(self, number, **ok):
        self.reader.feed_data(encode({"id": number, "ok": ok}))
        await settled()

    def ops(self):
        return [each["op"] for each in self.asked]

    async def run(self, test):
        running = asyncio.create_task(self._connection.run())
        await settled()
        await test(self)
        await self._incoming.put({"type": "websocket.disconnect"})
        await asyncio.gather(running, return_exceptions=True)
        await settled()
        use = self.use
        assert [0] * 5 == [use.streams, use.opening, use.snapshots, use.held, use.waiting]


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


def run(test, **quota):
    async def main():
        await Played(**quota).run(test)

    asyncio.run(main())


@pytest.mark.parametrize("fleet", [False, True])
def test_how_busy_the_daemon_is_only_a_fleet_may_ask(fleet):
    """It says how much other tenants do."""
    async def load():
        return {"queued": 3}

    async def test(played):
        played.tenant = played._connection._call.tenant = replace(played.tenant, fleet=fleet)
        played._connection._door.nodes = SimpleNamespace(load=load)
        await played.says(id=1, op="status")
        told = [each.get("ok") or each["error"]["kind"] for each in played.given]
        assert [{"queued": 3} if fleet else "forbidden"] == told
        assert ["keep_results"] == played.ops()  # none of it is forwarded

    run(test)


def test_requests_about_a_job_wait_for_its_turn_with_it():
    async def test(played):
        await played.says(id=1, op="execute", code=b"1")
        await played.says(id=2, op="function_take", target=1)
        await played.says(id=3, op="ping")
        assert ["keep_results", "ping"] == played.ops()
        played.turn.set()
        await settled()
        assert ["keep_results", "ping", "execute", "function_take"] == played.ops()
        await played.answers(1, stdout=b"")
        await played.answers(3)
        assert [1, 3] == [each["id"] for each in played.given]

    run(test)


def test_a_job_whose_session_is_null_is_any_other():
    """The daemon takes it for one: without its turn and the tenant's bounds it would be free."""
    async def test(played):
        await played.says(id=1, op="execute", code=b"1", session=None)
        await played.says(id=2, op="execute", code=b"1", session=None, egress="everything")
        assert ["keep_results"] == played.ops()
        assert [(2, "bad_request")] == [(each["id"], each["error"]["kind"]) for each in played.given]
        played.turn.set()
        await settled()
        await played.answers(1, stdout=b"")

    run(test)


def test_a_job_keeps_its_turn_when_a_request_about_it_is_refused():
    """Else who has as many calls under way as it may would run any number of jobs at once."""
    async def test(played):
        await played.says(id=1, op="execute", code=b"1")
        await played.says(id=2, op="function_take", target=1)
        await played.says(id=3, op="ping")
        played.turn.set()
        await settled()
        assert ["keep_results", "ping", "execute"] == played.ops()
        assert [(2, "busy")] == [(each["id"], each["error"]["kind"]) for each in played.given]
        assert 1 == played.turns
        await played.answers(1, stdout=b"")
        assert 0 == played.turns
        await played.answers(3)

    run(test, streams=2)


def test_jobs_that_wait_count_by_their_bytes():
    """As bodies of other calls do, and not only until they have come."""
    async def test(played):
        for number in range(1, 6):
            await played.says(id=number, op="execute", code=b"#" * 900)
        assert [(5, "busy")] == [(each["id"], each["error"]["kind"]) for each in played.given]
        played.turn.set()
        await settled()
        await played.answers(1, stdout=b"")
        await played.says(id=6, op="execute", code=b"#" * 900)
        assert 6 == played.asked[-1]["id"]

    run(test, body=1000)


def test_a_job_that_waits_is_taken_back():
    async def test(played):
        await played.says(id=1, op="execute", code=b"1")
        await played.says(id=2, op="output_take", target=1)
        await played.says(id=3, op="cancel", target=1)
        await settled()
        told = {each["id"]: each.get("ok") or each["error"]["kind"] for each in played.given}
        assert {1: "cancelled", 2: "bad_request", 3: {"cancelled": True}} == told
        assert ["keep_results"] == played.ops()

    run(test)


def test_sessions_count_until_they_are_closed():
    """And a number that is no session of this connection gives nothing back."""
    async def test(played):
        await played.says(id=1, op="session_open")
        await played.answers(1, session=7)
        await played.says(id=2, op="session_open")
        assert "busy" == played.given[-1]["error"]["kind"]
        for number, session in ((3, 8), (4, [7]), (5, 7)):
            await played.says(id=number, op="session_close", session=session)
            await played.answers(number)
            assert (1 if number < 5 else 0) == played.use.opening
        await played.says(id=6, op="session_open")
        await played.answers(6, session=9)

    run(test, sandboxes=1)


def test_what_was_refused_changes_nothing():
    """Neither what a later request of the same number counts for, nor what is known, nor how much may be opened."""
    async def test(played):
        mine, box = "m" * 26, {"sandbox": "a" * 26, "kernel": 1}
        await played.says(id=1, op="sandbox_open")
        await played.answers(1, sandbox="a" * 26)
        await played.says(id=2, op="kernel_snapshot", **box)
        await played.answers(2, snapshot=mine)
        await played.says(id=3, op="session_open")
        await played.answers(3, session=7)
        await played.says(id=4, op="session_open", snapshot="o" * 26)
        assert "snapshot_failed" == played.given[-1]["error"]["kind"]
        assert 1 == played.use.opening
        await played.says(id=5, op="ping")
        for number, (op, fields) in enumerate((("session_close", {"session": 7}), ("snapshot_remove", {"snapshot": mine}),
                                               ("snapshot_list", {})), 6):
            await played.says(id=number, op=op, **fields)
            assert "busy" == played.given[-1]["error"]["kind"]
        await played.answers(5)
        for number in (6, 7, 8):
            await played.says(id=number, op="ping")
            await played.answers(number)
        assert (1, {mine: "t1"}) == (played.use.opening, played._connection._face.snapshots)

    run(test, sandboxes=3, streams=1)


def test_snapshots_count_from_their_request_until_the_daemon_has_none():
    async def test(played):
        known, box = played._connection._face.snapshots, {"sandbox": "a" * 26, "kernel": 1}
        await played.says(id=1, op="sandbox_open")
        await played.answers(1, sandbox="a" * 26)
        for number in (2, 3):
            await played.says(id=number, op="kernel_snapshot", **box)
        assert ("busy", 3) == (played.given[-1]["error"]["kind"], len(played.asked))
        await played.answers(2, snapshot="m" * 26)
        for number, kind in ((4, "busy"), (5, "snapshot_failed")):
            await played.says(id=number, op="snapshot_remove", snapshot="m" * 26)
            played.reader.feed_data(encode({"id": number, "error": {"kind": kind, "message": "no"}}))
            await settled()
            assert (kind == "busy") == bool(known)
        await played.says(id=6, op="kernel_snapshot", **box)
        assert "kernel_snapshot" == played.asked[-1]["op"]

    run(test, sandboxes=1)


def test_a_sandbox_whose_client_goes_before_the_answer_is_asked_for():
    """The daemon may have opened it, and it counts."""
    found = []

    async def test(played):
        await played.says(id=1, op="sandbox_open")
        found.append(played._connection._door.boxes)
        assert found[0]._doubted_at < 0

    run(test)
    assert found[0]._doubted_at > 0


def test_metadata_are_marked_on_their_way_and_bare_on_the_way_back():
    async def test(played):
        await played.says(id=1, op="sandbox_open", metadata={"serve.tenant": "forged"})
        assert {"own.serve.tenant": "forged", "serve.tenant": "t1"} == played.asked[-1]["metadata"]
        await played.answers(1, sandbox="a" * 26)
        await played.says(id=2, op="sandbox_info", sandbox="a" * 26)
        await played.answers(2, metadata={"own.a": "b", "serve.tenant": "t1"}, left=1.0)
        assert {"metadata": {"a": "b"}, "left": 1.0} == played.given[-1]["ok"]
        await played.says(id=3, op="sandbox_extend", sandbox="a" * 26, metadata={"serve.tenant": "forged"})
        assert "bad_request" == played.given[-1]["error"]["kind"]
        assert "sandbox_info" == played.asked[-1]["op"]

    run(test)


@pytest.mark.parametrize("message", [
    {"id": 0, "op": "ping"}, {"id": 2**53 - 1, "op": "ping"}, {"id": "x", "op": "ping"}, {"op": "ping"}, {"id": 1},
    {"id": 1, "op": ["x"]}])
def test_what_is_no_request_ends_the_connection(message):
    async def test(played):
        await played.says(**message)
        await settled()
        assert ["keep_results"] == played.ops()
        assert [] == played.given

    run(test)


def test_a_sandbox_beyond_the_quota_of_all_servers_is_refused():
    """It was within this one's, and another server has opened one meanwhile."""
    async def test(played):
        async def check_count(tenant, sandbox):
            assert (played.tenant, "a" * 26) == (tenant, sandbox)
            raise busy("too many")

        played.boxes.check_count = check_count
        await played.says(id=1, op="sandbox_open")
        await played.answers(1, sandbox="a" * 26)
        assert ["busy"] == [each["error"]["kind"] for each in played.given]

    run(test)

"""`leeward serve --fleet`: one daemon on this host and one behind another `leeward serve`, with two servers before them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.served import Served
from kit.waiting import poll_until
from leeward.apps.fleet.fleet import Fleet
from leeward.apps.serve.nodes import mark_of

pytestmark = pytest.mark.needs("extra-serve", "extra-mcp")

LETTERS = 26
FACES = ("e2b", "run-code", "mcp", "ports")
NEAR, FAR = "near", "far"
ASKS = "a fleet asks its nodes each second"


class Place:
    """The nodes, the server on the second one's machine, and the options of a server before both."""

    def __init__(self, folder, stack):
        self.daemons = {name: stack.enter_context(daemon(folder / name)) for name in (NEAR, FAR)}
        self.node = stack.enter_context(Served(self.daemons[FAR].socket, folder / "node", "leeward"))
        self.gateway = self.node.new_token("gateway", "--fleet")
        config = folder / "config" / "leeward"
        config.mkdir(parents=True)
        (config / "fleet.toml").write_text(
            f'nodes = [{{address = "unix:{self.daemons[NEAR].socket}", name = "{NEAR}"}},'
            f' {{address = "{self.node.url}", name = "{FAR}", token = "{self.gateway}"}}]\n')
        (config / "fleet.toml").chmod(0o600)
        self.env = {"XDG_CONFIG_HOME": str(folder / "config"), "LEEWARD_FLEET": ""}
        self.metrics = str(folder / "metrics")
        self.other = stack.enter_context(Served(folder / "none", folder / "served", *FACES, "--fleet", **self.env))
        self.served = self.other.again()
        self.served._arguments += ("--metrics", self.metrics)
        stack.enter_context(self.served)

    def nodes(self):
        return [{"address": f"unix:{self.daemons[NEAR].socket}", "name": NEAR},
                {"address": self.node.url, "name": FAR, "token": self.gateway}]


@contextlib.contextmanager
def daemon(folder):
    folder.mkdir()
    (folder / "c.toml").write_text("pool_size = 2\nmax_sessions = 6\n")
    (folder / "c.toml").chmod(0o600)
    with LiveDaemon(folder, "--config", str(folder / "c.toml")) as made:
        yield made


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield Place(tmp_path_factory.mktemp("fleet"), stack)


@pytest.fixture(autouse=True)
def all_ended(place):
    """No test leaves a sandbox or a drain."""
    yield
    with Fleet(place.nodes()) as fleet:
        for each in place.daemons.values():
            with Fleet([f"unix:{each.socket}"]) as one:
                one.undrain(str(each.socket))
            for row in leeward.Sandbox.list(socket=each.socket):
                with contextlib.suppress(leeward.SandboxOver):  # a server may have ended it meanwhile
                    leeward.Sandbox.attach(row["sandbox"], socket=each.socket).close()
        poll_until(lambda: {"up"} == {row["standing"] for row in fleet.status()["nodes"]}, ASKS)


def opened(served, token=None, **options):
    status, row = served.ask("POST", "/sandboxes", {"timeout": 100, **options}, token)
    assert 201 == status, row
    return row


def node_of(box):
    return {mark_of(name): name for name in (NEAR, FAR)}[box["sandboxID"][LETTERS:]]


def on(served, name, token=None):
    """A sandbox on the node of this name."""
    while name != node_of(box := opened(served, token)):
        pass
    return box


def shows(box):
    return {"E2b_Sandbox_Id": box["sandboxID"], "X_Access_Token": box["envdAccessToken"]}


def written(served, box, content):
    with served.asked("POST", "/files?path=f", content, "", Content_Type="application/octet-stream", **shows(box)) as answer:
        assert 200 == answer.status, answer.read()


def read(served, box):
    with served.asked("GET", "/files?path=f", token="", **shows(box)) as answer:
        return answer.status, answer.read()


def run(served, code, token=None, **headers):
    return served.ask("POST", "/run_code", {"language": "python", "code": code}, token, **headers)


def test_sandboxes_are_on_both_nodes_and_found_by_any_server(place):
    boxes = [opened(place.served) for _ in range(4)]
    try:
        assert {NEAR, FAR} == set(map(node_of, boxes))
        for number, box in enumerate(boxes):
            written(place.served, box, str(number).encode())
        assert [(200, str(number).encode()) for number in range(4)] == [read(place.other, box) for box in boxes]
        listed = {each["sandboxID"] for each in place.other.ask("GET", "/sandboxes")[1]}
        assert {box["sandboxID"] for box in boxes} == listed
    finally:
        assert {204} == {place.other.ask("DELETE", f"/sandboxes/{box['sandboxID']}")[0] for box in boxes}


def test_jobs_are_on_both_nodes(place):
    def done():
        found = []
        for each in place.daemons.values():
            with leeward.Client(each.socket) as client:
                found.append(client.status()["jobs"]["done"])
        return found

    before = done()
    with ThreadPoolExecutor() as threads:
        rows = list(threads.map(lambda _: run(place.served, "import time; time.sleep(0.3); print(6 * 7)"), range(4)))
    assert [(200, "42\n")] * 4 == [(status, row["run_result"]["stdout"]) for status, row in rows]
    assert [2, 2] == [now - then for now, then in zip(done(), before, strict=True)]


@pytest.mark.parametrize("name", [NEAR, FAR])
def test_a_server_in_a_sandbox_is_reached_by_any_server(place, name):
    box = on(place.served, name)
    with contextlib.closing(leeward.Sandbox.attach(box["sandboxID"][:LETTERS], socket=place.daemons[name].socket)) as there:
        process = there.start(["python3", "-u", "-m", "http.server", "3000", "--bind", "127.0.0.1"])
        process.read(PATIENCE)

        def served():
            with place.other.asked("GET", f"/ports/{box['sandboxID']}/3000/", token="", Host="localhost") as answer:
                return answer.status == 200 and b"Directory listing" in answer.read()

        poll_until(served, "callers without a token are judged by a list that is used again for a second")


def test_an_agents_sandbox_is_on_some_node_and_keeps_its_state(place):
    """Also where the next call is another server's."""
    def shell(served, command):
        row = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run_shell", "arguments": {"command": command, "sandbox": "mine"},
            "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                      "io.modelcontextprotocol/clientCapabilities": {}}}}
        status, said = served.ask("POST", "/mcp", row, Accept="application/json, text/event-stream",
                                  Content_Type="application/json", MCP_Protocol_Version="2026-07-28",
                                  MCP_Method="tools/call", MCP_Name="run_shell")
        assert 200 == status, said
        return said["result"]["content"][0]["text"]

    shell(place.served, "echo kept >f")
    assert "kept" in shell(place.other, "cat f")


def test_another_tenants_sandbox_is_named_on_no_node(place):
    """By no form of its id, and with no token; the control: its owner can."""
    alice, mallory = place.served.new_token("alice"), place.served.new_token("mallory")
    theirs = [on(place.served, name, alice) for name in (NEAR, FAR)]
    own = opened(place.served, mallory)
    for box in theirs:
        number = box["sandboxID"][:LETTERS]
        names = {box["sandboxID"], number, *(number + mark_of(name) for name in (NEAR, FAR)), number + "a" * 8,
                 f"{NEAR}/{number}", f"{FAR}%2F{number}", number + own["sandboxID"][LETTERS:]}
        for served in (place.served, place.other):
            for identity in names:
                assert 404 == served.ask("GET", f"/sandboxes/{identity}", token=mallory)[0], identity
                assert 404 == served.ask("DELETE", f"/sandboxes/{identity}", token=mallory)[0], identity
                with served.asked("GET", "/files?path=f", token="", **{
                        **shows(own), "E2b_Sandbox_Id": identity}) as answer:
                    assert 401 == answer.status, identity
            assert [own["sandboxID"]] == [each["sandboxID"] for each in served.ask("GET", "/sandboxes", token=mallory)[1]]
            assert 200 == served.ask("GET", f"/sandboxes/{box['sandboxID']}", token=alice)[0]


def test_a_nodes_own_tenants_and_a_server_before_it_see_none_of_each_others(place):
    box = on(place.served, FAR)
    number = box["sandboxID"][:LETTERS]
    mallory = leeward.RemoteHost(place.node.url, place.node.new_token("mallory"))
    gateway = leeward.RemoteHost(place.node.url, place.gateway)
    with leeward.Sandbox(socket=mallory) as own:
        own.shell("true")
        assert [own.id] == [row["sandbox"] for row in leeward.Sandbox.list(socket=mallory)]
        assert number in {row["sandbox"] for row in leeward.Sandbox.list(socket=gateway)}
        with pytest.raises(leeward.SandboxOver):
            leeward.Sandbox.attach(number, socket=mallory).shell("true")
        assert 404 == place.served.ask("GET", f"/sandboxes/{own.id}{mark_of(FAR)}")[0]
    with leeward.Client(mallory) as client, pytest.raises(leeward.Forbidden):
        client.status()
    with leeward.Client(gateway) as client:
        assert {"workers", "queued", "sandboxes", "sessions", "max_sessions"} == client.status().keys()


def test_a_node_that_drains_has_nothing_new(place):
    """And what is open there ends with its reason, which names no node."""
    far = on(place.served, FAR)
    with Fleet([f"unix:{place.daemons[FAR].socket}"]) as there, Fleet(place.nodes()) as fleet:
        with pytest.raises(leeward.RequestRejected, match="drained on its own machine"):
            fleet.drain(FAR, 1)
        there.begin_drain(str(place.daemons[FAR].socket), 2.0)
        poll_until(lambda: "draining" in {row["standing"] for row in fleet.status()["nodes"]}, ASKS)
        poll_until(lambda: b'leeward_fleet_up{node="far"} 0' in metrics(place), ASKS)
        assert {NEAR} == {node_of(opened(place.served)) for _ in range(3)}
        poll_until(lambda: 404 == place.served.ask("GET", f"/sandboxes/{far['sandboxID']}")[0], ASKS)


def metrics(place):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(place.metrics)
    connection.request("GET", "/metrics")
    with contextlib.closing(connection):
        return connection.getresponse().read()


def test_nodes_without_room_are_429_with_the_reason_and_when_to_ask_again(place):
    token = place.served.new_token("many", "--quota", "sandboxes=100")
    for _ in range(50):
        if 201 != place.served.ask("POST", "/sandboxes", {"timeout": 100}, token)[0]:
            break
    with place.served.asked("POST", "/sandboxes", {"timeout": 100}, token) as answer:
        said = json.loads(answer.read())
        assert (429, "1") == (answer.status, answer.headers["Retry-After"])
        assert "no node has room (full: 2)" in said["message"]


def test_a_call_that_is_repeated_runs_once(place):
    """For the same tenant, key and body; the control: without a key it runs again."""
    code, other = "import os; print(os.urandom(8).hex())", place.served.new_token("other")
    first, again = (run(place.served, code, Idempotency_Key="k1") for _ in range(2))

    assert (200, 200) == (first[0], again[0])
    assert first[1] == again[1]
    assert first[1]["run_result"]["stdout"] not in {
        run(place.served, code)[1]["run_result"]["stdout"],
        run(place.served, code, Idempotency_Key="k2")[1]["run_result"]["stdout"],
        run(place.served, code, other, Idempotency_Key="k1")[1]["run_result"]["stdout"]}
    assert 422 == run(place.served, "print(1)", Idempotency_Key="k1")[0]


def test_health_is_for_everybody(place):
    with urllib.request.urlopen(f"{place.served.url}/leeward/health", timeout=PATIENCE) as answer:
        assert {"healthy": True} == json.loads(answer.read())


def test_the_figures_have_each_node(place):
    box = on(place.served, FAR)
    written(place.served, box, b"x")
    text = metrics(place).decode()
    for name in (NEAR, FAR):
        assert f'leeward_fleet_up{{node="{name}"}} 1' in text
        assert f'leeward_fleet_workers{{node="{name}"}} 2' in text
    assert "leeward_fleet_waiting_per_worker " in text
    assert 'leeward_serve_calls_total{tenant="one"' in text


def test_a_node_that_is_lost_costs_what_is_there_alone(tmp_path):
    """Its sandbox is over with the reason, at every server, and there is no blank one in its place."""
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path, stack)
        near, far = (on(place.served, name) for name in (NEAR, FAR))
        written(place.served, near, b"near")
        written(place.served, far, b"far")
        place.node.end()
        poll_until(lambda: b'leeward_fleet_up{node="far"} 0' in metrics(place), ASKS)
        status, said = place.served.ask("GET", f"/sandboxes/{far['sandboxID']}")
        assert (404, "node_lost: the sandbox's node doesn't answer any more") == (status, said["message"])
        assert read(place.other, far)[0] in (404, 502)
        assert (200, b"near") == read(place.served, near)
        assert "42\n" == run(place.served, "print(42)")[1]["run_result"]["stdout"]
        assert {NEAR} == {node_of(opened(place.served)) for _ in range(2)}
        assert FAR not in json.dumps(said)
